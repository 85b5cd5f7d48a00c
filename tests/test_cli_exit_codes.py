"""Every exit code of the command line, each from a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3

import pytest

from agent_resume import Run, StoreDamaged, agent_run

pytestmark = pytest.mark.timeout(240)
AGENT = """
import os, sys, time
from agent_resume import agent_run

def body(run):
    run.step("first", lambda: "kept")
    what = sys.argv[2] if not os.path.exists("mended") else "return"
    if what == "fail":
        run.step("second", lambda: 1 / 0)
    if what == "pause":
        return run.pause("go on?", {"because": "it costs"}, name="approval")
    if what == "die":
        run.step("second", os.kill, os.getpid(), 9)
    if what == "exit":
        sys.exit(3)
    if what == "hang":
        print("hanging", flush=True)
        run.step("second", time.sleep, 60)
    return run.step("second", lambda: "done")

agent_run("job", body, run_id=sys.argv[1], db="runs.db")
"""


@pytest.fixture
def agent(tmp_path, run_python):
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    return lambda run_id, what: run_python(tmp_path / "agent.py", run_id, what)


@pytest.fixture
def here(tmp_path):
    """The same in this process, where no command that starts it again is needed."""

    def run(run_id: str, what: str) -> None:
        def body(run: Run) -> object:
            run.step("first", lambda: "kept")
            if what == "fail":
                run.step("second", lambda: 1 / 0)
            return run.pause("go on?", name="approval") if what == "pause" else "done"

        with contextlib.suppress(ZeroDivisionError):
            agent_run("job", body, run_id=run_id, db=tmp_path / "runs.db", on_pause="return")

    return run


def resumed(cli, *args):
    return cli("resume", "--db", "runs.db", *args)


def test_0_a_completed_run(here, cli):
    here("r", "return")
    done = resumed(cli, "r")
    assert (done.returncode, done.stderr) == (0, "")
    assert "completed" in done.stdout


def test_1_a_failed_run(here, cli):
    here("r", "fail")
    assert resumed(cli, "r").returncode == 1
    assert "ZeroDivisionError: division by zero" in cli("show", "r", "--db", "runs.db").stdout


@pytest.mark.parametrize(
    "args",
    [
        ("list", "--since", "yesterday"),
        ("list", "--sort", "colour"),
        ("list", "--format", "nonsense"),
        ("list", "--status", "nonsense"),
        ("list", "--nonsense"),
        ("nonsense",),
        ("resume",),
        ("resume", "r", "--name", "x"),
        ("resume", "r", "--mark-done", "1"),
        ("resume", "r", "--answer", "not json"),
        ("show", "r", "--report", "--json"),
        ("prune",),
        ("sql",),
        ("list", "--db", ":memory:"),
        ("list", "--db", "mysql://x/y"),
    ],
)
def test_2_usage(here, cli, args):
    here("r", "pause")
    done = cli(*args, *(() if "--db" in args or args[0] == "nonsense" else ("--db", "runs.db")))
    assert done.returncode == 2
    assert done.stderr
    assert not done.stdout
    assert "Traceback" not in done.stderr


def test_3_no_such_run(here, cli):
    here("r", "return")
    for args in (("show", "nope"), ("resume", "nope"), ("events", "nope"), ("cancel", "nope"), ("show", "nope@latest")):
        done = cli(*args, "--db", "runs.db")
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.count("\n") == 1
        assert "agent-resume list" in done.stderr


def test_4_owned_by_a_live_process(agent, cli, spawn_agent, tmp_path):
    agent("other", "return")
    hanging = spawn_agent(tmp_path / "agent.py", "r", "hang", marker="hanging")
    done = resumed(cli, "r")
    assert done.returncode == 4
    assert f"process {hanging.pid}" in done.stdout
    refused = resumed(cli, "r", "--exec")
    assert refused.returncode == 4
    assert f"process {hanging.pid}" in refused.stderr
    assert "since 20" in refused.stderr
    assert resumed(cli, "r", "--step", "second", "--retry").returncode == 4


def test_5_a_paused_run(here, cli):
    here("r", "pause")
    done = resumed(cli, "r")
    assert done.returncode == 5
    assert "go on?" in done.stdout
    assert "--answer" in done.stdout


def test_6_a_store_that_cannot_be_used(cli, tmp_path):
    (tmp_path / "text.db").write_text("no database at all, only words\n" * 100, encoding="utf-8")
    done = cli("list", "--db", "text.db")
    assert (done.returncode, done.stdout) == (6, "")
    assert "not a SQLite database" in done.stderr
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE t (x)")
    assert cli("show", "r", "--db", "other.db").returncode == 6


@pytest.mark.timeout(30)
def test_6_a_store_that_is_no_file(cli, tmp_path):
    os.mkfifo(tmp_path / "pipe.db")
    for store in ("pipe.db", "/dev/null"):
        for command in (("list",), ("connect",), ("show", "r"), ("copy", "--to", "other.db", "--from")):
            done = cli(*command, *(("--db", store) if command[-1] != "--from" else (store,)))
            assert (done.returncode, done.stdout) == (6, "")
            assert "no file but a pipe" in done.stderr
        done = cli("doctor", "--db", store)
        assert (done.returncode, "no file but a pipe" in done.stdout) == (1, True)
        with pytest.raises(StoreDamaged):  # and nobody waits for the pipe's writer
            agent_run("a", lambda run: run.step("s", pytest.fail), db=os.path.join(tmp_path, store))
    assert not os.path.exists("/dev/null-wal")


def test_2_wrong_usage_is_one_line_with_the_next_step(cli):
    for args, said in (
        (("nope",), "No such command 'nope'; agent-resume -h says more"),
        (("--db", "x", "list"), "No such option: --db; a command's options come behind it; agent-resume -h says more"),
        (("list", "--zzz"), "No such option: --zzz; agent-resume list -h says more"),
        (("list", "--db"), "Option '--db' requires an argument; agent-resume -h says more"),
        (("export", "--all", "--out", ""), "an empty --out names nothing; . is this folder, - is stdout"),
        (("export", "--all", "--out", "."), "--out . is a folder; name a file in it"),
        (("export", "--all", "--out", "/"), "--out / is a folder; name a file in it"),
        (
            ("export", "--all", "--format", "badgr", "--out", ""),
            "an empty --out names nothing; . is this folder, - is stdout",
        ),
    ):
        done = cli(*args)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"agent-resume: {said}\n"), args


def test_7_a_cancelled_run(here, cli):
    here("r", "pause")
    assert cli("cancel", "r", "--db", "runs.db").returncode == 0
    assert resumed(cli, "r").returncode == 7
    assert resumed(cli, "r", "--exec").returncode == 7


def test_8_an_ambiguous_id(here, cli):
    here("run-1", "return")
    here("run-2", "return")
    done = resumed(cli, "run-")
    assert done.returncode == 8
    assert "run-1" in done.stderr
    assert "run-2" in done.stderr
    assert resumed(cli, "run-1").returncode == 0


def test_130_an_interrupted_run(agent, cli):
    assert agent("r", "die").returncode == -signal.SIGKILL
    assert resumed(cli, "r").returncode == 130
    assert agent("s", "exit").returncode == 3
    assert resumed(cli, "s").returncode == 130


def test_exec_ends_with_the_runs_exit_code_and_shows_the_childs(agent, cli, tmp_path):
    agent("failing", "fail")
    done = resumed(cli, "failing", "--exec")
    assert done.returncode == 1
    assert "exit code 1" in done.stderr
    agent("exiting", "exit")
    done = resumed(cli, "exiting", "--exec")
    assert done.returncode == 130
    assert "exit code 3" in done.stderr
    (tmp_path / "mended").touch()
    assert resumed(cli, "failing", "--exec").returncode == 0
    assert resumed(cli, "exiting", "--exec").returncode == 0


def test_exec_of_a_pausing_run_is_5_and_its_answer_makes_it_0(agent, cli):
    agent("r", "pause")
    assert resumed(cli, "r", "--exec").returncode == 5
    done = resumed(cli, "r", "--answer", '"yes"', "--exec")
    assert done.returncode == 0, done.stderr


def test_what_is_stored_without_exec_is_0(here, cli):
    here("r", "pause")
    assert resumed(cli, "r", "--answer", "1", "--name", "approval").returncode == 0
    assert resumed(cli, "r", "--answer", "2", "--name", "approval").returncode == 1  # not stored: the first one counts
    cli("cancel", "r", "--db", "runs.db")
    assert resumed(cli, "r", "--force").returncode == 0
    assert resumed(cli, "r").returncode == 130


def test_exec_without_a_usable_command_is_2(run_python, cli):
    run_python("from agent_resume import Checkpoint\nCheckpoint('r', db='runs.db').record('k', 1)")
    done = resumed(cli, "r", "--exec")
    assert done.returncode == 2
    assert "no command was recorded" in done.stderr


def test_list_and_show_are_0_when_they_could_show(here, cli):
    here("r", "fail")
    assert cli("list", "--db", "runs.db").returncode == 0
    assert cli("show", "r", "--db", "runs.db").returncode == 0


def test_the_json_of_resume_holds_the_exit_code(agent, cli):
    agent("r", "pause")
    done = resumed(cli, "r", "--json")
    plan = json.loads(done.stdout)
    assert plan["exitCode"] == done.returncode == 5
    assert plan["skips"]["steps"] == 1
    assert plan["canExec"]
    assert plan["command"]["argv"][-2:] == ["r", "pause"]
    assert plan["command"]["cwd"] == os.path.realpath(plan["command"]["cwd"])
    assert plan["openPauses"][0]["name"] == "approval"
    done = resumed(cli, "r", "--answer", "1", "--json")
    assert json.loads(done.stdout)["exitCode"] == done.returncode == 0
