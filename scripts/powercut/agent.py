"""Agents under the recorder: what was acknowledged is there after the power cut, and is not run again.

As a program: ``python -m powercut.agent DB RUN STEPS DURABILITY`` runs an agent and acknowledges what it is told.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agent_resume
from powercut.disk import acknowledge
from powercut.record import Cut

Note = Callable[[str], None]


def value(key: str) -> str:
    """What a step returns: known beforehand, of very different sizes."""
    number = int(key[1:])
    return f"{key} " + "x" * (10, 300, 9000, 70_000)[number * 7 % 4]


def body(steps: int, note: Note, called: Callable[[str], None]) -> Callable[[Any], None]:
    """Steps, records and events; each fifth step must not be repeated."""

    def effect(key: str) -> str:
        called(key)
        note(f"{key} begun")
        return value(key)

    def work(run: Any) -> None:
        for number in range(steps):
            key = f"s{number}"
            once = number % 5 == 4
            try:
                got = run.step(key, lambda key=key: effect(key), effect="once" if once else "repeatable")
            except agent_resume.StepInDoubt:
                called(f"{key} in doubt")
                continue
            if got != value(key):
                raise AssertionError(f"{key}: another value came back")
            note(key)
            if number % 3 == 0:
                run.record(f"r{number}", number)
                note(f"r{number}")
            run.event("fallback", {"from": "a", "to": "b"})

    return work


def work(db: str, run_id: str, steps: int, durability: str) -> None:
    """The recorded program."""
    log = os.open(os.environ["POWERCUT_LOG"], os.O_WRONLY | os.O_APPEND)
    agent_resume.agent_run(
        "victim",
        body(steps, lambda text: acknowledge(log, f"{run_id} {text}"), lambda _: None),
        run_id=run_id,
        db=db,
        durability=durability,
    )
    acknowledge(log, f"{run_id} finished")


def lost(cut: Cut, db_name: str, runs: list[str], steps: int) -> tuple[int, list[str]]:
    """Resume every run on what is left; count acknowledged things that are gone or would be done again."""
    count, complaints = 0, []
    db = cut.folder / db_name
    for run_id in runs:
        known = {text.split(" ", 1)[1] for text in cut.acknowledged if text.startswith(f"{run_id} ")}
        called: list[str] = []
        try:
            with agent_resume.Store(db) as store:
                agent_resume.agent_run("victim", body(steps, lambda _: None, called.append), run_id=run_id, db=store)
        except (agent_resume.AgentResumeError, AssertionError) as error:
            complaints.append(f"{run_id} does not resume: {type(error).__name__}: {error}")
            continue
        again = [key for key in called if key in known]
        blind = [key for key in called if int(key.split()[0][1:]) % 5 == 4 and f"{key} begun" in known]
        gone = ["the run"] if "finished" in known and called else []
        count += len({*again, *blind, *gone})
        numbers = [int(key.split()[0][1:]) for key in called]
        if numbers and numbers != list(range(numbers[0], steps)):
            complaints.append(f"{run_id}: a step is missing before a later one: {called}")
        records, wrong = _records(db, run_id)
        complaints += wrong
        count += sum(name.startswith("r") and name not in records for name in known)
    return count, complaints


def _records(db: Path, run_id: str) -> tuple[set[str], list[str]]:
    connection = sqlite3.connect(db)
    try:
        verdict = [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
        query = "SELECT key FROM steps WHERE run_id = (SELECT seq FROM runs WHERE id = ?)"
        return {row[0] for row in connection.execute(query, (run_id,))}, verdict
    finally:
        connection.close()


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
