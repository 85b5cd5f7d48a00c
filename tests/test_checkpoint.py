"""``Checkpoint``: a run by its id, joined by as many as like."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import raw

from agent_resume import (
    Checkpoint,
    DuplicateStep,
    DuplicateStepWarning,
    InvalidName,
    RunCancelled,
    StepInFlight,
    Store,
    StoreDamaged,
    agent_run,
    cancel,
    list_runs,
    load_run,
    store_records,
)

pytestmark = pytest.mark.filterwarnings("ignore::agent_resume.errors.StepCodeChangedWarning")


def rows(db, query, *values):
    with closing(raw.connect(db)) as database:
        return database.execute(query, values).fetchall()


def test_what_leaves_a_with_goes_on_when_the_pending_skips_cannot_be_stored_and_has_a_note(db, monkeypatch):
    with Checkpoint("r", db=db) as run:
        run.step("a", lambda: 1)

    def fails(*_):
        raise StoreDamaged("runs.db", "as planned")

    monkeypatch.setattr(store_records, "store_skips", fails)
    with pytest.raises(ZeroDivisionError) as caught, Checkpoint("r", db=db) as run:
        run.step("a", lambda: 1)
        raise ZeroDivisionError
    assert any("could not store what was pending" in note and "as planned" in note for note in caught.value.__notes__)
    with pytest.raises(StoreDamaged), Checkpoint("r", db=db) as run:
        run.step("a", lambda: 1)


def test_opening_and_reading_change_nothing(db):
    with pytest.raises(ZeroDivisionError):
        agent_run("job", lambda run: run.step("a", lambda: 1) and 1 / 0, run_id="r", db=db)
    before = rows(db, "SELECT * FROM runs"), rows(db, "SELECT * FROM events"), rows(db, "SELECT * FROM owners")
    with Checkpoint("r", db=db) as run:
        assert run.has("a")
        assert run.get_step_result("a") == 1
        assert run.status == "failed"
        run.state(), run.timeline(), run.report(), run.get_loop_state(), run.get_pause_context()
        run.count_completed_keys_with_prefix("")
        run.flush_log()
        run.flush()
    assert (
        rows(db, "SELECT * FROM runs"),
        rows(db, "SELECT * FROM events"),
        rows(db, "SELECT * FROM owners"),
    ) == before


def test_skips_alone_are_told_when_it_is_closed(db):
    with Checkpoint("r", db=db) as run:
        run.step("a", lambda: 1)
    with Checkpoint("r", db=db) as run:
        run.step("a", pytest.fail)
    assert rows(db, "SELECT count(*) FROM events WHERE type = 'skips'") == [(1,)]


def test_its_first_write_sets_an_unfinished_run_running(db):
    for status in ("failed", "interrupted", "paused"):
        with Checkpoint(status, db=db) as run:
            run.record("k", 1)
        with closing(raw.connect(db)) as database:
            database.execute(
                "UPDATE runs SET status = ?, error = '{}', finished_at = 'x' WHERE id = ?", (status, status)
            )
            database.commit()
        with Checkpoint(status, db=db) as run:
            assert run.status == status
            run.record("more", 1)
            assert run.status == "running"
        assert rows(db, "SELECT error, finished_at FROM runs WHERE id = ?", status) == [(None, None)]


def test_a_cancelled_run_takes_no_more_work(db):
    with Checkpoint("r", db=db) as run:
        run.record("k", 1)
        cancel("r", db=db)
        with pytest.raises(RunCancelled):
            run.step("a", pytest.fail)
    with Checkpoint("r", db=db) as run:
        assert run.get_step_result("k") == 1
        with pytest.raises(RunCancelled):
            run.record("more", 1)


def test_a_failing_step_leaves_the_run_running(db):
    with Checkpoint("r", db=db) as run, pytest.raises(ZeroDivisionError):
        run.step("a", lambda: 1 / 0)
    assert load_run("r", db=db).status == "running"


def test_its_name_is_its_id(db):
    with Checkpoint("r", db=db) as run:
        run.record("k", 1)
        assert (run.id, run.name, run.input) == ("r", "r", None)
    assert [run.name for run in list_runs(db=db)] == ["r"]


@pytest.mark.parametrize("run_id", ["", None, 5, "a\0b", "\ud800"])
def test_ids_that_cannot_be_one_are_refused(db, run_id):
    with pytest.raises(InvalidName):
        Checkpoint(run_id, db=db)


def test_a_name_used_twice_returns_the_stored_value_with_a_warning(db):
    with Checkpoint("r", db=db) as run:
        run.step("a", int)
        with pytest.warns(DuplicateStepWarning, match="'a'"):
            assert run.step("a", lambda: 2) == 0
    with Checkpoint("r", db=db, strict=True) as run:
        run.step("a", int)
        with pytest.raises(DuplicateStep):
            run.step("a", int)


def test_a_step_in_flight_elsewhere_is_refused_and_goes_to_whoever_survives(db, spawn_agent):
    code = (
        "import sys, time\nfrom agent_resume import Checkpoint\n"
        "Checkpoint('r', db=sys.argv[1]).step('s', lambda: print('in', flush=True) or time.sleep(60))"
    )
    other = spawn_agent(code, db, marker="in")
    with Checkpoint("r", db=db) as run:
        with pytest.raises(StepInFlight) as caught:
            run.step("s", pytest.fail)
        assert caught.value.pid == other.pid
        assert run.step("beside", lambda: 1) == 1
        other.kill()
        assert run.step("s", lambda: 2) == 2
    assert rows(db, "SELECT attempt, outcome FROM step_attempts WHERE key = 's'") == [(1, "unknown"), (2, "done")]


def test_steps_completed_elsewhere_since_are_returned_not_run(db):
    with Checkpoint("r", db=db) as one, Checkpoint("r", db=db) as two:
        one.record("k", 1)
        two.record("k2", 1)
        assert one.step("s", lambda: {"by": "one"}) == {"by": "one"}
        assert two.step("s", pytest.fail) == {"by": "one"}


def test_a_store_that_cannot_be_read_is_known_at_once(db):
    Path(db).write_text("no database " * 100)
    with pytest.raises(StoreDamaged):
        Checkpoint("r", db=db)


def test_state_dir_is_a_folder_with_runs_db_in_it(tmp_path):
    with Checkpoint("r", tmp_path / "state") as run:
        run.record("k", 1)
    assert load_run("r", state_dir=tmp_path / "state").steps[0].output == 1
    assert (tmp_path / "state" / "runs.db").is_file()


def test_a_store_that_was_given_stays_open_and_is_its_owners_to_close(db):
    with Store(db) as store:
        for _ in range(3):
            with Checkpoint("r", db=store) as run:
                run.record("k", 1)
        assert store.load_run("r").id == "r"
    store.close()


def test_options_that_cannot_be_meant_are_refused(db):
    with pytest.raises(ValueError, match="durability"):
        Checkpoint("r", db=db, durability="some")
    with pytest.raises(ValueError, match="on_duplicate"):
        Checkpoint("r", db=db, on_duplicate="some")
