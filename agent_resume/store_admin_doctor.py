"""Looking a store over: each finding says how bad it is and what mends it. Nothing is changed."""

from __future__ import annotations

import os
import shlex
import sqlite3
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from . import clock, errors, migrate, report, schema, store_admin_doctor_server, store_admin_fork
from .database_location import DEFAULT_FOLDER
from .database_sqlite_errors import has_wal_reset_bug
from .models import RunSummary
from .store_queries import RunFilter

if TYPE_CHECKING:
    from .store import Store

Level = Literal["ok", "note", "warning", "problem"]
# Where SQLite's shared memory does not reach other machines, or locks are known to lie.
_REMOTE = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs", "virtiofs"}
)
_LOG_LARGE = 64 << 20
_FREE_LARGE = 16 << 20
_SKEW_MS = 120_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        topic: what was looked at.
        level: ``ok``, ``note`` (worth knowing), ``warning`` (mend it some time), ``problem`` (mend it now).
        text: what was found.
        mend: the command or change that mends it, or None.
    """

    topic: str
    level: Level
    text: str
    mend: str | None = None


def examine(store: Store, *, full: bool) -> Iterator[Finding]:
    """Every finding, in an order that makes sense to read. The commands that it advises name the store.

    Args:
        full: also read every page of the file (slow on a large one).
    """
    for finding in _examine(store, full=full):
        words = (finding.mend or "").split(" ", 2)
        if words[0] == "agent-resume":
            finding = replace(finding, mend=f"{words[0]} {words[1]}{store.location.option} {words[2]}")
        yield finding


def _examine(store: Store, *, full: bool) -> Iterator[Finding]:
    if store.location.kind != "sqlite":
        yield from _on_a_server(store)
        return
    yield from _library(store)
    if os.path.isdir(store.location.target):
        yield Finding("store", "problem", f"{store.display} is a folder; name a file in it, which the first run makes")
        return
    yield Finding("driver", "ok", f"Python's own sqlite3, for {store.display}")
    try:
        is_there = store.exists()
    except errors.StoreError as error:  # its folder may not be entered
        yield Finding("store", "problem", str(error))
        return
    if not is_there:
        yield Finding("store", "note", no_store(store))
        return
    yield from _file(store)
    try:
        connection = migrate.open_for_reading(store.database.driver)
    except errors.StoreError as error:
        yield Finding("store", "problem", str(error))
        return
    try:
        yield from _permissions(store.location.target)
        yield from _inside(store, connection, full=full)
        yield from _runs(store)
    except (sqlite3.Error, errors.StoreDamaged) as error:
        driver = store.database.driver
        meaning = driver.blame_the_schema(driver.translate(error))
        yield Finding("store", "problem", str(meaning), "restore a copy of the file")
    finally:
        connection.close()


def _on_a_server(store: Store) -> Iterator[Finding]:
    try:
        for found in store_admin_doctor_server.examine(store):
            yield Finding(*found)
    except errors.StoreError:
        return  # said already
    try:
        yield from _runs(store)
    except errors.StoreError as error:
        yield Finding("store", "problem", str(error))


def no_store(store: Store) -> str:
    """What is said where no store is yet: who makes it, or that it cannot be made there."""
    folder = os.path.dirname(store.location.target)
    while not os.path.exists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    if store.location.kind == "sqlite" and not os.access(folder, os.W_OK | os.X_OK):
        return (
            f"no store at {store.display}, and none can be made there: {folder} is not writable for you; name another "
            "place with --db or AGENT_RESUME_DB"
        )
    return f"no store at {store.display}; the first agent run makes it"


def _library(store: Store) -> Iterator[Finding]:
    version = sqlite3.sqlite_version
    if has_wal_reset_bug():
        yield Finding(
            "sqlite", "note",
            f"SQLite {version} has the WAL-reset bug (fixed in 3.51.3, 3.50.7, 3.44.6): agent-resume keeps clear of it by "
            "making checkpoints itself; other programs that write this file may not",
            "use a Python that links a newer SQLite",
        )  # fmt: skip
    else:
        yield Finding("sqlite", "ok", f"SQLite {version}, without the WAL-reset bug")


def _file(store: Store) -> Iterator[Finding]:
    path = store.location.target
    kind, mounted = _file_system(path)
    if kind in _REMOTE:
        yield Finding(
            "file system", "problem", f"{kind} at {mounted}: write-ahead logging is not safe on it",
            "move the store to a local disk: agent-resume copy --to FILE, then AGENT_RESUME_DB=FILE",
        )  # fmt: skip
    else:
        yield Finding("file system", "ok", f"{kind or 'unknown kind'}{f' at {mounted}' if mounted else ''}")
    yield from _access(path)
    log = _size(f"{path}-wal")
    if log > _LOG_LARGE:
        yield Finding(
            "log", "warning", f"the -wal file has {log:,} bytes; a reader or a dead process keeps it from being reset",
            "end whatever holds the file open; the next agent run resets the log",
        )  # fmt: skip
    yield Finding("size", "ok", f"database {_size(path):,} bytes, log {log:,} bytes")


def _access(path: str) -> Iterator[Finding]:
    for target in (path, f"{path}-wal", f"{path}-shm"):
        if os.path.isfile(target) and not os.access(target, os.W_OK):
            why = "writable for you: runs can be read, not resumed"
            if not os.access(target, os.R_OK):
                why = "readable for you"
            yield Finding("permissions", "note", f"{target} is not {why}")
    folder = os.path.dirname(path)
    if not os.access(folder, os.W_OK):
        yield Finding(
            "permissions", "note", f"{folder} is not writable for you: SQLite cannot make its -wal file there"
        )


def _permissions(path: str) -> Iterator[Finding]:
    """Who else can read it; asked of what was opened as a store alone, since its mode is nobody's to change elsewhere."""
    if os.name != "posix":
        return
    for target in (path, f"{path}-wal", f"{path}-shm"):
        try:
            found = os.stat(target)
        except OSError:
            continue
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o077:
            yield Finding(
                "permissions", "warning", f"{target} has mode {mode:04o}: others can read results and answers",
                f"chmod 600 {shlex.quote(target)}",
            )  # fmt: skip
            if target == path:  # SQLite gives the others its mode, also when a reader makes them, as this one has
                break
    folder = os.path.dirname(path)
    mode = stat.S_IMODE(os.stat(folder).st_mode)
    if os.path.basename(folder) == DEFAULT_FOLDER and mode & 0o077:
        yield Finding("permissions", "warning", f"{folder} has mode {mode:04o}", f"chmod 700 {shlex.quote(folder)}")


def _inside(store: Store, connection: sqlite3.Connection, *, full: bool) -> Iterator[Finding]:
    from . import schema_tables

    def ask(pragma: str) -> object:
        return connection.execute(f"PRAGMA {pragma}").fetchone()[0]

    revision = store.database.driver.revision(connection)
    there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    for name in (*schema_tables.metadata.tables, *schema.VIEW_NAMES):
        if name not in there and revision == schema.HEAD:
            yield Finding("tables", "problem", f"no such table: {name}", "restore a copy of the file")
    if revision == schema.HEAD:
        yield Finding("schema", "ok", f"revision {revision}")
    else:
        yield Finding(
            "schema",
            "note",
            f"revision {revision}, this version writes {schema.HEAD}",
            "the next agent run upgrades it",
        )
    if _is_wal(store.location.target, str(ask("journal_mode"))):
        yield Finding(
            "journal", "ok", "write-ahead log; our writers use synchronous=FULL for what must survive a power cut"
        )
    else:
        yield Finding(
            "journal",
            "note",
            "rollback journal instead of a write-ahead log: somebody switched it off",
            "the next agent run switches it back to wal",
        )
    pages, free, size = int(str(ask("page_count"))), int(str(ask("freelist_count"))), int(str(ask("page_size")))
    if free * size > _FREE_LARGE and free > pages // 4:
        yield Finding(
            "free space", "note",
            f"{free * size:,} of {pages * size:,} bytes are free pages; a prune that deletes something gives them back",
            "agent-resume prune --older-than 30d",
        )  # fmt: skip
    else:
        yield Finding("free space", "ok", f"{free * size:,} of {pages * size:,} bytes are free pages")
    yield from _integrity(connection, full=full)


def _is_wal(path: str, mode: str) -> bool:
    """Whether a file keeps a write-ahead log; ``mode`` is what SQLite says on a connection to it."""
    if mode == "wal" or all(os.access(place, os.W_OK) for place in (path, os.path.dirname(path))):
        return mode == "wal"
    # What is not writable is read as immutable, and then SQLite says "delete" whatever the file is. No lock is held on it,
    # so that none is dropped by closing the file; anywhere else that would drop this process's.
    with open(path, "rb") as file:
        return file.read(20)[18:] == b"\x02\x02"  # fileformat2: write and read version, 2 is WAL


def _integrity(connection: sqlite3.Connection, *, full: bool) -> Iterator[Finding]:
    if not full:
        yield Finding("integrity", "note", "not looked at; --full reads every page", "agent-resume doctor --full")
        return
    rows = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(5)")]
    rows += [
        f"row {row[1]} of {row[0]} points at nothing"
        for row in connection.execute("PRAGMA foreign_key_check").fetchmany(5)
    ]
    if rows == ["ok"]:
        yield Finding("integrity", "ok", "every page and every reference is sound")
        return
    for text in rows:
        if text != "ok":
            yield Finding(
                "integrity", "problem", text, "restore a copy, or rescue what can be read: sqlite3 FILE .recover"
            )


def _runs(store: Store) -> Iterator[Finding]:
    found = list(store.list_runs(RunFilter(statuses=("running", "interrupted"))))
    new = (
        store.ask(store_admin_fork.fresh, [run.id for run in found if run.status == "interrupted"]) if found else set()
    )
    found = [run for run in found if run.id not in new]  # nobody has begun them
    for status, remark, mend in (
        ("interrupted", "", "agent-resume resume --all-interrupted --exec"),
        ("idle", "", "agent-resume resume RUN --exec"),
        ("overdue", "; if its process hangs:", "agent-resume resume RUN --take-over --exec"),
    ):
        ids = [run.id for run in found if run.shown_status == status]
        if ids:
            more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
            yield Finding("runs", "note", f"{len(ids)} {status}: {', '.join(ids[:3])}{more}{remark}", mend)
    if not any(run.shown_status in ("interrupted", "idle", "overdue") for run in found):
        yield Finding("runs", "ok", "none interrupted, idle or overdue")
    yield from _clock(store)


def _clock(store: Store) -> Iterator[Finding]:
    newest: RunSummary | None = next(store.list_runs(RunFilter(limit=1, sort="-updated")), None)
    ahead = 0 if newest is None else clock.parse_iso(newest.updated_at) - clock.now_ms()
    if newest is not None and ahead > _SKEW_MS:
        yield Finding(
            "clock", "warning", f"run {newest.id} was changed {report.seconds_text(ahead)} in the future: a clock is or was wrong",
            "set the clock (order and ownership do not depend on it, ages and idle times do)",
        )  # fmt: skip
    else:
        yield Finding("clock", "ok", "nothing is stored from the future")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _file_system(path: str, mounts: Callable[[], list[str]] | None = None) -> tuple[str | None, str | None]:
    """Kind and mount point of the file system that holds a path; (None, None) where that cannot be told."""
    best: tuple[str | None, str | None] = (None, None)
    for line in (mounts or _mounts)():
        parts = line.split(" ")
        if len(parts) < 3:
            continue
        point = parts[1].replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[1] or ""):
            best = (parts[2], point)
    return best


def _mounts() -> list[str]:
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
