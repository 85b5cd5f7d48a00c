"""Lending a database connection to ``run.transaction``'s function, so that it cannot end the transaction it is in.

On the run's own database the function gets a SQLAlchemy connection over the store's write connection. Its commit and
rollback work on a savepoint, ``close`` does nothing, and a raw COMMIT is refused: by SQLite itself, and on a server by
looking at each statement before it is sent. After the time limit everything is rolled back from another thread, so
that a function that hangs does not hold the write lock.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Connection, Engine, create_engine

from . import ownership
from .database import Database
from .database_pool import OwnPool
from .database_sql import Tx
from .store_transaction_text import ending_in
from .threads import begin

#: Longest time that the function may hold the write lock, in s: well below a lease, since nothing beats meanwhile.
TRANSACTION_LIMIT = ownership.LEASE / 3

_SAVEPOINT = "agent_resume_lent"
#: psycopg's TransactionStatus: none is open; one that an error has ended.
_IDLE, _FAILED = 0, 3
#: Methods of psycopg's cursors that take a statement.
_EXECUTING = ("execute", "executemany", "stream", "copy")
#: Methods of sqlite3's cursors that go into SQLite; the first three are a connection's too.
_ENTERING = ("execute", "executemany", "executescript", "fetchone", "fetchmany", "fetchall", "close", "__next__")


class Borrowed:
    """A DBAPI connection whose transaction is ours.

    Args:
        connection: the driver's connection, inside a transaction.
        limit: seconds until it is taken back.
        refusal: makes the error for a use after that; whether the time was over is its argument.
        settings: what is said before it is lent, and once it was given back; None where a connection has no settings
            that a function could change.
    """

    def __init__(
        self,
        connection: Any,
        limit: float,
        refusal: Callable[[bool], BaseException],
        settings: tuple[str, str] | None,
    ) -> None:
        self._connection = connection
        self._refusal = refusal
        self._settings = settings
        self._lock = threading.Lock()
        # SQLite's own lock and Python's are waited for in either order: one thread asks for permission in the middle of a
        # statement, another reads an error's text. Two threads inside SQLite at once would wait for each other for ever.
        self._turn = threading.RLock()
        self.ended = False
        self._trusted = False
        self.expired = False
        self._timer = threading.Timer(limit, self._expire)
        self._timer.daemon = True
        file = isinstance(connection, sqlite3.Connection)
        self._cursors: Any = _waiting_cursor(self._turn) if file else connection.cursor_factory

    def begin(self) -> None:
        """From now on it is lent, until ``let_go``."""
        if self._settings is not None:
            self._run(self._settings[0])
        self._run(f"SAVEPOINT {_SAVEPOINT}")
        if isinstance(self._connection, sqlite3.Connection):
            self._connection.set_authorizer(self._authorize)
        else:
            self._connection.cursor_factory = _guarded_cursor(self._cursors, self._refuse_an_ending)
        begin(self._timer)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._connection, name)
        if not callable(value) or not isinstance(self._connection, sqlite3.Connection):
            return value
        if name in _ENTERING[:3]:
            return getattr(self.cursor(), name)

        def enter(*args: Any, **named: Any) -> Any:
            with self._turn:
                return value(*args, **named)

        return enter

    def cursor(self, *args: Any, **named: Any) -> Any:
        """A cursor, while the connection is lent."""
        self._refuse_if_over()
        if isinstance(self._connection, sqlite3.Connection):
            return self._connection.cursor(self._cursors)
        return self._connection.cursor(*args, **named)

    def commit(self) -> None:
        """What was written so far outlives a later ``rollback``; it is committed with the step."""
        if not self.ended:
            self._refuse_if_over()
            self._run(f"RELEASE SAVEPOINT {_SAVEPOINT}", f"SAVEPOINT {_SAVEPOINT}")

    def rollback(self) -> None:
        """Undo what was written since the last ``commit``."""
        if not self.ended:
            self._refuse_if_over()
            self._run(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")

    def close(self) -> None:
        """Nothing: it is not the borrower's to close."""

    def _refuse_if_over(self) -> None:
        if self.ended or self.expired:
            raise self._refusal(self.expired)
        if isinstance(self._connection, sqlite3.Connection):
            # SQLite ends a transaction by itself after some errors (disk full); the next statement would autocommit.
            over = not self._connection.in_transaction
        else:
            over = self._connection.info.transaction_status == _IDLE
        if over:
            raise self._refusal(False)

    def _refuse_an_ending(self, statement: Any) -> None:
        if self._trusted:
            return
        if isinstance(statement, bytes):
            statement = statement.decode("utf-8", "replace")
        text = statement if isinstance(statement, str) else statement.as_string(self._connection)
        if ending_in(text) is not None or _SAVEPOINT in text.lower():
            raise self._refusal(False)

    def _run(self, *statements: str) -> None:
        with self._turn:
            self._trusted = True
            try:
                cursor = self._connection.cursor()
                for statement in statements:
                    cursor.execute(statement)
                cursor.close()
            finally:
                self._trusted = False

    def _authorize(self, action: int, first: str | None, second: str | None, *_: Any) -> int:
        if self._trusted:
            return sqlite3.SQLITE_OK
        if self.expired or action == sqlite3.SQLITE_TRANSACTION:
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_SAVEPOINT and second == _SAVEPOINT:
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def _expire(self) -> None:
        """The time is over: roll back from here, whatever the function is doing."""
        with self._lock:
            if self.ended:
                return
            self.expired = True
            if isinstance(self._connection, sqlite3.Connection):
                while not self._turn.acquire(timeout=0.02):
                    self._connection.interrupt()  # again: a statement that is about to begin does not hear of it
                self._turn.release()
            else:
                with contextlib.suppress(Exception):
                    self._connection.cancel()
            with contextlib.suppress(Exception):
                self._run("ROLLBACK")

    def take_back(self) -> None:
        """The function has returned: nothing more comes through this object.

        Raises:
            BaseException: ``refusal(…)``, when the time was over or the transaction has ended.
        """
        self._timer.cancel()
        with self._lock:
            self._refuse_if_over()
            if self._settings is not None and self._connection.info.transaction_status == _FAILED:
                raise self._refusal(False)  # an error of SQL that the function caught has undone everything
            self._run(f"RELEASE SAVEPOINT {_SAVEPOINT}")
            if self._settings is not None:
                self._run(self._settings[1])
            self.ended = True

    def let_go(self) -> None:
        """Undo what was set on the driver's connection."""
        self._timer.cancel()
        with self._lock:
            self.ended = True
            if isinstance(self._connection, sqlite3.Connection):
                self._connection.set_authorizer(None)
            else:
                self._connection.cursor_factory = self._cursors


def _waiting_cursor(turn: threading.RLock) -> type[sqlite3.Cursor]:
    """A class of sqlite3's cursors that wait for their turn before they go into SQLite."""

    def waiting(name: str) -> Callable[..., Any]:
        plain = getattr(sqlite3.Cursor, name)

        def enter(cursor: Any, *args: Any, **named: Any) -> Any:
            with turn:
                return plain(cursor, *args, **named)

        return enter

    return type("WaitingCursor", (sqlite3.Cursor,), {name: waiting(name) for name in _ENTERING})


def _guarded_cursor(base: Any, check: Callable[[Any], None]) -> Any:
    """A class of psycopg's cursors whose statements are looked at first."""

    def guarded(name: str) -> Callable[..., Any]:
        plain = getattr(base, name)

        def execute(cursor: Any, statement: Any, *args: Any, **named: Any) -> Any:
            check(statement)
            return plain(cursor, statement, *args, **named)

        return execute

    return type("GuardedCursor", (base,), {name: guarded(name) for name in _EXECUTING})


class LentConnection(Connection):
    """A SQLAlchemy connection whose ``close`` leaves the transaction alone."""

    def close(self) -> None:
        """Nothing: what was executed is committed with the step."""

    def end(self) -> None:
        """Really close it."""
        super().close()


@contextlib.contextmanager
def lend(tx: Tx, refusal: Callable[[bool], BaseException], limit: float, database: Database) -> Iterator[Connection]:
    """A SQLAlchemy connection on the store's write connection, inside its open transaction.

    Args:
        limit: seconds until it is taken back.
        database: the store's; errors of statements of ours are translated for it, others come out as they are.

    Raises:
        BaseException: ``refusal(True)``, when it was kept for longer than ``limit`` seconds.
    """
    borrowed = Borrowed(tx.connection, limit, refusal, database.driver.lending)
    connection: LentConnection | None = None
    try:
        with database.translation.of_ours():
            borrowed.begin()
        engine = _engine(tx.dialect, borrowed)
        connection = LentConnection(engine)
        yield connection
        with database.translation.of_ours():
            borrowed.take_back()
    except BaseException:
        if borrowed.expired:
            raise refusal(True) from None
        raise
    finally:
        borrowed.ended = True  # first, and no call: its timer must never roll back what comes after
        borrowed.let_go()
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.end()


def _engine(dialect: str, borrowed: Borrowed) -> Engine:
    if dialect == "sqlite":
        return create_engine("sqlite://", creator=lambda: borrowed, poolclass=OwnPool)
    return create_engine("postgresql+psycopg://", creator=lambda: borrowed, poolclass=OwnPool, use_native_hstore=False)
