"""The floors that agent-resume is measured against: what the driver and the disk cost without it."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from pathlib import Path

TEXT = "x" * 200
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


def upserts(connection: sqlite3.Connection, run: str, count: int, start: int = 0) -> None:
    """One upsert in one IMMEDIATE transaction a step."""
    for number in range(start, start + count):
        text = json.dumps(payload(number))
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_UPSERT, (run, f"s{number}", "completed", text, "2026-01-31T09:08:07.006Z"))
        connection.execute("COMMIT")


def raw_step_us(folder: Path, count: int, level: str, *, cpu: bool = False) -> float:
    """µs a step of the raw driver; CPU time with ``cpu``."""
    connection = connect(remove(folder / "floor.db"), level)
    clock = time.process_time if cpu else time.perf_counter
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


def json_file_step_us(folder: Path, count: int) -> float:
    """µs a step of the file-based way: the whole run's JSON is rewritten and renamed at each step (not synced)."""
    path = folder / "run.json"
    steps: list[dict[str, object]] = []
    begin = time.perf_counter()
    for number in range(count):
        steps.append({"name": f"s{number}", "status": "completed", "output": payload(number)})
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"id": "r", "steps": steps}))
        temporary.replace(path)
    took = (time.perf_counter() - begin) / count * 1e6
    path.unlink()
    return took


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
