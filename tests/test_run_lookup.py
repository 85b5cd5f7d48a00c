"""Which run ``agent_run`` means, and what prefixes and ``NAME@latest`` mean."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
import raw

from agent_resume import (
    AgentResumeWarning,
    AmbiguousRunId,
    Checkpoint,
    RunInUse,
    RunNotFound,
    Store,
    agent_run,
    answer,
    cancel,
    list_runs,
    load_run,
)

pytestmark = pytest.mark.filterwarnings("ignore::agent_resume.errors.StepCodeChangedWarning")


def rows(db, query, *values):
    with closing(raw.connect(db)) as database:
        return database.execute(query, values).fetchall()


def fail(db, name="job", **options):
    with pytest.raises(ZeroDivisionError):
        agent_run(name, lambda run: 1 / 0, db=db, **options)
    return rows(db, "SELECT id FROM runs ORDER BY seq DESC")[0][0]


def test_without_an_id_the_newest_unfinished_run_goes_on(db):
    fail(db, run_id="older")
    fail(db, run_id="newer")
    agent_run("job", lambda run: 1, run_id="newest but completed", db=db)
    assert agent_run("job", lambda run: run.id, db=db) == "newer"
    assert agent_run("job", lambda run: run.id, db=db) == "older"
    assert agent_run("job", lambda run: run.id, db=db).startswith("job-")


def test_a_cancelled_run_is_never_gone_on_with(db):
    cancelled = fail(db)
    cancel(cancelled, db=db)
    assert agent_run("job", lambda run: run.id, db=db) != cancelled


@pytest.mark.parametrize(
    ("stored", "given", "same"),
    [
        (None, None, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        (None, {"a": 1}, False),
        ({"a": 1}, None, False),
        (1, 1.0, False),
        (1, True, False),
        ((1, 2), [1, 2], False),
        ({1, 2}, {2, 1}, True),
        ("é", "e\u0301", False),
    ],
)
def test_only_an_equal_input_is_the_same_work(db, stored, given, same):
    first = fail(db, input=stored)
    assert (agent_run("job", lambda run: run.id, input=given, db=db) == first) is same


def test_another_agents_run_is_left_alone(db):
    fail(db, name="one")
    assert agent_run("two", lambda run: run.id, db=db).startswith("two-")
    assert rows(db, "SELECT status FROM runs WHERE name = 'one'") == [("failed",)]


def test_beside_a_live_run_a_new_one_begins_with_one_warning_that_names_it(db):
    def outer(run):
        with pytest.warns(AgentResumeWarning, match=f"'{run.id}'") as caught:
            inner = agent_run("job", lambda inner: inner.id, db=db)
        assert len(caught) == 1
        return run.id, inner

    outer_id, inner_id = agent_run("job", outer, db=db)
    assert outer_id != inner_id


@pytest.mark.filterwarnings("ignore::agent_resume.AgentResumeWarning")
def test_a_thousand_runs_made_in_one_millisecond_have_a_thousand_ids(db, clock):
    store = Store(db)
    ids = []

    def make(number):
        for _ in range(60):
            ids.append(agent_run("job", lambda run: run.id, db=store))

    threads = [threading.Thread(target=make, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == len(set(ids)) == 300
    assert f"job-{clock.ms}" in ids


def test_the_environment_chooses_a_run_once(db, monkeypatch, tmp_path):
    first, second = fail(db, run_id="first"), fail(db, run_id="second")
    import os

    monkeypatch.setenv("AGENT_RESUME_RUN_ID", first)
    monkeypatch.setenv("AGENT_RESUME_RUN_NAME", "job")
    monkeypatch.setenv("AGENT_RESUME_RUN_DB", db)
    assert agent_run("another", lambda run: run.id, db=db) != first, "not this name"
    with pytest.warns(AgentResumeWarning, match="works in another store"):
        assert agent_run("job", lambda run: run.id, db=tmp_path / "other.db") != first, "not this store"
    assert agent_run("job", lambda run: run.id, db=db) == first
    assert not [name for name in os.environ if name.startswith("AGENT_RESUME_RUN")]
    assert agent_run("job", lambda run: run.id, db=db) == second


def test_a_run_is_found_by_id_prefix_and_latest(db):
    for run_id, name in (
        ("alpha-1", "a"),
        ("alpha-2", "a"),
        ("alpha", "a"),
        ("beta@latest", "b"),
        ("x%", "x"),
        ("x_y", "x"),
    ):
        agent_run(name, lambda run: 1, run_id=run_id, db=db)
    store = Store(db)
    assert store.find_run("alpha").id == "alpha"
    assert store.find_run("alpha-1").id == "alpha-1"
    assert store.find_run("be").id == "beta@latest"
    assert store.find_run("beta@latest").id == "beta@latest"
    assert store.find_run("a@latest").id == "alpha"
    assert store.find_run("x%").id == "x%"
    with pytest.raises(AmbiguousRunId) as caught:
        store.find_run("alpha-")
    assert set(caught.value.candidates) == {"alpha-1", "alpha-2"}
    for nothing in ("", "gamma", "c@latest", "%", "alpha-3", "ALPHA"):
        with pytest.raises(RunNotFound):
            store.find_run(nothing)


def test_the_report_of_an_unwritten_run_is_never_anothers(db):
    from agent_resume import Checkpoint

    Checkpoint("abc", db=db).record("k", 1)
    with pytest.raises(RunNotFound):
        Checkpoint("ab", db=db).report()
    with pytest.raises(RunNotFound):
        Checkpoint("ab", db=db).state()


def test_lists_are_filtered_sorted_and_cut(db):
    for number in range(6):
        if number % 2:
            fail(db, name=f"n{number}", run_id=f"r{number}")
        else:
            agent_run(f"n{number}", lambda run: 1, run_id=f"r{number}", db=db)
    ids = lambda **wanted: [run.id for run in list_runs(db=db, **wanted)]  # noqa: E731 - short
    assert ids() == ["r5", "r4", "r3", "r2", "r1", "r0"]
    assert ids(status="failed") == ["r5", "r3", "r1"]
    assert ids(status="failed", limit=2) == ["r5", "r3"]
    assert ids(limit=0) == []
    assert ids(name="n2") == ["r2"]
    assert ids(sort="name", limit=2) == ["r0", "r1"]
    assert ids(sort="-name", limit=1) == ["r5"]
    assert ids(since="2001-01-01") == ids()
    assert ids(until="2001-01-01") == []
    with pytest.raises(ValueError, match="sort"):
        ids(sort="size; DROP TABLE runs")
    with pytest.raises(ValueError, match="iso"):
        ids(since="yesterday")


def test_a_checkpoint_that_is_inside_a_step_is_not_robbed_of_its_run(db, spawn_agent):
    code = "import sys, time\nfrom agent_resume import Checkpoint\n" \
        "Checkpoint('job', db=sys.argv[1]).step('s', lambda: print('in', flush=True) or time.sleep(60))"  # fmt: skip
    other = spawn_agent(code, db, marker="in")
    with pytest.raises(RunInUse) as caught:
        agent_run("job", pytest.fail, run_id="job", db=db)
    assert caught.value.pid == other.pid
    with pytest.warns(AgentResumeWarning, match="is being executed"):
        assert agent_run("job", lambda run: run.id, db=db) != "job"
    other.kill()
    assert agent_run("job", lambda run: run.step("s", lambda: 2), run_id="job", db=db) == 2


def test_a_checkpoint_of_this_process_that_left_a_step_running_holds_up_nobody(db):
    with Checkpoint("job", db=db) as run, pytest.raises(KeyboardInterrupt):
        run.step("s", raise_interrupt)
    assert agent_run("job", lambda run: run.step("s", lambda: 2), run_id="job", db=db) == 2


def raise_interrupt():
    raise KeyboardInterrupt


def test_an_id_that_no_run_can_have_is_simply_not_found(db, cli):
    with Checkpoint("r", db=db) as run:
        run.record("a", 1)
    for ask in (load_run, cancel, lambda run_id, db: answer(run_id, "q", 1, db=db)):
        with pytest.raises(RunNotFound):
            ask("\udcff", db=db)
    assert list(list_runs(name="\udcff", db=db)) == []
