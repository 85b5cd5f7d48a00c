"""Which files are a database's: no export is written over them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from agent_resume import databases
from agent_resume.layouts.outcomes import Refused

_MARK = b"SQLite format 3\0"


def refuse_database(path: Path) -> None:
    """Refuse a path that leads to a store or to any other SQLite database, by whatever name.

    Raises:
        Refused: it does, or to the log or the index of one.
    """
    if is_database(path):
        raise Refused(f"{path} belongs to a SQLite database, which no export is written over; choose another place")


def refuse_databases_in(folder: Path) -> None:
    """Refuse a folder, or a file in its place, that has a database in it.

    Raises:
        Refused: it has.
    """
    for path in (folder, *(folder.rglob("*") if not folder.is_symlink() else ())):
        refuse_database(path)


def is_database(path: Path) -> bool:
    """Whether a path leads to a SQLite database, or to the log or the index of one; links are followed."""
    real = os.path.realpath(path)
    databases_of = [real, *(real.removesuffix(ending) for ending in databases.BESIDE if real.endswith(ending))]
    # First by its number: to open and close what this process has open would drop the locks that it has on it.
    if databases.is_open_here(path) or any(map(databases.is_open_here, databases_of)):
        return True
    return any(map(_has_mark, databases_of))


def _has_mark(path: str) -> bool:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb") as file:
            return file.read(len(_MARK)) == _MARK
    except OSError:
        return False
