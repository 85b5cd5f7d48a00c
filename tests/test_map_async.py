"""``AsyncRun.map``: tasks instead of threads, the same rules."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import random

import pytest
from loops import no_blocking_calls  # noqa: F401 - a fixture

from agent_resume import AsyncCheckpoint, DuplicateStep, RunCancelled, RunPaused, agent_run, current_step


async def square(n: int) -> int:
    await asyncio.sleep(random.uniform(0, 0.005))
    return n * n


async def test_outcomes_come_in_order_and_finished_items_are_skipped(db):
    async with AsyncCheckpoint("r", db=db) as run:
        outcomes = [o async for o in run.map("m", square, range(30), concurrency=5)]
        assert [(o.value, o.cached, o.attempts) for o in outcomes] == [(n * n, False, 1) for n in range(30)]
    async with AsyncCheckpoint("r", db=db) as run:
        outcomes = [o async for o in run.map("m", square, range(31))]
        assert [o.cached for o in outcomes] == [True] * 30 + [False]


async def test_items_may_come_from_an_asynchronous_generator(db):
    async def items():
        for n in range(10):
            await asyncio.sleep(0)
            yield n

    async def body(run):
        return [o.value async for o in run.map("m", lambda n: n + 1, items())]

    assert await agent_run("a", body, db=db) == list(range(1, 11))


async def test_no_more_than_concurrency_at_once(db):
    now, most = 0, 0

    async def fn(n):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.002)
        now -= 1

    async with AsyncCheckpoint("r", db=db) as run:
        async for _ in run.map("m", fn, range(40), concurrency=3):
            pass
    assert most == 3


async def test_raise_lets_those_in_flight_end_and_raises_the_first_in_order(db):
    late = asyncio.Event()
    called = []

    async def fn(n):
        called.append(n)
        if n == 1:
            await late.wait()
            raise ValueError("first in order")
        if n == 3:
            late.set()
            raise ValueError("first in time")
        return n

    async with AsyncCheckpoint("r", db=db) as run:
        outcomes = run.map("m", fn, itertools.count(), concurrency=4)
        assert (await anext(outcomes)).value == 0
        with pytest.raises(ValueError, match="first in order"):
            async for _ in outcomes:
                pass
        states = {step.name: step.status for step in await run.timeline()}
    assert len(called) < 40
    assert "running" not in states.values()


async def test_collect_and_duplicates(db):
    def fn(n):
        if n % 2:
            raise ValueError(n)
        return n

    async with AsyncCheckpoint("r", db=db) as run:
        outcomes = [o async for o in run.map("m", fn, range(4), on_error="collect")]
        assert [o.ok for o in outcomes] == [True, False, True, False]
        with pytest.raises(DuplicateStep):
            async for _ in run.map("d", square, [1, 2, 1], on_error="collect"):
                pass


async def test_a_cancelled_map_cancels_what_is_in_flight(db):
    begun = asyncio.Event()

    async def slow(n):
        begun.set()
        await asyncio.sleep(60)

    async with AsyncCheckpoint("r", db=db) as run:

        async def consume():
            async for _ in run.map("m", slow, range(100), concurrency=4):
                pass

        task = asyncio.create_task(consume())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert {step.status for step in await run.timeline()} == {"interrupted"}


async def test_left_early_it_lets_those_in_flight_end(db):
    async with AsyncCheckpoint("r", db=db) as run:
        async with contextlib.aclosing(run.map("m", square, itertools.count(), concurrency=4)) as outcomes:
            async for outcome in outcomes:
                if outcome.value == 9:
                    break
        statuses = [step.status for step in await run.timeline()]
    assert len(statuses) < 40
    assert set(statuses) == {"completed"}


async def test_pause_and_cancellation_end_it_in_every_mode(db):
    async with AsyncCheckpoint("r", db=db) as run:
        with pytest.raises(RunPaused):
            async for _ in run.map("m", lambda n: run.pause("ok?"), range(3), on_error="collect"):
                pass
    async with AsyncCheckpoint("r2", db=db) as run:
        with pytest.raises(RunCancelled):
            async for _ in run.map("m", lambda n: run.cancel(), range(3), on_error="collect"):
                pass


async def test_the_loop_goes_on_while_finished_items_are_handed_out(db):
    async with AsyncCheckpoint("r", db=db) as run:
        async for _ in run.map("m", int, range(300)):
            pass
    ticks = 0

    async def ticker():
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    watching = asyncio.create_task(ticker())
    async with AsyncCheckpoint("r", db=db) as run:
        begun = ticks
        async for outcome in run.map("m", int, range(300)):
            assert outcome.cached
        assert ticks > begun + 3
    watching.cancel()


async def test_tasks_run_in_the_callers_context_and_know_their_step(db):
    where = contextvars.ContextVar("where", default="nowhere")

    async def fn(n):
        seen = where.get(), current_step().key
        where.set("changed")
        return seen

    async with AsyncCheckpoint("r", db=db) as run:
        where.set("here")
        values = [o.value async for o in run.map("m", fn, range(5))]
    assert values == [("here", f"m[{n}]") for n in range(5)]
    assert where.get() == "here"


async def test_a_key_that_raises_stop_async_iteration_does_not_end_the_items(db):
    def key(n):
        if n == 2:
            raise StopAsyncIteration
        return n

    async with AsyncCheckpoint("r", db=db) as run:
        with pytest.raises(RuntimeError) as caught:
            [o async for o in run.map("m", square, [1, 2, 3], key=key)]
    assert isinstance(caught.value.__cause__, StopAsyncIteration)
