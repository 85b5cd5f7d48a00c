"""Cancelling: a task, a run; and what leaves a step that is neither a result nor a failure."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from loops import blocking_allowed, no_blocking_calls  # noqa: F401 - a fixture
from test_crash_interrupts import InterruptAt

from agent_resume import (
    AsyncCheckpoint,
    Checkpoint,
    RunCancelled,
    StepInDoubt,
    Store,
    agent_run,
    cancel,
    list_runs,
    load_run,
)


def statuses(db, run_id="r"):
    with blocking_allowed():
        return {step.name: step.status for step in load_run(run_id, db=db).steps}


# -- tasks -----------------------------------------------------------------------------------------------------------


async def test_case_041_cancellation_reaches_the_awaiter_and_is_no_result(db):
    calls = []
    begun = asyncio.Event()

    async def slow():
        calls.append("slow")
        begun.set()
        await asyncio.sleep(0 if len(calls) > 1 else 30)
        return "slow"

    async def body(run):
        await run.step("slow", slow)
        return await run.step("next", lambda: calls.append("next"))

    task = asyncio.create_task(agent_run("a", body, db=db, run_id="r"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert statuses(db) == {"slow": "interrupted"}
    with blocking_allowed():
        assert load_run("r", db=db).status == "interrupted"
    await agent_run("a", body, db=db, run_id="r")
    assert calls == ["slow", "slow", "next"]


async def test_a_timeout_around_a_step_cancels_it_and_the_next_try_works(db):
    async with AsyncCheckpoint("r", db=db) as run:
        await run.step("warm", lambda: 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await run.step("s", asyncio.sleep, 30)
        assert await run.step("s", asyncio.sleep, 0, "done", on_change="rerun") == "done"


@pytest.mark.filterwarnings("ignore::agent_resume.DuplicateStepWarning")  # each is asked for again at the end
async def test_random_cancellations_leave_each_step_stored_or_not_at_all(db):
    # The long form is scripts/real-agents cancel.
    rng = random.Random(5)
    done: set[str] = set()

    async def work(name):
        await asyncio.sleep(rng.choice([0, 0, 0.001, 0.003]))
        done.add(name)
        return name

    async with AsyncCheckpoint("other", db=db) as other, AsyncCheckpoint("r", db=db) as run:
        await run.step("warm", lambda: 1)
        outcomes = {}
        for n in range(60):
            name = f"s{n}"
            task = asyncio.create_task(run.step(name, work, name))
            await asyncio.sleep(rng.uniform(0, 0.006))
            task.cancel()
            try:
                outcomes[name] = await task
            except asyncio.CancelledError:
                outcomes[name] = None
            if n % 10 == 0:
                assert await asyncio.wait_for(other.step(f"o{n}", int, n), 20) == n
        stored = {step.name: step for step in await run.timeline()}
        for name, outcome in outcomes.items():
            if outcome is not None:
                assert stored[name].output == name
            elif name in stored:
                assert stored[name].status in ("completed", "interrupted")
                assert (stored[name].status == "completed") <= (name in done)
        # Nothing is left in flight: every one of them can be had now.
        for name in outcomes:
            assert await run.step(name, work, name) == name


async def test_cancelled_while_its_result_is_committed_a_step_is_stored(db):
    async with AsyncCheckpoint("r", db=db) as run:
        await run.step("warm", lambda: 1)
        task = None

        async def last():
            asyncio.get_running_loop().call_soon(task.cancel)
            return "value"

        async def cancelled_now():
            return await run.step("s", last)

        task = asyncio.create_task(cancelled_now())
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await run.get_step_result("s") == "value"


async def test_a_cancelled_once_step_is_in_doubt(db):
    async with AsyncCheckpoint("r", db=db) as run:
        begun = asyncio.Event()

        async def pay():
            begun.set()
            await asyncio.sleep(30)

        task = asyncio.create_task(run.step("pay", pay, effect="once"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(StepInDoubt):
            await run.step("pay", pay, effect="once")


async def test_cancelled_before_its_function_was_called_a_once_step_is_not_in_doubt(db):
    async with AsyncCheckpoint("r", db=db) as run:
        await run.step("warm", lambda: 1)
        task = asyncio.create_task(run.step("pay", lambda: "paid", effect="once"))
        await asyncio.sleep(0)  # begun: its claim is queued
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await run.step("pay", lambda: "paid", effect="once") == "paid"


async def test_cancelled_while_the_run_is_opened_it_is_let_go_of(db):
    async def body(run):
        return await run.step("s", lambda: 1)

    for delay in (0, 0, 0.001, 0.002, 0.005):
        task = asyncio.create_task(agent_run("a", body, db=db, run_id="r"))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.wait([task])
    assert await agent_run("a", body, db=db, run_id="r") == 1


# -- runs ------------------------------------------------------------------------------------------------------------


def test_a_cancelled_run_stops_at_its_next_step_and_keeps_what_was_in_flight(db):
    called = []

    def body(run):
        run.step("first", lambda: cancel("r", db=db))
        run.step("second", lambda: called.append(2))

    with pytest.raises(RunCancelled):
        agent_run("a", body, db=db, run_id="r")
    assert not called
    state = load_run("r", db=db)
    assert state.status == "cancelled"
    assert [(step.name, step.status) for step in state.steps] == [("first", "completed")]
    with pytest.raises(RunCancelled):
        agent_run("a", body, db=db, run_id="r")
    # By name it is not resumed either.
    assert agent_run("a", lambda run: run.id, db=db) != "r"


@pytest.mark.parametrize("failing", [False, True])
def test_a_run_that_was_cancelled_from_outside_is_let_go_of(db, failing):
    def body(run):
        run.step("first", lambda: cancel("r", db=db))
        if failing:
            raise LookupError
        run.step("second", int)

    with pytest.raises(LookupError if failing else RunCancelled):
        agent_run("a", body, db=db, run_id="r")
    with Store(db) as store:
        assert store.run_row("r").owner_token is None


def test_a_run_that_was_paused_behind_its_back_is_let_go_of(db):
    def body(run):
        with Checkpoint("r", db=db) as other, pytest.raises(BaseException):
            other.pause("ok?")
        raise LookupError

    with pytest.raises(LookupError):
        agent_run("a", body, db=db, run_id="r")
    with Store(db) as store:
        assert (store.run_row("r").status, store.run_row("r").owner_token) == ("paused", None)


def test_a_run_that_cancels_itself_stops_there(db):
    def body(run):
        run.step("first", lambda: 1)
        try:
            run.cancel()
        except Exception:
            pytest.fail("an ordinary handler swallowed it")
        run.step("second", lambda: pytest.fail("called"))

    with pytest.raises(RunCancelled):
        agent_run("a", body, db=db, run_id="r")
    assert load_run("r", db=db).status == "cancelled"


def test_a_body_that_swallows_the_cancellation_gets_no_further_step(db):
    def body(run):
        try:
            run.cancel()
        except BaseException:
            pass
        with pytest.raises(RunCancelled):
            run.step("second", lambda: pytest.fail("called"))

    with pytest.raises(RunCancelled):
        agent_run("a", body, db=db, run_id="r")


async def test_an_asynchronous_run_cancels_itself_too(db):
    async def body(run):
        await run.step("first", lambda: 1)
        await run.cancel()

    with pytest.raises(RunCancelled):
        await agent_run("a", body, db=db, run_id="r")


@pytest.mark.parametrize("waiting", ["wait", "sleep", "retry"])
def test_a_cancelled_run_leaves_its_waits_soon(db, waiting):
    from agent_resume import Retry

    def fails():
        raise OSError

    def body(run):
        run.step("begin", lambda: 1)
        if waiting == "wait":
            run.wait("answer")
        elif waiting == "sleep":
            run.sleep("nap", 60)
        else:
            run.step("s", fails, retry=Retry(wait=50, jitter=0))

    ended = []

    def agent():
        try:
            agent_run("a", body, db=db, run_id="r")
        except RunCancelled:
            ended.append("cancelled")

    thread = threading.Thread(target=agent)
    thread.start()
    with Store(db) as store:
        while not (store.exists() and any(s.name == "begin" and s.status == "completed" for s in _steps(store))):
            time.sleep(0.02)
    cancel("r", db=db)
    thread.join(30)
    assert ended == ["cancelled"]


def _steps(store):
    from agent_resume import RunNotFound

    try:
        return store.load_run("r").steps
    except RunNotFound:
        return ()


async def test_other_tasks_in_flight_are_still_stored_when_the_run_is_cancelled(db):
    release = asyncio.Event()
    begun = asyncio.Event()

    async def slow():
        begun.set()
        await release.wait()
        return "kept"

    async with AsyncCheckpoint("r", db=db) as run:
        task = asyncio.create_task(run.step("slow", slow))
        await begun.wait()
        with pytest.raises(RunCancelled):
            await run.cancel()
        release.set()
        assert await task == "kept"
    assert statuses(db) == {"slow": "completed"}


# -- what leaves a step ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_case_040_what_leaves_a_step_passes_through_and_is_no_outcome(db, error):
    def leave():
        raise error

    with pytest.raises(type(error)) as caught:
        agent_run("a", lambda run: run.step("s", leave), db=db, run_id="r")
    assert caught.value is error
    state = load_run("r", db=db)
    assert state.status == "interrupted"
    assert [step.status for step in state.steps] == ["interrupted"]
    assert [run.shown_status for run in list_runs(db=db)] == ["interrupted"]
    assert agent_run("a", lambda run: run.step("s", lambda: 1), db=db, run_id="r") == 1


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()], ids=repr
)
def test_case_040_in_a_coroutine_too(db, error):
    async def leave():
        raise error

    async def body(run):
        await run.step("s", leave)

    with pytest.raises(type(error)), blocking_allowed():  # a body left by GeneratorExit may be one that is thrown away
        asyncio.run(agent_run("a", body, db=db, run_id="r"))
    state = load_run("r", db=db)
    assert state.status == "interrupted"
    assert [step.status for step in state.steps] == ["interrupted"]


def _interrupt_each_line(db):
    """KeyboardInterrupt at each line of the flows and their driver, on its way through one step; the lines it took."""

    class InFlows(InterruptAt):
        def __call__(self, frame, kind, argument):
            return super().__call__(frame, kind, argument) if "/run" in frame.f_code.co_filename else None

    line = 0
    with Checkpoint("r", db=db) as run:
        run.step("warm", lambda: 1)
        while True:
            line += 1
            name = f"s{line}"
            interrupt = InFlows(line)
            with contextlib.suppress(KeyboardInterrupt), interrupt:
                run.step(name, str, name)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert run.step(name, str, name) == name
            if interrupt.lines < line:
                return line


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # interrupted in a finalizer
def test_an_interrupt_at_any_line_of_a_flow_leaves_nothing_in_flight(db):
    """As a signal would. The lines of the doors have their own test."""
    # In a thread of its own: what a tracer raises while CPython leaves a handler (a signal cannot) stays behind as the
    # exception that is being handled, for as long as the thread lives.
    with ThreadPoolExecutor(1) as thread:
        lines = thread.submit(_interrupt_each_line, db).result()
    assert lines > 100
    done = [event.step_key for event in Store(db).events("r") if event.type == "done"]
    assert len(done) == len(set(done)), "a stored step was called again"
