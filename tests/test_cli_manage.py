"""cancel, rename, tag, fork, rerun, events, watch, export, import, copy, completion, odd ids and paths."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys

import pytest

from agent_resume import Checkpoint, Run, Store, agent_run

pytestmark = pytest.mark.timeout(240)


CALLS: list[str] = []


def called(name: str, value: object) -> object:
    CALLS.append(name)
    return value


def job(run: Run) -> object:
    CALLS.clear()
    plan = run.step("plan", lambda: called("plan", {"depth": 1}))
    pages = [run.step(f"read-{n}", lambda n=n: called(f"read-{n}", n)) for n in range(3)]
    return run.step("write", lambda: called("write", [plan["depth"], *pages]))


@pytest.fixture
def store(db):
    agent_run("job", job, run_id="r", db=db)
    return db


def shown(command, db, run="r"):
    return json.loads(command("show", run, "--json", "--db", db)[1])


def test_a_cancelled_run_is_not_resumed_and_can_be_reopened(db, command):
    agent_run("job", lambda run: run.pause("?"), run_id="r", db=db, on_pause="return")
    assert command("cancel", "r", "--db", db)[0] == 0
    assert command("cancel", "r", "--db", db)[0] == 0
    assert shown(command, db)["status"] == "cancelled"
    assert command("resume", "r", "--force", "--db", db)[0] == 0
    assert shown(command, db)["status"] == "interrupted"
    assert command("resume", "r", "--force", "--db", db)[0] == 1


def test_a_cancelled_run_is_not_reopened_while_a_process_is_in_it(db, command, spawn_agent):
    agent = spawn_agent(
        "import sys, time\nfrom agent_resume import agent_run\n"
        "def work():\n    print('working', flush=True)\n    time.sleep(60)\n"
        "agent_run('job', lambda run: run.step('s', work), run_id='r', db=sys.argv[1])",
        db, marker="working",
    )  # fmt: skip
    _, _, err = command("cancel", "r", "--db", db)
    assert f"run r is cancelled; process {agent.pid} on " in err
    for seen in (command("resume", "r", "--db", db), command("show", "r", "--db", db)):
        assert f"process {agent.pid} on " in seen[1]
    assert "--take-over --force --exec" in command("resume", "r", "--db", db)[1]
    code, _, err = command("resume", "r", "--force", "--db", db)
    assert code == 4
    assert f"process {agent.pid} on " in err
    assert "--take-over --force" in err
    assert shown(command, db)["status"] == "cancelled"
    assert command("resume", "r", "--take-over", "--force", "--db", db)[0] == 0
    assert shown(command, db)["status"] == "interrupted"


def test_a_completed_run_cannot_be_cancelled(store, command):
    code, out, err = command("cancel", "r", "--db", store)
    assert (code, out) == (1, "")
    assert "completed" in err


def test_rename_changes_the_name_and_never_the_id(store, command):
    code, _, err = command("rename", "r", "work", "--db", store)
    assert code == 0
    assert "rename the agent too" in err
    assert (shown(command, store)["id"], shown(command, store)["name"]) == ("r", "work")
    assert command("rename", "r", "", "--db", store)[0] == 2
    assert command("show", "work@latest", "--db", store)[0] == 0


def test_a_name_and_tags_given_later_leave_the_duration_of_an_unfinished_run(db, command, clock):
    agent_run("job", lambda run: run.pause("?"), run_id="r", db=db, on_pause="return")
    clock.advance(3_600_000)
    assert command("rename", "r", "work", "--db", db)[0] == 0
    assert command("tag", "r", "k=v", "--db", db)[0] == 0
    assert [run["durationMs"] for run in json.loads(command("list", "--json", "--db", db)[1])] == [0]
    assert [
        run["durationMs"]
        for run in json.loads(
            command("sql", 'SELECT duration_ms AS "durationMs" FROM run_overview', "--json", "--db", db)[1]
        )
    ] == [0]


def test_tags_are_kept_in_meta(store, command):
    command("tag", "r", "reviewed", "env=prod", "--db", store)
    assert json.loads(command("tag", "r", "--remove", "reviewed", "--json", "--db", store)[1]) == {"env": "prod"}
    assert command("tag", "r", "--db", store)[1] == "env=prod\n"
    assert shown(command, store)["meta"] == {"tags": {"env": "prod"}}
    command("tag", "r", "--remove", "env", "--db", store)
    assert shown(command, store)["meta"] == {}
    assert command("tag", "r", "=x", "--db", store)[0] == 2


def test_a_fork_shares_what_came_before_and_never_changes_its_source(store, command):
    before = shown(command, store)
    code, out, err = command("fork", "r", "--from", "read-1", "--set", 'plan={"depth": 9}', "--db", store)
    assert code == 0
    forked = out.strip()
    assert "shares 1 completed step" in err
    assert agent_run("job", job, run_id=forked, db=store) == [9, 0, 1, 2]
    assert CALLS == ["read-1", "read-2", "write"]
    assert shown(command, store) == before
    assert shown(command, store, forked)["forkedFrom"] == "r"


def test_a_decided_value_stands_where_its_step_was(store, command):
    _, out, err = command("fork", "r", "--set", "read-1=7", "--set", "later=1", "--set", "plan={}", "--db", store)
    assert "r has no step 'later'" in err
    assert "'plan'" not in err
    forked = out.strip()
    assert [step["name"] for step in shown(command, store, forked)["steps"]] == [
        "plan", "read-0", "read-1", "read-2", "write", "later",
    ]  # fmt: skip
    again = json.loads(command("fork", forked, "--from", "read-2", "--json", "--db", store)[1])
    assert again["shared"] == ["plan", "read-0", "read-1"]
    _, out, _ = command("rerun", forked, "read-2", "--downstream", "--json", "--db", store)
    assert json.loads(out)["discarded"] == ["read-2", "write", "later"]
    _, out, _ = command("fork", "r", "--from", "read-1", "--set", "write=2", "--set", "read-2=1", "--db", store)
    assert [step["name"] for step in shown(command, store, out.strip())["steps"]] == [
        "plan", "read-0", "read-2", "write",
    ]  # fmt: skip
    events = [event["seq"] for event in json.loads(command("events", forked, "--json", "--db", store)[1])]
    assert events == list(range(1, len(events) + 1))


def test_a_fork_is_shown_as_one_that_nobody_executed_until_somebody_does(store, command):
    _, _, err = command("fork", "r", "--id", "f", "--set", "plan={}", "--set", "later=1", "--db", store)
    assert "it shares 4 completed steps with r, and 2 values set: plan, later\n" in err
    assert "r has no step 'later'" in err
    assert "interrupted (new fork)" in command("list", "--db", store)[1]
    assert "forked from r, not executed yet" in command("show", "f", "--db", store)[1]

    def stopped(run: Run) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        agent_run("job", stopped, run_id="f", db=store)
    assert shown(command, store, "f")["storedStatus"] == "interrupted"
    assert "new fork" not in command("list", "--db", store)[1]
    assert "not executed yet" not in command("show", "f", "--db", store)[1]


def test_a_value_nested_too_deep_is_a_usage_error(store, command):
    deep = "[" * 3000 + "]" * 3000
    for line in (
        ("fork", "r", "--set", f"plan={deep}"), ("resume", "r", "--answer", deep),
        ("resume", "r", "--step", "plan", "--mark-done", deep),
    ):  # fmt: skip
        code, _, err = command(*line, "--db", store)
        assert (code, "nested too deep" in err) == (2, True), err


def test_a_fork_says_which_effects_it_will_repeat(db, command):
    def body(run):
        run.step("a", lambda: 1)
        run.step("pay", lambda: 2, effect="once")
        with contextlib.suppress(ValueError):
            run.step("mail", lambda: int("x"), effect="once")
        run.step("cut", lambda: sys.exit(1), effect="once")

    with pytest.raises(SystemExit):
        agent_run("job", body, run_id="r", db=db)
    for options, told in (
        ((), ["'cut'"]), (("--from", "a"), ["'pay'", "'cut'"]), (("--set", "cut=1", "--set", "mail=1"), []),
    ):  # fmt: skip
        err = command("fork", "r", *options, "--db", db)[2]
        said = [line.split()[1] for line in err.splitlines() if "the fork will do it again" in line]
        assert said == told, err


def test_a_fork_does_not_copy_answers_silently(db, command):
    agent_run("job", lambda run: run.pause("go?", name="go"), run_id="r", db=db, on_pause="return")
    with Store(db) as store:
        store.answer("r", "go", "yes")
    _, out, err = command("fork", "r", "--db", db)
    assert "'go'" in err
    assert shown(command, db, out.strip())["pauses"] == []
    _, out, err = command("fork", "r", "--answers", "--id", "copy-1", "--db", db)
    assert out == "copy-1\n"
    assert "answers" not in err
    assert shown(command, db, "copy-1")["pauses"][0]["value"] == "yes"
    assert command("fork", "r", "--from", "nope", "--db", db)[0] == 2
    assert command("fork", "r", "--set", "nope", "--db", db)[0] == 2


def test_what_changes_a_run_names_the_next_command(store, command):
    assert command("rerun", "r", "read-1", "--db", store)[2].startswith("discarded 1 result of run r: read-1\n")
    code, _, err = command("rerun", "r", "read-1", "--downstream", "--db", store)
    assert (code, err.splitlines()[0]) == (0, "discarded 2 results of run r: read-2, write")
    lines = [err]
    assert command("tag", "r", "env=prod", "--db", store)[0] == 0
    lines.append(command("fork", "r", "--id", "f", "--db", store)[2])
    assert "it has the tags of r: env\n" in lines[-1]
    assert command("cancel", "f", "--db", store)[0] == 0
    lines.append(command("resume", "f", "--force", "--db", store)[2])
    # Started by pytest, whose command may be had or not.
    for err in lines:
        assert err.splitlines()[-1].startswith(("go on with: agent-resume resume", "start the agent again"))


def test_rerun_discards_one_result_or_all_after_it(store, command):
    code, out, _ = command("rerun", "r", "read-1", "--json", "--db", store)
    assert (code, json.loads(out)["discarded"]) == (0, ["read-1"])
    assert shown(command, store)["status"] == "interrupted"
    agent_run("job", job, run_id="r", db=store)
    assert CALLS == ["read-1"]
    _, out, _ = command("rerun", "r", "read-1", "--downstream", "--json", "--db", store)
    assert json.loads(out)["discarded"] == ["read-1", "read-2", "write"]
    agent_run("job", job, run_id="r", db=store)
    assert CALLS == ["read-1", "read-2", "write"]
    attempts = {step["name"]: step["attempts"] for step in shown(command, store)["steps"]}
    assert attempts == {"plan": 1, "read-0": 1, "read-1": 3, "read-2": 2, "write": 2}
    assert command("rerun", "r", "nope", "--db", store)[0] == 2


def test_rerun_with_what_came_after_asks_again_what_was_asked_after_it(db, command):
    paid = []

    def body(run):
        run.pause("who?", name="before")
        amount = run.step("amount", lambda: 120 + len(paid))
        run.pause("refund this?", {"amount": amount}, name="approval")
        run.step("pay", paid.append, amount, effect="once")

    for answer in ("before", "approval"):
        agent_run("job", body, run_id="r", db=db, on_pause="return")
        assert command("resume", "r", "--answer", '"yes"', "--name", answer, "--db", db)[0] == 0
    agent_run("job", body, run_id="r", db=db)
    _, out, err = command("rerun", "r", "amount", "--downstream", "--json", "--db", db)
    assert (json.loads(out)["discarded"], json.loads(out)["answers"]) == (["amount", "pay"], ["approval"])
    assert "discarded what was answered after it: 'approval'; it is asked again" in err
    assert "step 'pay' takes effect once, and has done so: the next execution does it again" in err
    assert "step 'amount'" not in err
    assert agent_run("job", body, run_id="r", db=db, on_pause="return").context == {"amount": 121}
    assert paid == [120]
    command("resume", "r", "--answer", '"yes"', "--db", db)
    agent_run("job", body, run_id="r", db=db)
    assert paid == [120, 121]


def test_events_that_there_are_not_are_said_to_be_none(store, command):
    assert command("events", "r", "--type", "bogus", "--db", store) == (0, "", "no event fits\n")
    assert command("events", "r", "--type", "bogus", "--json", "--db", store)[2] == ""


def test_events_follow_a_run_to_its_end(db, spawn_agent, tmp_path):
    agent = spawn_agent(
        """
import sys, time
from agent_resume import agent_run
def body(run):
    for number in range(3):
        run.event("note", number=number)
        print("noted", number, flush=True)
        sys.stdin.readline() if False else time.sleep(0.3)
agent_run("job", body, run_id="r", db=sys.argv[1])
""",
        db,
        marker="noted",
    )
    command = [sys.executable, "-c", "from agent_resume.cli import main; main()", "events", "r", "--follow", "--db", db]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["data"]["number"] for event in events if event["type"] == "note"] == [0, 1, 2]
    assert events[-1]["type"] == "completed"
    assert agent.finish() == 0


def test_following_ends_cleanly_at_ctrl_c(db, spawn_agent):
    spawn_agent(
        "import sys, time\nfrom agent_resume import agent_run\n"
        "agent_run('job', lambda run: (print('living', flush=True), time.sleep(60)), run_id='r', db=sys.argv[1])",
        db,
        marker="living",
    )
    for name in ("events", "watch"):
        args = ["--follow"] if name == "events" else []
        follower = subprocess.Popen(
            [sys.executable, "-c", "from agent_resume.cli import main; main()", name, "r", *args, "--db", db],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert "created" in follower.stdout.readline()
        follower.send_signal(signal.SIGINT)
        _, err = follower.communicate(timeout=30)
        said = "no longer watched: run r is running and goes on\n" if name == "watch" else ""
        assert (follower.returncode, err) == (130, said)


def test_watch_in_a_pipe_prints_lines_and_ends_with_the_runs_code(store, command):
    code, out, err = command("watch", "r", "--db", store)
    assert code == 0
    assert len(out.splitlines()) == shown(command, store)["events"]
    assert "completed" in err


def test_copy_takes_every_run_and_can_be_repeated(store, command, tmp_path):
    target = tmp_path / "copy.db"
    first = json.loads(command("copy", "--to", target, "--json", "--from", store)[1])
    again = json.loads(command("copy", "--to", target, "--json", "--db", store)[1])
    assert (first["copied"], again["copied"], again["present"]) == (1, 0, 1)
    assert first["checksum"] == again["checksum"]
    assert command("copy", "--to", store, "--db", store)[0] == 2
    os.link(target, tmp_path / "second-name.db")
    assert command("copy", "--to", tmp_path / "second-name.db", "--db", target)[0] == 2
    assert command("copy", "--to", target, "--db", f"{store}.missing")[0] == 6


def test_copy_names_every_run_that_differs_and_prints_counts_all_the_same(db, command, spawn_agent, tmp_path):
    hangs = """
import sys, time
from agent_resume import agent_run
agent_run("job", lambda run: (print("in it", flush=True), time.sleep(60)), run_id="live", db=sys.argv[1])
"""
    target = tmp_path / "copy.db"
    for name in ("same", "one", "two"):
        with Checkpoint(name, db=db) as run:
            run.record("a", 1)
    assert command("copy", "--to", target, "--from", db)[0] == 0
    for name, place in (("one", db), ("two", target)):
        with Checkpoint(name, db=place) as run:
            run.record("b", 2)
    spawn_agent(hangs, db, marker="in it")
    code, out, err = command("copy", "--to", target, "--from", db)
    assert code == 1
    assert re.fullmatch(r"1 run copied, 1 there already, 2 not copied, checksum [0-9a-f]{64}\n", out)
    first, second, third = err.splitlines()
    assert first.startswith("run 'one' was not copied: the one that is there is an earlier state of it")
    assert second.startswith("run 'two' was not copied: the one that is there went on further")
    assert third == "run live was being executed; its copy is of that moment"
    code, out, err = command("copy", "--json", "--to", target, "--from", db)
    assert code == 1
    document = json.loads(out)
    assert (document["copied"], document["live"]) == (0, ["live"])
    assert [row["runId"] for row in document["refused"]] == ["one", "two"]
    assert [row["reason"] for row in document["refused"]] == [first, second]


DIES = """
import os, sys
from agent_resume import Checkpoint, agent_run
def body(run):
    run.step("one", lambda: 1)
    if len(sys.argv) > 2:
        os._exit(9)
agent_run("k", body, run_id="k-1", db=sys.argv[1])
"""


@pytest.mark.parametrize("way", ["copy", "import"])
def test_a_copy_of_a_run_that_died_between_two_steps_is_interrupted_too(way, db, command, run_python, tmp_path):
    assert run_python(DIES, db, "die").returncode == 9
    other = str(tmp_path / "other.db")
    if way == "copy":
        assert command("copy", "--to", other, "--db", db)[0] == 0
        assert command("copy", "--to", other, "--db", db)[0] == 0
    else:
        command("export", "k-1", "--out", tmp_path / "k.json", "--db", db)
        assert command("import", tmp_path / "k.json", "--db", other)[0] == 0
    assert [shown(command, at, "k-1")["storedStatus"] for at in (db, other)] == ["running"] * 2
    assert [shown(command, at, "k-1")["status"] for at in (db, other)] == ["interrupted"] * 2
    assert command("resume", "k-1", "--db", other)[0] == 130
    assert "1 interrupted" in command("doctor", "--db", other)[1]
    command("export", "k-1", "--out", tmp_path / "again.json", "--db", other)
    command("export", "k-1", "--out", tmp_path / "first.json", "--db", db)
    runs = [json.loads((tmp_path / name).read_text())["runs"] for name in ("first.json", "again.json")]
    assert runs[0] == runs[1]
    assert run_python(DIES, other).returncode == 0
    assert shown(command, other, "k-1")["status"] == "completed"


def test_a_checkpoint_goes_on_with_a_copy_and_is_seen_in_it(db, command, tmp_path):
    with Checkpoint("c", db=db) as run:
        run.step("one", lambda: 1)
    other = tmp_path / "other.db"
    assert command("copy", "--to", other, "--db", db)[0] == 0
    assert shown(command, other, "c")["status"] == "interrupted"
    with Checkpoint("c", db=other) as run:
        run.step("two", lambda: 2)
        assert shown(command, other, "c")["status"] == "running"
        assert shown(command, other, "c")["steps"][0]["status"] == "completed"


def test_export_and_import_give_the_same_run(store, command, tmp_path):
    file, other = tmp_path / "r.json", tmp_path / "other.db"
    assert command("export", "r", "--out", file, "--db", store)[0] == 0
    rows = json.loads(command("import", file, "--json", "--db", other)[1])
    assert [row["action"] for row in rows] == ["imported"]
    assert shown(command, other) == shown(command, store)
    assert json.loads(command("import", file, "--json", "--db", other)[1])[0]["action"] == "identical"
    assert command("export", "--db", store)[0] == 2
    assert command("export", "r", "--all", "--db", store)[0] == 2
    assert command("export", "r", "--format", "badgr", "--db", store)[0] == 2
    assert command("export", "r", "--format", "flowcast", "--out", "-", "--db", store)[0] == 2


def test_a_run_that_is_named_twice_is_exported_once(store, command):
    out = command("export", "r", "r", "--format", "jsonl", "--db", store)[1]
    assert json.loads(out.splitlines()[0])["runs"] == 1


def test_export_never_writes_over_the_store_itself(command, tmp_path):
    store = tmp_path / "own.db"
    agent_run("job", job, run_id="r", db=store)
    for name in (store, f"{store}-wal", f"{store}-shm"):
        for more in ((), ("--replace",)):
            code, out, err = command("export", "--all", "--out", name, *more, "--db", store)
            assert (code, out) == (1, "")
            assert (
                err
                == f"agent-resume: {name} belongs to a SQLite database, which no export is written over; choose another place\n"
            )
    assert "r " in command("list", "--db", store)[1]


def test_export_takes_the_runs_of_a_name_and_of_a_time(store, command):
    agent_run("other", lambda run: 1, run_id="o", db=store)

    def exported(*options: str) -> list[str]:
        code, out, _ = command("export", *options, "--db", store)
        assert code == 0
        return [run["id"] for run in json.loads(out)["runs"]]

    assert exported("--name", "job") == ["r"]
    assert exported("--since", "1h") == ["r", "o"]
    assert exported("--name", "other", "--since", "1h") == ["o"]
    assert exported("--since", "2999-01-01T00:00Z") == exported("--name", "nobody") == []
    assert command("export", "--all", "--name", "job", "--db", store)[0] == 2
    assert command("export", "r", "--since", "1h", "--db", store)[0] == 2
    assert command("export", "--since", "soon", "--db", store)[0] == 2


def test_a_run_is_not_replaced_while_it_is_executed_and_the_advice_is_another(db, command, spawn_agent, tmp_path):
    hangs = """
import sys, time
from agent_resume import agent_run
agent_run("job", lambda run: (print("in it", flush=True), time.sleep(60)), run_id="r", db=sys.argv[1])
"""
    other, exported = tmp_path / "other.db", tmp_path / "r.json"
    agent_run("job", job, run_id="r", db=other)
    assert command("export", "r", "--out", exported, "--db", other)[0] == 0
    agent = spawn_agent(hangs, db, marker="in it")
    for line in (
        ("import", exported, "--on-conflict", "replace", "--db", db),
        ("copy", "--on-conflict", "replace", "--from", other, "--to", db),
    ):
        code, _, err = command(*line)
        assert code == 1
        assert f"it is being executed by process {agent.pid} on " in err
        assert f"agent-resume resume --db {db} --take-over -- 'r'" in err
        assert "--on-conflict" not in err
    assert command("cancel", "r", "--db", db)[0] == 0
    err = command("import", exported, "--on-conflict", "replace", "--db", db)[2]
    assert f"agent-resume resume --db {db} --take-over --force -- 'r'" in err
    assert "--on-conflict skip, replace or rename" in command("import", exported, "--db", db)[2]


def test_an_import_takes_links_that_are_named_and_pipes(store, cli, tmp_path):
    exported = cli("export", "r", "--db", store).stdout
    (tmp_path / "r.json").write_text(exported, encoding="utf-8")
    (tmp_path / "link").symlink_to("r.json")
    done = cli("import", "link", "--db", "link.db")
    assert (done.returncode, done.stderr) == (0, "")
    done = cli("import", "-", "--db", "pipe.db", "--json", stdin=exported)
    assert done.returncode == 0, done.stderr
    assert [(row["runId"], row["source"]) for row in json.loads(done.stdout)] == [("r", "-")]
    os.mkfifo(tmp_path / "fifo")
    with subprocess.Popen(["cp", "r.json", "fifo"], cwd=tmp_path):
        assert "imported  fifo" in cli("import", "fifo", "--db", "fifo.db").stdout


def test_an_import_of_nothing_says_so(store, command, tmp_path):
    code, _, err = command("import", "", "--db", store)
    assert (code, err) == (2, "agent-resume: an empty PATH names nothing; . is this folder\n")
    assert command("export", "--all", "--out", tmp_path / "none.json", "--db", tmp_path / "none.db")[0] == 0
    code, _, err = command("import", tmp_path / "none.json", "--db", store)
    assert (code, err) == (0, "no run is in it\n")


def test_a_dry_run_of_an_import_creates_nothing(store, command, tmp_path):
    file, other = tmp_path / "r.json", tmp_path / "new" / "other.db"
    command("export", "r", "--out", file, "--db", store)
    code, out, err = command("import", file, "--dry-run", "--db", other)
    assert (code, "imported" in out, "nothing was stored" in err) == (0, True, True)
    assert not other.parent.exists()


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
def test_case_078_what_the_command_line_writes_is_for_its_owner(store, cli, tmp_path):
    before = os.umask(0o022)
    try:
        assert cli("export", "r", "--out", "e.json", "--db", store).returncode == 0
        assert cli("copy", "--to", "new/dir/copy.db", "--db", store).returncode == 0
    finally:
        os.umask(before)
    for path, mode in (("e.json", 0o600), ("new/dir/copy.db", 0o600), ("new/dir", 0o700)):
        assert stat.S_IMODE(os.stat(tmp_path / path).st_mode) == mode, path


def test_case_077_keys_are_in_no_line_of_the_command_line(db, command, cli):
    key = "sk-test-1234567890abcdefghij"

    def body(run: Run) -> None:
        run.record("cfg", {"api_key": key})
        run.step("leak", lambda: key)
        raise RuntimeError(f"refused: {key}")

    with pytest.raises(RuntimeError):
        agent_run("job", body, run_id="r", db=db)
    queries = [] if "://" in db else [("sql", "SELECT * FROM steps, runs", "--json")]
    for args in (
        ("list",), ("show", "r"), ("show", "r", "--json", "--events"), ("show", "r", "--step", "leak"), ("show", "r", "--report"),
        ("events", "r", "--json"), ("resume", "r"), ("resume", "r", "--json"), *queries,
    ):  # fmt: skip
        done = cli(*args, "--debug", "--db", db)
        assert done.stdout
        assert key not in done.stdout + done.stderr, args


@pytest.mark.parametrize("run_id", ["../../x", "a/b", "C:\\x", "con", "x" * 300, "-rf", "a\nb", "名前", "a b"])
def test_case_064_odd_ids_are_shown_and_found(db, command, run_id):
    with Checkpoint(run_id, db=db) as run:
        run.record("k", 1)
    assert json.loads(command("list", "--json", "--db", db)[1])[0]["id"] == run_id
    assert json.loads(command("show", "--json", "--db", db, "--", run_id)[1])["id"] == run_id
    assert command("show", "", "--db", db)[0] == 3


@pytest.mark.parametrize("name", ["my runs/100%/a.db", "a?b.db", "x#y.db", "%41.db", "a&b=c.db"])
def test_case_065_a_path_is_that_file(command, in_tmp_path, name):
    agent_run("r", lambda run: None, run_id="r", db=name)
    from agent_resume import databases

    assert json.loads(command("list", "--json", "--db", name)[1])[0]["id"] == "r"
    databases._close_all()
    files = {str(path.relative_to(in_tmp_path)) for path in in_tmp_path.rglob("*") if path.is_file()}
    assert files - {f"{name}-wal", f"{name}-shm"} == {name}


def test_case_005_twenty_lists_while_one_creates(tmp_path):
    db = str(tmp_path / "new.db")
    creating = [
        sys.executable,
        "-c",
        "import sys; from agent_resume import agent_run; agent_run('r', lambda run: run.step('s', lambda: 1), db=sys.argv[1])",
        db,
    ]
    listing = [sys.executable, "-c", "from agent_resume.cli import main; main()", "list", "--json", "--db", db]
    processes = [
        subprocess.Popen(creating if number == 5 else listing, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for number in range(20)
    ]
    for number, process in enumerate(processes):
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        if number != 5:
            assert len(json.loads(out)) in (0, 1)
    with sqlite3.connect(db) as plain:
        assert plain.execute("SELECT count(*) FROM agent_resume_schema").fetchone() == (1,)
    plain.close()
