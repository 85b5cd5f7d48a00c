"""The floors that agent-resume is measured against: what the driver and the disk cost without it."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

TEXT = "x" * 200
_AT = "2026-01-31T09:08:07.006Z"
_SCHEMA = "CREATE TABLE step (id INTEGER PRIMARY KEY, run TEXT, key TEXT, status TEXT, output TEXT, at TEXT, UNIQUE (run, key))"
_UPSERT = (
    "INSERT INTO step (run, key, status, output, at) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (run, key) DO UPDATE SET status = excluded.status, output = excluded.output"
)


def payload(number: int) -> dict[str, object]:
    """The result of every step that is measured: about 220 bytes of JSON."""
    return {"i": number, "text": TEXT}


def remove(path: Path) -> Path:
    """Delete a database and what lies beside it; the path comes back."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    return path


def connect(path: Path, level: str) -> sqlite3.Connection:
    """A raw connection with the settings that agent-resume uses."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={level}")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute(_SCHEMA.replace("TABLE", "TABLE IF NOT EXISTS"))
    return connection


def upsert(connection: sqlite3.Connection, run: str, key: str, value: object) -> None:
    """One upsert in one IMMEDIATE transaction."""
    text = json.dumps(value)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(_UPSERT, (run, key, "completed", text, _AT))
    connection.execute("COMMIT")


def upserts(connection: sqlite3.Connection, run: str, count: int, start: int = 0) -> None:
    """One upsert in one transaction a step."""
    for number in range(start, start + count):
        upsert(connection, run, f"s{number}", payload(number))


@contextmanager
def filled(folder: Path, size: int, level: str) -> Iterator[Callable[[int], float]]:
    """A function that adds so many upserts to a table of ``size`` rows and gives µs for each."""
    connection = connect(remove(folder / "floor-filled.db"), level)
    connection.execute("BEGIN IMMEDIATE")
    rows = (("r", f"r{number}", "completed", json.dumps(payload(number)), _AT) for number in range(size))
    connection.executemany(_UPSERT, rows)
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    done = 0

    def batch(count: int) -> float:
        nonlocal done
        begin = time.perf_counter()
        upserts(connection, "r", count, done)
        done += count
        return (time.perf_counter() - begin) / count * 1e6

    try:
        yield batch
    finally:
        connection.close()


def raw_step_us(folder: Path, count: int, level: str, *, cpu: bool = False) -> float:
    """µs a step of the raw driver; CPU time with ``cpu``."""
    connection = connect(remove(folder / "floor.db"), level)
    clock = time.process_time if cpu else time.perf_counter
    upserts(connection, "r", 1, -1)  # ours has its first step behind it as well
    begin = clock()
    upserts(connection, "r", count)
    took = (clock() - begin) / count * 1e6
    connection.close()
    return took


def fdatasync_us(folder: Path, count: int = 200) -> float:
    """µs of a 4 KiB write and its fdatasync on this disk."""
    path = folder / "sync.bin"
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    begin = time.perf_counter()
    for number in range(count):
        os.pwrite(handle, bytes(4096), number * 4096)
        os.fdatasync(handle)
    took = (time.perf_counter() - begin) / count * 1e6
    os.close(handle)
    path.unlink()
    return took


def json_us(count: int = 2000) -> float:
    """µs of ``json.dumps`` and ``json.loads`` of one result."""
    begin = time.perf_counter()
    for number in range(count):
        json.loads(json.dumps(payload(number)))
    return (time.perf_counter() - begin) / count * 1e6


def json_file_step_us(folder: Path, before: int, count: int = 5) -> float:
    """µs a step of the file-based way after ``before`` steps: the run's JSON is rewritten and renamed, not synced."""
    path = folder / "run.json"
    steps = [_recorded(number) for number in range(before)]
    begin = time.perf_counter()
    for number in range(before, before + count):
        steps.append(_recorded(number))
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"id": "r", "steps": steps}))
        temporary.replace(path)
    took = (time.perf_counter() - begin) / count * 1e6
    path.unlink()
    return took


def _recorded(number: int) -> dict[str, object]:
    return {"name": f"s{number}", "status": "completed", "output": payload(number)}


class Spinner:
    """A Python thread that never stops computing, as a neighbour for the GIL."""

    def __enter__(self) -> Spinner:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()
        return self

    def _spin(self) -> None:
        number = 0
        while not self._stop.is_set():
            for _ in range(10_000):
                number += 1

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
