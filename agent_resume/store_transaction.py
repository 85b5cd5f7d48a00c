"""Lending a database connection to ``run.transaction``'s function, so that it cannot end the transaction it is in.

On the run's own database the function gets a SQLAlchemy connection over the store's write connection. Its commit and
rollback work on a savepoint, ``close`` does nothing, and a raw COMMIT is refused. After the time limit everything is
rolled back from another thread, so that a function that hangs does not hold the write lock.

In a database of the user's own, a small table there says which steps are complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, Engine, Integer, MetaData, String, Table, Text, create_engine, event
from sqlalchemy import delete as sql_delete
from sqlalchemy import insert as sql_insert
from sqlalchemy import inspect as sql_inspect
from sqlalchemy import select as sql_select
from sqlalchemy import update as sql_update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from . import clock, ownership
from .codec import Encoded
from .database_sql import Tx

#: Longest time that the function may hold the write lock, in s: well below a lease, since nothing beats meanwhile.
TRANSACTION_LIMIT = ownership.LEASE / 3

_SAVEPOINT = "agent_resume_lent"


class Borrowed:
    """A DBAPI connection whose transaction is ours.

    Args:
        connection: the driver's connection, inside a transaction.
        limit: seconds until it is taken back.
        refusal: makes the error for a use after that.
    """

    def __init__(self, connection: Any, limit: float, refusal: Callable[[], BaseException]) -> None:
        self._connection = connection
        self._refusal = refusal
        self._lock = threading.Lock()
        self._ended = False
        self._trusted = False
        self.expired = False
        self._timer = threading.Timer(limit, self._expire)
        self._timer.daemon = True
        self._run(f"SAVEPOINT {_SAVEPOINT}")
        if isinstance(connection, sqlite3.Connection):
            connection.set_authorizer(self._authorize)
        self._timer.start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def cursor(self, *args: Any, **named: Any) -> Any:
        """A cursor, while the connection is lent."""
        self._refuse_if_over()
        return self._connection.cursor(*args, **named)

    def commit(self) -> None:
        """What was written so far outlives a later ``rollback``; it is committed with the step."""
        if not self._ended:
            self._refuse_if_over()
            self._run(f"RELEASE SAVEPOINT {_SAVEPOINT}", f"SAVEPOINT {_SAVEPOINT}")

    def rollback(self) -> None:
        """Undo what was written since the last ``commit``."""
        if not self._ended:
            self._refuse_if_over()
            self._run(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")

    def close(self) -> None:
        """Nothing: it is not the borrower's to close."""

    def _refuse_if_over(self) -> None:
        if self._ended or self.expired:
            raise self._refusal()
        if isinstance(self._connection, sqlite3.Connection) and not self._connection.in_transaction:
            # SQLite ends a transaction by itself after some errors (disk full); the next statement would autocommit.
            raise self._refusal()

    def _run(self, *statements: str) -> None:
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
            if self._ended:
                return
            self.expired = True
            with contextlib.suppress(Exception):
                if isinstance(self._connection, sqlite3.Connection):
                    self._connection.interrupt()
                else:
                    self._connection.cancel()
            with contextlib.suppress(Exception):
                self._run("ROLLBACK")

    def take_back(self) -> None:
        """The function has returned: nothing more comes through this object.

        Raises:
            BaseException: ``refusal()``, when the time was over or the transaction has ended.
        """
        self._timer.cancel()
        with self._lock:
            if self.expired:
                raise self._refusal()
            self._refuse_if_over()
            self._run(f"RELEASE SAVEPOINT {_SAVEPOINT}")
            self._ended = True

    def let_go(self) -> None:
        """Undo what was set on the driver's connection."""
        self._timer.cancel()
        with self._lock:
            self._ended = True
            if isinstance(self._connection, sqlite3.Connection):
                self._connection.set_authorizer(None)


class LentConnection(Connection):
    """A SQLAlchemy connection whose ``close`` leaves the transaction alone."""

    def close(self) -> None:
        """Nothing: what was executed is committed with the step."""

    def end(self) -> None:
        """Really close it."""
        super().close()


@contextlib.contextmanager
def lend(tx: Tx, refusal: Callable[[], BaseException], limit: float = TRANSACTION_LIMIT) -> Iterator[Connection]:
    """A SQLAlchemy connection on the store's write connection, inside its open transaction.

    Raises:
        BaseException: ``refusal()``, when it was kept for longer than ``limit`` seconds.
    """
    borrowed = Borrowed(tx.connection, limit, refusal)
    connection: LentConnection | None = None
    try:
        engine = _engine(tx.dialect, borrowed)
        connection = LentConnection(engine)
        yield connection
        borrowed.take_back()
    except BaseException:
        if borrowed.expired:
            raise refusal() from None
        raise
    finally:
        borrowed.let_go()
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.end()


def _engine(dialect: str, borrowed: Borrowed) -> Engine:
    if dialect == "sqlite":
        return create_engine("sqlite://", creator=lambda: borrowed, poolclass=StaticPool)
    return create_engine(
        "postgresql+psycopg://", creator=lambda: borrowed, poolclass=StaticPool, use_native_hstore=False
    )


# -- a database of the user's own ------------------------------------------------------------------------------------

_completions = Table(
    "agent_resume_completions",
    MetaData(),
    Column("id", String(64), primary_key=True),  # digest of the run, its creation and the key: keys may be long
    Column("run_id", Text, nullable=False),
    Column("step_key", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("completed_at", String(24), nullable=False),
    Column("output_format", String(8)),
    Column("output", Text),
)


@dataclass(frozen=True, slots=True)
class Completion:
    """Which step of which run is completed by a transaction elsewhere.

    Attributes:
        created_at: when the run was created: two stores may have a run of the same id.
    """

    run_id: str
    created_at: str
    key: str
    attempt: int

    @property
    def id(self) -> str:
        """Its row's primary key."""
        text = "\0".join((self.run_id, self.created_at, self.key))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def complete_elsewhere(
    engine: Engine,
    completion: Completion,
    call: Callable[[Connection], tuple[Encoded, Any]],
    acknowledged: Callable[[int], bool],
    refusal: Callable[[str], BaseException],
) -> tuple[Encoded, Any] | Encoded:
    """Call the function in a transaction of ``engine`` that also stores its completion.

    Args:
        call: calls the user's function; its encoded and its fresh result.
        acknowledged: whether an attempt's result had reached the run's own store. Then the step is run again on
            purpose (``rerun``), and the old completion is no longer true.
        refusal: makes the error for a function that ends the transaction.

    Returns:
        What ``call`` gave; or only the encoded result of an earlier attempt that was committed here and not yet there.
    """
    _ensure_table(engine)
    with engine.begin() as connection:
        row = connection.execute(
            sql_select(_completions.c.attempt, _completions.c.output_format, _completions.c.output).where(
                _completions.c.id == completion.id
            )
        ).first()
        if row is not None:
            if not acknowledged(row.attempt):
                return Encoded(row.output_format, row.output)
            connection.execute(sql_delete(_completions).where(_completions.c.id == completion.id))
        # First the row, then the work: of two attempts at once, the second one finds it and waits, or fails.
        connection.execute(
            sql_insert(_completions).values(
                id=completion.id, run_id=completion.run_id, step_key=completion.key, attempt=completion.attempt,
                completed_at=clock.now_iso(),
            )
        )  # fmt: skip
        with _guarded(connection, refusal):
            encoded, fresh = call(connection)
        connection.execute(
            sql_update(_completions)
            .where(_completions.c.id == completion.id)
            .values(output_format=encoded.format, output=encoded.text)
        )
    return encoded, fresh


def _ensure_table(engine: Engine) -> None:
    try:
        _completions.create(engine, checkfirst=True)
    except DBAPIError:
        # Another process made it between the look and the CREATE.
        if not sql_inspect(engine).has_table(_completions.name):
            raise


@contextlib.contextmanager
def _guarded(connection: Connection, refusal: Callable[[str], BaseException]) -> Iterator[None]:
    """Refuse a commit or rollback of the function's own: the completion would be there without its work, or not at all."""

    def commit(_: Connection) -> None:
        raise refusal("commit")

    rolled_back: list[bool] = []

    def rollback(_: Connection) -> None:
        rolled_back.append(True)

    event.listen(connection, "commit", commit)
    event.listen(connection, "rollback", rollback)
    try:
        yield
    finally:
        event.remove(connection, "commit", commit)
        event.remove(connection, "rollback", rollback)
    if rolled_back:
        raise refusal("roll back")
