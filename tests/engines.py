"""Which tests run on SQLite alone, and why. Every other test that uses ``db`` runs on both databases.

A key is a file, or ``file::test``.
"""

from __future__ import annotations

FILE = "looks at the file, its locks or its log"
RAW = "looks at the rows with sqlite3"
DAMAGE = "damages the file"
SPAWNS = "starts many processes on the file"

SQLITE_ONLY: dict[str, str] = {}


def sqlite_only(file: str, test: str) -> str | None:
    """Why a test is not for PostgreSQL; None when it is."""
    return SQLITE_ONLY.get(file) or SQLITE_ONLY.get(f"{file}::{test}")
