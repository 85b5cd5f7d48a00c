"""``agent-resume show``: the screen of one run, and its JSON."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3

import pytest

from agent_resume import Checkpoint, DuplicateStep, Run, Store, agent_run


@pytest.fixture
def run(db):
    def body(run: Run) -> object:
        run.step(
            "plan",
            lambda: {"api_key": "sk-test-1234567890abcdefghij", "n": 1},
            meta={"model": "opus", "inputTokens": 5},
        )
        tries = []

        def flaky() -> str:
            tries.append(1)
            if len(tries) < 3:
                raise ValueError(f"try {len(tries)} failed")
            return "got it"

        for _ in range(2):
            with pytest.raises(ValueError, match="failed"):
                run.step("flaky", flaky)
        run.step("flaky", flaky)
        run.event("gate", name="lint", status="pass")
        return run.pause("go on?", {"amount": 120}, name="approval")

    agent_run("agent", body, run_id="run-1", db=db, on_pause="return")
    return db


def test_the_screen_tells_what_there_is(run, command):
    code, out, err = command("show", "run-1", "--db", run)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["run-1", "paused"]
    assert re.search(r"steps +2 of 2 completed", out)
    assert re.search(r"tokens +5 in, 0 out \(opus 5\+0\)", out)
    assert re.search(r"^  flaky +completed +\d+\.\ds .*attempt 3", out, re.MULTILINE)
    assert re.search(r"pause approval: go on\?  open, asked \d+s ago", out)
    assert '{"amount": 120}' in out


def test_a_step_shows_its_attempts_with_their_errors_and_its_whole_result(run, command):
    out = command("show", "run-1", "--step", "flaky", "--db", run)[1]
    assert "attempt 1" in out
    assert "ValueError: try 1 failed" in out
    assert "Traceback" in out
    assert out.rstrip().endswith('"got it"')
    shown = json.loads(command("show", "run-1", "--step", "flaky", "--json", "--db", run)[1])
    assert shown["output"] == "got it"
    assert [attempt["outcome"] for attempt in shown["attemptList"]] == ["error", "error", "done"]


def test_a_step_that_there_is_not_is_an_error_with_the_next_step(run, command):
    code, out, err = command("show", "run-1", "--step", "nope", "--db", run)
    assert (code, out) == (2, "")
    assert "agent-resume show" in err


def test_credentials_are_masked_unless_asked_for(run, command):
    assert "sk-test" not in command("show", "run-1", "--json", "--db", run)[1]
    assert "sk-test" not in command("show", "run-1", "--step", "plan", "--db", run)[1]
    assert "sk-test" in command("show", "run-1", "--step", "plan", "--unmasked", "--db", run)[1]


@pytest.mark.parametrize("how", [(), ("--json",), ("--json", "--events"), ("--step", "s"), ("--step", "s", "--json")])
def test_whatever_is_shown_is_unmasked_when_that_is_asked_for(db, command, how):
    def body(run: Run) -> object:
        run.step("s", lambda: {"password": "of-output"}, meta={"password": "of-meta"})
        run.event("seen", password="of-event")
        return run.pause("go on?", {"password": "of-context"})

    agent_run("agent", body, run_id="m", input={"password": "of-input"}, db=db, on_pause="return")
    masked, unmasked = (command("show", "m", *how, *more, "--db", db)[1] for more in ((), ("--unmasked",)))
    assert "of-" not in masked
    assert "[redacted]" in masked
    # An event is masked when it is stored.
    assert ("[redacted]" in unmasked) == ("--events" in how)
    seen = {word for word in ("output", "meta", "input", "context") if f"of-{word}" in unmasked}
    wanted = {"output", "meta"} if "--step" in how else {"output", "meta", "input", "context"} if how else {"context"}
    assert seen == wanted


def test_json_is_the_documented_state_and_more(run, command):
    shown = json.loads(command("show", "run-1", "--json", "--events", "--db", run)[1])
    assert {"id", "name", "createdAt", "updatedAt", "steps"} <= set(shown)
    assert [(step["name"], step["status"]) for step in shown["steps"]] == [
        ("plan", "completed"),
        ("flaky", "completed"),
    ]
    assert shown["steps"][1]["output"] == "got it"
    assert shown["pauses"][0]["context"] == {"amount": 120}
    assert [event["type"] for event in shown["eventList"]][:2] == ["created", "start"]
    assert "gate" in {event["type"] for event in shown["eventList"]}


def test_the_report_is_markdown(run, command):
    out = command("show", "run-1", "--report", "--db", run)[1]
    assert out.startswith("# Run agent\n")
    assert "| flaky | completed |" in out


def test_events_are_lines_in_order(run, command):
    out = command("show", "run-1", "--events", "--db", run)[1]
    numbers = [int(found) for found in re.findall(r"^ +(\d+)  20", out, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_control_characters_of_stored_values_never_reach_the_terminal(db, command):
    evil = "\x1b]0;owned\x07\x1b[31m\x9b31m\u202egnp\r\x00"

    def body(run: Run) -> object:
        run.step("a" + "\x1b[2J", lambda: evil)
        run.event("note", {"text": evil})
        run.record("m", 1, {"model": evil, "inputTokens": 1})
        return run.pause("why" + "\x1b[31m", evil, name="p\x9b")

    agent_run("n\x1b[31mame", body, run_id="id-\x1b[31m", db=db, on_pause="return")
    for args in (
        ("list",),
        ("list", "--json"),
        ("show", "id-"),
        ("show", "id-", "--json", "--events"),
        ("show", "id-", "--events"),
        ("show", "id-", "--step", "a\x1b[2J"),
        ("show", "id-", "--report"),
        ("events", "id-"),
        ("resume", "id-"),
        ("resume", "id-", "--json"),
        *(
            []
            if "://" in db
            else [("sql", "SELECT * FROM runs, steps"), ("sql", "SELECT * FROM runs, steps", "--json")]
        ),
        ("doctor",),
    ):
        _, out, err = command(*args, "--db", db)
        shown = (out + err).replace("\n", "")
        assert shown
        assert not [c for c in shown if not c.isprintable()], (args, ascii(shown)[:300])


def test_case_016_a_second_attempt_says_that_the_first_has_an_unknown_outcome(db, command, run_python):
    dying = """
import os, sys
from agent_resume import agent_run
agent_run("job", lambda run: run.step("s", os.kill if sys.argv[2] == "die" else min, os.getpid(), 9), run_id="r", db=sys.argv[1])
"""
    run_python(dying, db, "die")
    run_python(dying, db, "live")
    out = command("show", "r", "--db", db)[1]
    assert "attempt 2 after one of unknown outcome" in out
    assert json.loads(command("show", "r", "--json", "--db", db)[1])["warnings"][0]["kind"] == "unknown"


def test_an_attempt_that_was_cut_off_and_is_to_be_run_again_has_an_unknown_outcome(db, command, run_python):
    run_python(
        "import os, sys\nfrom agent_resume import agent_run\n"
        "agent_run('job', lambda run: run.step('s', os._exit, 9, effect='once'), run_id='r', db=sys.argv[1])",
        db,
    )
    assert command("resume", "r", "--step", "s", "--retry", "--db", db)[0] == 0
    agent_run("job", lambda run: run.step("s", min, 1, 2, effect="once"), run_id="r", db=db)
    attempts = json.loads(command("show", "r", "--step", "s", "--json", "--db", db)[1])["attemptList"]
    assert [attempt["outcome"] for attempt in attempts] == ["unknown", "done"]
    assert "attempt 2 after one of unknown outcome" in command("show", "r", "--db", db)[1]


def test_options_that_would_change_nothing_are_refused(db, command):
    agent_run("job", lambda run: run.step("s", lambda: 1), run_id="r", db=db)
    for args in (
        ("show", "r", "--step", "s", "--events"), ("list", "--json", "--format", "csv"),
        ("sql", "SELECT 1", "--json", "--format", "csv"), ("sql", "--schema", "--format", "csv"),
    ):  # fmt: skip
        assert command(*args, "--db", db)[0] == 2, args


def test_case_022_changed_code_is_marked(db, command, recwarn):
    for value in ("lambda: 2", "lambda: 3"):
        with Checkpoint("r", db=db) as run:
            run.step("a", eval(value))
    out = command("show", "r", "--db", db)[1]
    assert "its code changed since the result was stored" in out


def test_case_029_and_037_reading_restores_nothing(db, command, run_python):
    code = """
import dataclasses, sys
from agent_resume import agent_run
@dataclasses.dataclass
class Saved:
    x: int
class ApiError(Exception):
    def __init__(self, *, status):
        super().__init__(f"status {status}")
def boom():
    raise ApiError(status=500)
def body(run):
    run.step("saved", lambda: Saved(7))
    run.step("boom", boom)
agent_run("job", body, run_id="r", db=sys.argv[1])
"""
    assert run_python(code, db).returncode == 1
    shown = json.loads(command("show", "r", "--json", "--db", db)[1])
    assert "7" in json.dumps(shown["steps"][0]["output"])
    assert shown["steps"][1]["error"]["message"] == "status 500"
    assert "ApiError: status 500" in command("show", "r", "--db", db)[1]


def test_case_032_a_lone_surrogate_and_a_nul_are_shown(db, command):
    with Checkpoint("r", db=db) as run:
        run.step("s", lambda: "ok " + chr(0xDC81))
        run.step("n", lambda: "a" + chr(0) + "b")
    code, out, _ = command("show", "r", "--json", "--db", db)
    assert code == 0
    out.encode()
    assert json.loads(out)["steps"][1]["output"] == "a\0b"
    assert command("show", "r", "--step", "s", "--db", db)[0] == 0


def test_case_055_times_are_utc_with_their_zone(db, cli):
    import time

    agent_run("r", lambda run: None, run_id="r", db=db)
    for zone in ("America/New_York", "Asia/Kolkata", "UTC"):
        shown = json.loads(cli("show", "r", "--json", "--db", db, TZ=zone).stdout)
        assert shown["createdAt"].endswith("Z")
        from agent_resume.clock import parse_iso

        assert abs(parse_iso(shown["createdAt"]) / 1000 - time.time()) < 60
        assert shown["createdAt"] in cli("show", "r", "--db", db, TZ=zone).stdout


def test_a_run_of_a_dead_owner_names_the_owner(db, command, run_python):
    run_python(
        "import os, sys\nfrom agent_resume import agent_run\nagent_run('j', lambda run: os._exit(1), run_id='r', db=sys.argv[1])",
        db,
    )
    out = command("show", "r", "--db", db)[1]
    assert re.search(r"owner +process \d+ on .*, dead", out)
    shown = json.loads(command("show", "r", "--json", "--db", db)[1])
    assert (shown["status"], shown["storedStatus"]) == ("interrupted", "running")
    assert shown["owner"]["verdict"] == "dead"
    assert shown["owner"]["pid"] != os.getpid()


@pytest.mark.filterwarnings("ignore::agent_resume.AgentResumeWarning")
def test_what_was_warned_about_is_left_for_show(db, command):
    with Checkpoint("r", db=db) as run:
        run.step("fetch", lambda url: url, "old")
        run.record("total", 1)
    with Checkpoint("r", db=db) as run:
        for _ in range(3):
            run.step("fetch", lambda url: url, "new")
        run.record("total", 2)
    out = command("show", "r", "--db", db)[1]
    (fetch,) = re.findall(r"^  fetch .*", out, re.MULTILINE)
    (total,) = re.findall(r"^  total .*", out, re.MULTILINE)
    assert "its inputs changed" in fetch
    assert "its name was used twice" in fetch
    assert "another value was recorded later and not kept" in total
    assert "used twice" not in total
    events = [(event.type, event.step_key) for event in Store(db).events("r")]
    # Once an execution, however often it happened.
    assert events.count(("input_changed", "fetch")) == events.count(("duplicate", "fetch")) == 1
    warned = json.loads(command("show", "r", "--json", "--db", db)[1])["warnings"]
    kinds = {(warning["step"], warning["kind"]) for warning in warned}
    assert kinds >= {("fetch", "input_changed"), ("fetch", "duplicate"), ("total", "conflict")}


def test_a_duplicate_that_ends_the_run_is_left_for_show_too(db, command):
    with pytest.raises(DuplicateStep):
        agent_run("a", lambda run: [run.step("s", int), run.step("s", int)], run_id="r", db=db)
    assert "its name was used twice" in command("show", "r", "--db", db)[1]


def test_lost_events_are_a_warning_of_the_run(db, command):
    agent_run("a", lambda run: run.step("s", int), run_id="r", db=db)
    with contextlib.closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("""UPDATE runs SET meta = '{"eventsLost": 3}'""")
    out = command("show", "r", "--db", db)[1]
    assert out.rstrip().endswith("3 events could not be stored")
    assert not re.search("^  meta", out, re.MULTILINE)
    (warning,) = json.loads(command("show", "r", "--json", "--db", db)[1])["warnings"]
    assert (warning["kind"], warning["text"]) == ("lost_events", "3 events could not be stored")
