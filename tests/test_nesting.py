"""A step inside a step: inner steps keep their own records, and a finished outer step skips them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from loops import no_blocking_calls  # noqa: F401 - a fixture

from agent_resume import AsyncCheckpoint, Checkpoint, DuplicateStep, Retry, RunPaused, Store, agent_run, load_run


def test_case_046_an_inner_step_is_kept_when_the_outer_one_runs_again(db):
    calls = []

    def body(run, crash):
        def outer():
            value = run.step("inner", lambda: calls.append("inner") or 1)
            run.event("note", where="inside")
            run.record(f"kept {crash}", value)
            if crash:
                raise RuntimeError("crash once")
            return value + 1

        return run.step("outer", outer)

    with pytest.raises(RuntimeError):
        agent_run("a", lambda run: body(run, True), db=db, run_id="r")
    assert agent_run("a", lambda run: body(run, False), db=db, run_id="r") == 2
    assert calls == ["inner"]
    state = {step.name: (step.status, step.attempts) for step in load_run("r", db=db).steps}
    assert state["inner"] == ("completed", 1)
    assert state["outer"] == ("completed", 2)
    # Events inside a step that ran twice are told apart by its attempt.
    with Store(db) as store:
        notes = [(event.step_key, event.attempt) for event in store.events("r") if event.type == "note"]
    assert notes == [("outer", 1), ("outer", 2)]


async def test_case_046_the_same_for_coroutines(db):
    calls = []

    async def inner():
        calls.append("inner")
        return 1

    async def body(run, crash):
        async def outer():
            first, second = await asyncio.gather(run.step("inner", inner), run.step("other", inner))
            if crash:
                raise RuntimeError
            return first + second

        return await run.step("outer", outer)

    async def crashing(run):
        return await body(run, True)

    async def going(run):
        return await body(run, False)

    with pytest.raises(RuntimeError):
        await agent_run("a", crashing, db=db, run_id="r")
    assert await agent_run("a", going, db=db, run_id="r") == 2
    assert calls == ["inner", "inner"]


@pytest.mark.filterwarnings("ignore::agent_resume.StepCodeChangedWarning")
def test_a_finished_outer_step_skips_its_inner_ones(db):
    def body(run):
        return run.step("outer", lambda: run.step("inner", lambda: [1]))

    assert agent_run("a", body, db=db, run_id="r") == [1]
    with Checkpoint("r", db=db) as run:
        calls = []
        assert run.step("outer", lambda: calls.append(1)) == [1]
        assert not calls


def test_deep_nesting_works(db):
    with Checkpoint("r", db=db) as run:

        def level(n):
            return 0 if n == 0 else run.step(f"level {n}", level, n - 1) + 1

        assert run.step("top", level, 20) == 20
    assert len(load_run("r", db=db).steps) == 21


def test_the_inner_name_used_outside_as_well_is_a_duplicate(db):
    def body(run):
        run.step("outer", lambda: run.step("inner", lambda: 1))
        with pytest.raises(DuplicateStep):
            run.step("inner", lambda: 2)

    agent_run("a", body, db=db)


def test_a_step_inside_itself_is_refused_at_once(db):
    from agent_resume import StepInFlight

    with Checkpoint("r", db=db) as run, pytest.raises(StepInFlight):
        run.step("s", lambda: run.step("s", lambda: 1))


def test_case_047_a_pause_is_not_swallowed_and_the_execution_stops(db):
    calls = []

    def body(run):
        try:
            run.pause("approve?")
        except Exception:
            pass
        run.step("delete_all", lambda: calls.append(1))

    with pytest.raises(SystemExit) as left:
        agent_run("r", body, db=db)
    assert left.value.code == 0
    assert not calls


def test_case_047_not_even_by_a_handler_of_everything(db):
    calls = []

    def body(run):
        try:
            run.pause("approve?")
        except BaseException:
            pass
        run.step("delete_all", lambda: calls.append(1))

    with pytest.raises(BaseException):
        agent_run("r", body, db=db, on_pause="raise")
    assert not calls


def test_a_pause_inside_a_step_pauses_the_run_and_the_step_runs_again(db):
    def body(run):
        return run.step("outer", lambda: run.step("inner", lambda: 1) + run.pause("how many?"))

    with pytest.raises(RunPaused):
        agent_run("a", body, db=db, run_id="r", on_pause="raise")
    from agent_resume import answer

    answer("r", "how many?", 41, db=db)
    assert agent_run("a", body, db=db, run_id="r") == 42


async def test_a_pause_in_one_of_many_tasks_pauses_the_run(db):
    async def body(run):
        async with asyncio.TaskGroup() as group:
            group.create_task(run.step("other", asyncio.sleep, 0.01))
            group.create_task(run.pause("ok?"))

    paused = await agent_run("a", body, db=db, run_id="r", on_pause="return")
    assert (paused.name, paused.run_id) == ("ok?", "r")
    async with AsyncCheckpoint("r", db=db) as run:
        assert await run.status == "paused"


def test_inner_steps_from_threads_of_the_outer_one_are_replayed_by_its_next_attempt(db):
    calls = []

    def body(run):
        def inner(i):
            return run.step(f"in{i}", lambda: calls.append(i) or i)

        def outer():
            with ThreadPoolExecutor(2) as pool:
                got = list(pool.map(inner, range(2)))
            calls.append("outer")
            if calls.count("outer") < 3:
                raise ConnectionError
            return got

        assert run.step("outer", outer, retry=Retry(max_attempts=3, wait=0)) == [0, 1]
        with pytest.raises(DuplicateStep):
            inner(0)

    agent_run("a", body, db=db)
    assert sorted(map(str, calls)) == ["0", "1", "outer", "outer", "outer"]
