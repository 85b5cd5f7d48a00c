"""Plain SQLite under the recorder: shows that the recorder sees SQLite, and that its verdicts have teeth.

As a program: ``python -m powercut.plain DB MODE WORKER COMMITS`` writes rows and acknowledges each.
"""

from __future__ import annotations

import os
import random
import sqlite3
import sys
import time
from pathlib import Path

from powercut.disk import acknowledge
from powercut.record import Cut

#: Pragmas of a mode: journal mode, then the level of the start mark and of the outcome (None: no start mark).
MODES = {
    "full": ("wal", None, "FULL"),
    "normal": ("wal", None, "NORMAL"),
    "mixed": ("wal", "NORMAL", "FULL"),
    "off": ("wal", None, "OFF"),
    "rollback": ("delete", None, "FULL"),
}


def _patiently(connection: sqlite3.Connection, statement: str) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            connection.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.001)


def _commit(connection: sqlite3.Connection, level: str, what: str, worker: int, number: int, size: int) -> None:
    connection.execute(f"PRAGMA synchronous={level}")
    _patiently(connection, "BEGIN IMMEDIATE")
    connection.execute(
        "INSERT INTO rows (what, worker, number, pad) VALUES (?, ?, ?, randomblob(?))", (what, worker, number, size)
    )
    connection.execute("COMMIT")


def work(db: str, mode: str, worker: int, commits: int) -> None:
    """Write rows, acknowledge each when its outcome is committed, checkpoint now and then."""
    log = os.open(os.environ["POWERCUT_LOG"], os.O_WRONLY | os.O_APPEND)
    journal_mode, start, outcome = MODES[mode]
    chance = random.Random(worker)
    connection = sqlite3.connect(db, isolation_level=None, timeout=60)
    _patiently(connection, f"PRAGMA journal_mode={journal_mode}")
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute("PRAGMA synchronous=FULL")
    _patiently(connection, "BEGIN IMMEDIATE")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, what TEXT, worker INTEGER, number INTEGER, pad BLOB)"
    )
    connection.execute("COMMIT")
    for number in range(commits):
        size = chance.choice((10, 300, 9000))
        if start is not None:
            _commit(connection, start, "start", worker, number, 10)
        _commit(connection, outcome, "outcome", worker, number, size)
        acknowledge(log, f"{worker} {number}")
        if chance.random() < 0.1 and journal_mode == "wal":
            connection.execute("PRAGMA synchronous=FULL" if mode != "off" else "PRAGMA synchronous=OFF")
            connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
    connection.close()


def lost(cut: Cut, db_name: str) -> tuple[int, list[str]]:
    """How many acknowledged rows are gone, and everything else that is wrong with the file."""
    path = cut.folder / db_name
    if not path.exists():
        return len(cut.acknowledged), []
    try:
        rows, complaints = _read(path)
    except sqlite3.DatabaseError as error:
        return 0, [f"does not open: {error}"]
    there = {f"{worker} {number}" for _, what, worker, number in rows if what == "outcome"}
    if [row[0] for row in rows] != list(range(1, len(rows) + 1)):
        complaints.append("a row is missing before a later one")
    return sum(name not in there for name in cut.acknowledged), complaints


def _read(path: Path) -> tuple[list[tuple[int, str, int, int]], list[str]]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        verdict = [row[0] for row in connection.execute("PRAGMA integrity_check")]
        known = connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'rows'").fetchone()[0]
        query = "SELECT id, what, worker, number FROM rows ORDER BY id"
        return (connection.execute(query).fetchall() if known else []), [text for text in verdict if text != "ok"]
    finally:
        connection.close()


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
