"""Bringing a store's schema up to ``schema.HEAD``; Alembic is imported only when something has to be done.

Alembic's commands and its ``op`` keep their state in module globals: 21 of 24 threaded upgrades crashed when tried, and
the program around us may migrate a database of its own meanwhile. So a revision is handed the operations of its own
connection, and one upgrade runs at a time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import clock, errors, schema

if TYPE_CHECKING:
    import sqlite3

    from .database_sqlite import SqliteDriver

_upgrading = threading.Lock()


def _after_fork_in_child() -> None:
    global _upgrading
    _upgrading = threading.Lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def migrations_folder() -> Path:
    """Where the revisions are: inside the installed package, or at the top of a checkout.

    Raises:
        RuntimeError: neither; a ``migrations`` beside the package alone may be a stranger's.
    """
    package = Path(__file__).resolve().parent
    shipped = package / "_migrations"
    if shipped.is_dir():
        return shipped
    checkout = package.parent
    if (checkout / "migrations").is_dir() and (checkout / "alembic.ini").is_file():
        return checkout / "migrations"
    raise RuntimeError("broken installation: agent_resume/_migrations is missing; reinstall agent-resume")


def open_for_writing(driver: Any) -> None:
    """Make the store exist at ``schema.HEAD``; foreign and newer ones are refused before anything changes them.

    Raises:
        StoreError: it cannot be used, and why.
    """
    driver.create()
    driver.remember_identity()
    # The last writing connection to close empties the log into the file, also into a foreign one.
    connection = driver.connect_reading()
    try:
        revision = driver.revision(connection)
    finally:
        connection.close()
    if revision == schema.HEAD:
        return
    connection = driver.plain()
    try:
        driver.prepare(connection)
        _upgrade(driver, connection)
    finally:
        connection.close()


def open_for_reading(driver: Any) -> Any:
    """A connection for reading what is there, creating and changing nothing.

    Raises:
        StoreError: it cannot be used, and why.
    """
    driver.remember_identity()
    connection = driver.connect_reading()
    try:
        revision = driver.revision(connection)
        if revision is None:
            raise errors.StoreUnavailable(
                driver.display, "an empty database, no run was ever stored in it", "run an agent first"
            )
        if revision != schema.HEAD:
            logging.getLogger("agent_resume").warning(
                "%s has schema %s, this version writes %s; the next agent run upgrades it",
                driver.display,
                revision,
                schema.HEAD,
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _upgrade(driver: Any, connection: Any) -> None:
    """One transaction from BEGIN to COMMIT; the revision is read again inside it."""
    with _upgrading, driver.upgrading(connection):
        try:
            driver.begin(connection, connection.execute)
            driver.lock_schema(connection)
            revision = driver.revision(connection)
            if revision == schema.HEAD:
                connection.execute("ROLLBACK")
                return
            if revision is not None:
                _refuse_beside_a_live_owner(driver, connection)
                if driver.name == "sqlite":
                    _copy_aside(driver, connection, revision)
            with _without_chatter():
                _run_revisions(driver, connection)
            if driver.name == "sqlite":
                connection.execute(f"PRAGMA application_id={schema.APPLICATION_ID}")
                if revision is None:
                    connection.execute(f"PRAGMA user_version={clock.new_mark()}")
                _check_foreign_keys(driver, connection)
            connection.execute("COMMIT")
        except BaseException as error:
            if driver.in_transaction(connection):
                connection.execute("ROLLBACK")
            if isinstance(error, OSError):
                raise errors.StoreUnavailable(
                    driver.display, f"its tables cannot be made ({error.strerror})"
                ) from error
            cause = getattr(error, "orig", None) or error  # SQLAlchemy wraps what the driver raises
            translated = driver.translate(cause)
            if translated is cause:
                raise
            raise translated from cause


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Alembic tells of each step at INFO: in a program that logs at INFO, a new store would fill its output."""
    me = threading.get_ident()

    def wanted(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or record.thread not in (me, None)

    loggers = [logging.getLogger(f"alembic.runtime.{name}") for name in ("migration", "plugins")]
    for logger in loggers:
        logger.addFilter(wanted)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(wanted)


def _run_revisions(driver: Any, connection: Any) -> None:
    from alembic.migration import MigrationContext
    from alembic.operations import Operations
    from alembic.script import ScriptDirectory
    from sqlalchemy import create_engine

    from .database_pool import OwnPool

    for text in schema.drop_view_statements():
        connection.execute(text)
    # The transaction is ours: whatever SQLAlchemy commits, rolls back or closes on the way must not end it.
    held = _HeldConnection(connection)
    url, options = driver.engine_arguments
    engine = create_engine(url, creator=lambda: held, poolclass=OwnPool, isolation_level="AUTOCOMMIT", **options)
    scripts = ScriptDirectory(str(migrations_folder()))
    with engine.connect() as sa_connection:
        context = MigrationContext.configure(sa_connection, opts={"version_table": schema.VERSION_TABLE})
        done = context.get_current_revision() or "base"
        for revision in reversed(list(scripts.iterate_revisions("head", done))):
            revision.module.upgrade(Operations(context))
        context.stamp(scripts, "head")
    for text in schema.view_statements(driver.name):
        connection.execute(text)


class _HeldConnection:
    """A driver connection whose transaction somebody else holds: commit, rollback and close do nothing."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        """Nothing: the upgrade commits once, at its end."""

    def rollback(self) -> None:
        """Nothing, likewise."""

    def close(self) -> None:
        """Nothing, likewise."""


def _refuse_beside_a_live_owner(driver: Any, connection: Any) -> None:
    from . import ownership

    here = ownership.host_identity()
    one_kernel = driver.name == "sqlite"
    rows = connection.execute("SELECT token, host, pid, started, beats, beat_at FROM owners").fetchall()
    for row in rows:
        owner = dict(zip(("token", "host", "pid", "started", "beats", "beat_at"), row, strict=True))
        verdict = ownership.judge(owner, my_host=here, open_tokens=(), one_kernel=one_kernel)
        if verdict == "unknown" and driver.beat_is_old(connection, owner["beat_at"]):
            continue
        if verdict != "dead":
            raise errors.StoreBusy(
                driver.display,
                seconds=0.0,
                holder=f"process {owner['pid']} on {ownership.host_name(owner['host'])}",
                why="an older version of agent-resume is using it, so its schema cannot be upgraded now",
            )


def _copy_aside(driver: SqliteDriver, connection: sqlite3.Connection, revision: str) -> None:
    """Keep the file as it was, beside it; by SQLite's backup from a second connection, never by opening the file."""
    import sqlite3

    if not connection.execute("SELECT EXISTS (SELECT 1 FROM runs)").fetchone()[0]:
        return
    target = f"{driver.path}.{revision}-{clock.now_ms()}.bak"
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    with contextlib.closing(driver.plain("ro")) as source, contextlib.closing(sqlite3.connect(target)) as copy:
        source.backup(copy)


def _check_foreign_keys(driver: SqliteDriver, connection: sqlite3.Connection) -> None:
    broken = connection.execute("PRAGMA foreign_key_check").fetchone()
    if broken is not None:
        raise errors.StoreDamaged(
            driver.display,
            f"rows of {broken[0]!r} point at nothing after the upgrade",
            "nothing was changed; report this",
        )
