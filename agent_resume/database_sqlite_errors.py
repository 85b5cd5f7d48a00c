"""What SQLite's errors mean."""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from pathlib import Path

from . import errors

#: What a file system answers with that cannot map the log's index, or lock it (rescode.html).
_NO_WAL = {
    f"SQLITE_IOERR_{what}"
    for what in ("SHMOPEN", "SHMSIZE", "SHMLOCK", "SHMMAP", "LOCK", "RDLOCK", "CHECKRESERVEDLOCK")
}


def primary_code(error: BaseException) -> int:
    """SQLite's primary result code of a driver error; 0 when it carries none (resultcodes: low eight bits)."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def translate(error: BaseException, path: str, display: str) -> BaseException:
    """Our typed error for one of SQLite's; anything else unchanged."""
    if isinstance(error, sqlite3.ProgrammingError) or not isinstance(error, sqlite3.DatabaseError):
        return error
    code = primary_code(error)
    full = getattr(error, "sqlite_errorcode", code)
    if code == sqlite3.SQLITE_BUSY:
        return errors.StoreBusy(display, seconds=0.0)
    if full == sqlite3.SQLITE_READONLY_DBMOVED:
        return errors.StoreMoved(display)
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return errors.StoreReadOnly(display, "may be read but not written")
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _no_space(path)):
        return errors.StoreFull(display)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        why = "not a SQLite database" if code == sqlite3.SQLITE_NOTADB else "the database is damaged"
        return errors.StoreDamaged(display, why)
    if code == sqlite3.SQLITE_PROTOCOL or getattr(error, "sqlite_errorname", "") in _NO_WAL:
        return errors.StoreUnavailable(
            display,
            "the file system's locks, or its shared memory, do not work as write-ahead logging needs",
            "put the store on a local disk with AGENT_RESUME_DB, db= or --db",
        )
    if code == sqlite3.SQLITE_CANTOPEN or (code == sqlite3.SQLITE_IOERR and os.path.isdir(path)):
        return _cannot_open(path, display)
    if code == sqlite3.SQLITE_IOERR:
        return errors.StoreUnavailable(display, f"input/output error ({getattr(error, 'sqlite_errorname', 'IOERR')})")
    return error


def blame_the_schema(error: BaseException, display: str) -> BaseException:
    """What it means when a statement of ours fails as only wrong ones do: these are not our tables."""
    if not isinstance(error, sqlite3.DatabaseError):
        return error
    code, text = primary_code(error), str(error)
    if code == sqlite3.SQLITE_ERROR and text.startswith(("no such table", "no such column", "no such view", "table ")):
        return errors.StoreDamaged(display, f"its tables are not those of agent-resume ({text})")
    if code == sqlite3.SQLITE_CONSTRAINT:
        return errors.StoreUnavailable(
            display, f"the file refused a row ({text})", "look at its triggers and tables: agent-resume sql --schema"
        )
    return error


def _cannot_open(path: str, display: str) -> errors.StoreError:
    folder = Path(path).parent
    if os.path.isdir(path):
        return errors.StoreUnavailable(display, "this is a folder", "name a file in it")
    if not folder.is_dir():
        return errors.StoreUnavailable(display, "its folder does not exist", "create it")
    if not os.access(folder, os.W_OK):
        return errors.StoreReadOnly(display, "its folder is not writable, and the -wal file must be made there")
    if _no_descriptor():
        return errors.StoreUnavailable(
            display, "this process has too many files open", "close some, or raise ulimit -n"
        )
    return errors.StoreUnavailable(display, "cannot be opened", "look at its permissions")


def _no_descriptor() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False


def _no_space(path: str) -> bool:
    # SQLite reports a quota or a file size limit as an I/O error; only the system knows which it was.
    if _at_size_limit(path):
        return True
    try:
        with tempfile.TemporaryFile(dir=Path(path).parent) as probe:
            probe.write(bytes(1 << 16))
            probe.flush()
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return False


def _at_size_limit(path: str) -> bool:
    """Whether the process may not make one of the files larger (``ulimit -f``)."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return False
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit == resource.RLIM_INFINITY:
        return False
    # The write that failed was one page, of 64 KiB at most.
    return any(os.path.exists(name) and os.stat(name).st_size + (1 << 16) > limit for name in (path, f"{path}-wal"))


def has_wal_reset_bug(version: tuple[int, int, int] = sqlite3.sqlite_version_info[:3]) -> bool:
    """Whether this SQLite library has the WAL-reset bug (3.7.0 to 3.51.2; fixed in 3.51.3, 3.50.7 and 3.44.6)."""
    if version[:2] == (3, 50):
        return version < (3, 50, 7)
    if version[:2] == (3, 44):
        return version < (3, 44, 6)
    return (3, 7, 0) <= version < (3, 51, 3)
