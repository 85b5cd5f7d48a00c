"""Whether the files that were opened are still those in their place."""

from __future__ import annotations

import os

from . import errors


class OpenFiles:
    """The database file, known by device, number and its mark, and its log.

    SQLite itself goes on writing into a file that was deleted or replaced, and what it writes there is lost.
    """

    def __init__(self, path: str, display: str) -> None:
        self._path = path
        self._display = display
        self._log = f"{path}-wal"
        self._known: tuple[int, int] | None = None
        self._known_log: tuple[int, int] | None = None
        self._mark: int | None = None

    def remember(self) -> None:
        """The file that is there now is the store, for as long as this object lives.

        Raises:
            OSError: there is none.
            StoreMoved: it is not the one that was remembered before.
        """
        if self._known is None:
            self._known = _identity(self._path)
        else:
            self.check()

    def recognise(self, mark: int, *, learn: bool) -> None:
        """Compare the mark that a store gets when it is made: a file that replaced it may have got its number as well.

        Args:
            learn: this is the store's; before the first look one cannot know.

        Raises:
            StoreMoved: it is another store's.
        """
        if self._mark not in (None, mark):
            raise errors.StoreMoved(self._display)
        if learn:
            self._mark = mark

    def remember_log(self) -> int:
        """A writing connection has just opened the log too; its size in bytes."""
        self._known_log = None
        try:
            self._known_log = _identity(self._log)
            return os.stat(self._log).st_size
        except OSError:
            return 0

    def forget_log(self) -> None:
        """No writing connection is open, so SQLite may delete the log."""
        self._known_log = None

    def check(self) -> None:
        """Refuse to go on when one of them is not in its place.

        Raises:
            StoreMoved: it was deleted or replaced.
        """
        # Straight: this comes before every write.
        path, known = self._path, self._known
        try:
            if known is not None:
                found = os.stat(path)
                if found.st_ino != known[1] or found.st_dev != known[0]:
                    raise errors.StoreMoved(self._display)
            path, known = self._log, self._known_log
            if known is not None:
                found = os.stat(path)
                if found.st_ino != known[1] or found.st_dev != known[0]:
                    raise errors.StoreMoved(path)
        except OSError:
            raise errors.StoreMoved(path) from None

    def holder(self) -> str | None:
        """``process N``, which holds SQLite's lock for writing; None where the system does not tell (``/proc/locks``).

        The lock is byte 120 of the index beside the log (walformat.html#locking_matrix).
        """
        try:
            index = os.stat(f"{self._path}-shm")
            with open("/proc/locks", encoding="utf-8") as file:
                held = [line.split() for line in file]
        except OSError:
            return None
        for _, _, _, mode, pid, place, first, last in (fields for fields in held if len(fields) == 8):
            inode = place.rpartition(":")[2]
            if mode == "WRITE" and inode == str(index.st_ino) and first == last == "120" and int(pid) > 0:
                return f"process {pid}"
        return None


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
