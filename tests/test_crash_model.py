"""Any interleaving of steps, failures, kills, resumes, pauses and takeovers agrees with a model of sixty lines."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

import agent_resume
from agent_resume import store_admin
from agent_resume.store_sql import Place

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks agents and kills them")

KEYS = st.sampled_from(["a", "b", "c"])
RECORDS = st.sampled_from(["r", "s"])
PAUSES = st.sampled_from(["p", "q"])
SLOTS = st.sampled_from([0, 1])


class Model:
    """What should happen. ``owner`` is the slot that has the run; a slot in ``index`` lives, and knows some outcomes."""

    def __init__(self) -> None:
        self.status: str | None = None
        self.result: Any = None
        self.steps: dict[str, tuple[str, Any, int]] = {}
        self.answers: dict[str, Any] = {}
        self.owner: int | None = None
        self.index: dict[int, set[str]] = {}

    def start(self, slot: int) -> list[Any]:
        if self.status == "completed":
            return ["result", self.result]
        if self.status == "cancelled":
            return ["left", "RunCancelled"]
        if self.owner is not None:
            return ["left", "RunInUse"]
        self.owner, self.status = slot, "running"
        self.index[slot] = {key for key, (status, _, _) in self.steps.items() if status == "completed"}
        return ["in"]

    def refused(self, slot: int) -> list[Any] | None:
        """Why this slot gets no new work."""
        if self.owner != slot:
            return ["error", "RunLost"]
        return self.gone(slot, "RunCancelled") if self.status == "cancelled" else None

    def gone(self, slot: int, why: str, status: str | None = None) -> list[Any]:
        del self.index[slot]
        if self.owner == slot:
            self.owner, self.status = None, status or self.status
        return ["left", why]

    def step(self, slot: int, key: str, how: str, value: Any) -> list[Any] | None:
        if key in self.index[slot]:
            return ["value", self.steps[key][1], False]
        if (refusal := self.refused(slot)) is not None:
            return refusal
        attempts = self.steps.get(key, ("", None, 0))[2] + 1
        if how == "ok":
            self.index[slot].add(key)
            self.steps[key] = ("completed", value, attempts)
            return ["value", value, True]
        self.steps[key] = ({"kill": "running", "exit": "interrupted", "fail": "failed"}[how], None, attempts)
        if how == "fail":
            return ["error", "FailureError"]
        if how == "exit":
            return self.gone(slot, "SystemExit", "interrupted")
        self.gone(slot, "killed")
        return None

    def record(self, slot: int, key: str, value: Any) -> list[Any]:
        if (refusal := self.refused(slot)) is not None:
            return refusal
        self.steps.setdefault(key, ("completed", value, 0))
        return ["value", self.steps[key][1], False]

    def pause(self, slot: int, name: str) -> list[Any]:
        if (refusal := self.refused(slot)) is not None:
            return refusal
        if name in self.answers:
            return ["value", self.answers[name], False]
        return self.gone(slot, "RunPaused", "paused")

    def end(self, slot: int, value: Any) -> list[Any]:
        if self.owner != slot:
            return self.gone(slot, "RunLost")
        if self.status == "cancelled":
            return self.gone(slot, "RunCancelled")
        self.result = value
        self.gone(slot, "", "completed")
        return ["result", value]

    def fail(self, slot: int) -> list[Any]:
        return self.gone(slot, "FailureError", None if self.status == "cancelled" else "failed")


@pytest.fixture(scope="module")
def workers() -> Iterator[str]:
    """The socket of the process that forks agents. The path is short: socket names must be."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/s"
        script = Path(__file__).with_name("model_worker.py")
        with subprocess.Popen([sys.executable, str(script), path], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield path
            process.kill()


class Worker:
    """One agent in a process of its own."""

    def __init__(self, path: str, db: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(path)
        self._channel = self._socket.makefile("rw")
        self.pid = json.loads(self._channel.readline())
        self.said = self.tell(db, "run")

    def tell(self, *words: Any) -> Any:
        """Send a command; its answer, or None when the process died of it."""
        self._channel.write(json.dumps(words) + "\n")
        self._channel.flush()
        with contextlib.suppress(ConnectionError):
            if line := self._channel.readline():
                return json.loads(line)
        return None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._channel.readline()  # the end of the file comes with the end of the process

    def close(self) -> None:
        self._channel.close()
        self._socket.close()


class Agents(RuleBasedStateMachine):
    """Two slots for agents of one run, and what others do to it meanwhile."""

    #: The socket of the process that forks agents.
    path = ""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.db = f"{self.folder}/runs.db"
        self.model = Model()
        self.live: dict[int, Worker] = {}
        self.count = 0

    def value(self) -> int:
        self.count += 1
        return self.count

    def check(self, slot: int, expected: list[Any] | None, said: Any) -> None:
        assert said == expected
        if slot not in self.model.index:
            self.live.pop(slot).close()

    @rule(slot=SLOTS)
    def start(self, slot: int) -> None:
        if slot not in self.live:
            self.live[slot] = worker = Worker(self.path, self.db)
            self.check(slot, self.model.start(slot), worker.said)

    @precondition(lambda self: self.live)
    @rule(slot=SLOTS, key=KEYS, how=st.sampled_from(["ok", "ok", "fail", "kill", "exit"]))
    def step(self, slot: int, key: str, how: str) -> None:
        if slot in self.live:
            words = (key, how, self.value())
            self.check(slot, self.model.step(slot, *words), self.live[slot].tell("step", *words))

    @precondition(lambda self: self.live)
    @rule(slot=SLOTS, key=RECORDS)
    def record(self, slot: int, key: str) -> None:
        if slot in self.live:
            words = (key, self.value())
            self.check(slot, self.model.record(slot, *words), self.live[slot].tell("record", *words))

    @precondition(lambda self: self.live)
    @rule(slot=SLOTS, name=PAUSES)
    def pause(self, slot: int, name: str) -> None:
        if slot in self.live:
            self.check(slot, self.model.pause(slot, name), self.live[slot].tell("pause", name))

    @precondition(lambda self: self.live)
    @rule(slot=SLOTS, fails=st.booleans())
    def end(self, slot: int, fails: bool) -> None:
        if slot in self.live:
            value = self.value()
            expected = self.model.fail(slot) if fails else self.model.end(slot, value)
            self.check(slot, expected, self.live[slot].tell(*(["raise"] if fails else ["return", value])))

    @precondition(lambda self: self.live)
    @rule(slot=SLOTS)
    def kill(self, slot: int) -> None:
        if slot in self.live:
            self.live[slot].kill()
            self.model.gone(slot, "killed")
            self.live.pop(slot).close()

    def admin(self, act: Callable[[agent_resume.Store], object]) -> str | None:
        with agent_resume.Store(self.db) as store:
            try:
                act(store)
            except agent_resume.AgentResumeError as error:
                return type(error).__name__
        return None

    @precondition(lambda self: self.model.status is not None)
    @rule(name=PAUSES)
    def answer(self, name: str) -> None:
        value = self.value()
        said = self.admin(lambda store: store.answer("run", name, value))
        if self.model.status in ("completed", "cancelled"):
            assert said == "InvalidTransition"
        else:
            assert said is None
            self.model.answers.setdefault(name, value)

    @precondition(lambda self: self.model.status is not None)
    @rule()
    def take_over(self) -> None:
        def act(store: agent_resume.Store) -> None:
            row = store.find_run("run")
            store.direct(store_admin.take_over, Place(row.seq, row.id))

        said = self.admin(act)
        if self.model.status == "running":
            assert said is None
            self.model.owner, self.model.status = None, "interrupted"
        else:
            assert said == "InvalidTransition"

    @precondition(lambda self: self.model.status is not None and self.count % 4 == 0)
    @rule()
    def cancel(self) -> None:
        said = self.admin(lambda store: store.cancel("run"))
        if self.model.status == "completed":
            assert said == "InvalidTransition"
        else:
            assert said is None
            self.model.status = "cancelled"

    @invariant()
    def the_store_agrees(self) -> None:
        if self.model.status is None:
            return
        connection = sqlite3.connect(self.db)
        try:
            (status,) = connection.execute("SELECT status FROM runs WHERE id = 'run'").fetchone()
            rows = connection.execute("SELECT key, status, output, attempts FROM steps").fetchall()
        finally:
            connection.close()
        assert status == self.model.status
        stored = {key: (kind, json.loads(output or "null"), attempts) for key, kind, output, attempts in rows}
        # How often a recorded value was attempted says nothing.
        assert {k: v if k not in "rs" else (*v[:2], 0) for k, v in stored.items()} == self.model.steps

    def teardown(self) -> None:
        for worker in self.live.values():
            worker.kill()
            worker.close()
        if os.path.exists(self.db):
            connection = sqlite3.connect(self.db)
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            connection.close()
        shutil.rmtree(self.folder)


@pytest.mark.timeout(300)
def test_any_interleaving_agrees_with_the_model(workers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Agents, "path", workers)
    examples = max(15, settings().max_examples // 4)
    run_state_machine_as_test(Agents, settings=settings(max_examples=examples, stateful_step_count=25, deadline=None))
