"""Stores of every released schema, kept in tests/assets: each opens, is upgraded and resumes its runs."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from agent_resume import agent_run, answer, list_runs, load_run, schema

# The stores were made elsewhere and by other code; neither is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::agent_resume.errors.StepCodeChangedWarning")

ASSETS = sorted((Path(__file__).parent / "assets").glob("*.db"))


@pytest.fixture(params=ASSETS, ids=lambda path: path.stem)
def old(request, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_RESUME_HOST", "builder")
    return shutil.copyfile(request.param, tmp_path / "runs.db")


def test_there_is_a_store_of_every_revision():
    assert [path.stem for path in ASSETS] == list(schema.REVISIONS)


def test_an_old_store_lists_and_loads_its_runs(old):
    shown = {run.id: run.shown_status for run in list_runs(db=old)}
    assert shown == {
        "completed-1": "completed",
        "failed-1": "failed",
        "paused-1": "paused",
        "cut-off-1": "interrupted",
    }
    assert [step.name for step in load_run("completed-1", db=old).steps] == ["recorded", "part-1", "part-2", "part-3"]


def test_a_completed_run_of_an_old_store_gives_its_result(old):
    parts = agent_run("completed", pytest.fail, run_id="completed-1", db=old, input={"topic": "whales"})
    assert parts == [{"part": part, "tuple": (1, 2)} for part in (1, 2, 3)]


@pytest.mark.parametrize("name", ["failed", "cut-off"])
def test_a_run_of_an_old_store_goes_on_behind_its_stored_steps(old, name):
    calls = []

    def body(run):
        first = run.step("first", lambda: calls.append("first"))
        return first, run.step("second", lambda: calls.append("second") or "now")

    assert agent_run(name, body, run_id=f"{name}-1", db=old) == ("kept", "now")
    assert calls == ["second"]


def test_a_paused_run_of_an_old_store_takes_its_answer(old):
    answer("paused-1", "approval", "yes", db=old)

    def body(run):
        run.step("first", pytest.fail)
        return run.pause("go on?", {"because": "it costs"}, name="approval")

    assert agent_run("paused", body, run_id="paused-1", db=old) == "yes"


def test_an_old_store_is_at_the_newest_revision_once_it_was_written_to(old):
    agent_run("new", lambda run: run.step("s", int), db=old)
    with sqlite3.connect(old) as database:
        assert database.execute(f"SELECT * FROM {schema.VERSION_TABLE}").fetchall() == [(schema.HEAD,)]
    database.close()
