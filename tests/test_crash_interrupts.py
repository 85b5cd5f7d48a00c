"""Ctrl-C anywhere in a write: every operation has exactly one true outcome, and the next one works."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from agent_resume import database
from agent_resume.database_location import resolve
from agent_resume.database_sql import Tx

Trace = Callable[[FrameType, str, Any], Any]


class InterruptAt:
    """Raises KeyboardInterrupt when the Nth line of agent_resume is about to run, as a signal would; then again after
    each of ``more`` further lines."""

    def __init__(self, line: int, *more: int) -> None:
        self.wanted = {line + sum(more[:count]) for count in range(len(more) + 1)}
        self.lines = 0
        self.place = ""

    def __call__(self, frame: FrameType, kind: str, argument: Any) -> Trace | None:
        if "agent_resume" not in frame.f_code.co_filename:
            return None
        if kind == "line":
            self.lines += 1
            if self.lines in self.wanted:
                self.place = f"{frame.f_code.co_name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self

    def __enter__(self) -> InterruptAt:
        sys.settrace(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)


@pytest.fixture
def store(db: str) -> Iterator[database.Database]:
    location = resolve(db)
    opened = database.acquire(location)
    opened.ensure_writable()
    yield opened
    database.release(location)


def insert(tx: Tx, token: str) -> str:
    tx.cursor.execute("INSERT INTO owners (token, host, pid, beat_at) VALUES (?, 'h', 1, '')", (token,))
    return token


def stored(db: str) -> set[str]:
    connection = sqlite3.connect(db)
    try:
        return {row[0] for row in connection.execute("SELECT token FROM owners")}
    finally:
        connection.close()


@pytest.mark.parametrize("more", [(), (1,), (2,), (3,), (1, 1)], ids=["one", "next", "third", "fourth", "three in a row"])
def test_an_interrupt_at_any_line_of_a_direct_write_leaves_one_true_outcome(
    db: str, store: database.Database, more: tuple[int, ...]
) -> None:
    line = 0
    acknowledged: set[str] = set()
    while True:
        line += 1
        token = f"interrupted at {line}"
        interrupt = InterruptAt(line, *more)
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
        if interrupt.lines < line:
            break
    assert line > 10, "nothing was interrupted"
    found = stored(db)
    assert acknowledged <= found
    assert {token for token in found if token.startswith("after")} == {f"after {n}" for n in range(1, line + 1)}
