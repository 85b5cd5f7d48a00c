"""Forks under load: parent and child both go on writing, and everything acknowledged is there."""

from __future__ import annotations

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
