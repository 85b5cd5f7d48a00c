"""Forks under load: parent and child both go on writing, and everything acknowledged is there."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.timeout(180),
]

# Four threads write, and meanwhile the main thread forks; each child writes as well, and either side closes first.
# Every acknowledged write is noted on stdout by one os.write.
FORKS = """
import json, os, sys, threading, time
import agent_resume

db, forks, first = sys.argv[1], int(sys.argv[2]), sys.argv[3]
stop = threading.Event()

def note(*words):
    os.write(1, (json.dumps(words) + "\\n").encode())

def write(run_id, stop_at=None):
    with agent_resume.Checkpoint(run_id, db=db) as run:
        number = 0
        while not stop.is_set() if stop_at is None else number < stop_at:
            key = f"s{number}"
            run.step(key, lambda: number)
            note("step", run_id, key)
            run.record(f"r{number}", number)
            note("step", run_id, f"r{number}")
            number += 1

def work(run_id):
    try:
        write(run_id)
    except BaseException as error:
        note("failed", run_id, repr(error))

threads = [threading.Thread(target=work, args=(f"thread-{n}",)) for n in range(4)]
for thread in threads:
    thread.start()
with agent_resume.Checkpoint("main", db=db) as main:
    children = []
    for number in range(forks):
        main.step(f"f{number}", lambda: number)
        note("step", "main", f"f{number}")
        pid = os.fork()
        if pid == 0:
            try:
                write(f"child-{number}", 5)
                # A run that the parent has open is not the child's to break.
                main.step(f"by child {number}", lambda: number)
                note("step", "main", f"by child {number}")
                if first == "parent":
                    time.sleep(0.05)
            except BaseException as error:
                note("failed", f"child-{number}", repr(error))
                os._exit(1)
            if number % 2:
                os._exit(0)
            sys.exit(0)
        children.append(pid)
        main.step(f"after {number}", lambda: number)
        note("step", "main", f"after {number}")
        if first == "child" or number % 8 == 7:
            while children:
                os.waitpid(children.pop(), 0)
    for child in children:
        os.waitpid(child, 0)
    stop.set()
    for thread in threads:
        thread.join()
"""


@pytest.fixture
def db(tmp_path: Path) -> str:
    """A file: these tests are about files, signals and processes."""
    return str(tmp_path / "runs.db")


@pytest.mark.slow
@pytest.mark.parametrize("first", ["parent", "child"])
def test_forty_forks_beside_four_writing_threads(
    db: str, tmp_path: Path, spawn_agent: Callable[..., Any], first: str
) -> None:
    warnings = ["-W", "ignore:This process:DeprecationWarning"] if sys.version_info >= (3, 12) else []
    script = tmp_path / "forks.py"
    script.write_text(FORKS)
    agent = spawn_agent(script, db, 40, first, PYTHONWARNINGS=",".join(warnings[1:]))
    assert agent.process.wait(150) == 0, agent.output[-3000:]
    agent.finish()
    notes = [json.loads(line) for line in agent.lines if line.startswith("[")]
    assert [words for words in notes if words[0] == "failed"] == []
    assert [line for line in agent.lines if not line.startswith("[")] == []
    acknowledged = {(run, key) for _, run, key in notes}
    assert len(acknowledged) > 40 * 12
    connection = sqlite3.connect(db)
    query = "SELECT r.id, s.key FROM steps s JOIN runs r ON r.seq = s.run_id WHERE s.status = 'completed'"
    stored = set(connection.execute(query))
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    again = connection.execute("SELECT count(*) FROM steps WHERE attempts > 1").fetchone()[0]
    connection.close()
    assert acknowledged - stored == set()
    assert again == 0


@pytest.mark.parametrize("leave", ["return 'from the child'", "sys.exit(7)", "raise KeyError(7)", "os._exit(7)"])
def test_a_fork_inside_a_step_leaves_the_step_to_the_parent(
    db: str, spawn_agent: Callable[..., Any], leave: str
) -> None:
    agent = spawn_agent(
        f"""
import os, sys
import agent_resume

def forks():
    pid = os.fork()
    if pid == 0:
        {leave}       # and on through step() and agent_run(), in the child
    assert os.waitpid(pid, 0)[1] >> 8 == 7
    return "from the parent"

try:
    print("result", agent_resume.agent_run("job", lambda run: run.step("s", forks), run_id="job", db="runs.db"), flush=True)
except (agent_resume.RunLost, KeyError) as error:
    print("refused", type(error).__name__, flush=True)
    sys.exit(7)
"""
    )
    assert agent.finish() == 0, agent.output
    assert "result from the parent" in agent.output
    assert "result from the child" not in agent.output
    connection = sqlite3.connect(db)
    rows = connection.execute("SELECT status, attempts, output FROM steps").fetchall()
    kinds = [kind for (kind,) in connection.execute("SELECT type FROM events ORDER BY id")]
    connection.close()
    assert rows == [("completed", 1, '"from the parent"')]
    assert kinds == ["created", "start", "done", "completed"]


# -- a fork that has to wait, and is interrupted --------------------------------------------------------------------------

_INTERRUPTED_FORK = """
import os, signal, sys, threading, time
from agent_resume import Checkpoint, StoreForked
db, how = sys.argv[1:]
cp = Checkpoint("r", db=db)
cp.step("a", lambda: 1)
begun, over = threading.Event(), threading.Event()
def in_transaction():
    cp.transaction("t", lambda connection: begun.set() or over.wait(10))
def in_a_read():
    cp._core.store.database.read(lambda tx: begun.set() or over.wait(10))
thread = threading.Thread(target={"transaction": in_transaction, "read": in_a_read}[how])
thread.start()
begun.wait()
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
told = 0
try:
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            cp.step("c", lambda: "child")
            os._exit(1)
        except StoreForked:
            cp.close()
            os._exit(7)
    time.sleep(2)
except KeyboardInterrupt:
    told = 1
over.set()
thread.join()
other = threading.Thread(target=cp.step, args=("b", lambda: 2))
other.start()
other.join(20)
print(told, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), other.is_alive(), cp.get_step_result("b"))
"""


@pytest.mark.parametrize("how", ["transaction", "read"])
def test_ctrl_c_while_a_fork_waits_for_its_turn_reaches_the_program_and_hangs_nobody(how, tmp_path, run_python):
    said = run_python(_INTERRUPTED_FORK, tmp_path / "runs.db", how)
    assert said.stdout == "1 7 False 2\n", said.stderr


_REPLACED_IN_THE_CHILD = """
import os, sys
from agent_resume import Checkpoint, StoreMoved
db = sys.argv[1]
cp = Checkpoint("mine", db=db)
cp.step("a", lambda: 1)
pid = os.fork()
if pid == 0:
    for suffix in ("", "-wal", "-shm"):
        if os.path.exists(db + suffix):
            os.unlink(db + suffix)
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c",
            "import sys; from agent_resume import Checkpoint; Checkpoint('other', db=sys.argv[1]).step('z', int)", db])
    os.wait()
for name in ("child", "parent"):
    if (name == "child") == (pid == 0):
        if pid:
            os.waitpid(pid, 0)
        try:
            cp.step(name, lambda: 2)
        except StoreMoved:
            os.write(1, f"{name} refused\\n".encode())
"""


def test_a_file_that_was_replaced_across_a_fork_is_nobodys_store_any_more(tmp_path, run_python):
    said = run_python(_REPLACED_IN_THE_CHILD, tmp_path / "runs.db")
    assert said.stdout == "child refused\nparent refused\n", said.stderr
    with contextlib.closing(sqlite3.connect(tmp_path / "runs.db")) as database:
        assert database.execute("SELECT key FROM steps").fetchall() == [("z",)]


_FORK_BESIDE_A_WAITING_OPENER = """
import os, signal, sqlite3, sys, threading, time
from agent_resume import Checkpoint, databases
databases.FORK_PATIENCE = 0.5
first, second = sys.argv[1:]
holder = sqlite3.connect(first, isolation_level=None, check_same_thread=False)
holder.execute("PRAGMA journal_mode=WAL")
holder.execute("BEGIN IMMEDIATE")
thread = threading.Thread(target=lambda: Checkpoint("x", db=first).step("s", int))
thread.start()
time.sleep(1)
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    Checkpoint("y", db=second).step("s", int)
    os._exit(0)
holder.execute("ROLLBACK")
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_child_forked_beside_a_thread_that_waits_to_make_a_store_can_make_another(tmp_path, run_python):
    said = run_python(_FORK_BESIDE_A_WAITING_OPENER, tmp_path / "a.db", tmp_path / "b.db")
    assert said.stdout == "0\n", said.stderr
