"""Single texts of the command line: one way to say a thing, nothing that is not so, codes that are said where they apply."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from agent_resume import Checkpoint, Store, agent_run, store_admin_detail

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def asking(db):
    """A run that slept, and has one question open; another has two."""

    def body(run):
        run.step("book", lambda: 1, meta={"authorization": "Bearer abcdefghijklmnop"})
        run.sleep("nap", 0.001)
        return run.pause("May I?", name="approval")

    def both(run):
        def answered(*more):
            command = [sys.executable, "-m", "agent_resume", "resume", "q-1", "--answer", "1", *more, "--db", db]
            return subprocess.run(command, capture_output=True, text=True)

        names = ("colour", "size")
        threads = [threading.Thread(target=run.wait, args=(name,), kwargs={"timeout": 60}) for name in names]
        for thread in threads:
            thread.start()
        with Store(db) as store:
            while len(store_admin_detail.detail(store, store.find_run("q-1")).open_pauses) < 2:
                time.sleep(0.05)
        done = answered()
        for name, thread in zip(names, threads, strict=True):
            answered("--name", name)
            thread.join()
        return [done.returncode, done.stderr]

    agent_run("asker", body, run_id="a-1", db=db, on_pause="return")
    return db, lambda: agent_run("both", both, run_id="q-1", db=db)


def test_what_the_run_does_not_have_is_wrong_usage_and_said_in_one_way(asking, command):
    db, _ = asking
    for line in ("rerun a-1 nope", "fork a-1 --from nope", "show a-1 --step nope", "resume a-1 --step nope --retry"):
        code, _, err = command(*line.split(), "--db", db)
        assert (code, "run 'a-1' has no step 'nope'" in err) == (2, True), err
    code, _, err = command("fork", "a-1", "--id", "a-1", "--db", db)
    assert (code, "is there already" in err) == (2, True)
    code, _, err = command("resume", "a-1", "--step", "book", "--retry", "--db", db)
    assert (code, "run 'a-1' has completed step 'book' already" in err) == (1, True), err


def test_an_answer_that_names_none_of_two_questions_is_wrong_usage(asking):
    code, err = asking[1]()
    assert (code, "--name NAME" in err) == (2, True), err


def test_a_sleep_and_an_answer_that_was_not_asked_for_are_shown_as_such(asking, command):
    db, _ = asking
    command("resume", "a-1", "--answer", '"yes"', "--name", "foo", "--db", db)
    out = command("show", "a-1", "--db", db)[1]
    assert "sleep nap  over, " in out
    assert "pause foo  not asked; answered yes by " in out


def test_an_open_question_is_not_resumed_without_an_answer(asking, command, run_python, tmp_path):
    code = "from agent_resume import agent_run\nagent_run('p', lambda run: run.pause('ok?'), run_id='p-1', on_pause='return')"
    (tmp_path / "agent.py").write_text(code, encoding="utf-8")
    subprocess.run([sys.executable, "agent.py"], cwd=tmp_path, check=True)
    out = command("resume", "p-1", "--db", tmp_path / ".agent-resume" / "runs.db")[1]
    assert "--answer JSON --exec" in out
    assert "To resume it:" not in out
    assert "which runs:" in out


def test_unmasked_shows_what_a_step_says_of_itself_too(asking, command):
    for more in ((), ("--json",)):
        line = ("show", "a-1", "--step", "book", *more, "--db", asking[0])
        assert "Bearer abc" not in command(*line)[1]
        assert "Bearer abcdefghijklmnop" in command(*line, "--unmasked")[1]


def test_an_event_line_leaves_out_tracebacks_and_json_has_them(db, command):
    with pytest.raises(ZeroDivisionError):
        agent_run("f", lambda run: run.step("s", lambda: 1 / 0), run_id="f-1", db=db)
    for line in (("events", "f-1"), ("watch", "f-1"), ("show", "f-1", "--events")):
        out = command(*line, "--db", db)[1]
        assert "division by zero" in out
        assert "Traceback" not in out
    assert "Traceback" in command("events", "f-1", "--json", "--db", db)[1]


def test_json_lines_are_written_as_json_is(db, command):
    agent_run("研究", lambda run: None, run_id="r", db=db)
    for line in (("list",), ("sql", "SELECT name FROM runs")):
        assert '"研究"' in command(*line, "--format", "jsonl", "--db", db)[1]


def test_a_step_that_took_no_time_has_no_bar_and_saves_none(db, command):
    def body(run):
        run.step("short", time.sleep, 0.02)
        run.step("long", time.sleep, 0.2 if wide else 0)
        run.pause("ok?")

    for wide in (False, True):
        agent_run("b", body, run_id=f"b-{wide}", db=db, on_pause="return")
        out = command("resume", f"b-{wide}", "--db", db)[1]
        assert ("█" in out, " and saves 0." in out) == (wide, wide)
        assert "0.0s  █" not in out


def test_tokens_of_which_one_side_is_unknown_are_not_zero(db, command):
    agent_run("t", lambda run: run.step("s", lambda: 1, meta={"outputTokens": 345}), run_id="t", db=db)
    assert "?+345" in command("list", "--db", db)[1]


def test_doctor_says_times_as_others_do_and_takes_no_folder_for_a_store(db, command, tmp_path, clock):
    (tmp_path / "folder").mkdir()
    code, out, _ = command("doctor", "--db", tmp_path / "folder")
    assert (code, "is a folder" in out, "bytes" in out, "driver" in out) == (1, True, False, False)
    agent_run("n", lambda run: None, run_id="n", db=db)
    clock.advance(-3 * 86_400_000)
    assert "changed 3d00h in the future" in command("doctor", "--db", db)[1]


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
def test_doctor_warns_of_no_file_that_has_only_the_stores_own_mode(db, command):
    with Checkpoint("c", db=db) as run:
        run.record("k", 1)
    os.chmod(db, 0o644)
    warned = [
        found["mend"]
        for found in json.loads(command("doctor", "--json", "--db", db)[1])
        if found["topic"] == "permissions"
    ]
    assert warned == [f"chmod 600 {db}"]


def test_an_export_of_a_live_run_says_so(db, command, tmp_path):
    def body(run):
        run.step("s", lambda: 1)
        return command("export", "--all", "--out", tmp_path / "e.json", "--db", db)[2]

    assert "run l-1 was being executed; its export is of that moment" in agent_run("l", body, run_id="l-1", db=db)


def test_ctrl_c_in_resume_all_names_what_was_not_begun(db, cli, tmp_path):
    agent = tmp_path / "agent.py"
    agent.write_text(
        f"""
import os, sys, time
from agent_resume import agent_run
def body(run):
    run.step("first", lambda: 1)
    if len(sys.argv) > 2: os._exit(9)
    print("hanging", flush=True)
    run.step("second", time.sleep, 60)
agent_run("job", body, run_id=sys.argv[1] if len(sys.argv) > 1 else None, db={db!r})
""",
        encoding="utf-8",
    )
    for run_id in ("j-1", "j-2"):
        subprocess.run([sys.executable, agent, run_id, "die"], cwd=tmp_path)
    agent.write_text(agent.read_text(encoding="utf-8").replace("len(sys.argv) > 2", "False"), encoding="utf-8")
    command = [sys.executable, "-m", "agent_resume", "resume", "--all-interrupted", "--exec", "--at-once", "1"]
    process = subprocess.Popen(
        [*command, "--db", db], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout.readline() == "hanging\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "not begun: j-2" in err
    assert "j-1  interrupted" in out
    assert "j-2" not in out
