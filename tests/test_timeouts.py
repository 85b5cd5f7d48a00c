"""Timeouts, and steps in a process of their own."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from loops import blocking_allowed, no_blocking_calls  # noqa: F401 - a fixture

from agent_resume import (
    AsyncCheckpoint,
    Checkpoint,
    InvalidTransition,
    Retry,
    StepInDoubt,
    StepInFlight,
    StepTimeout,
    agent_run,
    load_run,
)

# Found by name in the child process, so at the top of a module on its path.
from isolated_steps import Failure, boom, child_and_grandchild, die, echo, hang, leave, seen_by_child  # isort: skip


async def test_a_coroutine_is_cancelled_at_its_timeout(db):
    ended = []

    async def slow():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(1)

    async with AsyncCheckpoint("r", db=db) as run:
        with pytest.raises(StepTimeout) as caught:
            await run.step("s", slow, timeout=0.1)
        assert isinstance(caught.value, TimeoutError)
        (step,) = await run.timeline()
    assert ended == [1]
    assert step.status == "failed"
    assert step.error["type"] == "StepTimeout"


async def test_a_timeout_error_of_the_functions_own_is_its_failure(db):
    async def fails():
        raise TimeoutError("mine")

    async with AsyncCheckpoint("r", db=db) as run:
        with pytest.raises(TimeoutError, match="mine"):
            await run.step("s", fails, timeout=30)


def test_a_synchronous_call_goes_on_and_its_late_result_is_dropped(db, caplog):
    release, ended = threading.Event(), threading.Event()

    def slow():
        release.wait(30)
        ended.set()
        return "late"

    with Checkpoint("r", db=db) as run:
        with pytest.raises(StepTimeout):
            run.step("s", slow, timeout=0.1)
        assert run.step("s", lambda: "fast") == "fast"
        with caplog.at_level(logging.WARNING, "agent_resume"):
            release.set()
            assert ended.wait(30)
            while "dropped" not in caplog.text:
                time.sleep(0.01)
        assert run.get_step_result("s") == "fast"
    assert [(step.attempts, step.output) for step in load_run("r", db=db).steps] == [(2, "fast")]


def test_within_its_time_a_synchronous_call_gives_its_result_or_its_error(db):
    with Checkpoint("r", db=db) as run:
        assert run.step("s", lambda: threading.current_thread().name, timeout=30) == "agent-resume-s"
        with pytest.raises(ZeroDivisionError):
            run.step("z", lambda: 1 / 0, timeout=30)


def test_case_044_a_late_result_never_replaces_what_was_stored_since(db):
    release, begun = threading.Event(), threading.Event()

    def slow():
        begun.set()
        release.wait(30)
        return 1

    with Checkpoint("r", db=db) as run, ThreadPoolExecutor(1) as pool:
        future = pool.submit(run.step, "a", slow)
        assert begun.wait(30)
        with pytest.raises(TimeoutError):
            future.result(timeout=0.1)
        with pytest.raises(StepInFlight):
            run.step("a", lambda: 2)
        release.set()
        assert future.result(30) == 1
    assert [step.output for step in load_run("r", db=db).steps] == [1]


def test_case_044_nor_when_the_first_caller_gave_up_at_a_timeout(db):
    release = threading.Event()

    def slow():
        release.wait(30)
        return 1

    with Checkpoint("r", db=db) as run:
        with pytest.raises(StepTimeout):
            run.step("a", slow, timeout=0.1)
        assert run.step("a", lambda: 2) == 2
        release.set()
        time.sleep(0.1)
        assert run.get_step_result("a") == 2


def test_a_timed_out_once_step_is_in_doubt(db):
    release = threading.Event()
    with Checkpoint("r", db=db) as run:
        with pytest.raises(StepTimeout):
            run.step("pay", release.wait, 30, timeout=0.1, effect="once")
        release.set()
        with pytest.raises(StepInDoubt):
            run.step("pay", boom, effect="once")


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), 1e10])
def test_a_timeout_that_cannot_be_meant_is_refused(db, wrong):
    with Checkpoint("r", db=db) as run, pytest.raises(ValueError):
        run.step("s", int, timeout=wrong)


async def test_a_plain_function_on_the_loop_is_late_too(db, caplog):
    async def body(run):
        with blocking_allowed(), pytest.raises(StepTimeout):
            await run.step("s", time.sleep, 0.2, timeout=0.05)
        return await run.step("quick", lambda: 1, timeout=30)

    with caplog.at_level(logging.WARNING, "agent_resume"):
        assert await agent_run("a", body, db=db, run_id="r") == 1
    assert "after its timeout" in caplog.text


@pytest.mark.parametrize("late", ["a result", ValueError("late")], ids=repr)
async def test_what_swallows_its_cancellation_is_late_all_the_same(db, late):
    async def stubborn():
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            if isinstance(late, Exception):
                raise late from None
            return late

    async with AsyncCheckpoint("r", db=db) as run:
        with pytest.raises(StepTimeout) as caught:
            await run.step("s", stubborn, timeout=0.05, effect="once")
        assert caught.value.__cause__ is (late if isinstance(late, Exception) else None)
        with pytest.raises(StepInDoubt):
            await run.step("s", stubborn, timeout=0.05, effect="once")


def test_the_next_attempt_waits_for_the_inner_step_that_the_late_one_is_in(db):
    calls = []

    def body(run):
        def inner(name, seconds):
            return run.step(name, lambda: (calls.append(name), time.sleep(seconds), 1)[2])

        outer = lambda: inner("first", 0.1) + inner("second", 0.7)  # noqa: E731 - a step
        return run.step("outer", outer, timeout=0.5, retry=Retry(wait=0))

    assert agent_run("a", body, db=db, run_id="r") == 2
    assert calls == ["first", "second"]


def test_an_attempt_that_was_given_up_begins_no_further_step(db):
    go_on, refused = threading.Event(), []

    def body(run):
        def outer():
            go_on.wait(30)
            try:
                run.step("inner", lambda: "late")
            except BaseException as error:
                refused.append(error)
                raise

        with pytest.raises(StepTimeout):
            run.step("outer", outer, timeout=0.05)
        go_on.set()
        while not refused:
            time.sleep(0.01)
        return run.step("inner", lambda: "own")

    assert agent_run("a", body, db=db, run_id="r") == "own"
    assert isinstance(refused[0], InvalidTransition)


# -- isolation="process" ---------------------------------------------------------------------------------------------


def test_an_isolated_step_runs_in_another_process_and_knows_which_step_it_is(db):
    with Checkpoint("r", db=db) as run:
        pid, key, attempt = run.step("s", seen_by_child, isolation="process")
        assert pid != os.getpid()
        assert (key, attempt) == ("s", 1)
        assert run.step("t", echo, ("x", {1: 2}), isolation="process") == ("x", {1: 2})


def test_its_timeout_ends_it_and_all_that_it_started(db, tmp_path):
    beat = tmp_path / "beat"
    with Checkpoint("r", db=db) as run, pytest.raises(StepTimeout):
        run.step("s", child_and_grandchild, str(beat), timeout=3.0, isolation="process")
    assert beat.exists()
    size = beat.stat().st_size
    time.sleep(0.5)
    assert beat.stat().st_size == size, "a grandchild still works"


def test_its_failure_comes_back_as_it_was_or_as_text(db):
    with Checkpoint("r", db=db) as run:
        with pytest.raises(Failure, match="status 500") as caught:
            run.step("s", boom, isolation="process")
        assert ", in boom" in "".join(traceback.format_exception(caught.value))
        assert ", in boom" in run.state().steps[0].error["traceback"]
        assert caught.value.status == 500
        with pytest.raises(SystemExit) as left:
            run.step("x", leave, 3, isolation="process")
        assert left.value.code == 3


def test_a_child_that_dies_says_how_and_a_once_step_is_in_doubt(db):
    with Checkpoint("r", db=db) as run:
        with pytest.raises(ChildProcessError, match="signal 9"):
            run.step("s", die, isolation="process")
        with pytest.raises(ChildProcessError):
            run.step("pay", die, isolation="process", effect="once")
        with pytest.raises(StepInDoubt):
            run.step("pay", die, isolation="process", effect="once")


def test_what_cannot_travel_is_told(db):
    with Checkpoint("r", db=db) as run:
        with pytest.raises(TypeError, match="picklable"):
            run.step("s", lambda: 1, isolation="process")
        with pytest.raises(TypeError, match="its result"):
            run.step("t", threading.Lock, isolation="process")


async def test_a_cancelled_isolated_step_ends_its_process(db, tmp_path):
    mark = tmp_path / "pid"
    async with AsyncCheckpoint("r", db=db) as run:
        task = asyncio.create_task(run.step("s", hang, str(mark), isolation="process"))
        while not await asyncio.to_thread(lambda: mark.exists() and mark.read_text()):
            assert not task.done(), task.result()
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        pid = int(await asyncio.to_thread(mark.read_text))
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert await run.step("t", echo, 1, isolation="process") == 1


def isolated_agent(folder, db, function, mark):
    """A program whose only step runs a function of ``isolated_steps`` in a process of its own."""
    script = folder / "agent.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from agent_resume import agent_run\n"
        f"from isolated_steps import {function}\n"
        "if __name__ == '__main__':\n"
        f"    agent_run('a', lambda run: run.step('s', {function}, {str(mark)!r}, isolation='process'), db={db!r})\n"
    )
    return script


def test_a_killed_parent_takes_the_child_with_it(db, spawn_agent, tmp_path):
    mark = tmp_path / "pid"
    agent = spawn_agent(isolated_agent(tmp_path, db, "hang", mark))
    while not (mark.exists() and mark.read_text()):
        assert agent.process.poll() is None, agent.output
        time.sleep(0.02)
    agent.kill()
    pid = int(mark.read_text())
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.02)
    pytest.fail("the child outlived its parent")


def test_a_killed_parent_takes_what_the_child_started_too(db, spawn_agent, tmp_path):
    beat = tmp_path / "beat"
    agent = spawn_agent(isolated_agent(tmp_path, db, "child_and_grandchild", beat))
    while not beat.exists():
        assert agent.process.poll() is None, agent.output
        time.sleep(0.02)
    agent.kill()
    deadline = time.monotonic() + 20
    before = -1
    while before != (before := beat.stat().st_size):
        assert time.monotonic() < deadline, "the grandchild outlived the parent"
        time.sleep(0.5)


def test_a_child_that_cannot_be_started_says_why(db, monkeypatch):
    def start(process):
        raise OSError("no processes left")

    monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", start)
    with Checkpoint("r", db=db) as run, pytest.raises(OSError, match="no processes left"):
        run.step("s", echo, 1, isolation="process")


def test_a_program_without_a_guard_is_told_to_have_one(db, run_python, tmp_path):
    script = tmp_path / "agent.py"
    script.write_text(
        "from agent_resume import agent_run\n"
        "def work(): return 1\n"
        f"agent_run('a', lambda run: run.step('s', work, isolation='process'), db={db!r}, run_id='r')\n"
    )
    done = run_python(script)
    assert done.returncode == 1
    assert "if __name__ == '__main__':" in done.stderr
    assert [(step.name, step.attempts) for step in load_run("r", db=db).steps] == [("s", 1)]


def test_agent_run_inside_an_isolated_step_is_another_run(db):
    with Checkpoint("r", db=db) as run:
        assert run.step("s", echo, agent_run.__name__, isolation="process") == "agent_run"
