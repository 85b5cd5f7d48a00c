"""SIGKILL anywhere: nothing acknowledged is lost, nothing completed is called again, every run can be resumed."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agent_resume

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills with signals, in forks")

ROOT = Path(__file__).resolve().parent.parent

TWENTY_STEPS = """
import os, sys, time
from agent_resume import agent_run

def step(name):
    with open("ledger.txt", "a") as ledger:
        ledger.write(name + "\\n")
    time.sleep(0.003)
    return name

def body(run):
    for number in range(20):
        run.step(f"s{number}", step, f"s{number}")

print("started", flush=True)
agent_run("job", body, run_id="job", db="runs.db")
"""


@pytest.fixture
def db(tmp_path: Path) -> str:
    """A file: these tests are about files, signals and processes."""
    return str(tmp_path / "runs.db")


def attempts_of(db: str, key: str) -> list[tuple[int, str]]:
    connection = sqlite3.connect(db)
    try:
        query = "SELECT attempt, outcome FROM step_attempts WHERE key = ? ORDER BY attempt"
        return connection.execute(query, (key,)).fetchall()
    finally:
        connection.close()


def test_case_016_killed_between_return_and_commit(
    db: str, tmp_path: Path, spawn_agent: Callable[..., Any], cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    chance = random.Random(16)
    path = tmp_path / "ledger.txt"
    path.touch()
    for _ in range(6):
        agent = spawn_agent(TWENTY_STEPS)
        wanted = len(path.read_text().split()) + chance.randint(1, 4)
        while agent.process.poll() is None and len(path.read_text().split()) < wanted:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.005)
        agent.kill()
    assert spawn_agent(TWENTY_STEPS).finish() == 0
    called = Counter(path.read_text().split())
    assert set(called) == {f"s{number}" for number in range(20)}
    repeated = False
    for key, times in called.items():
        attempts = attempts_of(db, key)
        assert len(attempts) >= times
        # Only the last attempt has an outcome; of those before nobody knows.
        assert [outcome for _, outcome in attempts] == ["unknown"] * (len(attempts) - 1) + ["done"]
        repeated = repeated or len(attempts) > 1
    shown = cli("show", "job", "--db", db)
    assert shown.returncode == 0, shown.stderr
    assert ("unknown" in shown.stdout) == repeated


def test_case_016_the_window_between_return_and_commit(
    db: str, tmp_path: Path, spawn_agent: Callable[..., Any]
) -> None:
    # After s4 has returned and before that is stored: s4 runs twice, and nothing else does.
    first = spawn_agent(TWENTY_STEPS, AGENT_RESUME_FAULTS="after-return:5")
    assert first.finish() == -signal.SIGKILL
    assert spawn_agent(TWENTY_STEPS).finish() == 0
    called = Counter((tmp_path / "ledger.txt").read_text().split())
    assert called == {f"s{number}": 2 if number == 4 else 1 for number in range(20)}
    assert attempts_of(db, "s4") == [(1, "unknown"), (2, "done")]
    assert attempts_of(db, "s3") == [(1, "done")]


def test_case_017_steps_of_a_generator_are_stored_one_by_one(db: str, spawn_agent: Callable[..., Any]) -> None:
    script = """
import os, signal
from agent_resume import agent_run

def body(run):
    def gen():
        for i in range(100):
            yield run.step(f"s{i}", lambda: i)
    for v in gen():
        if v == 50:
            os.kill(os.getpid(), signal.SIGKILL)

agent_run("job", body, run_id="job", db="runs.db")
"""
    assert spawn_agent(script).finish() == -signal.SIGKILL
    connection = sqlite3.connect(db)
    count = connection.execute("SELECT count(*) FROM steps WHERE status = 'completed'").fetchone()[0]
    connection.close()
    assert count == 51


async def _numbers() -> Any:
    yield 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: (x for x in range(3)),
        _numbers,
        lambda: open(os.devnull),  # noqa: SIM115 - an open stream is what must be refused
        lambda: {"deep": [iter([1])]},
        lambda: map(str, [1]),
        lambda: zip([1], [2], strict=True),
        lambda: {"a": 1}.keys(),
    ],
    ids=["generator", "async generator", "stream", "nested iterator", "map", "zip", "dict view"],
)
def test_case_017_a_stream_as_output_is_refused_before_the_step_counts(db: str, make: Callable[[], Any]) -> None:
    made: list[Any] = []

    def function() -> Any:
        made.append(make())
        return made[-1]

    def body(run: agent_resume.Run) -> None:
        run.step("g", function)

    with pytest.raises(agent_resume.OutputNotStorable, match="'g'") as caught:
        agent_resume.agent_run("job", body, run_id="job", db=db)
    assert caught.value.result is made[0]
    if hasattr(made[0], "close") and not hasattr(made[0], "asend"):
        made[0].close()
    state = agent_resume.load_run("job", db=db)
    assert [step.status for step in state.steps] == ["failed"]


def crash_test(*arguments: str) -> str:
    command = [sys.executable, "-m", "crashtest", *arguments]
    path = os.pathsep.join(filter(None, [str(ROOT / "scripts"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_random_kills_lose_nothing_and_repeat_nothing_that_was_completed() -> None:
    verdict = crash_test("--kills", "40", "--seed", "7", "--only", "random instants")
    assert "acknowledged and lost 0, completed and called again 0, damaged 0, not resumed 0" in verdict


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_processes_and_threads_that_compete_while_they_are_killed() -> None:
    assert "crash-test: ok" in crash_test("--kills", "30", "--seed", "7", "--only", "four")


@pytest.mark.timeout(300)
def test_a_kill_at_every_named_point() -> None:
    assert "crash-test: ok" in crash_test("--seed", "7", "--only", "fault point")


@pytest.mark.timeout(300)
def test_many_workers_on_one_file() -> None:
    assert "crash-test: ok" in crash_test("--seed", "7", "--only", "many workers")


@pytest.mark.timeout(300)
def test_a_short_soak_of_everything_at_once() -> None:
    path = os.pathsep.join(filter(None, [str(ROOT / "scripts"), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "crashtest.soak", "--seconds", "10", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_processes_that_share_a_run_may_both_be_done(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Both have looked before either has settled: the second one finds the run completed, which is what it wanted.
    from agent_resume import run_calls, run_flows

    first, second = agent_resume.Checkpoint("job", db=db), agent_resume.Checkpoint("job", db=db)
    for run in (first, second):
        run.step("s", str)
    finished: list[bool] = []

    plain = run_calls.perform

    def perform(store: Any, effect: Any) -> Any:
        value = plain(store, effect)
        if type(effect).__name__ == "Read" and not finished:
            finished.append(True)
            first.done({"by": "first"})
        return value

    monkeypatch.setattr(run_calls, "perform", perform)
    store = second._core.store
    run_calls.drive(run_flows.done_flow(second._core, {"by": "second"}), store, store.database.transact)
    assert finished
    assert agent_resume.load_run("job", db=db).status == "completed"
    first.close()
    second.close()
