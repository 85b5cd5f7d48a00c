"""``agent-resume resume``: taking over, deciding doubts, executing, racing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from agent_resume import Checkpoint, RunPaused, Store, agent_run

pytestmark = pytest.mark.timeout(240)

AGENT = """
import os, sys, time
from agent_resume import agent_run

def note(word):
    with open("ledger.txt", "a") as file:
        file.write(word + "\\n")
    return word

def second():
    note("second")
    if not os.path.exists("mended"):
        print("in second", flush=True)
        if sys.argv[1] == "hang":
            time.sleep(60)
        os.kill(os.getpid(), 9)
    return 2

def body(run):
    run.step("first", note, "first")
    if sys.argv[1] == "pause":
        run.pause("go on?", name="approval")
    return run.step("second", second, effect="once" if sys.argv[1] == "once" else "repeatable")

agent_run("job", body, db="runs.db", run_id=sys.argv[2] if len(sys.argv) > 2 else None)
"""


@pytest.fixture
def agent_file(tmp_path):
    path = tmp_path / "agent.py"
    path.write_text(AGENT, encoding="utf-8")
    return path


@pytest.fixture
def resume(cli):
    return lambda *args, **env: cli("resume", *args, "--db", "runs.db", **env)


def status(cli, run="job"):
    return json.loads(cli("show", run, "--json", "--db", "runs.db").stdout)["status"]


def test_case_052_a_killed_run_is_shown_as_interrupted(agent_file, run_python, cli):
    run_python(agent_file, "die")
    assert " interrupted " in cli("list", "--db", "runs.db").stdout
    assert status(cli) == "interrupted"
    listed = json.loads(cli("list", "--json", "--status", "interrupted", "--db", "runs.db").stdout)
    assert [run["storedStatus"] for run in listed] == ["running"]


def test_case_053_a_dead_owner_is_taken_over_by_exec_alone(agent_file, run_python, resume, cli, ledger, tmp_path):
    run_python(agent_file, "die")
    plain = resume("job@latest")
    assert plain.returncode == 130
    assert "skips 1 completed step" in plain.stdout
    epoch = json.loads(cli("sql", "SELECT epoch, owner_token FROM runs", "--json", "--db", "runs.db").stdout)
    assert resume("job@latest", "--json").returncode == 130
    assert json.loads(cli("sql", "SELECT epoch, owner_token FROM runs", "--json", "--db", "runs.db").stdout) == epoch
    (tmp_path / "mended").touch()
    done = resume("job@latest", "--exec")
    assert done.returncode == 0, done.stderr
    assert ledger.words() == ["first", "second", "second"]
    assert status(cli) == "completed"


def test_case_053_a_live_owner_is_refused(agent_file, spawn_agent, resume, ledger):
    hanging = spawn_agent(agent_file, "hang", marker="in second")
    done = resume("job@latest", "--exec")
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    assert f"process {hanging.pid}" in done.stderr
    assert ledger.words() == ["first", "second"]


def test_a_hung_owner_is_taken_over_and_fenced(agent_file, spawn_agent, resume, ledger, tmp_path, cli):
    hanging = spawn_agent(agent_file, "hang", marker="in second")
    taken = resume("job@latest", "--take-over")
    assert taken.returncode == 0, taken.stderr
    assert resume("job@latest").returncode == 130
    (tmp_path / "mended").touch()
    done = resume("job@latest", "--exec")
    assert done.returncode == 0, done.stderr
    assert hanging.process.poll() is None
    events = json.loads(cli("events", "job", "--json", "--db", "runs.db").stdout)
    assert [event["data"]["pid"] for event in events if event["type"] == "taken_over"] == [hanging.pid]
    assert resume("job@latest", "--take-over").returncode == 1  # nobody has it


def test_a_command_of_an_id_that_begins_with_a_dash(agent_file, run_python, cli, tmp_path):
    run_python(agent_file, "die", "-rf")
    plan = cli("resume", "--db", "runs.db", "--", "-rf")
    assert plan.returncode == 130
    assert "-- -rf" in plan.stdout
    (tmp_path / "mended").touch()
    assert cli("resume", "--exec", "--db", "runs.db", "--", "-rf").returncode == 0


def test_the_printed_command_resumes_when_it_is_typed(agent_file, run_python, resume, tmp_path, cli):
    run_python(agent_file, "die", "it's a; run")
    text = resume("it's").stdout
    typed = re.search(r"To resume it:\n  (.*)\n", text)[1]
    assert "'it'\"'\"'s a; run'" in typed
    (tmp_path / "mended").touch()
    binary = f"{shlex.quote(sys.executable)} -c 'from agent_resume.cli import main; main()'"
    done = subprocess.run(
        ["bash", "-c", typed.replace("agent-resume", binary, 1)], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    command = re.search(r"which runs:\n  (.*)\n", text)[1]
    again = subprocess.run(["bash", "-c", command], cwd="/", capture_output=True, check=False)
    assert again.returncode == 0, again.stderr


def test_a_masked_argument_is_shown_and_refused(run_python, tmp_path, resume):
    (tmp_path / "agent.py").write_text(
        "from agent_resume import agent_run\nagent_run('job', lambda run: 1 / 0, db='runs.db')\n", encoding="utf-8"
    )
    run_python(tmp_path / "agent.py", "--api-key", "sk-test-1234567890abcdefghij")
    plan = resume("job")
    assert "sk-test" not in plan.stdout
    assert "[redacted]" in plan.stdout
    done = resume("job", "--exec")
    assert done.returncode == 2
    assert "argument 3" in done.stderr


def test_a_working_folder_that_is_gone_is_refused(agent_file, run_python, tmp_path, cli):
    gone = tmp_path / "gone"
    gone.mkdir()
    run_python(agent_file, "die", cwd=gone)
    (gone / "runs.db").rename(tmp_path / "runs.db")
    for name in ("runs.db-wal", "runs.db-shm"):
        if (gone / name).exists():
            (gone / name).rename(tmp_path / name)
    (gone / "ledger.txt").unlink()
    gone.rmdir()
    done = cli("resume", "job", "--exec", "--db", "runs.db")
    assert done.returncode == 2
    assert "does not exist here" in done.stderr


def test_a_doubt_is_decided_by_mark_done(agent_file, run_python, resume, ledger, cli, tmp_path):
    run_python(agent_file, "once")
    run_python(agent_file, "once")  # raises StepInDoubt
    plan = resume("job")
    assert "may have taken effect" in plan.stdout
    assert json.loads(resume("job", "--json").stdout)["inDoubt"] == ["second"]
    (tmp_path / "mended").touch()
    assert resume("job", "--exec").returncode == 1
    done = resume("job", "--step", "second", "--mark-done", '{"by": "hand"}', "--exec")
    assert done.returncode == 0, done.stderr
    assert ledger.words() == ["first", "second"]
    shown = json.loads(cli("show", "job", "--json", "--db", "runs.db").stdout)
    assert shown["result"] == {"by": "hand"}
    assert resume("job", "--step", "second", "--mark-done", "1").returncode == 1


def test_a_doubt_is_decided_by_retry(agent_file, run_python, resume, ledger, tmp_path):
    run_python(agent_file, "once")
    (tmp_path / "mended").touch()
    done = resume("job", "--step", "second", "--retry", "--exec")
    assert done.returncode == 0, done.stderr
    assert ledger.words() == ["first", "second", "second"]


def test_a_step_that_was_cut_off_in_its_only_try_is_told_before_anything_is_executed(agent_file, run_python, resume):
    run_python(agent_file, "once")
    plan = resume("job")
    assert "Step second was started and may have taken effect" in plan.stdout
    assert re.search("--step second --retry +\\(it did not\\)", plan.stdout)
    assert json.loads(resume("job", "--json").stdout)["inDoubt"] == ["second"]
    done = resume("job", "--exec")
    assert done.returncode == 1
    assert "--step second --mark-done JSON" in done.stderr
    assert done.stderr.rstrip().endswith("--exec")


def test_a_step_that_may_be_repeated_is_no_doubt(agent_file, run_python, resume):
    run_python(agent_file, "die")
    assert "may have taken effect" not in resume("job").stdout


def test_answers_go_by_name_and_the_first_one_counts(agent_file, run_python, resume, cli, tmp_path):
    (tmp_path / "mended").touch()
    assert run_python(agent_file, "pause").returncode == 0
    assert resume("job", "--answer", '{"ok": true}', "--name", "approval").returncode == 0
    for more in ((), ("--json",), ("--exec", "--json")):
        again = resume("job", "--answer", "false", "--name", "approval", *more)
        assert again.returncode == 1
        assert again.stderr.count("\n") == 1
        assert "that answer counts, and this one was not stored; go on with: agent-resume resume" in again.stderr
        assert not more or json.loads(again.stdout)["answerCounts"] is False
    assert resume("job", "--exec").returncode == 0
    shown = json.loads(cli("show", "job", "--json", "--db", "runs.db").stdout)
    assert shown["pauses"][0]["value"] == {"ok": True}


def test_a_completed_run_is_not_executed_again(agent_file, run_python, resume, ledger, tmp_path):
    (tmp_path / "mended").touch()
    run_python(agent_file, "return", "r")
    run_python(agent_file, "return", "r")
    done = resume("r", "--exec")
    assert done.returncode == 0
    assert "completed already" in done.stderr
    assert ledger.words() == ["first", "second"]


def test_a_program_that_names_its_run_goes_on_with_that_runs_fork_when_this_is_resumed(
    agent_file, run_python, resume, cli, ledger, tmp_path
):
    run_python(agent_file, "die", "mine")
    (tmp_path / "mended").touch()
    for source, fork in (("mine", "child"), ("child", "grandchild")):
        assert cli("fork", source, "--id", fork, "--db", "runs.db").returncode == 0
    done = resume("grandchild", "--exec")
    assert done.returncode == 0, done.stderr
    assert "did not go on" not in done.stderr
    assert ledger.words() == ["first", "second", "second"]
    assert [status(cli, run) for run in ("mine", "child", "grandchild")] == ["interrupted", "interrupted", "completed"]


def test_a_fork_finds_its_program_though_the_runs_in_between_are_deleted(
    agent_file, run_python, resume, cli, ledger, tmp_path
):
    run_python(agent_file, "die", "mine")
    (tmp_path / "mended").touch()
    cli("fork", "mine", "--id", "child", "--db", "runs.db")
    assert resume("child", "--exec").returncode == 0
    cli("fork", "child", "--from", "second", "--id", "grandchild", "--db", "runs.db")
    assert "child" in cli("prune", "--older-than", "0s", "--db", "runs.db").stdout
    done = resume("grandchild", "--exec")
    assert (done.returncode, "is to be continued" in done.stderr) == (0, False), done.stderr
    assert ledger.words() == ["first", "second", "second", "second"]
    assert [status(cli, run) for run in ("mine", "grandchild")] == ["interrupted", "completed"]


_JOINED = """
import asyncio, os, sys
from agent_resume import AsyncCheckpoint, Checkpoint
def note(word):
    with open("ledger.txt", "a") as file: file.write(word + "\\n")
    return word
def die():
    if not os.path.exists("mended"): os._exit(9)
async def main():
    async with AsyncCheckpoint("mine") as run:
        await run.step("pay", note, await run.step("plan", note, "plan A"))
        await run.done()
if sys.argv[1] == "async":
    Checkpoint("mine").step("die", die)
    asyncio.run(main())
else:
    plan = Checkpoint("mine").step("plan", note, "plan A")
    with Checkpoint("mine") as run:
        run.step("die", die)
        run.step("pay", note, plan)
        run.done()
"""


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_checkpoint_goes_on_with_the_fork_of_its_run_when_this_is_resumed(kind, run_python, cli, ledger, tmp_path):
    (tmp_path / "agent.py").write_text(_JOINED, encoding="utf-8")
    other = str(tmp_path / "other.db")
    run_python(tmp_path / "agent.py", kind, AGENT_RESUME_DB=other)
    (tmp_path / "mended").touch()
    before = ledger.words()
    cli("fork", "mine", "--id", "child", "--set", 'plan="plan B"', "--db", other)
    done = cli("resume", "child", "--exec", "--db", other)
    assert done.returncode == 0, done.stderr
    assert "did not go on" not in done.stderr
    assert ledger.words() == [*before, "plan B"]
    assert "pay" not in cli("show", "mine", "--db", other).stdout
    assert not (tmp_path / ".agent-resume").exists()


def test_a_renamed_run_is_not_begun_again_under_its_old_name(agent_file, run_python, resume, cli, ledger, tmp_path):
    run_python(agent_file, "die")
    (tmp_path / "mended").touch()
    cli("rename", "job@latest", "task", "--db", "runs.db")
    assert "once it calls its agent 'task', not 'job'" in resume("task@latest").stdout
    cli("fork", "task@latest", "--id", "child", "--db", "runs.db")
    for run in ("task@latest", "child"):
        done = resume(run, "--exec")
        assert done.returncode == 130
        assert "rename the agent in its program too, or rename the run back" in done.stderr
    assert ledger.words() == ["first", "second"]
    agent_file.write_text(AGENT.replace('"job"', '"task"'), encoding="utf-8")
    assert resume("child", "--exec").returncode == 0
    assert ledger.words() == ["first", "second", "second"]


def test_a_renamed_fork_of_a_program_that_names_its_run_leaves_the_source_alone(
    agent_file, run_python, resume, cli, ledger, tmp_path
):
    run_python(agent_file, "die", "source")
    (tmp_path / "mended").touch()
    cli("fork", "source", "--id", "child", "--db", "runs.db")
    cli("rename", "child", "task", "--db", "runs.db")
    before = ledger.words()
    agent_file.write_text(AGENT.replace("sys.argv[2] if len(sys.argv) > 2", '"source" if True'), encoding="utf-8")
    done = resume("child", "--exec")
    assert done.returncode == 130
    assert "rename the agent in its program too, or rename the run back" in done.stderr
    assert ledger.words() == before


def test_a_command_that_does_another_run_than_the_one_asked_for_is_said_to(agent_file, run_python, resume, tmp_path):
    run_python(agent_file, "die", "asked")
    agent_file.write_text(AGENT.replace("sys.argv[2] if len(sys.argv) > 2", '"other" if True'), encoding="utf-8")
    (tmp_path / "mended").touch()
    done = resume("asked", "--exec")
    assert done.returncode == 130
    assert "run 'asked' is to be continued, but this agent 'job' names run 'other'" in done.stderr
    assert "the command did not go on with run asked: it worked on run other" in done.stderr
    again = resume("asked", "--exec")  # "other" is completed: nothing is executed at all
    assert again.returncode == 130
    assert "Warning" not in again.stderr
    assert "the command stored nothing in run asked: it never came to it, or to nothing new in it" in again.stderr


def test_several_questions_stand_under_one_heading_and_no_two_empty_lines_meet(tmp_path, command):
    def ask(run, name):
        with contextlib.suppress(RunPaused):
            run.pause(name)

    with Checkpoint("r", db=tmp_path / "runs.db") as run:
        threads = [threading.Thread(target=ask, args=(run, name)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    code, out, _ = command("resume", "r", "--db", tmp_path / "runs.db")
    assert code == 5
    assert out.count("To answer:") == 1
    assert out.count("--answer JSON --name ") == 2
    for text in (out, command("show", "r", "--db", tmp_path / "runs.db")[1]):
        assert "\n\n\n" not in text
        assert not text.startswith("\n")


def test_a_question_of_a_program_that_cannot_be_started_again_is_answered_without_exec(run_python, resume):
    run_python(
        "from agent_resume import agent_run\nagent_run('c', lambda run: run.pause('ok?'), run_id='c', db='runs.db')"
    )
    said = resume("c").stdout
    (advised,) = [line for line in said.splitlines() if "--answer JSON" in line]
    assert "--exec" not in advised
    typed = shlex.split(advised.replace("JSON", "1"))
    assert resume(*typed[2:]).returncode == 0


def test_what_the_command_prints_is_no_part_of_the_json(agent_file, run_python, resume, tmp_path):
    agent_file.write_text("print('noise', flush=True)\n" + AGENT, encoding="utf-8")
    for run in ("r1", "r2"):
        run_python(agent_file, "die", run)
    (tmp_path / "mended").touch()
    for args in (("r1",), ("--all-interrupted",)):
        done = resume(*args, "--exec", "--json")
        assert done.returncode == 0
        assert json.loads(done.stdout)
        assert "noise" in done.stderr
    assert "noise" in resume("r1", "--exec").stdout or "completed already" in resume("r1", "--exec").stderr


KILLED = """
import os
from agent_resume import Checkpoint
with Checkpoint("cp-1", db="runs.db") as run:
    run.step("one", lambda: 1)
    os._exit(9)
"""


def test_of_a_killed_checkpoint_nothing_is_said_that_nobody_can_know(run_python, resume, tmp_path):
    (tmp_path / "cp.py").write_text(KILLED, encoding="utf-8")
    run_python(tmp_path / "cp.py", fresh=True)
    before = resume("cp-1")
    assert before.returncode == 130
    assert "owner       none is seen: a Checkpoint between two steps, or" in before.stdout
    assert "left out, since no process is seen in it: cp-1;" in resume("--all-interrupted", "--exec").stderr
    done = resume("cp-1", "--exec", "--json")
    assert done.returncode == json.loads(done.stdout)["exitCode"] == 130
    assert "exit code 9; run cp-1 is not ended, and no process is seen in it" in done.stderr
    assert "the command stored nothing in run cp-1: it never came to it, or to nothing new in it" in done.stderr
    assert "did not go on" not in done.stderr


def test_children_do_not_inherit_the_run(run_python, tmp_path, resume):
    (tmp_path / "agent.py").write_text(
        """
import os, sys
from agent_resume import agent_run
def body(run):
    print("seen", sorted(name for name in os.environ if name.startswith("AGENT_RESUME_RUN")), flush=True)
    return 1 / (0 if "again" not in os.listdir() else 1)
agent_run("job", body, run_id="r", db="runs.db")
""",
        encoding="utf-8",
    )
    run_python(tmp_path / "agent.py")
    (tmp_path / "again").touch()
    done = resume("r", "--exec")
    assert done.returncode == 0
    assert "seen []" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("times", [3])
def test_case_049_of_two_racing_resumes_one_executes(times, agent_file, run_python, tmp_path, ledger):
    (tmp_path / "mended").touch()
    for number in range(times):
        run_python(agent_file, "pause", f"r{number}")
        with Store(tmp_path / "runs.db") as store:
            store.answer(f"r{number}", "approval", "yes")
        before = len(ledger.words())
        code = (
            "import os, sys, time\nfrom agent_resume import Store\nfrom agent_resume.cli import main\nimport agent_resume.store_admin\n"
            "open(sys.argv[1], 'w').close()\nwhile not os.path.exists('start'): time.sleep(0.001)\n"
            f"sys.argv = ['agent-resume', 'resume', 'r{number}', '--exec', '--db', 'runs.db']\nmain()"
        )
        racers = [
            subprocess.Popen(
                [sys.executable, "-c", code, f"ready-{n}"],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for n in range(2)
        ]
        while not all((tmp_path / f"ready-{n}").exists() for n in range(2)):
            time.sleep(0.01)
        (tmp_path / "start").touch()
        ends = [(*racer.communicate(timeout=60), racer.returncode) for racer in racers]
        for name in ("start", "ready-0", "ready-1"):
            (tmp_path / name).unlink()
        assert ledger.words()[before:] == ["second"]
        codes = sorted(end[2] for end in ends)
        # One that comes when the other has ended finds nothing left to do.
        assert codes in ([0, 4], [0, 0]), ends
        for _, err, returned in ends:
            assert "Traceback" not in err
            if returned == 4:
                assert re.search(r"executed by process \d+ on .* since 20", err)


def test_all_interrupted_runs_are_resumed_with_a_bound(agent_file, run_python, resume, cli, tmp_path, ledger):
    for number in range(3):
        run_python(agent_file, "die", f"r{number}")
    agent_run("other", lambda run: run.pause("no"), db=tmp_path / "runs.db", on_pause="return")
    (tmp_path / "mended").touch()
    done = resume("--all-interrupted", "--exec", "--at-once", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert [(run["id"], run["status"]) for run in json.loads(done.stdout)] == [(f"r{n}", "completed") for n in range(3)]
    assert ledger.words().count("first") == 3
    assert resume("--all-interrupted", "--exec").returncode == 0
    assert resume("--all-interrupted").returncode == 2
    assert resume("r1", "--all-interrupted", "--exec").returncode == 2


def test_ctrl_c_reaches_the_command_and_its_run_is_interrupted(agent_file, run_python, tmp_path):
    run_python(agent_file, "hang-not", "r")  # dies in its second step
    (tmp_path / "agent.py").write_text(AGENT.replace("os.kill(os.getpid(), 9)", "time.sleep(60)"), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-c", "from agent_resume.cli import main; main()", "resume", "r", "--exec", "--db", "runs.db"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout.readline() == "in second\n"
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "run r is interrupted" in err


# -- which command, from which folder, into which store ---------------------------------------------------------------

_USUAL_STORE = """
import os
from agent_resume import agent_run
def late():
    if not os.path.exists("mended"): raise RuntimeError("not yet")
def body(run):
    run.step("pay", lambda: open("ledger.txt", "a").write("pay\\n"))
    run.step("late", late)
agent_run("job", body, run_id="r")
"""


@pytest.mark.parametrize("named", ["by --db", "by another environment"])
def test_exec_goes_on_in_the_runs_own_store_whatever_the_environment_says_by_now(
    named, run_python, cli, ledger, tmp_path
):
    (tmp_path / "agent.py").write_text(_USUAL_STORE, encoding="utf-8")
    other = str(tmp_path / "other.db")
    run_python(tmp_path / "agent.py", AGENT_RESUME_DB=other)
    (tmp_path / "mended").touch()
    if named == "by --db":
        done = cli("resume", "r", "--exec", "--db", other)
    else:
        (tmp_path / "deeper").mkdir()
        done = cli("resume", "r", "--exec", cwd=tmp_path / "deeper", AGENT_RESUME_DB="../other.db")
    assert done.returncode == 0, done.stderr
    assert ledger.words() == ["pay"]
    assert not (tmp_path / ".agent-resume").exists()


_SEVERAL = """
import os
from agent_resume import Checkpoint, agent_run
def body(run):
    run.step("one", lambda: 1)
    if not os.path.exists("mended"):
        os._exit(9)
agent_run("first", body, run_id="r")
agent_run("own", lambda run: 1, run_id="own", db="own.db")
with Checkpoint("joined") as run:
    run.done()
agent_run("second", lambda run: run.pause("go on?"), run_id="asks")
"""


@pytest.mark.parametrize("named", ["by --db", "by the environment"])
def test_every_run_of_a_resumed_program_that_names_no_store_goes_on_in_the_one_that_was_named(
    named, run_python, cli, tmp_path
):
    (tmp_path / "agent.py").write_text(_SEVERAL, encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    run_python(tmp_path / "agent.py")
    assert cli("copy", "--to", "other.db").returncode == 0
    shutil.rmtree(tmp_path / ".agent-resume")
    (tmp_path / "mended").touch()
    given = ("--db", "other.db") if named == "by --db" else ()
    place = tmp_path if given else tmp_path / "elsewhere"
    variables = {} if given else {"AGENT_RESUME_DB": "../other.db"}
    done = cli("resume", "r", "--exec", *given, cwd=place, **variables)
    assert done.returncode == 0, done.stderr
    # The variable is the program's, not the shell's: what it prints has to say which store.
    assert f"agent-resume resume --db {tmp_path / 'other.db'} --answer JSON -- 'asks'" in done.stderr
    ids = [run["id"] for run in json.loads(cli("list", "--json", "--db", "other.db").stdout)]
    assert ids == ["asks", "joined", "r"]
    assert [run["id"] for run in json.loads(cli("list", "--json", "--db", "own.db").stdout)] == ["own"]
    assert not (tmp_path / ".agent-resume").exists()


def test_exec_leaves_the_store_alone_that_the_users_environment_names(run_python, cli, tmp_path):
    (tmp_path / "agent.py").write_text(_SEVERAL, encoding="utf-8")
    run_python(tmp_path / "agent.py")
    assert cli("copy", "--to", "other.db").returncode == 0
    (tmp_path / "mended").touch()
    done = cli("resume", "r", "--exec", "--db", "other.db", AGENT_RESUME_DB="users.db")
    assert done.returncode == 0
    assert "AGENT_RESUME_DB names another store" in done.stderr
    assert [run["id"] for run in json.loads(cli("list", "--json", "--db", "other.db").stdout)] == ["r"]
    assert [run["id"] for run in json.loads(cli("list", "--json", "--db", "users.db").stdout)] == ["asks", "joined"]


def test_a_renamed_fork_in_another_store_touches_no_run_of_the_usual_one(run_python, cli, tmp_path):
    (tmp_path / "agent.py").write_text(_SEVERAL, encoding="utf-8")
    run_python(tmp_path / "agent.py")
    cli("fork", "r", "--id", "f")
    cli("rename", "f", "first-v2")
    assert cli("copy", "--to", "other.db").returncode == 0
    (tmp_path / "mended").touch()
    done = cli("resume", "f", "--exec", "--db", "other.db")
    assert "cannot continue it as 'first'" in done.stderr
    assert [run["status"] for run in json.loads(cli("list", "--json").stdout)] == ["interrupted"] * 2


_DIES_THEN_FAILS = """
import os
from agent_resume import agent_run
def body(run):
    if not os.path.exists("again"):
        open("again", "w").close()
        os._exit(9)
    raise ValueError("still no paper")
agent_run("job", body, run_id="r")
"""


def test_what_failed_when_all_were_resumed_is_said_beside_it(run_python, cli, tmp_path):
    (tmp_path / "agent.py").write_text(_DIES_THEN_FAILS, encoding="utf-8")
    run_python(tmp_path / "agent.py")
    done = cli("resume", "--all-interrupted", "--exec")
    assert done.returncode == 1
    assert "ValueError: still no paper" in done.stdout


def test_a_new_fork_is_resumed_by_its_id_alone(agent_file, run_python, resume, cli, tmp_path):
    run_python(agent_file, "die")
    run_id = json.loads(cli("list", "--json", "--db", "runs.db").stdout)[0]["id"]
    told = cli("fork", run_id, "--id", "f", "--db", "runs.db").stderr
    assert "go on with: agent-resume resume" in told
    found = json.loads(cli("doctor", "--json", "--db", "runs.db").stdout)
    assert f"1 interrupted: {run_id}" in [finding["text"] for finding in found]
    (tmp_path / "mended").touch()
    done = resume("--all-interrupted", "--exec", "--json")
    assert [run["id"] for run in json.loads(done.stdout)] == [run_id]
    assert "left out, since nobody has begun it: f;" in done.stderr
    assert resume("f", "--exec").returncode == 0


def test_an_agent_that_names_another_store_than_the_resumed_runs_says_so(run_python, cli, tmp_path):
    code = _USUAL_STORE.replace('run_id="r"', 'run_id="r", db=os.environ["WHERE"]')
    (tmp_path / "agent.py").write_text(code, encoding="utf-8")
    run_python(tmp_path / "agent.py", WHERE="one.db")
    done = cli("resume", "r", "--exec", "--db", "one.db", WHERE="two.db")
    assert "is to be continued, but this agent 'job' works in another store" in done.stderr


def test_an_agent_that_names_its_run_and_another_store_than_its_forks_says_so(run_python, cli, tmp_path):
    code = _USUAL_STORE.replace('run_id="r"', 'run_id="r", db=os.environ["WHERE"]')
    (tmp_path / "agent.py").write_text(code, encoding="utf-8")
    run_python(tmp_path / "agent.py", WHERE="one.db")
    cli("fork", "r", "--id", "child", "--db", "one.db")
    done = cli("resume", "child", "--exec", "--db", "one.db", WHERE="two.db")
    assert "is to be continued, but this agent 'job' works in another store" in done.stderr


def test_exec_starts_in_the_folder_that_the_program_was_started_in(run_python, cli, tmp_path):
    (tmp_path / "agents").mkdir()
    (tmp_path / "work").mkdir()
    code = "import os\nplace = os.path.abspath('runs.db')\nos.chdir('work')\n" + _USUAL_STORE.replace(
        'run_id="r"', 'run_id="r", db=place'
    )
    (tmp_path / "agents" / "agent.py").write_text(code, encoding="utf-8")
    subprocess.run([sys.executable, "agents/agent.py"], cwd=tmp_path, capture_output=True, check=False)
    (tmp_path / "work" / "mended").touch()
    done = cli("resume", "r", "--exec", "--db", "runs.db")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("started", "recorded"),
    [
        (["-Wignore::DeprecationWarning", "agent.py"], True),
        (["-Xtracemalloc", "agent.py"], True),
        (["-bW", "ignore", "agent.py"], True),
        (["-mpackage"], True),
        (["-um", "package"], True),
        (["-bc", "import runpy; runpy.run_path('agent.py')"], False),
        (["-", "agent.py"], False),
    ],
)
def test_python_options_are_read_as_python_reads_them(started, recorded, tmp_path):
    (tmp_path / "agent.py").write_text(_USUAL_STORE, encoding="utf-8")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(_USUAL_STORE, encoding="utf-8")
    subprocess.run(
        [sys.executable, *started], cwd=tmp_path, input=_USUAL_STORE.encode(), capture_output=True, check=False
    )
    with Store(tmp_path / ".agent-resume" / "runs.db") as store:
        command = store.run_row("r").command
    assert (command is not None) == recorded
    if command is not None:
        assert json.loads(command)["argv"][1:] == started
        assert json.loads(command)["cwd"] == str(tmp_path)
