"""One owner: stopped, killed, forked, on other hosts and in other namespaces, with real processes and signals."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import agent_resume
from agent_resume import ownership

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="stops and kills with signals")

Spawn = Callable[..., Any]
Cli = Callable[..., subprocess.CompletedProcess[str]]

# Two steps; in the first one it waits until the file "go" is there. What it is told in the end it prints.
TWO_STEPS = """
import os, sys, time
import agent_resume
from agent_resume import ownership

# Leases that a test can wait for.
ownership.LEASE = float(os.environ.get("TEST_LEASE", "30"))
ownership.Heart.__init__.__kwdefaults__.update(interval=float(os.environ.get("TEST_BEAT", "5")), lease=ownership.LEASE)
ownership.wait_until_decided.__kwdefaults__.update(lease=ownership.LEASE, poll=0.05)

def first():
    with open("ledger.txt", "a") as ledger:
        ledger.write("first\\n")
    print("in first", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.01)
    return f"first by {os.getpid()}"

def second():
    with open("ledger.txt", "a") as ledger:
        ledger.write("second\\n")
    return "second"

def body(run):
    return [run.step("first", first), run.step("second", second)]

try:
    print("result", agent_resume.agent_run("job", body, run_id="job", db="runs.db"), flush=True)
except agent_resume.RunLost as lost:
    print("lost", lost.key, repr(lost.result), flush=True)
    sys.exit(9)
except agent_resume.RunInUse as busy:
    print("in use", busy.pid, busy.host, busy.since, flush=True)
    sys.exit(4)
"""


@pytest.fixture
def db(tmp_path: Path) -> str:
    """A file: these tests are about files, signals and processes."""
    return str(tmp_path / "runs.db")


def status_of(db: str, run_id: str = "job") -> str:
    with agent_resume.Store(db) as store:
        return store.shown_status(store.find_run(run_id))


def outputs(db: str) -> dict[str, Any]:
    connection = sqlite3.connect(db)
    try:
        rows = connection.execute("SELECT key, output FROM steps WHERE status = 'completed'").fetchall()
        return {key: json.loads(text) for key, text in rows}
    finally:
        connection.close()


def test_a_second_process_is_refused_and_told_who_has_the_run(db: str, tmp_path: Path, spawn_agent: Spawn) -> None:
    first = spawn_agent(TWO_STEPS, marker="in first")
    second = spawn_agent(TWO_STEPS)
    assert second.finish() == 4
    assert f"in use {first.pid} " in second.output
    (tmp_path / "go").touch()
    assert first.finish() == 0
    assert (tmp_path / "ledger.txt").read_text().split() == ["first", "second"]


def test_a_stopped_owner_keeps_its_run_until_somebody_takes_it_over(
    db: str, tmp_path: Path, spawn_agent: Spawn, cli: Cli
) -> None:
    stopped = spawn_agent(TWO_STEPS, marker="in first")
    stopped.signal(signal.SIGSTOP)
    refused = spawn_agent(TWO_STEPS)
    assert refused.finish() == 4
    taken = cli("resume", "job", "--take-over", "--db", db)
    assert taken.returncode == 0, taken.stderr
    (tmp_path / "go").touch()
    other = spawn_agent(TWO_STEPS)
    assert other.finish() == 0, other.output
    before = outputs(db)
    stopped.signal(signal.SIGCONT)
    assert stopped.finish() == 9
    # It says so, hands its result over, and wrote nothing.
    assert f"lost first 'first by {stopped.pid}'" in stopped.output
    assert outputs(db) == before == {"first": f"first by {other.pid}", "second": "second"}
    assert (tmp_path / "ledger.txt").read_text().split() == ["first", "first", "second"]


def test_a_stopped_owner_of_another_host_is_dead_after_a_lease(db: str, tmp_path: Path, spawn_agent: Spawn) -> None:
    quick = {"TEST_LEASE": "2", "TEST_BEAT": "0.2"}
    stopped = spawn_agent(TWO_STEPS, marker="in first", **quick)
    stopped.signal(signal.SIGSTOP)
    (tmp_path / "go").touch()
    other = spawn_agent(TWO_STEPS, AGENT_RESUME_HOST="elsewhere", **quick)
    assert other.finish() == 0, other.output
    stopped.signal(signal.SIGCONT)
    assert stopped.finish() == 9
    assert "lost first" in stopped.output
    assert outputs(db)["first"] == f"first by {other.pid}"


def test_a_live_owner_of_another_host_is_found_alive_by_its_beats(db: str, tmp_path: Path, spawn_agent: Spawn) -> None:
    quick = {"TEST_LEASE": "20", "TEST_BEAT": "0.1"}
    first = spawn_agent(TWO_STEPS, marker="in first", **quick)
    other = spawn_agent(TWO_STEPS, AGENT_RESUME_HOST="elsewhere", **quick)
    assert other.finish() == 4, other.output
    (tmp_path / "go").touch()
    assert first.finish() == 0


def may_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-p", "-f", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not may_unshare(), reason="needs unshare and the right to make a pid namespace")
@pytest.mark.parametrize("own_proc", [(), ("--mount-proc",)], ids=["foreign /proc", "own /proc"])
def test_a_live_owner_is_not_dead_for_another_pid_namespace(
    db: str, tmp_path: Path, spawn_agent: Spawn, own_proc: tuple[str, ...]
) -> None:
    quick = {"TEST_LEASE": "20", "TEST_BEAT": "0.1"}
    first = spawn_agent(TWO_STEPS, marker="in first", **quick)
    (tmp_path / "agent.py").write_text(TWO_STEPS)
    command = ["unshare", "-p", "-f", *own_proc, sys.executable, "agent.py"]
    other = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **quick}, capture_output=True, text=True, timeout=60
    )
    assert other.returncode == 4, other.stdout + other.stderr
    (tmp_path / "go").touch()
    assert first.finish() == 0


@pytest.mark.skipif(not may_unshare(), reason="needs unshare and the right to make a pid namespace")
def test_a_killed_owner_of_a_pid_namespace_is_dead_after_a_lease(db: str, tmp_path: Path, spawn_agent: Spawn) -> None:
    # A container that was killed and started again: other namespace, often the same small numbers.
    quick = {"TEST_LEASE": "2", "TEST_BEAT": "0.2"}
    (tmp_path / "agent.py").write_text(TWO_STEPS)
    command = ["unshare", "-p", "-f", "--kill-child", sys.executable, "agent.py"]
    environment = {**os.environ, **quick, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "in first\n"
        first.kill()
    (tmp_path / "go").touch()
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert again.returncode == 0, again.stdout + again.stderr


def test_a_killed_child_that_nobody_reaped_does_not_block_its_run(db: str, tmp_path: Path, spawn_agent: Spawn) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", TWO_STEPS], cwd=tmp_path, stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "in first\n"
        child.kill()
        (tmp_path / "go").touch()
        other = spawn_agent(TWO_STEPS)
        assert other.finish() == 0, other.output
    finally:
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


@pytest.mark.parametrize("leave", ["sys.exit(3)", "os._exit(3)", "raise RuntimeError", "return 3"])
def test_leaving_a_forked_child_leaves_the_parents_run_alone(db: str, spawn_agent: Spawn, leave: str) -> None:
    agent = spawn_agent(
        f"""
import os, sys
import agent_resume

def body(run):
    run.step("before", lambda: 1)
    pid = os.fork()
    if pid == 0:
        {leave}
    os.waitpid(pid, 0)
    with agent_resume.Store("runs.db") as store:
        print("status", store.shown_status(store.find_run("job")), flush=True)
    return run.step("after", lambda: 2)

result = agent_resume.agent_run("job", body, run_id="job", db="runs.db")
print("result", result, flush=True)
""",
    )
    assert agent.finish() == 0, agent.output
    assert agent.output.count("status running") == 1
    assert "result 2" in agent.output
    state = agent_resume.load_run("job", db=db)
    assert state.status == "completed"
    assert [step.attempts for step in state.steps] == [1, 1]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_case_049_two_resumes_race_for_what_follows_the_pause(
    tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(
        """
import os, sys, time
import agent_resume

def effect():
    with open(f"{sys.argv[1]}.txt", "a") as ledger:
        ledger.write("line\\n")
    time.sleep(0.1)

def body(run):
    run.pause("wait for it")
    run.step("effect", effect)

agent_resume.agent_run("job", body, run_id=sys.argv[1], db="runs.db")
"""
    )
    # The CLI's parts of a resume, without the interpreter's start in between: two processes behind a barrier.
    racer = """
import os, subprocess, sys, time
while time.time() < float(sys.argv[2]): pass
sys.exit(subprocess.call(
    [sys.executable, "-c", "from agent_resume.cli import main; main()", "resume", sys.argv[1], "--exec", "--db", "runs.db"]))
"""
    for number in range(3):
        run_id = f"run-{number}"
        assert run_python(agent, run_id).returncode == 0
        with agent_resume.Store(tmp_path / "runs.db") as store:
            store.answer(run_id, None, "yes")
        start = str(time.time() + 0.3)
        racers = [
            subprocess.Popen(
                [sys.executable, "-c", racer, run_id, start],
                cwd=tmp_path,
                env={**os.environ},
                stderr=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )  # fmt: skip
            for _ in range(2)
        ]
        said = [process.communicate(timeout=100) for process in racers]
        codes = sorted(process.returncode for process in racers)
        assert (tmp_path / f"{run_id}.txt").read_text() == "line\n"
        # The loser was refused, unless it came when the winner was done already.
        assert codes in ([0, 4], [0, 0]), (codes, said)
        if codes == [0, 4]:
            refusal = next(err for process, (_, err) in zip(racers, said, strict=True) if process.returncode == 4)
            assert "process" in refusal
            assert "since" in refusal


def test_case_050_the_same_id_started_by_two_threads(db: str, ledger: Any) -> None:
    barrier = threading.Barrier(2)
    refusals: list[agent_resume.RunInUse] = []
    results: list[Any] = []

    def body(run: agent_resume.Run) -> str:
        for number in range(10):
            run.step(f"s{number}", lambda number=number: ledger.note(f"s{number}"))
        return "done"

    def work() -> None:
        barrier.wait()
        try:
            results.append(agent_resume.agent_run("job", body, run_id="x", db=db))
        except agent_resume.RunInUse as busy:
            refusals.append(busy)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.words() == [f"s{number}" for number in range(10)]
    assert len(results) + len(refusals) == 2
    assert set(results) == {"done"}
    assert all(busy.pid == os.getpid() for busy in refusals)


def test_case_050_the_same_id_started_by_two_processes(db: str, tmp_path: Path, spawn_agent: Spawn) -> None:
    script = """
import sys, time
import agent_resume

def step(name):
    with open("ledger.txt", "a") as ledger:
        ledger.write(name + "\\n")
    time.sleep(0.02)

def body(run):
    for number in range(10):
        run.step(f"s{number}", step, f"s{number}")

try:
    agent_resume.agent_run("job", body, run_id="x", db="runs.db")
except agent_resume.RunInUse:
    sys.exit(4)
"""
    agents = [spawn_agent(script) for _ in range(2)]
    codes = sorted(agent.finish() for agent in agents)
    assert codes in ([0, 4], [0, 0])
    assert (tmp_path / "ledger.txt").read_text().split() == [f"s{number}" for number in range(10)]
    connection = sqlite3.connect(db)
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("INSERT INTO steps (run_id, key, seq, status) VALUES (1, 's0', 99, 'running')")
    connection.close()


def test_case_052_a_killed_run_is_shown_as_interrupted(db: str, tmp_path: Path, spawn_agent: Spawn, cli: Cli) -> None:
    agent = spawn_agent(TWO_STEPS, marker="in first")
    assert status_of(db) == "running"
    agent.kill()
    assert status_of(db) == "interrupted"
    for command in (("list",), ("show", "job")):
        shown = cli(*command, "--db", db)
        assert shown.returncode == 0, shown.stderr
        assert "interrupted" in shown.stdout
    (tmp_path / "go").touch()
    assert spawn_agent(TWO_STEPS).finish() == 0
    assert status_of(db) == "completed"


def test_case_053_a_killed_run_can_be_resumed_without_touching_the_database(
    db: str, tmp_path: Path, spawn_agent: Spawn, cli: Cli
) -> None:
    (tmp_path / "agent.py").write_text(TWO_STEPS)
    agent = spawn_agent(tmp_path / "agent.py", marker="in first")
    # A live owner: refused.
    refused = cli("resume", "job", "--exec", "--db", db)
    assert refused.returncode == 4, refused.stderr
    agent.kill()
    # Without --exec nothing is taken over.
    told = cli("resume", "job", "--db", db)
    assert told.returncode == 130
    assert status_of(db) == "interrupted"
    (tmp_path / "go").touch()
    resumed = cli("resume", "job", "--exec", "--db", db)
    assert resumed.returncode == 0, resumed.stderr
    assert status_of(db) == "completed"


def test_cancelling_a_killed_run_works_at_once(db: str, tmp_path: Path, spawn_agent: Spawn, cli: Cli) -> None:
    spawn_agent(TWO_STEPS, marker="in first").kill()
    assert cli("cancel", "job", "--db", db).returncode == 0
    assert status_of(db) == "cancelled"


def test_a_step_of_a_shared_run_is_in_flight_while_its_owner_lives(db: str, tmp_path: Path, spawn_agent: Spawn) -> None:
    script = (
        TWO_STEPS[: TWO_STEPS.index("try:")]
        + """
with agent_resume.Checkpoint("job", db="runs.db") as run:
    try:
        print("result", body(run), flush=True)
    except agent_resume.StepInFlight as busy:
        print("in flight", busy.key, busy.pid, flush=True)
        sys.exit(4)
"""
    )
    first = spawn_agent(script, marker="in first")
    second = spawn_agent(script)
    assert second.finish() == 4
    assert f"in flight first {first.pid}" in second.output
    first.kill()
    (tmp_path / "go").touch()
    third = spawn_agent(script)
    assert third.finish() == 0, third.output
    assert (tmp_path / "ledger.txt").read_text().split() == ["first", "first", "second"]


def test_an_owner_that_cannot_beat_for_a_lease_starts_no_further_step(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def body(run: agent_resume.Run) -> None:
        run.step("first", called.append, "first")
        # The store is gone for a lease: neither the thread nor the step's own try gets a beat through.
        monkeypatch.setattr(ownership.Heart, "late", property(lambda _: True))
        monkeypatch.setattr(ownership.Heart, "beat", lambda _: False)
        run.step("second", called.append, "second")

    with pytest.raises(agent_resume.StoreError):
        agent_resume.agent_run("job", body, run_id="job", db=db)
    assert called == ["first"]


# -- a step that outlives the call it was made in ---------------------------------------------------------------------------

_LEFT_BEHIND = """
import sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from agent_resume import Checkpoint, StepInFlight, agent_run
db, form, begun, over = sys.argv[1], sys.argv[2], threading.Event(), threading.Event()
pool = ThreadPoolExecutor(1)
def slow():
    begun.set()
    over.wait(30)
    return "slow"
def body(run):
    late = pool.submit(run.step, "a", slow)
    begun.wait()
    raise TimeoutError
try:
    if form == "agent_run":
        agent_run("job", body, run_id="j", db=db)
    else:
        with Checkpoint("j", db=db) as run:
            body(run)
except TimeoutError:
    pass
try:
    with Checkpoint("j", db=db) as run:
        run.step("a", lambda: "twice")
except StepInFlight:
    print("refused here", flush=True)
print("left", flush=True)
sys.stdin.readline()
over.set()
pool.shutdown()
"""


@pytest.mark.parametrize("form", ["agent_run", "Checkpoint"])
def test_a_step_whose_thread_is_still_inside_it_is_not_executed_elsewhere(form, tmp_path):
    db = str(tmp_path / "runs.db")
    command = [sys.executable, "-c", _LEFT_BEHIND, db, form]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert [other.stdout.readline(), other.stdout.readline()] == ["refused here\n", "left\n"]
        with agent_resume.Checkpoint("j", db=db) as run, pytest.raises(agent_resume.StepInFlight) as caught:
            run.step("a", pytest.fail)
        assert caught.value.pid == other.pid
        other.stdin.write("go on\n")
        other.stdin.close()
        assert other.wait(30) == 0
    with agent_resume.Checkpoint("j", db=db) as run:
        assert run.get_step_result("a") == "slow"


def test_once_the_step_left_behind_has_ended_nothing_is_held_for_it(tmp_path):
    db, begun, over = str(tmp_path / "runs.db"), threading.Event(), threading.Event()

    def slow():
        begun.set()
        return over.wait(30)

    def beating():
        return sum(other.name == "agent-resume-beat" for other in threading.enumerate())

    before = beating()
    with agent_resume.Checkpoint("j", db=db) as run:
        thread = threading.Thread(target=run.step, args=("a", slow))
        thread.start()
        assert begun.wait(30)
    over.set()
    thread.join()
    deadline = time.monotonic() + 20
    while sqlite3.connect(db).execute("SELECT count(*) FROM owners").fetchone() != (0,):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while beating() > before:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("end", ["cancel", "pause"])
def test_what_ends_a_nested_run_does_not_leave_the_outer_one_running(end, tmp_path, cli):
    db = str(tmp_path / "runs.db")

    def inner(run):
        if end == "pause":
            run.pause("approve?")
        run.cancel()
        run.step("x", int)

    def outer(run):
        agent_resume.agent_run("inner", inner, run_id="inner", db=db, on_pause="raise")

    with agent_resume.Checkpoint("server", db=db) as server:
        server.record("up", 1)
        with pytest.raises((agent_resume.RunPaused, agent_resume.RunCancelled)):
            agent_resume.agent_run("outer", outer, run_id="outer", db=db, on_pause="return")
        assert agent_resume.load_run("outer", db=db).status == "interrupted"
        assert cli("resume", "outer", "--db", db).returncode == 130


def test_an_owner_that_lost_its_run_cannot_cancel_it(tmp_path, cli):
    db = str(tmp_path / "runs.db")

    def body(run):
        run.step("a", int)
        assert cli("resume", "r", "--take-over", "--db", db).returncode == 0
        run.cancel()

    with pytest.raises(agent_resume.RunLost, match=r"Stop here; agent-resume show --db \S+ -- 'r' says what"):
        agent_resume.agent_run("job", body, run_id="r", db=db)
    assert agent_resume.load_run("r", db=db).status == "interrupted"


@pytest.mark.skipif(not shutil.which("unshare") or os.geteuid() != 0, reason="needs another time namespace")
def test_a_live_owner_of_another_time_namespace_is_not_taken_for_dead(tmp_path, spawn_agent):
    if subprocess.run(["unshare", "-T", "--fork", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel has no time namespaces")
    owner = spawn_agent(TWO_STEPS, marker="in first")
    code = "from agent_resume import ownership\nprint(ownership.same_host(ownership.host_identity(), input()))"
    said = subprocess.run(
        ["unshare", "-T", "--boottime", "100000", "--fork", sys.executable, "-c", code],
        input=ownership.host_identity(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.stdout == "False\n", said.stderr
    owner.kill()


def test_a_step_of_a_process_that_was_refused_and_lives_on_can_be_executed_by_the_new_owner(tmp_path, spawn_agent):
    db = str(tmp_path / "runs.db")
    code = """
import os, sys, time
import agent_resume
def body(run):
    run.step("a", int)
    if os.fork() == 0:
        try:
            run.step("c", lambda: print("in c", flush=True) or time.sleep(2))
        except agent_resume.RunLost:
            print("refused", flush=True)
        while not os.path.exists("stop"):
            time.sleep(0.05)
        os._exit(0)
    time.sleep(60)
agent_resume.agent_run("job", body, run_id="j", db=sys.argv[1])
"""
    parent = spawn_agent(code, db, marker="in c")
    os.kill(parent.pid, signal.SIGKILL)
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(parent.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
    with pytest.raises(agent_resume.StepInFlight):
        agent_resume.agent_run("job", lambda run: run.step("c", pytest.fail), run_id="j", db=db)
    parent.wait_for("refused")
    assert agent_resume.agent_run("job", lambda run: run.step("c", lambda: "mine"), run_id="j", db=db) == "mine"
    (tmp_path / "stop").touch()
    parent.finish()
