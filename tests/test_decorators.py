"""``@step`` and ``@agent``."""

from __future__ import annotations

import asyncio
import threading

import pytest
from loops import blocking_allowed, no_blocking_calls  # noqa: F401 - a fixture

import agent_resume
from agent_resume import AsyncCheckpoint, Checkpoint, DuplicateStep, Retry, agent, agent_run, load_run, step

calls: list[object] = []


@pytest.fixture(autouse=True)
def _forget_calls():
    calls.clear()


@step
def fetch(url: str, *, retries: int = 0) -> str:
    """Fetches."""
    calls.append(url)
    return f"{url}/{retries}"


@step
async def fetch_later(url: str) -> str:
    await asyncio.sleep(0)
    calls.append(url)
    return f"{url}!"


def names(db, run_id="r"):
    with blocking_allowed():
        return [s.name for s in load_run(run_id, db=db).steps]


def test_outside_a_run_a_decorated_function_is_what_it_was():
    assert fetch("a", retries=2) == "a/2"
    assert asyncio.run(fetch_later("a")) == "a!"
    assert (fetch.__name__, fetch.__doc__) == ("fetch", "Fetches.")


def test_inside_one_it_is_a_step_numbered_by_its_calls(db):
    def body(run, crash):
        got = [fetch("a"), fetch("b", retries=1)]
        if crash:
            raise RuntimeError
        return got

    with pytest.raises(RuntimeError):
        agent_run("x", lambda run: body(run, True), db=db, run_id="r")
    assert agent_run("x", lambda run: body(run, False), db=db, run_id="r") == ["a/0", "b/1"]
    assert calls == ["a", "b"]
    assert names(db) == ["fetch", "fetch#2"]


async def test_the_same_for_coroutines(db):
    async def body(run):
        return await asyncio.gather(*(fetch_later(url) for url in "abc"))

    assert await agent_run("x", body, db=db, run_id="r") == ["a!", "b!", "c!"]
    assert sorted(names(db)) == ["fetch_later", "fetch_later#2", "fetch_later#3"]
    async with AsyncCheckpoint("r", db=db, on_duplicate="return") as run:
        assert await run.get_step_result("fetch_later#2") == "b!"


def test_options_go_to_the_step(db):
    tries = []

    @step(name="flaky step", retry=Retry(wait=0), meta={"cli": "x"})
    def flaky():
        tries.append(1)
        if len(tries) < 3:
            raise OSError
        return len(tries)

    @step(repeat=False)
    def single():
        return 1

    def body(run):
        got = flaky()
        single()
        with pytest.raises(DuplicateStep):
            single()
        return got

    assert agent_run("x", body, db=db, run_id="r") == 3
    state = load_run("r", db=db)
    assert [(s.name, s.attempts) for s in state.steps] == [("flaky step", 3), ("single", 1)]
    assert state.steps[0].meta == {"cli": "x"}


def test_wrong_options_are_told_where_they_are_written():
    with pytest.raises(TypeError, match="retires"):
        step(retires=3)
    with pytest.raises(TypeError, match="function"):
        step(3)


def test_a_checkpoint_is_a_run_inside_its_with(db):
    with Checkpoint("r", db=db):
        assert fetch("a") == "a/0"
    assert fetch("b") == "b/0"
    with Checkpoint("r", db=db):
        assert fetch("a") == "a/0"
    assert calls == ["a", "b"]


async def test_an_asynchronous_checkpoint_too(db):
    async with AsyncCheckpoint("r", db=db):
        assert await fetch_later("a") == "a!"
    assert names(db) == ["fetch_later"]


def test_both_kinds_work_in_a_body_of_either_kind(db):
    def body(run):
        return [fetch("a"), asyncio.run(fetch_later("b"))]

    assert agent_run("x", body, db=db, run_id="r") == ["a/0", "b!"]

    async def later(run):
        return [fetch("a"), await fetch_later("b")]

    with blocking_allowed():  # a plain function blocks the loop, and so does its step
        assert asyncio.run(agent_run("y", later, db=db, run_id="r2")) == ["a/0", "b!"]
    assert names(db) == names(db, "r2") == ["fetch", "fetch_later"]


def test_workers_of_map_belong_to_the_run_and_threads_of_ones_own_do_not(db):
    def work(n):
        return fetch(str(n))

    def body(run):
        mapped = [o.value for o in run.map("m", work, [1], concurrency=2)]
        thread = threading.Thread(target=fetch, args=("plain",))
        thread.start()
        thread.join()
        return mapped

    assert agent_run("x", body, db=db, run_id="r") == ["1/0"]
    assert names(db) == ["m[1]", "m[1]/fetch"]


def test_methods_and_nested_steps(db):
    class Tool:
        @step
        def use(self, x):
            return fetch(x)

    with Checkpoint("r", db=db):
        assert Tool().use("a") == "a/0"
    assert names(db) == ["use", "use/fetch"]


def test_runs_inside_runs_have_their_own_steps(db):
    def outer(run):
        fetch("outer")
        agent_run("inner", lambda run: fetch("inner"), db=db, run_id="inner")
        return fetch("outer again")

    agent_run("outer", outer, db=db, run_id="outer")
    assert names(db, "outer") == ["fetch", "fetch#2"]
    assert names(db, "inner") == ["fetch"]


def test_an_agent_is_called_like_agent_run(db):
    @agent("support", db=db)
    def support(run):
        """Supports."""
        return run.step("s", lambda: run.input)

    assert support(input={"q": 1}, run_id="r") == {"q": 1}
    assert support(run_id="r") == {"q": 1}
    assert load_run("r", db=db).name == "support"
    assert support.__doc__ == "Supports."


async def test_an_asynchronous_agent_is_awaited(db):
    @agent("later", db=db)
    async def later(run):
        return await run.step("s", lambda: 1)

    assert await later(run_id="r") == 1


def test_the_decorator_is_found_whatever_was_imported_first(run_python):
    for first in ("agent_resume.agent", "agent_resume", "agent_resume.decorators"):
        done = run_python(
            f"import {first}\nfrom agent_resume import agent, agent_run\nimport agent_resume\n"
            "assert callable(agent) and agent is agent_resume.agent\n"
            "from agent_resume.agent import agent_run as same\nassert same is agent_run"
        )
        assert done.returncode == 0, done.stderr
    assert callable(agent_resume.agent)


def test_a_resume_that_skips_an_outer_step_numbers_the_calls_after_it_as_before(db):
    @step
    def ticket():
        calls.append(1)
        return f"ticket {len(calls)}"

    def body(run, crash):
        got = [run.step("outer", lambda: [ticket(), ticket()]), ticket(), ticket()]
        if crash:
            raise RuntimeError
        return got

    with pytest.raises(RuntimeError):
        agent_run("x", lambda run: body(run, True), db=db, run_id="r")
    wanted = [["ticket 1", "ticket 2"], "ticket 3", "ticket 4"]
    assert agent_run("x", lambda run: body(run, False), db=db, run_id="r") == wanted
    assert names(db) == ["outer", "outer/ticket", "outer/ticket#2", "ticket", "ticket#2"]


def test_an_outer_step_that_is_tried_again_replays_its_numbered_inner_ones(db):
    def outer():
        got = fetch("a"), fetch("b")
        calls.append("outer")
        if calls.count("outer") == 1:
            raise ConnectionError
        return got

    def body(run):
        return run.step("outer", outer, retry=Retry(wait=0))

    assert agent_run("x", body, db=db, run_id="r") == ("a/0", "b/0")
    assert calls == ["a", "b", "outer", "outer"]


def test_a_decorated_function_may_call_itself(db):
    @step
    def factorial(n):
        return 1 if n <= 1 else n * factorial(n - 1)

    assert agent_run("x", lambda run: factorial(4), db=db) == 24


async def test_repeats_may_overlap_on_one_loop(db):
    @step
    async def slow(x):
        await asyncio.sleep(0.05)
        return x

    async def body(run):
        first = asyncio.create_task(slow(1))
        await asyncio.sleep(0.02)
        return await asyncio.gather(first, asyncio.create_task(slow(2)))

    assert await agent_run("x", body, db=db, run_id="r") == [1, 2]


def test_a_repeat_beside_another_threads_is_refused(db):
    begun, end = threading.Event(), threading.Event()

    def slow():
        begun.set()
        return end.wait(30)

    with Checkpoint("r", db=db) as run:
        thread = threading.Thread(target=lambda: run.step("s", slow, repeat=True))
        thread.start()
        begun.wait(30)
        with pytest.raises(agent_resume.StepInFlight):
            run.step("s", slow, repeat=True)
        end.set()
        thread.join()
