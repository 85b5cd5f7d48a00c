"""Files that are there whole or not at all, and reading that follows no link."""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
import stat
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal

from agent_resume import clock, databases
from agent_resume.layouts import guard
from agent_resume.layouts.outcomes import Refused

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
# One fsync a file is the honest way; for a run with thousands of side files one sync of all is the fast one.
_FILES_SYNCED_SINGLY = 64
_TAKEN = "{} exists and is another state of the run, perhaps a newer one; move it away, or export to another folder"


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; a link, a pipe, a device or a store that is open here is refused.

    Raises:
        Refused: it is no regular file.
        OSError: it cannot be opened.
    """
    if path.is_symlink():
        raise Refused(f"{path.name} is a symbolic link and is not followed; put the file itself there")
    if databases.is_open_here(path):  # to close it as a plain file would drop the locks that this process has on it
        raise Refused(f"{path.name} belongs to a store that is in use here; give an export of it")
    handle = os.open(path, os.O_RDONLY | _NO_FOLLOW)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Refused(f"{path.name} is not a regular file")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def new_file(path: Path) -> BinaryIO:
    """Create a file that only its owner may read.

    Raises:
        FileExistsError: it is there already.
    """
    return os.fdopen(os.open(path, _NEW, 0o600), "wb")


def make_folder(path: Path) -> None:
    """Create a folder and those above it, for their owner only; one that exists is left alone."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)


def sync_folder(path: Path) -> None:
    """Make a folder's entries durable, where the system can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sibling(target: Path) -> Path:
    # A leading dot: tools that list runs do not take it for one.
    return target.with_name(f".agent-resume-{clock.new_token()}.tmp")


class NewFolder:
    """A folder that appears under its name when it is complete; until then it lies beside it under another.

    Used as a context manager; without ``commit()`` nothing remains.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = _sibling(target)
        self._settled = False

    def __enter__(self) -> NewFolder:
        make_folder(self.target.parent)
        self.path.mkdir(mode=0o700)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._settled:
            shutil.rmtree(self.path, ignore_errors=True)

    def commit(self, *, replace: bool) -> Literal["exported", "unchanged", "replaced"]:
        """Give it its name, durably.

        Returns:
            ``exported``, ``unchanged`` (the very same folder was there) or ``replaced``.

        Raises:
            Refused: another folder has the name, and ``replace`` is false or a database lies in it.
        """
        _sync_tree(self.path)
        if not os.path.lexists(self.target):
            self.path.rename(self.target)
            self._settled = True
            sync_folder(self.target.parent)
            return "exported"
        if _same_tree(self.path, self.target):
            return "unchanged"
        if not replace:
            raise Refused(_TAKEN.format(self.target))
        guard.refuse_databases_in(self.target)
        self._exchange()
        return "replaced"

    def _exchange(self) -> None:
        # No portable call swaps two folders; for a moment there is none under the name, and never half of one.
        old = _sibling(self.target)
        self.target.rename(old)
        try:
            self.path.rename(self.target)
        except OSError:
            old.rename(self.target)
            raise
        self._settled = True
        sync_folder(self.target.parent)
        if old.is_dir() and not old.is_symlink():
            self._keep_others(old)
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink()

    def _keep_others(self, old: Path) -> None:
        # What is not in the new folder was not made by us, so it is not ours to delete: plans, logs, notes.
        for entry in list(old.iterdir()):
            place = self.target / entry.name
            if not os.path.lexists(place):
                entry.rename(place)
        sync_folder(self.target)


def _sync_tree(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    if len(files) > _FILES_SYNCED_SINGLY and hasattr(os, "sync"):
        os.sync()
        return
    for path in files:
        handle = os.open(path, os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        sync_folder(path)


def _same_tree(new: Path, old: Path) -> bool:
    """Whether every file of ``new`` is in ``old`` with the same content; what else is there does not matter."""
    if old.is_symlink() or not old.is_dir():
        return False
    names = [path.relative_to(new) for path in new.rglob("*") if path.is_file()]
    return all((old / name).is_file() and _same_file(new / name, old / name) for name in names)


def _same_file(new: Path, old: Path) -> bool:
    return not guard.is_database(old) and filecmp.cmp(new, old, shallow=False)


class NewFile:
    """A file that appears under its name when it is complete; until then it lies beside it under another.

    Used as a context manager; without ``commit()`` nothing remains. A pipe or a device is written to directly, since it
    cannot be replaced; a link is followed.

    Attributes:
        is_special: it is such a pipe or device, or a file that was opened by somebody else.
    """

    def __init__(self, target: Path) -> None:
        # /dev/stdout is a link to a pipe, which has no path, or to an open file, which may hold something already.
        handed = os.path.abspath(target).startswith(("/dev/std", "/dev/fd/", "/proc/"))
        self.is_special = target.exists() and (handed or not target.is_file())
        self.target = target if self.is_special else Path(os.path.realpath(target))
        self._beside = _sibling(self.target)
        self._file: BinaryIO | None = None

    def __enter__(self) -> NewFile:
        """Begin it.

        Raises:
            Refused: the target belongs to a database.
        """
        guard.refuse_database(self.target)
        make_folder(self.target.parent)
        self._file = self.target.open("ab") if self.is_special else new_file(self._beside)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        if not self.is_special:
            self._beside.unlink(missing_ok=True)

    @property
    def file(self) -> BinaryIO:
        """Where to write."""
        assert self._file is not None  # entered
        return self._file

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()

    def commit(self, *, replace: bool) -> Literal["exported", "unchanged", "replaced"]:
        """Give it its name, durably; as for ``NewFolder``.

        Raises:
            Refused: another file has the name, and ``replace`` is false or it belongs to a database.
        """
        if self.is_special:
            self._close()
            return "exported"
        self.file.flush()
        os.fsync(self.file.fileno())
        self._close()
        guard.refuse_database(self.target)  # it may have become one while the export was written
        there = os.path.lexists(self.target)
        if there and filecmp.cmp(self._beside, self.target, shallow=False):
            return "unchanged"
        if there and not replace:
            raise Refused(_TAKEN.format(self.target))
        self._beside.replace(self.target)
        sync_folder(self.target.parent)
        return "replaced" if there else "exported"
