"""``agent-resume run -- COMMAND``."""

from __future__ import annotations

import os
import sys

import pytest

pytestmark = pytest.mark.timeout(240)

AGENT = """
import os, sys
from agent_resume import agent_run

def note(word):
    with open("ledger.txt", "a") as file:
        file.write(word + "\\n")

def crash(times):
    note("crash?")
    if open("ledger.txt").read().split().count("crash?") <= times:
        os.kill(os.getpid(), 9)

def body(run):
    run.step("first", note, "first")
    if sys.argv[1] == "fail":
        run.step("second", lambda: 1 / 0)
    if sys.argv[1] == "pause":
        run.pause("go on?")
    if sys.argv[1] == "wrapped":
        try:
            run.step("second", crash, 1, effect="once")
        except Exception as error:
            raise RuntimeError("no luck") from error
    run.step("second", crash, int(sys.argv[2]), effect="once" if sys.argv[1] == "once" else "repeatable")

agent_run("job", body, db="runs.db")
"""


STRANGER = """
import os, subprocess, sys
code = "from agent_resume import agent_run; agent_run('job', lambda run: 1, run_id='theirs', db='runs.db')"
others = {name: value for name, value in os.environ.items() if name != "AGENT_RESUME_SUPERVISOR"}
subprocess.run([sys.executable, "-c", code], env=others, check=True)
if sys.argv[1] == "early":
    os._exit(9)
from agent_resume import agent_run
def body(run):
    if not os.path.exists("crashed"):
        open("crashed", "w").close()
        os._exit(9)
agent_run("job", body, run_id="mine", db="runs.db")
"""
JOINED = """
import os
from agent_resume import Checkpoint
def crash():
    with open("ledger.txt", "a") as file:
        file.write("crash?\\n")
    if open("ledger.txt").read().count("crash?") < 3:
        os._exit(9)
with Checkpoint("c", db="runs.db") as run:
    run.step("s", crash)
    run.done()
"""


@pytest.fixture
def run(tmp_path, cli):
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")

    def call(*args, options=()):
        return cli("run", "--db", "runs.db", "--backoff", "0.01", *options, "--", sys.executable, "agent.py", *args)

    return call


def test_it_restarts_after_crashes_until_the_run_is_completed(run, ledger):
    done = run("crash", 2)
    assert done.returncode == 0, done.stderr
    assert ledger.words() == ["first", "crash?", "crash?", "crash?"]
    assert done.stderr.count("signal 9") == 2
    assert "restart 2 of at most 10" in done.stderr
    assert done.stderr.rstrip().endswith("is completed")


def test_it_gives_up_after_the_most_restarts_with_the_runs_exit_code(run, ledger):
    done = run("crash", 9, options=("--max-restarts", "1"))
    assert done.returncode == 130
    assert ledger.words().count("crash?") == 2
    assert "no restart is left (--max-restarts 1); look at the run with: agent-resume resume" in done.stderr
    assert done.stderr.rstrip().endswith("--exec")
    done = run("fail", 0, options=("--max-restarts", "1"))
    assert done.returncode == 1


def test_a_pause_ends_it(run):
    done = run("pause", 0)
    assert done.returncode == 5
    assert "restart" not in done.stderr


@pytest.mark.parametrize("how", ["once", "wrapped"])
def test_a_step_in_doubt_ends_it_and_how_to_decide_is_said(run, ledger, how):
    done = run(how, 1)
    assert done.returncode == 1
    assert ledger.words() == ["first", "crash?"]
    assert done.stderr.count("restart 1 of") == 1
    assert "restart 2 of" not in done.stderr
    assert "--step second --mark-done JSON" in done.stderr
    assert "--step second --retry" in done.stderr
    again = run(how, 1)
    assert "restart 1 of" not in again.stderr


def test_a_checkpoints_step_in_doubt_ends_it_too(cli, tmp_path, ledger):
    (tmp_path / "joined.py").write_text(JOINED.replace("crash)", 'crash, effect="once")'), encoding="utf-8")
    for restarts in (1, 0):
        done = cli("run", "--db", "runs.db", "--backoff", "0.01", "--", sys.executable, "joined.py")
        assert done.returncode == 130
        assert done.stderr.count("restart ") - 1 == restarts
        assert "--step s --retry" in done.stderr
    assert ledger.words() == ["crash?"]


DOUBTS = """
import os, sys
from agent_resume import Checkpoint, StepInDoubt, agent_run
def crash(name):
    with open("ledger.txt", "a") as file:
        file.write(name + "\\n")
    if open("ledger.txt").read().split().count(name) == 1:
        os._exit(7)
def body(run):
    try:
        run.step("pay", crash, "pay", effect="once")
    except StepInDoubt:
        if sys.argv[1] == "replaced":
            raise RuntimeError("no luck") from None
    if sys.argv[1] == "left":
        sys.exit(0)
    run.step("later", crash, "later")
    run.done()
if sys.argv[1] == "left":
    with Checkpoint("c", db="runs.db") as run:
        body(run)
else:
    agent_run("job", body, db="runs.db")
"""


@pytest.mark.parametrize(("how", "code", "restarts"), [("caught", 0, 2), ("replaced", 1, 1), ("left", 130, 1)])
def test_whether_a_doubt_ended_the_command_is_seen_by_what_it_began_after_that(
    cli, tmp_path, ledger, how, code, restarts
):
    (tmp_path / "agent.py").write_text(DOUBTS, encoding="utf-8")
    done = cli("run", "--db", "runs.db", "--backoff", "0.01", "--", sys.executable, "agent.py", how)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("of at most 10") == restarts
    assert ("a restart cannot decide that" in done.stderr) == (how != "caught")
    assert ledger.words() == ["pay", "later", "later"][: 3 if how == "caught" else 1]


def test_a_command_that_cannot_be_started_is_a_usage_error(cli):
    done = cli("run", "--db", "runs.db", "--", "no-such-program-at-all")
    assert done.returncode == 2
    assert "no-such-program-at-all" in done.stderr
    assert cli("run").returncode == 2


def test_a_command_without_a_run_ends_with_it(cli):
    assert cli("run", "--db", "runs.db", "--", sys.executable, "-c", "print('hello')").returncode == 0
    done = cli("run", "--db", "runs.db", "--max-restarts", "0", "--", sys.executable, "-c", "raise SystemExit(7)")
    assert done.returncode == 1
    assert "exit code 7" in done.stderr


ASKS = """
import sys, time
from agent_resume import agent_run, cancel
def body(run):
    print("in the body", flush=True)
    if sys.argv[1] == "cancel":
        cancel(run.id, db="runs.db")
    if sys.argv[1] == "hang":
        time.sleep(60)
    run.step("s", lambda: 1)
agent_run("job", body, run_id="r", db="runs.db")
if len(sys.argv) > 2:
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("how", "more", "code", "status"),
    [("cancel", (), 7, "cancelled"), ("return", (), 0, "completed"), ("return", ("fail",), 1, "completed")],
)
def test_a_run_that_had_ended_before_is_the_commands_all_the_same(cli, tmp_path, how, more, code, status):
    (tmp_path / "asks.py").write_text(ASKS, encoding="utf-8")
    for args in ((how,), (how, *more)):
        done = cli("run", "--db", "runs.db", "--", sys.executable, "asks.py", *args)
    assert done.returncode == code
    assert "in the body" not in done.stdout
    assert done.stderr.rstrip().endswith(f"run r is {status}")


def test_a_run_that_another_process_executes_is_named_and_not_waited_for(cli, tmp_path, spawn_agent):
    (tmp_path / "asks.py").write_text(ASKS, encoding="utf-8")
    other = spawn_agent(tmp_path / "asks.py", "hang", marker="in the body")
    done = cli("run", "--db", "runs.db", "--", sys.executable, "asks.py", "return")
    assert done.returncode == 4
    assert "run r is running" in done.stderr
    assert f"it is executed by process {other.pid} on " in done.stderr
    assert "restart" not in done.stderr


def test_a_command_that_names_no_store_works_in_the_one_that_was_given(cli, tmp_path, ledger):
    (tmp_path / "agent.py").write_text(AGENT.replace(', db="runs.db"', ""), encoding="utf-8")
    command = (sys.executable, "agent.py", "crash", "1")
    done = cli("run", "--db", "mine.db", "--backoff", "0.01", "--", *command, AGENT_RESUME_DB="other.db")
    assert done.returncode == 0, done.stderr
    assert ledger.words() == ["first", "crash?", "crash?"]
    assert not (tmp_path / "other.db").exists()
    asked = cli("run", "--db", "mine.db", "--", sys.executable, "agent.py", "pause", "0")
    assert f"agent-resume resume --db {tmp_path / 'mine.db'} --answer JSON -- 'job-" in asked.stderr


def test_options_behind_the_dashes_belong_to_the_command(cli):
    done = cli(
        "run", "--db", "runs.db", "--", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--debug", "--db", "x"
    )
    assert done.stdout.strip() == "['--debug', '--db', 'x']"


def test_another_programs_run_is_never_taken_for_its_own(cli, tmp_path):
    (tmp_path / "stranger.py").write_text(STRANGER, encoding="utf-8")
    done = cli("run", "--db", "runs.db", "--backoff", "0.01", "--", sys.executable, "stranger.py", "early")
    assert done.returncode == 1
    assert "no run of it was seen" in done.stderr
    assert "it never reached a run" in done.stderr
    assert "restart 1" not in done.stderr
    done = cli("run", "--db", "runs.db", "--backoff", "0.01", "--", sys.executable, "stranger.py", "late")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("run mine is") == 2
    assert "theirs" not in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX")
def test_the_run_of_a_program_that_a_shell_starts_is_the_commands(run, cli, ledger):
    run("pause", 0)  # writes agent.py
    line = f'"{sys.executable}" agent.py crash 1; exit $?'
    done = cli("run", "--db", "runs.db", "--backoff", "0.01", "--", "sh", "-c", line)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("restart 1 of") == 1


def test_a_checkpoints_run_that_was_cut_off_before_is_seen(cli, tmp_path, run_python, ledger):
    (tmp_path / "joined.py").write_text(JOINED, encoding="utf-8")
    assert run_python(tmp_path / "joined.py").returncode == 9
    done = cli("run", "--db", "runs.db", "--backoff", "0.01", "--", sys.executable, "joined.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("run c is") == 2
    assert ledger.words() == ["crash?"] * 3


def test_a_file_that_is_no_program_is_named_whatever_it_is_called(cli, tmp_path):
    (tmp_path / "passwd").write_text("x", encoding="utf-8")
    done = cli("run", "--db", "runs.db", "--", tmp_path / "passwd")
    assert done.returncode == 2
    assert done.stderr == f"agent-resume: Permission denied: {tmp_path}/passwd\n"
