"""``agent-resume sql`` and ``connect``."""

from __future__ import annotations

import csv
import io
import json
import signal
import sqlite3
import subprocess
import sys
import time

import psutil
import pytest

from agent_resume import Checkpoint, Run, agent_run, schema


@pytest.fixture
def store(db):
    def body(run: Run) -> None:
        run.step("a", lambda: {"x": 1})
        run.step("b", lambda: "token=abcdefghij0123456789xyz")

    agent_run("job", body, run_id="r", db=db)
    return db


def test_rows_come_in_every_form(store, command):
    query = "SELECT key, status FROM step_timeline WHERE run_id = :run ORDER BY seq"
    code, out, err = command("sql", query, "-p", "run=r", "--db", store)
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [["key", "status"], ["a", "completed"], ["b", "completed"]]
    assert json.loads(command("sql", query, "-p", "run=r", "--json", "--db", store)[1]) == [
        {"key": "a", "status": "completed"},
        {"key": "b", "status": "completed"},
    ]
    assert (
        command("sql", query, "-p", "run=r", "--format", "csv", "--db", store)[1]
        == "key,status\na,completed\nb,completed\n"
    )


def test_line_ends_in_a_csv_cell_and_bars_in_a_markdown_cell_stay_in_it(store, command):
    cells = ["a\nb", "c\rd", "e,\r\nf", "g|h", "plain"]
    query = f"SELECT value AS x, 2 AS y FROM json_each('{json.dumps(cells)}')"
    out = command("sql", query, "--format", "csv", "--db", store)[1]
    assert list(csv.reader(io.StringIO(out, newline=""))) == [["x", "y"], *([cell, "2"] for cell in cells)]
    for format in ("github", "pipe", "jira"):
        (line,) = [
            one for one in command("sql", query, "--format", format, "--db", store)[1].splitlines() if "h" in one
        ]
        assert r"g\|h" in line


def test_a_traceback_of_debug_is_fit_for_a_terminal(db, command):
    with Checkpoint("odd\x1b[31m", db=db) as run:
        run.record("k", 1)
    code, _, err = command("sql", "SELECT json_extract('{}', id) FROM runs", "--debug", "--db", db)
    assert (code, "\x1b" in err) == (2, False)
    assert "Traceback" in err
    assert err.count(r"odd\x1b[31m") > 1


def test_connect_refuses_what_is_there_and_cannot_be_used(tmp_path, command):
    (tmp_path / "text.db").write_text("no database at all\n" * 100, encoding="utf-8")
    for path in (tmp_path, tmp_path / "text.db"):
        code, out, err = command("connect", "--db", path)
        assert (code, out, err.count("\n")) == (6, "", 1)
    assert command("connect", "--db", tmp_path / "none.db")[0] == 0


def test_a_statement_may_begin_with_a_comment(store, command):
    assert command("sql", "-- which runs\nSELECT 1 AS one", "--json", "--db", store)[:2] == (0, '[\n{"one": 1}\n]\n')
    assert command("sql", "--json", "--nope", "--db", store)[0] == 2


@pytest.mark.timeout(60)
def test_ctrl_c_ends_a_statement_that_computes(store):
    endless = "WITH RECURSIVE n(x) AS (VALUES (1) UNION ALL SELECT x + 1 FROM n) SELECT sum(x) FROM n"
    command = [sys.executable, "-m", "agent_resume", "sql", endless, "--db", store]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        used = psutil.Process(process.pid)
        while sum(used.cpu_times()[:2]) < 1.5:  # it computes, or is about to
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20) == (b"", b"")
        assert process.returncode == 130
    finally:
        process.kill()
        process.communicate()


def test_every_view_and_table_can_be_read(store, command):
    for name in ("run_overview", "step_timeline", "step_attempts", "runs", "steps", "events", "pauses", "owners"):
        assert command("sql", f"SELECT * FROM {name}", "--json", "--db", store)[0] == 0


@pytest.mark.parametrize("view", schema.VIEW_NAMES)
def test_one_run_is_found_in_a_view_by_indexes_alone(store, view):
    with sqlite3.connect(store) as plain:
        plan = plain.execute(f"EXPLAIN QUERY PLAN SELECT * FROM {view} WHERE run_id = 'r'").fetchall()
        assert plain.execute(f"SELECT DISTINCT run_id FROM {view} WHERE run_id = 'r'").fetchall() == [("r",)]
    plain.close()
    steps = [detail for *_, detail in plan]
    assert any("SEARCH r USING" in step and "(id=?)" in step for step in steps), steps
    # The scan of a view that was computed for one run is none of a table.
    assert [step for step in steps if step.startswith("SCAN") and step != f"SCAN {view}"] == []


@pytest.mark.parametrize("column", ["name", "status"])
def test_an_overview_of_some_runs_reads_no_others(store, column):
    with sqlite3.connect(store) as plain:
        plan = plain.execute(f"EXPLAIN QUERY PLAN SELECT * FROM run_overview WHERE {column} = 'x'").fetchall()
    plain.close()
    assert [detail for *_, detail in plan if "SCAN" in detail] == []


def test_parameters_are_bound_and_numbers_are_numbers(store, command):
    assert json.loads(
        command("sql", "SELECT :n + 1 AS n, typeof(:t) AS t", "-p", "n=41", "-p", "t=x", "--json", "--db", store)[1]
    ) == [{"n": 42, "t": "text"}]
    evil = "x'; DELETE FROM runs; --"
    assert json.loads(command("sql", "SELECT :v AS v", "-p", f"v={evil}", "--json", "--db", store)[1]) == [{"v": evil}]
    assert command("sql", "SELECT :v", "--db", store)[0] == 2
    assert command("sql", "SELECT 1", "-p", "novalue", "--db", store)[0] == 2


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM runs",
        "UPDATE runs SET name = 'x' RETURNING id",
        "INSERT INTO runs (id, name, status, created_at, updated_at) VALUES ('x', 'x', 'running', '', '')",
        "DROP TABLE runs",
        "CREATE TABLE t (x)",
        "CREATE TEMP TABLE t (x)",
        "WITH x AS (SELECT 1) DELETE FROM runs",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA query_only = OFF",
        "PRAGMA user_version = 7",
        "PRAGMA writable_schema = ON",
        "ATTACH 'elsewhere.db' AS e",
        "VACUUM",
        "VACUUM INTO 'elsewhere.db'",
        "REINDEX",
        "ANALYZE",
        "BEGIN IMMEDIATE",
        "SELECT 1; DELETE FROM runs",
        "SELECT load_extension('x')",
    ],
)
def test_nothing_can_be_changed(store, command, in_tmp_path, statement):
    before = _content(store)
    code, out, err = command("sql", statement, "--db", store)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert _content(store) == before
    assert not (in_tmp_path / "elsewhere.db").exists()


def _content(db):
    with sqlite3.connect(db) as plain:
        found = (
            plain.execute("SELECT type, sql FROM sqlite_master ORDER BY 1, 2").fetchall(),
            plain.execute("SELECT * FROM runs").fetchall(),
        )
    plain.close()
    return found


def test_a_mistake_is_one_line(store, command):
    code, out, err = command("sql", "SELEC 1", "--db", store)
    assert (code, out) == (2, "")
    assert 'near "SELEC": syntax error' in err
    assert err.count("\n") == 1
    for nothing in ("", "  ", "-- a comment"):
        code, out, err = command("sql", "--json", "--db", store, "--", nothing)
        assert (code, out) == (2, "")
        assert "no statement" in err
    assert command("sql", "SELECT 1", "--db", f"{store}.missing")[0] == 6


@pytest.mark.parametrize(
    ("statement", "advice"),
    [
        ("SELECT * FROM runs WHERE id = :run", "with -p NAME=VALUE"),
        ("SELECT 1; SELECT 2", "give each SELECT a call of its own"),
        ("SELECT nope FROM runs", "--schema shows the tables and views"),
    ],
)
def test_a_refused_statement_names_what_to_do_about_it(store, command, statement, advice):
    code, out, err = command("sql", statement, "--db", store)
    assert (code, out) == (2, "")
    assert err.endswith(f"{advice}\n")


def test_a_parameter_without_a_name_is_told_how_to_give_it_one(store, command):
    assert "write each parameter as :NAME" in command("sql", "SELECT ?", "--db", store)[2]


def test_an_answer_without_rows_is_said_to_have_none(store, command):
    assert command("sql", "SELECT 1 AS one WHERE 1 = 0", "--db", store) == (0, "", "no rows\n")
    assert command("sql", "SELECT 1 AS one WHERE 1 = 0", "--format", "csv", "--db", store) == (0, "one\n", "")


def test_credentials_are_masked_unless_asked_for(store, command):
    query = "SELECT output FROM steps WHERE key = 'b'"
    assert "abcdefghij" not in command("sql", query, "--db", store)[1]
    assert "abcdefghij" in command("sql", query, "--unmasked", "--db", store)[1]


def test_columns_of_one_name_are_all_kept_in_json(store, command):
    assert json.loads(command("sql", "SELECT 1 AS a, 2 AS a, 3 AS a", "--json", "--db", store)[1]) == [
        {"a": 1, "a_2": 2, "a_3": 3}
    ]


def test_a_number_given_to_a_column_is_no_other_columns_name(store, command):
    query = "SELECT 1 AS a, 2 AS a, 3 AS a_2, 4 AS a"
    assert json.loads(command("sql", query, "--json", "--db", store)[1]) == [{"a": 1, "a_3": 2, "a_2": 3, "a_4": 4}]


@pytest.mark.parametrize("form", [["--json"], ["--format", "jsonl"]])
def test_infinities_are_texts_since_json_has_none(store, command, form):
    _, out, _ = command("sql", "SELECT 1e999 AS x, -1e999 AS y, 1.5 AS z", *form, "--db", store)

    def refuse(word):
        raise AssertionError(word)

    found = json.loads(out, parse_constant=refuse)
    assert (found if isinstance(found, dict) else found[0]) == {"x": "Infinity", "y": "-Infinity", "z": 1.5}


def test_the_plan_of_a_query_is_what_sqlite_says(store, command):
    out = command("sql", "EXPLAIN QUERY PLAN SELECT * FROM run_overview WHERE run_id = 'r'", "--db", store)[1]
    assert "(token=?)" in out
    assert "redacted" not in out


def test_the_schema_is_printed_with_comments_and_is_sql(store, command):
    out = command("sql", "--schema", "--db", store)[1]
    assert "-- questions, waits and sleeps" in out
    with sqlite3.connect(":memory:") as fresh:
        fresh.executescript(out)
        assert fresh.execute("SELECT * FROM run_overview").fetchall() == []
    fresh.close()
    assert {"runs", "step_timeline"} <= {
        entry["name"] for entry in json.loads(command("sql", "--schema", "--json", "--db", store)[1])
    }


def test_connect_prints_ways_that_work(store, command):
    ways = json.loads(command("connect", "--json", "--db", store)[1])
    assert ways["database"] == store
    assert ways["exists"]
    from sqlalchemy import create_engine, text

    engine = create_engine(ways["url"])
    with engine.connect() as connection:
        assert connection.execute(text("SELECT id FROM runs")).scalar() == "r"
    engine.dispose()
    for query in ways["queries"].values():
        assert command("sql", query, "--db", store)[0] == 0, query
    out = command("connect", "--db", store)[1]
    assert "sqlite3 -readonly" in out
    assert "datasette" in out


def test_connect_links_a_run_in_a_hosted_history(store, command, monkeypatch):
    assert command("connect", "r", "--db", store)[0] == 2
    monkeypatch.setenv("AGENT_RESUME_HISTORY_URL", "https://history.example/runs/{run_id}?x=1")
    agent_run("odd", lambda run: None, run_id="a/b?c", db=store)
    assert (
        json.loads(command("connect", "a/b?c", "--json", "--db", store)[1])["link"]
        == "https://history.example/runs/a%2Fb%3Fc?x=1"
    )
    monkeypatch.setenv("AGENT_RESUME_HISTORY_URL", "https://history.example/")
    assert command("connect", "r", "--db", store)[0] == 2


def test_connect_of_a_missing_store_creates_nothing(tmp_path, command):
    code, out, err = command("connect", "--db", tmp_path / "no.db")
    assert code == 0
    assert "no.db" in out
    assert "nothing yet" in err
    assert list(tmp_path.iterdir()) == []
