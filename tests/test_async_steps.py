"""Steps of coroutines: what may be a step, which loops they run on, and that the loop never waits for the database."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import signal
import sqlite3
import threading
import time

import pytest
from loops import blocking_allowed, no_blocking_calls  # noqa: F401 - a fixture

from agent_resume import (
    AsyncCheckpoint,
    AsyncRun,
    Checkpoint,
    DuplicateStep,
    InvalidTransition,
    OutputNotStorable,
    RunInUse,
    StepInFlight,
    agent_run,
    aio_calls,
    current_step,
    database_batch,
    load_run,
)


def boom(*_: object) -> None:
    raise AssertionError("called again")


async def double(n: int) -> int:
    await asyncio.sleep(0)
    return n * 2


class Callable:
    async def __call__(self, n: int) -> int:
        return await double(n)


STEPS = {
    "a coroutine function": (double, 21),
    "a plain function": (lambda n: n * 2, 21),
    "a lambda that returns an awaitable": (lambda: double(21),),
    "a partial": (functools.partial(double, 21),),
    "a callable object": (Callable(), 21),
    "a function that returns a future": (lambda: asyncio.ensure_future(double(21)),),
}


@pytest.mark.filterwarnings("ignore::agent_resume.AgentResumeWarning")  # boom has other code and inputs
@pytest.mark.parametrize("what", STEPS)
async def test_anything_that_can_be_awaited_or_called_is_a_step(db, what):
    fn, *args = STEPS[what]

    async def body(run):
        return await run.step("s", fn, *args)

    assert await agent_run("a", body, db=db, run_id="r") == 42
    async with AsyncCheckpoint("r", db=db) as run:
        assert await run.step("s", boom, *args) == 42


async def test_a_resumed_run_returns_the_same_without_a_call(db):
    calls = []

    async def body(run, crash):
        values = await asyncio.gather(*(run.step(f"s{n}", note, n) for n in range(5)))
        large = await run.step("large", lambda: "x" * 5000)
        if crash:
            raise RuntimeError("crash")
        return [*values, len(large)]

    async def note(n):
        calls.append(n)
        return (n, {"n": n})

    with pytest.raises(RuntimeError):
        await agent_run("a", functools.partial(body, crash=True), db=db)
    assert await agent_run("a", functools.partial(body, crash=False), db=db) == [(n, {"n": n}) for n in range(5)] + [
        5000
    ]
    assert sorted(calls) == list(range(5))


def test_case_013_synchronous_calls_inside_a_running_loop_work(db):
    async def main():
        run = Checkpoint("r", db=db)
        run.record("k", 1)
        assert run.step("s", lambda: 1) == 1
        run.close()

    # The synchronous interface blocks, loop or not, as any synchronous call does; only that is allowed here.
    with blocking_allowed():
        asyncio.run(asyncio.wait_for(main(), 20))
    assert [step.name for step in load_run("r", db=db).steps] == ["k", "s"]


def test_case_014_one_run_serves_several_loops_threads_and_plain_code(db):
    with Checkpoint("r", db=db) as sync:
        run = AsyncRun(sync._core)

        async def part(name):
            return await run.step(name, double, 1)

        assert asyncio.run(part("first")) == 2
        assert asyncio.run(part("second")) == 2
        results = []
        thread = threading.Thread(target=lambda: results.append(asyncio.run(part("third"))))
        thread.start()
        thread.join()
        assert results == [2]
        assert sync.step("sync", lambda: 3) == 3
    assert {step.name for step in load_run("r", db=db).steps} == {"first", "second", "third", "sync"}


def test_two_loops_at_once_share_one_run(db):
    with Checkpoint("r", db=db) as sync:
        run = AsyncRun(sync._core)

        async def many(prefix):
            return await asyncio.gather(*(run.step(f"{prefix}{n}", double, n) for n in range(50)))

        results = {}
        threads = [
            threading.Thread(target=lambda p=p: results.update({p: asyncio.run(many(p))})) for p in ("a", "b", "c")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {p: [n * 2 for n in range(50)] for p in ("a", "b", "c")}
    assert len(load_run("r", db=db).steps) == 150


@pytest.mark.parametrize("backend", ["anyio", "uvloop"])
def test_other_runners_of_event_loops_work(db, backend):
    async def body(run):
        return await run.step("s", double, 4)

    async def main():
        return await agent_run("a", body, db=db)

    if backend == "anyio":
        anyio = pytest.importorskip("anyio", reason="anyio is not installed")
        assert anyio.run(main) == 8
    else:
        uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            assert runner.run(main()) == 8


async def test_anyio_cancel_scopes_cancel_a_step(db):
    anyio = pytest.importorskip("anyio", reason="anyio is not installed")

    async def slow():
        scope.cancel()
        await asyncio.sleep(30)

    async with AsyncCheckpoint("r", db=db) as run:
        with anyio.CancelScope() as scope:
            await run.step("slow", slow)
        assert scope.cancelled_caught
        assert await run.step("slow", double, 1) == 2
        (step,) = await run.timeline()
    assert step.attempts == 2


async def test_case_026_concurrent_steps_keep_their_own_values_whatever_their_order(db):
    async def jitter(name):
        await asyncio.sleep(random.uniform(0, 0.01))
        return name

    async def body(run):
        return await asyncio.gather(*(run.step(name, jitter, name) for name in "abc"))

    for _ in range(5):
        assert await agent_run("a", body, db=db) == ["a", "b", "c"]


async def test_case_026_the_same_name_twice_at_once_is_refused_or_numbered_by_call_order(db):
    async def body(run):
        with pytest.raises((StepInFlight, DuplicateStep)):
            await asyncio.gather(run.step("a", double, 1), run.step("a", double, 2))
        await asyncio.sleep(0.05)
        # Awaited in the other order than called: the numbers are those of the calls.
        first, second = run.step("t", double, 1, repeat=True), run.step("t", double, 2, repeat=True)
        return await second, await first

    assert await agent_run("a", body, db=db, run_id="r") == (4, 2)
    with blocking_allowed():
        outputs = {step.name: step.output for step in load_run("r", db=db).steps}
    assert outputs["t"] == 2
    assert outputs["t#2"] == 4


def test_case_026_killed_at_random_moments_no_name_ever_has_anothers_value(db, spawn_agent, tmp_path):
    script = tmp_path / "agent.py"
    script.write_text(
        "import asyncio, random\n"
        "from agent_resume import agent_run\n"
        "async def jitter(name):\n"
        "    await asyncio.sleep(random.uniform(0, 0.02))\n"
        "    return name\n"
        "async def body(run):\n"
        "    got = await asyncio.gather(*(run.step(name, jitter, name) for name in 'abcdefgh'))\n"
        "    assert got == list('abcdefgh'), got\n"
        "    return got\n"
        "print('begin', flush=True)\n"
        f"print(asyncio.run(agent_run('a', body, db={db!r}, run_id='r')), flush=True)\n"
    )
    for _ in range(12):
        agent = spawn_agent(script, marker="begin")
        time.sleep(random.uniform(0, 0.25))
        agent.process.send_signal(signal.SIGKILL)
        agent.finish()
        assert "Error" not in agent.output
    agent = spawn_agent(script)
    assert agent.finish() == 0, agent.output
    assert {step.name: step.output for step in load_run("r", db=db).steps} == {name: name for name in "abcdefgh"}


async def test_steps_begin_in_the_order_they_came_and_one_that_is_cancelled_in_the_queue_holds_up_nobody(db):
    begun = []

    async def work(n):
        begun.append(n)
        return n

    async def body(run):
        tasks = [asyncio.ensure_future(run.step(f"s{n}", work, n)) for n in range(200)]
        await asyncio.sleep(0)
        for n in (40, 41, 150):
            tasks[n].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = await agent_run("a", body, db=db, run_id="r")
    cancelled = [n for n, value in enumerate(found) if isinstance(value, asyncio.CancelledError)]
    assert cancelled == [40, 41, 150]
    assert begun == [n for n in range(200) if n not in cancelled]


async def test_a_thousand_steps_at_once_are_all_stored_while_another_process_holds_the_lock(db):
    # The loop's gaps are measured by scripts/real-agents loop; here only that it goes on, and that nothing is lost.
    with blocking_allowed():
        holder = sqlite3.connect(db, isolation_level=None, check_same_thread=False)
    gaps = []

    async def ticker():
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.05)
            gaps.append(time.monotonic() - before)

    async def body(run):
        with blocking_allowed():
            holder.execute("BEGIN IMMEDIATE")
        asyncio.get_running_loop().call_later(1.0, release)
        return await asyncio.gather(*(run.step(f"s{n}", double, n) for n in range(1000)))

    def release():
        with blocking_allowed():
            holder.execute("ROLLBACK")

    watching = asyncio.create_task(ticker())
    try:
        assert await agent_run("a", body, db=db, run_id="r") == [n * 2 for n in range(1000)]
    finally:
        watching.cancel()
        with blocking_allowed():
            holder.close()
    assert len(gaps) > 5
    with blocking_allowed():
        steps = load_run("r", db=db).steps
    assert len(steps) == 1000
    assert all(step.status == "completed" for step in steps)


async def test_the_current_step_is_known_inside_it_and_in_tasks_that_it_starts(db):
    async def inner():
        return current_step().key

    async def fn():
        return [await asyncio.create_task(inner()), current_step().attempt, current_step().idempotency_key]

    async with AsyncCheckpoint("r", db=db) as run:
        key, attempt, token = await run.step("outer", fn)
        assert (key, attempt, len(token)) == ("outer", 1, 32)
        assert await run.step("other", fn) != [key, attempt, token]


async def test_status_and_looking_are_awaited(db):
    async def body(run):
        await run.step("a", double, 1)
        assert await run.status == "running"
        assert await run.has("a")
        assert not await run.has("b")
        assert await run.get_step_result("a") == 2
        assert [step.name for step in await run.timeline()] == ["a"]
        assert "a" in await run.report()
        assert (run.id, run.name, run.input) == ("r", "agent", {"x": 1})
        await run.event("note", n=1)
        await run.flush()

    await agent_run("agent", body, db=db, run_id="r", input={"x": 1})


async def test_reading_a_run_that_was_never_written_makes_no_file(db):
    async with AsyncCheckpoint("r", db=db) as run:
        assert not await run.has("a")
        assert await run.status == "running"
        assert await run.get_pause_context() == {}
    assert not os.path.lexists(db)


async def test_an_async_generator_as_a_result_is_refused(db):
    async def stream():
        yield 1

    async with AsyncCheckpoint("r", db=db) as run:
        with pytest.raises(OutputNotStorable):
            await run.step("s", stream)
        assert not await run.has("s")


def test_a_coroutine_function_in_a_synchronous_step_names_the_form_to_use(db):
    with Checkpoint("r", db=db) as run, pytest.raises(TypeError, match=r"await|AsyncRun"):
        run.step("s", double, 1)


def test_a_lambda_around_a_coroutine_function_is_no_body(db):
    async def body(run):
        raise AssertionError

    with pytest.raises(TypeError, match="coroutine function"):
        agent_run("a", lambda run: body(run), db=db)


async def test_many_tasks_that_enter_a_checkpoint_at_once_beat_as_one(db):
    async with AsyncCheckpoint("r", db=db) as run:
        await asyncio.gather(*(run.step(f"s{n}", double, n) for n in range(20)))
        owner = run._core.owner
        assert owner._users == 1
    assert owner._users == 0
    assert not owner.heart.beating


async def test_one_run_is_executed_once_at_a_time_in_one_loop_too(db):
    begun = asyncio.Event()

    async def slow(run):
        begun.set()
        await run.step("s", asyncio.sleep, 0.3, "done")
        return "done"

    first = asyncio.create_task(agent_run("a", slow, db=db, run_id="r"))
    await begun.wait()
    with pytest.raises(RunInUse):
        await agent_run("a", slow, db=db, run_id="r")
    assert await first == "done"
    assert await agent_run("a", slow, db=db, run_id="r") == "done"


async def test_a_closed_checkpoint_starts_nothing(db):
    async with AsyncCheckpoint("r", db=db) as run:
        await run.step("a", double, 1)
    with pytest.raises(InvalidTransition):
        await run.step("b", double, 1)
    await run.close()


def test_a_program_that_closes_nothing_ends_by_itself(run_python, db):
    done = run_python(
        "import asyncio\nfrom agent_resume import AsyncCheckpoint\n"
        "async def main():\n"
        f"    run = AsyncCheckpoint('r', db={db!r})\n"
        "    async def f(): return 1\n"
        "    await asyncio.gather(*(run.step(f's{n}', f) for n in range(50)))\n"
        "asyncio.run(main())"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(load_run("r", db=db).steps) == 50


def test_the_loop_may_end_while_steps_are_in_flight(run_python, db):
    done = run_python(
        "import asyncio\nfrom agent_resume import AsyncCheckpoint\n"
        "async def main():\n"
        f"    run = AsyncCheckpoint('r', db={db!r})\n"
        "    begun = asyncio.Semaphore(0)\n"
        "    async def f(): begun.release(); await asyncio.sleep(60)\n"
        "    tasks = [asyncio.create_task(run.step(f's{n}', f)) for n in range(20)]\n"
        "    for _ in tasks: await begun.acquire()\n"
        "asyncio.run(main())"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {step.status for step in load_run("r", db=db).steps} == {"interrupted"}


@pytest.mark.parametrize("when", ["in its step", "while it is opened"])
def test_a_coroutine_that_is_thrown_away_lets_go_of_its_step_and_its_run(db, when):
    begun = []

    async def stuck():
        begun.append(1)
        await asyncio.get_running_loop().create_future()

    async def body(run):
        await run.step("s", stuck)

    async def until_it_is_stuck():
        for _ in range(1 if when != "in its step" else 100_000):
            await asyncio.sleep(0.001)
            if begun:
                break

    loop = asyncio.new_event_loop()
    coroutine = agent_run("a", body, db=db, run_id="r")
    task = loop.create_task(coroutine)
    loop.run_until_complete(until_it_is_stuck())
    coroutine.close()  # as when a loop is given up with tasks on it
    task._log_destroy_pending = False
    loop.close()
    if begun:
        assert load_run("r", db=db).status == "interrupted"
    assert agent_run("a", lambda run: run.step("s", lambda: 1), db=db, run_id="r") == 1


@pytest.mark.parametrize("moment", ["hand over", "turn"])
def test_an_interrupt_in_the_loop_leaves_nobody_waiting_for_ever(db, monkeypatch, moment):
    # Where a signal would come in: as outcomes are handed over, or as the next turn begins.
    counted = [0]
    whole, name = (
        (database_batch._hand_over, "agent_resume.database_batch._hand_over")
        if moment == "hand over"
        else (aio_calls._Turns._next, "agent_resume.aio_calls._Turns._next")
    )

    def interrupted(*args):
        counted[0] += 1
        if counted[0] == 2:
            raise KeyboardInterrupt
        return whole(*args)

    async def many(run, mark):
        return await asyncio.gather(*(run.step(f"{mark}{n}", double, n) for n in range(100)))

    loop = asyncio.new_event_loop()
    run = loop.run_until_complete(AsyncCheckpoint("r", db=db).__aenter__())
    loop.run_until_complete(run.step("first", int))
    monkeypatch.setattr(name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(many(run, "a"))
    monkeypatch.undo()
    monkeypatch.setattr(aio_calls, "LOST_TURN", 0.01)
    time.sleep(0.02)
    assert loop.run_until_complete(asyncio.wait_for(many(run, "b"), 20)) == [n * 2 for n in range(100)]

    async def end():
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.wait_for(asyncio.gather(*left, return_exceptions=True), 20)
        await run.__aexit__(None, None, None)

    loop.run_until_complete(end())
    loop.close()


def test_a_step_that_nobody_awaits_does_not_keep_the_program_from_ending(db, run_python):
    done = run_python(
        "import asyncio\n"
        "from agent_resume import agent_run\n"
        "tasks = []\n"
        "async def body(run):\n"
        "    tasks.append(asyncio.ensure_future(run.step('slow', lambda: asyncio.sleep(100))))\n"
        "    await asyncio.sleep(0.2)\n"
        f"asyncio.new_event_loop().run_until_complete(agent_run('a', body, run_id='r', db={db!r}))\n"
        "print('at its end', flush=True)\n",
        fresh=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("at its end\n")
