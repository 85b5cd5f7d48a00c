"""``done()``: once, in order, against everything that may come at the same moment."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
import raw

from agent_resume import (
    Checkpoint,
    InvalidTransition,
    OutputNotStorable,
    RunCancelled,
    RunPaused,
    Store,
    agent_run,
    cancel,
    load_run,
)

pytestmark = pytest.mark.filterwarnings("ignore::agent_resume.errors.StepCodeChangedWarning")


def rows(db, query, *values):
    with closing(raw.connect(db)) as database:
        return database.execute(query, values).fetchall()


def test_done_completes_and_keeps_the_summary(db):
    with Checkpoint("r", db=db) as run:
        run.step("a", lambda: 1)
        run.done({"score": 5, "who": ("a",)})
        assert run.status == "completed"
        assert "score" in run.report()
    state = load_run("r", db=db)
    assert state.status == "completed"
    assert state.finished_at is not None


def test_done_inside_agent_run_then_the_bodys_result_is_kept_as_well(db):
    def body(run):
        run.step("a", lambda: 1)
        run.done({"note": "x"})
        return {"result": (1,)}

    assert agent_run("job", body, run_id="r", db=db) == {"result": (1,)}
    assert agent_run("job", pytest.fail, run_id="r", db=db) == {"result": (1,)}
    assert rows(db, "SELECT status, summary, owner_token FROM runs") == [("completed", '{"note":"x"}', None)]


def test_an_exception_after_done_leaves_the_run_completed(db):
    def body(run):
        run.done()
        raise ValueError("after the end")

    with pytest.raises(ValueError, match="after the end"):
        agent_run("job", body, run_id="r", db=db)
    assert load_run("r", db=db).status == "completed"
    assert agent_run("job", pytest.fail, run_id="r", db=db) is None


@pytest.mark.parametrize(
    "late",
    [
        lambda run: run.done(),
        lambda run: run.pause("late"),
        lambda run: run.step("late", pytest.fail),
        lambda run: run.step("a", pytest.fail),
        lambda run: run.record("late", 1),
        lambda run: run.wait("late", timeout=1),
        lambda run: run.sleep("late", 1),
        lambda run: next(run.loop("late", max_turns=1)),
    ],
)
@pytest.mark.parametrize("owned", [True, False])
def test_nothing_but_events_and_reading_comes_after_done(db, late, owned):
    def body(run):
        run.step("a", lambda: 1)
        run.done()
        with pytest.raises(InvalidTransition):
            late(run)
        run.event("loop", phase="budget")
        assert run.get_step_result("a") == 1
        assert run.has("a")

    if owned:
        agent_run("job", body, run_id="r", db=db)
    else:
        with Checkpoint("r", db=db) as run:
            body(run)
    assert load_run("r", db=db).status == "completed"


def test_done_in_a_new_execution_updates_the_summary_and_nothing_else(db):
    with Checkpoint("r", db=db) as run:
        run.step("a", lambda: 1)
        run.done({"n": 1})
    before = rows(db, "SELECT status, finished_at, epoch FROM runs")
    with Checkpoint("r", db=db) as run:
        assert run.get_step_result("a") == 1
        assert run.step("a", pytest.fail) == 1
        run.done({"n": 2})
        with pytest.raises(InvalidTransition):
            run.done({"n": 3})
    with Checkpoint("r", db=db) as run:
        with pytest.raises(InvalidTransition):
            run.step("b", pytest.fail)
        run.done()
    assert rows(db, "SELECT summary FROM runs") == [('{"n":2}',)]
    assert rows(db, "SELECT status, finished_at, epoch FROM runs") == before


def test_done_while_a_step_is_in_flight_here(db):
    def body(run):
        run.step("a", lambda: run.done())

    with pytest.raises(InvalidTransition, match="step"):
        agent_run("job", body, run_id="r", db=db)
    assert load_run("r", db=db).status == "failed"


def test_done_while_a_step_is_in_flight_in_another_process(db, spawn_agent):
    code = (
        "import sys, time\nfrom agent_resume import Checkpoint\n"
        "Checkpoint('r', db=sys.argv[1]).step('theirs', lambda: print('in', flush=True) or time.sleep(60))"
    )
    other = spawn_agent(code, db, marker="in")
    with Checkpoint("r", db=db) as run:
        run.record("mine", 1)
        with pytest.raises(InvalidTransition, match="theirs"):
            run.done()
        assert run.status == "running"
        run.record("more", 1)
        other.kill()
        run.done()
        assert run.status == "completed"


def test_a_summary_that_cannot_be_stored_ends_nothing(db):
    with Checkpoint("r", db=db) as run:
        run.record("k", 1)
        with pytest.raises(OutputNotStorable):
            run.done({"lock": threading.Lock()})
        assert run.status == "running"
        run.done({"fine": True})


def test_done_after_a_cancellation_says_so(db):
    def body(run):
        run.step("a", lambda: 1)
        cancel(run.id, db=db)
        run.done()

    with pytest.raises(RunCancelled):
        agent_run("job", body, run_id="r", db=db)
    assert load_run("r", db=db).status == "cancelled"


def test_done_against_pause_from_two_threads_has_one_outcome_each_time(db):
    store = Store(db)
    barrier = threading.Barrier(2)
    seen = {"completed": 0, "paused": 0}

    def attempt(call, outcomes, name):
        barrier.wait(30)
        try:
            call()
            outcomes[name] = "won"
        except RunPaused:
            outcomes[name] = "won"
        except InvalidTransition:
            outcomes[name] = "refused"

    for turn in range(200):
        outcomes: dict[str, str] = {}
        with Checkpoint(f"r{turn}", db=store) as run:
            run.record("k", 1)
            calls = {"done": run.done, "pause": lambda run=run: run.pause("p")}
            threads = [
                threading.Thread(target=attempt, args=(calls[name], outcomes, name))
                for name in (("done", "pause") if turn % 2 else ("pause", "done"))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(outcomes.values()) == ["refused", "won"], outcomes
            status = run.status
            assert status == ("completed" if outcomes["done"] == "won" else "paused")
            seen[status] += 1
    assert sum(seen.values()) == 200
    ends = rows(db, "SELECT run_id, count(*) FROM events WHERE type IN ('completed', 'paused') GROUP BY run_id")
    assert [count for _, count in ends] == [1] * 200


def test_done_twice_from_two_threads_completes_once(db):
    store = Store(db)
    for turn in range(40):
        barrier, refused = threading.Barrier(2), []

        def finish(run, barrier=barrier, refused=refused):
            barrier.wait(30)
            try:
                run.done({"by": threading.get_ident()})
            except InvalidTransition:
                refused.append(1)

        with Checkpoint(f"r{turn}", db=store) as run:
            run.record("k", 1)
            threads = [threading.Thread(target=finish, args=(run,)) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert refused == [1]
    assert rows(db, "SELECT count(*) FROM events WHERE type = 'completed'") == [(40,)]


def test_done_against_a_step_that_is_just_beginning_loses_neither(db):
    store = Store(db)
    for turn in range(60):
        barrier, results = threading.Barrier(2), {}

        def step(run, barrier=barrier, results=results):
            barrier.wait(30)
            try:
                results["step"] = run.step("late", lambda: "stored")
            except InvalidTransition:
                results["step"] = "refused"

        def done(run, barrier=barrier, results=results):
            barrier.wait(30)
            try:
                run.done()
                results["done"] = "won"
            except InvalidTransition:
                results["done"] = "refused"

        with Checkpoint(f"r{turn}", db=store) as run:
            run.record("k", 1)
            threads = [threading.Thread(target=work, args=(run,)) for work in (step, done)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        events = [kind for (kind,) in rows(db, "SELECT e.type FROM events e JOIN runs r ON r.seq = e.run_id "
                                               "WHERE r.id = ? ORDER BY e.seq", f"r{turn}")]  # fmt: skip
        if results["done"] == "won":
            assert events[-1] == "completed", (results, events)
        else:
            assert results["step"] == "stored"
