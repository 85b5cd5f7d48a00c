"""The databases of this process: one for each store, and what happens to them at a fork and at the exit."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref

from . import clock
from .database import Database
from .database_location import Location

#: Longest wait of a fork for its turn at the doors, in s.
FORK_PATIENCE = 5.0

_open: dict[Location, Database] = {}
# Those of closed stores as well: a late caller opens one again, and then it must not stay open across a fork either.
_all: weakref.WeakSet[Database] = weakref.WeakSet()
_registry_lock = threading.RLock()
_abandoned: list[Location] = []
_fork_state: list[tuple[Database, bool]] = []


def acquire(location: Location) -> Database:
    """The one ``Database`` of this process for ``location``; each call wants one ``release``."""
    _release_abandoned()
    with _registry_lock:
        database = _open.get(location)
        if database is None:
            database = _open[location] = Database(location)
            _all.add(database)
        database.users += 1
        return database


def release(location: Location) -> None:
    """Give a ``Database`` back; the last user closes its connections."""
    with _registry_lock:
        database = _open.get(location)
        if database is not None:
            database.users -= 1
        if database is None or database.users:
            return
        del _open[location]
    database.close()


def abandon(location: Location) -> None:
    """Like ``release``, for finalizers: they may run anywhere, so the work waits for the next ``acquire`` or the exit."""
    _abandoned.append(location)


def _release_abandoned() -> None:
    while True:
        try:
            location = _abandoned.pop()
        except IndexError:  # none, or another thread was faster
            return
        release(location)


def _close_all() -> None:
    _release_abandoned()
    with _registry_lock:
        databases = list(_all)
        _open.clear()
    for database in databases:
        with contextlib.suppress(Exception):
            database.close()


def _before_fork() -> None:
    _registry_lock.acquire()
    deadline = clock.monotonic() + FORK_PATIENCE
    for database in list(_all):
        # One by one: were this interrupted, the hooks after the fork still let go of what was taken.
        _fork_state.append((database, database.before_fork(deadline)))


def _after_fork_in_parent() -> None:
    for database, closed in _fork_state:
        if closed:
            database.after_fork_in_parent()
    _fork_state.clear()
    _registry_lock.release()


def _after_fork_in_child() -> None:
    for database, closed in _fork_state:
        database.after_fork_in_child(closed)
    _fork_state.clear()
    _registry_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
atexit.register(_close_all)
