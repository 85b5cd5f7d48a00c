"""Agents under the recorder: what was acknowledged is there after the power cut, and is not run again.

As a program: ``python -m powercut.agent DB RUN STEPS DURABILITY`` runs an agent and acknowledges what it is told.
"""

from __future__ import annotations

import contextlib
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
    """Steps, records, events and flushes; each fifth step must not be repeated."""

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
            run.event("fallback", {"from": "a", "to": f"e{number}"})
            if number % 4 == 1:
                run.flush()
                note(f"e{number}")

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
        notes = [text.split(" ", 1)[1] for text in cut.acknowledged if text.startswith(f"{run_id} ")]
        known = set(notes)
        called: list[str] = []
        stored = _stored(db, run_id)  # now: the program writes its records and events again
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
        complaints += _damage(db)
        missing = {name for name in known if name[0] in "re" and name not in stored}
        count += len(missing)
        flushed = _flushed(notes)
        complaints += [f"{run_id}: {name} is gone, which was flushed" for name in flushed & {*again, *missing}]
    return count, complaints


def _flushed(notes: list[str]) -> set[str]:
    """What was acknowledged before a flush was: in every durability it is still there."""
    last = max((place for place, text in enumerate(notes) if text.startswith("e")), default=-1)
    return set(notes[: last + 1])


def _stored(db: Path, run_id: str) -> set[str]:
    """Keys of the completed steps and records, and the events."""
    query = """
        SELECT key FROM steps WHERE status = 'completed' AND run_id = (SELECT seq FROM runs WHERE id = :run) UNION ALL
        SELECT data ->> 'to' FROM events
        WHERE type = 'fallback' AND run_id = (SELECT seq FROM runs WHERE id = :run)"""
    try:
        # A reader does not checkpoint: the program finds the log as the power cut left it.
        with contextlib.closing(sqlite3.connect(f"{db.as_uri()}?mode=ro", uri=True)) as connection:
            return {row[0] for row in connection.execute(query, {"run": run_id})}
    except sqlite3.OperationalError:  # no file yet, or no tables
        return set()


def _damage(db: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(db)) as connection:
        return [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
