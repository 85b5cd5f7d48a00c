"""The Markdown report and the text timeline."""

from __future__ import annotations

import json
from contextlib import closing
from unittest.mock import ANY

import pytest
import raw

from agent_resume import Checkpoint, Store, agent_run, format_timeline, load_run, report


def test_the_report_holds_the_run_its_summary_and_every_step(db):
    with Checkpoint("r", db=db) as run:
        run.step("plan", lambda: 1, meta={"cli": "claude", "model": "m|1", "inputTokens": 3, "outputTokens": 4})
        run.record("given", 2)
        with pytest.raises(ZeroDivisionError):
            run.step("broken", lambda: 1 / 0)
        run.done({"score": 5, "pages": ["a", "b"], "none": None})
        text = run.report()
    with closing(raw.connect(db)) as database:
        started, finished = database.execute("SELECT created_at, finished_at FROM runs").fetchone()
    lines = text.splitlines()
    assert lines[0].startswith("# ")
    assert lines[2:4] == ["**Run ID**: r", "**Status**: completed"]
    assert f"**Started**: {started}" in lines
    assert f"**Completed**: {finished}" in lines
    assert any(line.startswith("**Total time**: ") for line in lines)
    assert "- **score**: 5" in lines
    assert '- **pages**: ["a", "b"]' in lines
    table = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    assert table[0][:4] == ["Step", "Status", "Duration", "Attempts"]
    plan, given, broken = table[1:4]
    assert plan[0:2] + plan[3:] == ["plan", "completed", "1", "claude", "m\\|1", "3", "4"]
    assert plan[2].endswith("s")
    assert given[:4] == ["given", "completed", "-", "1"]
    assert broken[1] == "failed"
    assert text.endswith("\n")


def test_a_report_without_summary_and_of_a_run_that_goes_on(db):
    with Checkpoint("r", db=db) as run:
        text = run.step("look", run.report)
    assert "**Completed**: -" in text
    assert "**Status**: running" in text
    assert "| look | running | -" in text


def test_the_report_of_a_failed_run_says_why_and_has_no_heading_over_nothing(db, command):
    def body(run):
        with pytest.raises(KeyError):
            run.step("a|b", {}.__getitem__, "no\nkey")
        run.step("pay", lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        agent_run("job", body, run_id="r", db=db)
    text = Store(db).load_run("r")
    lines = report.markdown(text, None, 5).splitlines()
    assert "**Error**: ZeroDivisionError: division by zero" in lines
    assert "## Summary" not in lines
    assert lines[-3:] == [
        "## Errors",
        "- **a\\|b**: KeyError: 'no\\nkey'",
        "- **pay**: ZeroDivisionError: division by zero",
    ]
    assert command("show", "r", "--report", "--db", db)[1].splitlines() == [
        line if not line.startswith("**Total") else ANY for line in [*lines, ""]
    ]


def test_a_reports_errors_show_no_credentials_on_the_command_line(db, command):
    with pytest.raises(ZeroDivisionError):
        agent_run("job", lambda run: run.step("s", lambda: 1 / 0), run_id="r", db=db)
    error = json.dumps({"type": "ValueError", "message": "401 for key sk-test-1234567890abcdefghij"})
    with closing(raw.connect(db)) as database, database:
        database.execute(f"UPDATE runs SET error = '{error}'")
        database.execute(f"UPDATE steps SET error = '{error}'")
    out = command("show", "r", "--report", "--db", db)[1]
    assert out.count("401 for key") == 2
    assert "sk-test" not in out


@pytest.mark.parametrize("summary", ["text", 5, ["a"], {"a\nb": "c\nd|e"}, True])
def test_any_summary_makes_lines_that_stay_lines(db, summary):
    with Checkpoint("r", db=db) as run:
        run.record("k", 1)
        run.done(summary)
        text = run.report()
    body = text[text.index("## Summary") : text.index("## Steps")].strip().splitlines()
    assert len(body) == 2
    assert body[1].startswith("- **")


def test_hostile_names_cannot_break_the_table_or_the_terminal(db):
    names = ["a|b", "line\nbreak", "\x1b[31mred", "tab\there", "\u202eturned", "wide 漢字", "", "| --- |"]
    with Checkpoint("r|\n# x", db=db) as run:
        for name in names:
            run.record(name, 1)
        text = run.report()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(names)
    assert "\x1b" not in text
    assert "\u202e" not in text
    timeline = format_timeline(load_run("r|\n# x", db=db))
    assert len(timeline.splitlines()) == len(names)
    assert "\x1b" not in timeline
    assert len([line for line in text.splitlines() if line.startswith("# ")]) == 1


def test_the_report_is_there_after_agent_run_too(db):
    kept = []
    agent_run("job", lambda run: kept.append(run) or run.step("a", lambda: 1), run_id="r", db=db)
    assert "**Status**: completed" in kept[0].report()
