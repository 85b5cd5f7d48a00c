"""Harnesses of others: crashresume kills at each effect, fiu lets system calls fail at random."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agent_resume

# Executes the steps that it is told on stdin; the effect itself happens in the parent, which may kill us there.
SUBJECT = """
import json, sys
import agent_resume

db, run_id, looks_up = sys.argv[1], sys.argv[2], sys.argv[3] == "True"

def ask(*words):
    print(json.dumps(words), flush=True)
    return json.loads(sys.stdin.readline())

def effect(item):
    if not (looks_up and ask("known", item)):
        ask("effect", item)
    return item

with agent_resume.Checkpoint(run_id, db=db) as run:
    for item in iter(lambda: ask("next"), None):
        run.step(item, effect, item)
"""


class Subject:
    """What crashresume drives: each instance is a process, and its injected crash is a SIGKILL of that process."""

    def __init__(self, ctx: Any, db: str, looks_up: bool, living: list[subprocess.Popen[str]]) -> None:
        self._ctx = ctx
        self._db = db
        command = [sys.executable, "-c", SUBJECT, db, ctx.run_id, str(looks_up)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        living.append(self._child)
        assert self._read() == ["next"]

    def _read(self) -> Any:
        assert self._child.stdout is not None
        return json.loads(self._child.stdout.readline())

    def _write(self, answer: Any) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(answer) + "\n")
        self._child.stdin.flush()

    def step(self, item: str) -> None:
        from crashresume.core import InjectedCrash

        self._write(item)
        while (asked := self._read()) != ["next"]:
            kind, key = asked
            if kind == "known":
                known = self._ctx.effects.keys()
                self._write(key in known)
                continue
            try:
                self._ctx.effect("effect", key, key=key)
            except InjectedCrash:
                self._child.send_signal(signal.SIGKILL)
                self._child.wait()
                raise
            self._write(None)

    def state(self) -> Any:
        self._write(None)
        assert self._child.wait(30) == 0
        return [
            (step.name, step.status, step.output) for step in agent_resume.load_run(self._ctx.run_id, db=self._db).steps
        ]


def conformance(db: str, *, looks_up: bool) -> Any:
    core = pytest.importorskip("crashresume.core", reason="pip install crashresume")
    living: list[subprocess.Popen[str]] = []
    try:
        return core.conform(lambda ctx: Subject(ctx, db, looks_up, living), ["a", "b", "c"])
    finally:
        for child in living:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                pipe.close()


@pytest.fixture
def db(tmp_path: Path) -> str:
    """A file: the processes of these tests share it."""
    return str(tmp_path / "runs.db")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills with SIGKILL")
def test_crashresume_finds_one_replayed_effect_at_each_crash_point_of_plain_steps(db: str) -> None:
    report = conformance(db, looks_up=False)
    assert report.crash_points == 3
    found = [(finding.kind, finding.crash_after) for finding in report.findings]
    # At least once: the effect took place and the process died before that could be stored.
    assert found == [("effect_replayed", 1), ("effect_replayed", 2), ("effect_replayed", 3)]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills with SIGKILL")
def test_crashresume_finds_nothing_when_the_function_looks_up_its_idempotency_key(db: str) -> None:
    report = conformance(db, looks_up=True)
    assert report.crash_points == 3
    assert report.passed, str(report)


UNDER_FIU = """
import os, sys
import agent_resume

def effect(name):
    with open("called.txt", "a") as ledger:
        ledger.write(name + "\\n")
    return name

def body(run):
    for number in range(60):
        name = f"s{number}"
        assert run.step(name, effect, name) == name
        with open("acknowledged.txt", "a") as ledger:
            ledger.write(name + "\\n")

try:
    agent_resume.agent_run("job", body, run_id="job", db="runs.db")
except agent_resume.StoreError as error:
    sys.exit(6)
"""


@pytest.mark.skipif(shutil.which("fiu-run") is None, reason="fiu-run is missing (Debian: apt install fiu-utils)")
@pytest.mark.parametrize("point", ["posix/io/rw/pwrite", "posix/io/sync/fdatasync", "posix/io/sync/fsync"])
@pytest.mark.timeout(180)
def test_random_io_errors_lose_nothing_that_was_acknowledged(
    db: str, tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]], point: str
) -> None:
    (tmp_path / "agent.py").write_text(UNDER_FIU)
    for _ in range(6):
        command = ["fiu-run", "-x", "-c", f"enable_random name={point},probability=0.1", sys.executable, "agent.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, env={**os.environ})
        assert done.returncode in (0, 6), done.stderr
        if done.returncode == 0:
            break
    assert run_python(tmp_path / "agent.py").returncode == 0
    called = (tmp_path / "called.txt").read_text().split()
    acknowledged = (tmp_path / "acknowledged.txt").read_text().split()
    stored = {step.name: step.output for step in agent_resume.load_run("job", db=db).steps}
    assert stored == {f"s{number}": f"s{number}" for number in range(60)}
    for name in set(acknowledged):
        assert called.count(name) >= 1
        assert stored[name] == name
