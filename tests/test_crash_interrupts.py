"""Ctrl-C anywhere in a write: every operation has exactly one true outcome, and the next one works."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import agent_resume
from agent_resume import Checkpoint, databases, run_calls
from agent_resume.database import Database
from agent_resume.database_location import resolve
from agent_resume.database_sql import Tx

Trace = Callable[[FrameType, str, Any], Any]


@pytest.fixture
def db(tmp_path: Path) -> str:
    """A file: these tests are about files, signals and processes."""
    return str(tmp_path / "runs.db")


class InterruptAt:
    """Raises KeyboardInterrupt when the Nth line of agent_resume is about to run, as a signal would; then once more,
    after ``more`` further calls, where signals come in.

    Python ends a tracer that raises, and a profiler likewise: so there is one of each.
    """

    def __init__(self, line: int, more: int = 0) -> None:
        self.line = line
        self.more = more
        self.lines = 0
        self.calls = 0
        self.place = ""

    def __call__(self, frame: FrameType, kind: str, argument: Any) -> Trace | None:
        if "agent_resume" not in frame.f_code.co_filename:
            return None
        if kind == "line":
            self.lines += 1
            if self.lines == self.line:
                self.interrupt(frame)
        return self

    def again(self, frame: FrameType, kind: str, argument: Any) -> None:
        if self.place and kind in ("call", "c_return") and "agent_resume" in frame.f_code.co_filename:
            self.calls += 1
            if self.calls == self.more:
                self.interrupt(frame)

    def interrupt(self, frame: FrameType) -> None:
        self.place += f" {frame.f_code.co_name}:{frame.f_lineno}"
        raise KeyboardInterrupt

    def __enter__(self) -> InterruptAt:
        if self.more:
            sys.setprofile(self.again)
        sys.settrace(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        sys.setprofile(None)


@pytest.fixture
def store(db: str) -> Iterator[Database]:
    location = resolve(db)
    opened = databases.acquire(location)
    opened.ensure_writable()
    yield opened
    databases.release(location)


def insert(tx: Tx, token: str) -> str:
    tx.cursor.execute("INSERT INTO owners (token, host, pid, beat_at) VALUES (?, 'h', 1, '')", (token,))
    return token


def stored(db: str) -> set[str]:
    connection = sqlite3.connect(db)
    try:
        return {row[0] for row in connection.execute("SELECT token FROM owners")}
    finally:
        connection.close()


@pytest.mark.parametrize("more", range(7), ids=lambda more: f"again after {more} calls" if more else "once")
def test_an_interrupt_at_any_line_of_a_direct_write_leaves_one_true_outcome(
    db: str, store: Database, more: int
) -> None:
    line = again = 0
    acknowledged: set[str] = set()
    while True:
        line += 1
        token = f"interrupted at {line}"
        interrupt = InterruptAt(line, more)
        try:
            with interrupt:
                store.direct(insert, token)
            acknowledged.add(token)
        except KeyboardInterrupt:
            pass
        # Another connection can write at once: no transaction was left open ...
        other = sqlite3.connect(db, timeout=0, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            pytest.fail(f"interrupted at {interrupt.place}: {error}")
        finally:
            other.close()
        # ... and so can this one, and what it says is true.
        acknowledged.add(store.direct(insert, f"after {line}"))
        again += interrupt.calls == more > 0
        if interrupt.lines < line:
            break
    assert line > 10, "nothing was interrupted"
    assert again > 10 or not more, "nothing was interrupted twice"
    found = stored(db)
    assert acknowledged <= found
    assert {token for token in found if token.startswith("after")} == {f"after {n}" for n in range(1, line + 1)}


# Steps on the main thread, where signals land, beside some threads that write as well. The storm hits everything that
# agent_resume does, and the step functions; only the loop that plays the user is spared.
STORM = """
import importlib, json, os, signal, sys, threading
import agent_resume

db, threads, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def note(*words):
    os.write(1, (json.dumps(words) + "\\n").encode())

def effect(run_id, key):
    note("call", run_id, key)
    return key

def handler(number, frame):
    inside = False
    while frame is not None:
        if frame.f_code in SPARED:
            return
        inside = inside or f"{os.sep}agent_resume{os.sep}" in frame.f_code.co_filename
        frame = frame.f_back
    if inside:
        raise KeyboardInterrupt

def steps(run, run_id, number):
    while not os.path.exists("stop"):
        key = f"s{number}"
        if run.step(key, effect, run_id, key) != key:
            note("failed", run_id, key)
        note("ack", run_id, key)
        number += 1
    return number

def by_checkpoint():
    number, run = 0, None
    while True:
        try:
            run = run or agent_resume.Checkpoint("main", db=db)
            while not os.path.exists("stop"):
                key = f"s{number}"
                run.step(key, effect, "main", key)
                note("ack", "main", key)
                number += 1
            break
        except KeyboardInterrupt:
            note("interrupted")
    run.done()

def by_runs():
    def body(run):
        for number in range(12):
            key = f"s{number}"
            run.step(key, effect, run.id, key)
            note("ack", run.id, key)
    number = 0
    while not os.path.exists("stop"):
        try:
            agent_resume.agent_run("main", body, run_id=f"run-{number}", db=store)
            note("whole", f"run-{number}")
            number += 1
        except KeyboardInterrupt:
            note("interrupted")

def work(run_id):
    try:
        with agent_resume.Checkpoint(run_id, db=db) as run:
            steps(run, run_id, 0)
    except BaseException as error:
        note("failed", run_id, repr(error))

# A half-done import is the interpreter's trouble, not ours: what is used is imported before.
SPARED = {note.__code__, *(getattr(f, "__code__", None) for f in vars(importlib._bootstrap).values())}
store = agent_resume.Store(db)
agent_resume.agent_run("warm", lambda run: run.step("s", str), db=store)
with agent_resume.Checkpoint("warm as well", db=store) as run:
    run.step("s", str)
    run.done()
others = [threading.Thread(target=work, args=(f"thread-{n}",)) for n in range(threads)]
for thread in others:
    thread.start()
signal.signal(signal.SIGINT, handler)
note("ready")
try:
    by_runs() if mode == "runs" else by_checkpoint()
except BaseException as error:
    import traceback
    note("failed", "main", traceback.format_exc())
signal.signal(signal.SIGINT, signal.SIG_IGN)
for thread in others:
    thread.join()
store.close()
note("ended")
"""


@pytest.mark.timeout(120)
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.parametrize("mode", ["checkpoint", "runs"])
@pytest.mark.parametrize("threads", [0, 1, 8])
def test_a_storm_of_interrupts_loses_nothing_and_nothing_hangs(
    db: str, tmp_path: Path, spawn_agent: Callable[..., Any], threads: int, mode: str
) -> None:
    chance = random.Random(f"{threads} {mode}")
    agent = spawn_agent(STORM, db, threads, mode, marker="ready", PYTHONWARNINGS="ignore")
    for _ in range(500):
        agent.signal(signal.SIGINT)
        time.sleep(chance.random() * 0.006)
        assert agent.process.poll() is None, agent.output[-2000:]
    (tmp_path / "stop").touch()
    agent.wait_for('["ended"]')
    assert agent.finish() == 0
    notes = [json.loads(line) for line in agent.lines if line.startswith("[")]
    assert [words for words in notes if words[0] == "failed"] == []
    assert sum(words[0] == "interrupted" for words in notes) > 100
    acknowledged: set[tuple[str, str]] = set()
    for words in notes:
        if words[0] == "ack":
            acknowledged.add((words[1], words[2]))
        elif words[0] == "call":
            assert (words[1], words[2]) not in acknowledged, "a completed step was called again"
    assert acknowledged
    connection = sqlite3.connect(db)
    query = "SELECT r.id, s.key, s.output FROM steps s JOIN runs r ON r.seq = s.run_id WHERE s.status = 'completed'"
    stored = {(run, key) for run, key, output in connection.execute(query) if json.loads(output) == key}
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    done = "SELECT max(n) FROM (SELECT count(*) AS n FROM events WHERE type = 'done' GROUP BY run_id, step_key)"
    assert connection.execute(done).fetchone()[0] == 1
    connection.close()
    assert acknowledged - stored == set()


@pytest.mark.parametrize(
    "error",
    [SystemExit(0), SystemExit(3), KeyboardInterrupt(), GeneratorExit()],
    ids=["exit 0", "exit 3", "^C", "generator"],
)
def test_case_040_what_is_no_exception_passes_through_and_interrupts_the_run(
    db: str, error: BaseException, cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    def leaves() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        agent_resume.agent_run("job", lambda run: run.step("s", leaves), run_id="job", db=db)
    assert caught.value is error
    state = agent_resume.load_run("job", db=db)
    assert state.status == "interrupted"
    assert [(step.name, step.status) for step in state.steps] == [("s", "interrupted")]
    assert "interrupted" in cli("list", "--db", db).stdout
    assert cli("resume", "job", "--db", db).returncode == 130
    assert agent_resume.agent_run("job", lambda run: run.step("s", lambda: "now"), run_id="job", db=db) == "now"


def test_case_040_the_exit_code_of_a_program_that_exits_in_a_step_is_kept(
    db: str, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    script = "import sys, agent_resume\nagent_resume.agent_run('job', lambda run: run.step('s', sys.exit, 3), run_id='job', db='runs.db')"
    assert run_python(script).returncode == 3
    assert agent_resume.load_run("job", db=db).status == "interrupted"


@pytest.mark.parametrize("where", ["step", "between steps"])
async def test_case_041_a_cancelled_run_does_nothing_more_and_runs_the_step_again(db: str, where: str) -> None:
    called: list[str] = []
    inside = asyncio.Event()

    async def slow() -> str:
        called.append("slow")
        if where == "step" and not inside.is_set():
            inside.set()
            await asyncio.sleep(60)
        return "slow"

    async def following() -> str:
        called.append("next")
        return "next"

    async def body(run: agent_resume.AsyncRun) -> str:
        await run.step("slow", slow)
        if where != "step" and not inside.is_set():
            inside.set()
            await asyncio.sleep(60)
        return await run.step("next", following)

    task = asyncio.create_task(agent_resume.agent_run("job", body, run_id="job", db=db))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert called == ["slow"]
    state = await asyncio.to_thread(agent_resume.load_run, "job", db=db)
    assert state.status == "interrupted"
    assert [step.status for step in state.steps] == ["interrupted" if where == "step" else "completed"]
    assert await agent_resume.agent_run("job", body, run_id="job", db=db) == "next"
    assert called == (["slow", "slow", "next"] if where == "step" else ["slow", "next"])


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGTERM")
def test_a_terminated_program_is_interrupted_and_goes_on(
    db: str, tmp_path: Path, spawn_agent: Callable[..., Any]
) -> None:
    script = """
import os, time, agent_resume
def slow():
    print("inside", flush=True)
    while not os.path.exists("go"): time.sleep(0.01)
agent_resume.agent_run("job", lambda run: run.step("slow", slow), run_id="job", db="runs.db")
"""
    agent = spawn_agent(script, marker="inside")
    agent.signal(signal.SIGTERM)
    assert agent.finish() == -signal.SIGTERM
    with agent_resume.Store(db) as store:
        assert store.shown_status(store.find_run("job")) == "interrupted"
    (tmp_path / "go").touch()
    assert spawn_agent(script).finish() == 0


def test_an_interrupt_as_a_step_becomes_the_current_one_leaves_no_step_current(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = run_calls.active

    class Interrupting:
        """A ContextVar whose ``set`` a Ctrl-C follows before its token is had."""

        get = staticmethod(real.get)

        @staticmethod
        def set(value: Any) -> Any:
            token = real.set(value)
            if value is not None:
                raise KeyboardInterrupt
            return token

    with Checkpoint("r", db=db) as run:
        with monkeypatch.context() as patch:
            patch.setattr(run_calls, "active", Interrupting)
            with pytest.raises(KeyboardInterrupt):
                run.step("a", int)
        with pytest.raises(agent_resume.NoActiveStep):
            agent_resume.current_step()
        assert run.step("turn", int, repeat=True) == 0
        assert [step.name for step in run.timeline()] == ["a", "turn"]
