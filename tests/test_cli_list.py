"""``agent-resume list``."""

from __future__ import annotations

import csv
import io
import json

import pytest

from agent_resume import Checkpoint, Run, RunNotFound, Store, agent_run, list_runs, load_run
from agent_resume.clock import iso


@pytest.fixture
def history(db):
    """Three runs of two agents, one of each ending."""

    def good(run: Run) -> str:
        run.step("a", lambda: 1, meta={"model": "m", "inputTokens": 12_000, "outputTokens": 34})
        return run.step("b", lambda: "x")

    def bad(run: Run) -> None:
        run.step("a", lambda: 1)
        run.step("b", lambda: 1 / 0)

    agent_run("good", good, run_id="good-1", db=db)
    agent_run("good", good, run_id="good-2", db=db)
    with pytest.raises(ZeroDivisionError):
        agent_run("bad", bad, run_id="bad-1", db=db)
    return db


def ids(out):
    return [run["id"] for run in json.loads(out)]


def test_the_newest_run_comes_first_with_its_steps_and_tokens(history, command):
    code, out, err = command("list", "--db", history)
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].split() == ["ID", "NAME", "STATUS", "STEPS", "DURATION", "AGE", "TOKENS"]
    assert [line.split()[:4] for line in lines[1:]] == [
        ["bad-1", "bad", "failed", "1/2"],
        ["good-2", "good", "completed", "2/2"],
        ["good-1", "good", "completed", "2/2"],
    ]
    assert lines[2].split()[-1] == "12.0k+34"


def test_filters_and_sorts(history, command):
    assert ids(command("list", "--db", history, "--json", "--status", "failed")[1]) == ["bad-1"]
    assert ids(command("list", "--db", history, "--json", "--name", "good", "--sort", "created")[1]) == [
        "good-1",
        "good-2",
    ]
    assert ids(command("list", "--db", history, "--json", "--limit", "1")[1]) == ["bad-1"]
    assert ids(command("list", "--db", history, "--json", "--since", "1h")[1]) == ["bad-1", "good-2", "good-1"]
    assert ids(command("list", "--db", history, "--json", "--until", "1h")[1]) == []
    assert (
        ids(command("list", "--db", history, "--json", "--since", "2020-01-01T00:00:00+02:00", "--sort", "-name")[1])[0]
        == "good-2"
    )


def test_an_empty_name_was_given_too(history, command):
    assert command("list", "--name", "", "--db", history)[2] == "no run fits\n"
    assert command("export", "--name", "", "--db", history)[2] == "no run fits; there is nothing to export\n"


@pytest.mark.parametrize("time", ["0001-01-01T00:00+14:00", "9999-12-31T23:00-01:00"])
def test_a_moment_that_no_year_of_utc_holds_is_a_usage_error(history, command, time):
    for line in (("list", "--since"), ("list", "--until"), ("export", "--since")):
        code, out, err = command(*line, time, "--db", history)
        assert (code, out) == (2, "")
        assert "neither an ISO time" in err
    assert len(ids(command("list", "--since", "0001-01-01", "--json", "--db", history)[1])) == 3


def test_a_table_shows_a_screenful_and_says_so_and_json_shows_all(db, command):
    with Checkpoint("first", db=db) as first:
        first.record("k", 1)
    for number in range(60):
        agent_run("many", lambda run: None, run_id=f"many-{number}", db=db)
    code, out, err = command("list", "--db", db)
    assert len(out.splitlines()) == 51
    assert "--limit 0" in err
    assert len(command("list", "--db", db, "--limit", "0")[1].splitlines()) == 62
    assert len(ids(command("list", "--db", db, "--json")[1])) == 61
    assert code == 0


def test_every_format_prints_the_same_runs(history, command):
    rows = list(csv.DictReader(io.StringIO(command("list", "--db", history, "--format", "csv")[1])))
    assert [row["id"] for row in rows] == ["bad-1", "good-2", "good-1"]
    assert rows[1]["inputTokens"] == "12000"
    lines = command("list", "--db", history, "--format", "jsonl")[1].splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["bad-1", "good-2", "good-1"]
    assert command("list", "--db", history, "--format", "tsv")[1].splitlines()[1].startswith("bad-1\tbad\tfailed")
    assert "| bad-1" in command("list", "--db", history, "--format", "github")[1]
    assert "<td>bad-1" in command("list", "--db", history, "--format", "html")[1]


def test_a_missing_store_is_an_empty_list_and_creates_nothing(tmp_path, command):
    missing = tmp_path / "no" / "such.db"
    code, out, err = command("list", "--json", "--db", missing)
    assert (code, json.loads(out)) == (0, [])
    assert "no store" in err
    code, out, err = command("list", "--db", missing)
    assert (code, out) == (0, "")
    assert not (tmp_path / "no").exists()


def test_wide_characters_stay_aligned(db, command):
    from agent_resume import report

    for number, name in enumerate(("調査エージェント", "plain", "cafe\u0301", "🦊fox")):
        agent_run(name, lambda run: None, run_id=f"id-{number}", db=db)
    lines = command("list", "--db", db)[1].splitlines()
    places = {report.width(line[: line.index("completed")]) for line in lines[1:]}
    assert places == {report.width(lines[0][: lines[0].index("STATUS")])}


def test_listing_is_the_same_twice_when_all_were_created_at_once(db, command, clock):
    for number in range(30):
        agent_run("same", lambda run: None, run_id=f"r{number}", db=db)
    first = ids(command("list", "--db", db, "--json")[1])
    assert first == [f"r{number}" for number in reversed(range(30))]
    assert ids(command("list", "--db", db, "--json")[1]) == first
    assert json.loads(command("list", "--db", db, "--json")[1])[0]["createdAt"] == iso(clock.ms)


def test_case_076_names_are_data(db, command):
    import sqlite3

    evil = "a'; DROP TABLE runs;--"
    for name in (evil, "a_b", "axb", "%", "100%", "x') OR 1=1 --"):
        agent_run(name, lambda run: run.record("k[\"'.$ ]", run.name), db=db)
    for name in (evil, "a_b", "%", "x') OR 1=1 --"):
        found = json.loads(command("list", "--db", db, "--json", "--name", name)[1])
        assert [run["name"] for run in found] == [name]
    assert json.loads(command("list", "--db", db, "--json", "--name", "a__")[1]) == []
    assert command("list", "--db", db, "--sort", "id; DROP TABLE runs")[0] == 2
    assert command("show", "%", "--db", db)[0] == 0  # the id "%-…", by its prefix; nothing in a prefix is a pattern
    assert command("show", "_", "--db", db)[0] == 3
    with sqlite3.connect(db) as plain:
        assert plain.execute("SELECT count(*) FROM runs").fetchone() == (6,)
    plain.close()


def test_case_074_listing_loads_no_outputs(db, command):
    import tracemalloc

    with Checkpoint("big", db=db) as big:
        big.record("big", "x" * 20_000_000)
    command("list", "--db", db)
    tracemalloc.start()
    code, out, _ = command("list", "--db", db)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert code == 0
    assert "big" in out
    assert peak < 5_000_000


def test_a_table_for_programs_has_its_header_also_without_a_run(command, db):
    assert command("list", "--format", "jsonl", "--db", db)[1] == ""
    header = command("list", "--format", "csv", "--db", db)[1]
    agent_run("job", lambda run: 1, run_id="r", db=db)
    assert command("list", "--format", "csv", "--db", db)[1].startswith(header)
    assert command("list", "--format", "tsv", "--name", "no", "--db", db)[1] == header.replace(",", "\t")
    assert header.strip().split(",") == list(json.loads(command("list", "--json", "--db", db)[1])[0])


def test_what_nothing_can_be_called_is_found_nowhere(db):
    agent_run("job", lambda run: 1, run_id="r", db=db)
    for text in ("\ud800", "a\0b"):
        assert list(list_runs(db=db, status=text)) == list(list_runs(db=db, name=text)) == []
        with Store(db) as store, pytest.raises(RunNotFound):
            store.find_run(text)
        with pytest.raises(RunNotFound):
            load_run(text, db=db)
    with pytest.raises(ValueError, match="limit is how many"):
        list(list_runs(db=db, limit=-1))
