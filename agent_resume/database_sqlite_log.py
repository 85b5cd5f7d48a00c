"""The log beside a database file: kept bounded, and made durable after a commit, outside SQLite's lock.

With ``synchronous=NORMAL`` a commit has written its frames and is seen by others; the log is synced by nobody until the
next checkpoint (pragma.html#pragma_synchronous). Syncing the log file then does what ``FULL`` does inside the commit,
while the next process writes. A frame's checksum continues that of the frame before (fileformat2.html#walformat), so a
sync covers every commit before it, whosever it was.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from typing import Final

from . import clock, errors
from .database_sqlite_errors import has_wal_reset_bug, translate

#: The log is checkpointed once it is estimated to hold more than this, in bytes.
LOG_LIMIT: Final = 4 << 20
#: After a checkpoint that came back busy, the next try waits this long, in s.
CHECKPOINT_PAUSE: Final = 1.0
#: What one transaction of ours adds to the log when nothing large is in it: five pages with their frame headers.
USUAL_WEIGHT: Final = 5 * 4120
#: Whether SQLite's own checkpoints are off, since they may lose commits.
OWN_CHECKPOINTS: Final = has_wal_reset_bug()

#: Where a file's data can be synced through any descriptor. Elsewhere SQLite syncs inside the commit.
POSSIBLE: Final = hasattr(os, "fdatasync")


class Log:
    """Its syncs come from any thread, everything else from the one that holds the lock for writing.

    A descriptor of the log, unlike one of the database, can be closed without losing SQLite's locks: it has none there
    (walformat.html: the locks are on the index).
    """

    def __init__(self, path: str, display: str) -> None:
        self._database = path
        self._path = f"{path}-wal"
        self._display = display
        self._bytes = 0
        self._not_before = 0.0
        self._turn = threading.RLock()  # a signal handler that records may come in while its thread syncs
        self._handle: int | None = None
        self._committed = self._synced = 0
        #: After a sync that failed. The system may have thrown the pages away and say that the next one succeeded.
        self.torn = False

    @property
    def open(self) -> bool:
        """Whether commits of ours may leave their sync to ``sync``."""
        return self._handle is not None

    def attach(self, size: int) -> None:
        """A writing connection has just opened the log, of that size in bytes."""
        self._bytes = size
        if self._handle is None:
            # In a forked child a thread of the parent may have held it; without a handle nobody syncs.
            self._turn = threading.RLock()
        with self._turn:
            self._let_go()
            if POSSIBLE:
                with contextlib.suppress(OSError):  # without it, SQLite syncs
                    self._handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)

    def detach(self) -> None:
        """The writing connection is about to be closed."""
        with self._turn:
            self._let_go()

    def _let_go(self) -> None:
        if self._handle is not None:
            with contextlib.suppress(errors.StoreUnavailable):  # whoever waits for it is told so
                self._sync()
            handle, self._handle = self._handle, None
            os.close(handle)

    def owe(self) -> None:
        """A transaction was committed whose caller waits for a sync."""
        self._committed += 1

    def sync(self) -> None:
        """Everything committed so far is durable when this returns. One that waited for its turn may find it done.

        Raises:
            StoreUnavailable: the system could not do it, so whether it is durable is unknown.
        """
        wanted = self._committed
        if self._synced < wanted:
            with self._turn:
                if self._synced < wanted:
                    self._sync()

    def _sync(self) -> None:
        committed = self._committed
        if self._synced == committed:
            return
        if self._handle is None or self.torn:
            raise self._unsynced("it failed before")
        try:
            os.fdatasync(self._handle)
        except OSError as error:
            self.torn = True
            raise self._unsynced(error.strerror or str(error)) from error
        self._synced = max(self._synced, committed)

    def mend(self, connection: sqlite3.Connection) -> None:
        """Nothing is written behind frames that may never reach the disk: all go into the database first, synced.

        Raises:
            StoreUnavailable: others read the log.
            StoreError: the disk still fails.
        """
        try:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            raise translate(error, self._database, self._display) from error
        if busy:
            why = "a sync of its log failed, and others still use that log"
            raise errors.StoreUnavailable(self._display, why, "end them and look after the disk, then resume the run")
        with self._turn:
            self._synced = self._committed
            self.torn = False

    def committed(self, connection: sqlite3.Connection, weight: int) -> None:
        """After a commit: keep the log bounded, without the checkpoint that the WAL-reset bug makes dangerous.

        RESTART waits for the writer lock and holds it throughout; without that lock it would work as PASSIVE, the
        dangerous form, so it gets 50 ms for the lock, and after a busy answer rests for a second.
        """
        self._bytes += USUAL_WEIGHT + weight
        if self._bytes < LOG_LIMIT or not OWN_CHECKPOINTS or clock.monotonic() < self._not_before:
            return
        try:
            connection.execute("PRAGMA busy_timeout=50").close()
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        except sqlite3.Error:
            busy = 1  # the commit itself succeeded; a checkpoint that cannot be made now is made later
        finally:
            connection.execute("PRAGMA busy_timeout=0").close()
        if busy:
            self._not_before = clock.monotonic() + CHECKPOINT_PAUSE
        else:
            self._bytes = 0

    def sync_seen(self) -> None:
        """What this process has read is durable when this returns; others may have left that to their own ``sync``.

        Raises:
            StoreUnavailable: the system could not do it.
        """
        if self.torn:
            raise self._unsynced("it failed before")
        if POSSIBLE:
            try:
                handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return  # no log, or none that could be read either: nothing was read from it
            try:
                os.fdatasync(handle)
            except OSError as error:
                raise self._unsynced(error.strerror or str(error)) from error
            finally:
                os.close(handle)

    def _unsynced(self, why: str) -> errors.StoreUnavailable:
        return errors.StoreUnavailable(
            self._display, f"its log could not be synced ({why})",
            "whether the last results survive a power cut is unknown; look after the disk, then resume the run",
        )  # fmt: skip
