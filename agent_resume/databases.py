"""The databases of this process: one for each store, and what happens to them at a fork and at the exit."""

from __future__ import annotations

import _thread
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
#: How SQLite names the files beside a database.
BESIDE = ("-wal", "-shm", "-journal")

_open: dict[Location, Database] = {}
# Those of closed stores as well: a late caller opens one again, and then it must not stay open across a fork either.
_all: weakref.WeakSet[Database] = weakref.WeakSet()
_registry_lock = threading.RLock()
_abandoned: list[Location] = []
_at_fork: list[Database] = []


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


def is_open_here(path: str | os.PathLike[str]) -> bool:
    """Whether a path leads to a store that this process has open, or to a file beside it, by whatever name."""
    try:
        wanted = os.stat(path)
    except OSError:
        return False
    with _registry_lock:
        places = [location.target for location in _open if location.kind == "sqlite"]
    for name in (place + ending for place in places for ending in ("", *BESIDE)):
        with contextlib.suppress(OSError):
            if os.path.samestat(wanted, os.stat(name)):
                return True
    return False


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
    # Left by an exception, a hook is only complained about: the fork happens all the same. So the databases are noted
    # before any of them is asked to wait, and each says itself how far it came.
    _registry_lock.acquire()
    _at_fork.extend(_all)
    deadline = clock.monotonic() + FORK_PATIENCE
    try:
        if _at_fork:
            # What another thread is in the middle of importing can never be imported in the child, which needs this.
            from . import migrate  # noqa: F401
        for database in _at_fork:
            database.before_fork(deadline)
    except KeyboardInterrupt:
        # It was meant for the program, which would never hear of it.
        threading.Timer(0.05, _thread.interrupt_main).start()


def _after_fork_in_parent() -> None:
    for database in _at_fork:
        database.after_fork_in_parent()
    _let_go()


def _after_fork_in_child() -> None:
    for database in _at_fork:
        database.after_fork_in_child()
    _let_go()


def _let_go() -> None:
    _at_fork.clear()
    with contextlib.suppress(RuntimeError):  # interrupted before it was had
        _registry_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
atexit.register(_close_all)
