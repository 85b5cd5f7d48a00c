"""What really happened, written by the steps themselves beside the store, and its comparison with the store.

One line an event, appended by one write: ``kind pid run step value``. Kinds: ``begin`` and ``end`` of a function,
``ack`` (its ``step()`` returned), ``clash`` (another live process was inside), ``error`` (anything unexpected).
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path


class Ledger:
    """Appends lines; opened anew in every process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, kind: str, run: str, step: str = "-", value: str = "-") -> None:
        os.write(self._file, f"{kind} {os.getpid()} {run} {step} {value}\n".encode())

    def inside(self, run: str, step: str) -> int:
        """A lock that lasts until it is closed or the process dies; notes when somebody else has it."""
        lock = os.open(self.path.with_name(f"{run}.{step}.lock"), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.write("clash", run, step)
        return lock


@dataclass
class Findings:
    """What a comparison found; the counts under ``wrong`` must all be zero."""

    steps: int = 0
    ran_twice: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, what: str, example: str) -> None:
        self.wrong[what] += 1
        if len(self.examples) < 10:
            self.examples.append(f"{what}: {example}")

    def merge(self, other: Findings) -> None:
        self.steps += other.steps
        self.ran_twice += other.ran_twice
        self.wrong.update(other.wrong)
        self.examples = [*self.examples, *other.examples][:10]


#: The ends of an attempt; "unknown" is written when the next attempt begins.
_OUTCOMES = ("done", "error", "interrupted", "in_doubt", "unknown")
_Step = tuple[str, str]


def compare(ledger: Path, db: Path, runs: list[str], steps: list[str], most_again: int) -> Findings:
    """Hold the ledger against the store after everything is done."""
    found = Findings(steps=len(runs) * len(steps))
    begins = _read_ledger(ledger, found)
    connection = sqlite3.connect(db)
    try:
        _check_file(connection, found)
        for run in runs:
            _check_run(connection, run, steps, begins, found)
    except sqlite3.DatabaseError as error:
        found.add("damaged file", str(error))
    finally:
        connection.close()
    again = sum(count - 1 for count in begins[0].values() if count > 1)
    found.ran_twice = sum(count > 1 for count in begins[0].values())
    if again > most_again:
        found.add("more repetitions than kills", f"{again} > {most_again}")
    return found


def _read_ledger(path: Path, found: Findings) -> tuple[Counter[_Step], dict[_Step, str]]:
    begins: Counter[_Step] = Counter()
    acknowledged: dict[_Step, str] = {}
    for line in path.read_text().splitlines():
        kind, _, run, step, value = line.split(" ", 4)
        place = (run, step)
        if kind == "begin":
            begins[place] += 1
            if place in acknowledged:
                found.add("acknowledged step called again", line)
        elif kind == "ack" and acknowledged.setdefault(place, value) != value:
            found.add("two values for one step", line)
        elif kind in ("clash", "error"):
            found.add({"clash": "two processes in one step", "error": "unexpected error"}[kind], line)
    return begins, acknowledged


def _check_file(connection: sqlite3.Connection, found: Findings) -> None:
    for pragma in ("integrity_check", "foreign_key_check"):
        for row in connection.execute(f"PRAGMA {pragma}"):
            if row[0] != "ok":
                found.add("damaged file", str(row))


def _check_run(
    connection: sqlite3.Connection,
    run: str,
    steps: list[str],
    ledger: tuple[Counter[_Step], dict[_Step, str]],
    found: Findings,
) -> None:
    begins, acknowledged = ledger
    row = connection.execute("SELECT seq, status FROM runs WHERE id = ?", (run,)).fetchone()
    if row is None or row[1] != "completed":
        found.add("run not completed", f"{run}: {row}")
        return
    query = "SELECT key, status, attempts, json_extract(output, '$') FROM steps WHERE run_id = ?"
    stored = {key: rest for key, *rest in connection.execute(query, (row[0],))}
    events: dict[str, list[tuple[int, str]]] = defaultdict(list)
    query = "SELECT step_key, attempt, type FROM events WHERE run_id = ? ORDER BY seq"
    for key, attempt, kind in connection.execute(query, (row[0],)):
        if kind in ("start", *_OUTCOMES):
            events[key].append((attempt, kind))
    for step in steps:
        status, attempts, value = stored.get(step, ("missing", 0, None))
        place = (run, step)
        if status != "completed" or acknowledged.get(place, value) != value:
            found.add("acknowledged step lost", f"{place}: {status} {value!r} {acknowledged.get(place)!r}")
        if attempts < begins[place]:
            found.add("attempts not told", f"{place}: {attempts} of {begins[place]}")
        expected = [entry for n in range(1, attempts) for entry in ((n, "start"), (n, "unknown"))]
        if events[step] != [*expected, (attempts, "start"), (attempts, "done")]:
            found.add("history does not add up", f"{place}: {events[step]}")
