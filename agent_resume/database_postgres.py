"""Opening one PostgreSQL database, what its errors mean, and what may be tried again.

Writers meet at row locks (every write of a run begins with its row), at advisory locks (``Tx.lock``) and at unique
constraints. An operation that lost such a race, or whose connection broke before its COMMIT, is executed again. A
COMMIT whose answer never came is settled by looking: see ``commit``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from . import clock, errors, faults, schema
from .clock import jitter
from .database_location import Location
from .database_postgres_errors import RACES, TransactionStatus, is_refusal, library, passes, pg, translate
from .database_postgres_line import STATEMENT_LIMIT, connect, connect_arguments
from .database_sql import Dialect, Tx

if TYPE_CHECKING:
    import psycopg

    from .database_listen import Listener

T = TypeVar("T")

#: Longest wait for a lock, in s; then ``StoreBusy``.
LOCK_LIMIT: Final = 30
#: A server that was reached before is waited for this long, in s, counted from its first silence.
OUTAGE_LIMIT: Final = 30.0
#: How often an operation that lost a race is executed again.
RACE_LIMIT: Final = 25

_SETTINGS: Final = (
    f"SET search_path TO {schema.PG_SCHEMA};"
    f"SET lock_timeout TO '{LOCK_LIMIT}s';"
    f"SET statement_timeout TO '{STATEMENT_LIMIT}s';"
    "SET default_transaction_isolation TO 'read committed';"
    # A transaction of ours may idle: run.transaction's has a limit of its own, a copy reads while its target writes.
    "SET idle_in_transaction_session_timeout TO 0;"
    "SELECT set_config('transaction_timeout', '0', false) WHERE current_setting('transaction_timeout', true) <> '0';"
    # A server may be set to acknowledge what is on no disk yet; our acknowledgements mean it.
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';"
)
_ME: Final = "SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()"


class PostgresDriver:
    """How one PostgreSQL database is opened, locked and understood."""

    name: Final = "postgresql"
    transaction_type: Final = Tx

    def __init__(self, location: Location) -> None:
        self.display = location.display
        self.dialect = Dialect(self.name)
        self._arguments = connect_arguments(location.target, self.dialect)
        self._reached = False
        self._silent_since: float | None = None
        self._there = False
        self._backend: tuple[int, str] | None = None
        self.listener: Listener | None = None

    def library(self) -> str:
        """Name and version of what speaks to the server."""
        return library

    # -- the database --------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether our tables are there."""
        if not self._there:
            self._there = self.persist(self._has_tables)
        return self._there

    def _has_tables(self) -> bool:
        with contextlib.closing(self.plain("ro")) as connection:
            return self.revision(connection) is not None

    def is_blank(self) -> bool:
        """Whether there are no tables; ``exists`` has looked."""
        return False

    def create(self) -> None:
        """Nothing: a database is made by whoever administers the server; the schema by the first upgrade."""

    def remember_identity(self) -> None:
        """Nothing: a URL means what it means."""

    def check_in_place(self) -> None:
        """Nothing, likewise."""

    # -- connections ---------------------------------------------------------------------------------------------

    def plain(self, mode: str = "rw") -> psycopg.Connection[Any]:
        """A connection with our settings; every BEGIN is explicit. ``mode`` ``"ro"`` refuses to write."""
        try:
            connection: psycopg.Connection[Any] = connect(**self._arguments, autocommit=True)
        except pg.Error as error:
            raise self.translate(error) from error
        try:
            connection.execute(_SETTINGS, prepare=False)
            if mode == "ro":
                connection.execute("SET default_transaction_read_only TO on")
        except pg.Error as error:
            connection.close()
            raise self.translate(error) from error
        self._reached = True
        self._silent_since = None
        return connection

    def prepare(self, connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
        """Nothing more: ``plain`` has set everything."""
        return connection

    def connect(self, *, write: bool) -> psycopg.Connection[Any]:
        """A connection to work on; a reading one refuses to write."""
        if not write:
            return self.plain("ro")
        connection = self.plain()
        try:
            row = connection.execute(_ME).fetchone()
            if row is not None:
                self._backend = (row[0], row[1])
            self._refuse_encoding(connection)
        except BaseException as error:
            connection.close()
            translated = self.translate(error)
            if translated is error:
                raise
            raise translated from error
        return connection

    def connect_reading(self) -> psycopg.Connection[Any]:
        """A reading connection; a standby does for it."""
        return self.plain("ro")

    def _refuse_encoding(self, connection: psycopg.Connection[Any]) -> None:
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise errors.StoreUnavailable(
                self.display, f"its encoding is {encoding}, which cannot hold every text",
                "make one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
            )  # fmt: skip

    def revision(self, connection: psycopg.Connection[Any]) -> str | None:
        """The schema revision, or None where there is none of our tables.

        Raises:
            StoreDamaged: another program's schema has our name.
            StoreNewer: a revision that this version does not know.
        """
        try:
            names = {
                row[0]
                for row in connection.execute(
                    "SELECT relname FROM pg_catalog.pg_class WHERE relnamespace = to_regnamespace(%s)",
                    (schema.PG_SCHEMA,),
                )
            }
            if not names:
                return None
            if schema.VERSION_TABLE not in names:
                raise errors.StoreDamaged(
                    self.display, f"its schema {schema.PG_SCHEMA!r} belongs to another program",
                    "it was left as it is; name another database",
                )  # fmt: skip
            found = [row[0] for row in connection.execute(f"SELECT version_num FROM {schema.VERSION_TABLE}".encode())]  # noqa: S608 - a constant of ours
        except pg.UndefinedTable as error:  # the catalog has just shown it: without USAGE its schema is passed over
            raise self.translate(pg.InsufficientPrivilege()) from error
        except pg.Error as error:
            raise self.translate(error) from error
        if not found:
            raise errors.StoreDamaged(
                self.display, f"nothing in {schema.VERSION_TABLE} says which revision its tables have",
                "they were left as they are; restore a back-up, or name another database",
            )  # fmt: skip
        if len(found) > 1 or found[0] not in schema.REVISIONS:
            raise errors.StoreNewer(self.display, found=", ".join(sorted(found)), known=schema.HEAD)
        return str(found[0])

    # Its hstore type would be looked up on every connection, and is not ours.
    engine_arguments: Final[tuple[str, dict[str, Any]]] = ("postgresql+psycopg://", {"use_native_hstore": False})

    @contextlib.contextmanager
    def upgrading(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Nothing to prepare: all DDL is transactional here."""
        yield

    def beat_is_old(self, connection: psycopg.Connection[Any], beat_at: str) -> bool:
        """Whether a beat, timed by this very server, is two leases old by its clock."""
        row = connection.execute("SELECT clock_timestamp() - %s::timestamptz > interval '60 s'", (beat_at,)).fetchone()
        return row is not None and bool(row[0])

    def lock_schema(self, connection: psycopg.Connection[Any]) -> None:
        """One upgrade at a time, whichever host it comes from; and the schema itself, when it is missing.

        Raises:
            StoreUnavailable: the database cannot hold every text; nothing was made in it.
        """
        self._refuse_encoding(connection)
        Tx(connection, self.dialect).lock(f"schema {schema.PG_SCHEMA}")
        if not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema.PG_SCHEMA,)).fetchone():
            connection.execute(f"CREATE SCHEMA {schema.PG_SCHEMA}".encode())

    #: For run.transaction, before and after its function. The names in its statements mean what they mean to the user
    #: in any program; then nothing that it set, made for this session or became may reach statements of ours.
    lending: Final = (
        "SELECT set_config('search_path', concat_ws(', ', nullif(reset_val, ''), "
        "current_setting('search_path')), true) FROM pg_settings WHERE name = 'search_path'",
        f"RESET SESSION AUTHORIZATION; RESET ALL; DISCARD TEMP; {_SETTINGS}",
    )

    # -- transactions --------------------------------------------------------------------------------------------

    def set_durability(self, execute: Any, full: bool) -> None:
        """Nothing: each transaction says its own, and a full commit is durable before anybody sees it."""

    def forget_durability(self) -> None:
        """Nothing."""

    sync = sync_seen = forget_durability

    def begin(self, connection: psycopg.Connection[Any], execute: Any) -> None:
        """BEGIN; the locks come with the statements."""
        execute("BEGIN")

    def write(self, tx: Tx, operation: Callable[..., T], arguments: tuple[Any, ...], full: int) -> T:
        """One whole transaction; it begins at its first statement: some need no more, and are their own transaction."""
        tx.begin_later("BEGIN", relaxed=not full)
        value = operation(tx, *arguments)
        faults.at("before-commit")
        self.commit(tx)
        return value

    def begin_snapshot(self, execute: Any) -> None:
        """One unchanging state for several reads."""
        execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def commit(self, tx: Tx) -> None:
        """COMMIT. When its answer does not come, look whether it happened: the transaction's last event tells.

        Returning means committed. A transaction without an event is harmless to execute again.
        """
        if not tx.begun:
            return
        mark = tx.mark
        try:
            tx.cursor.execute("COMMIT")
        except pg.Error as error:
            if mark is None or not tx.connection.closed or not passes(error, reached=self._reached):
                raise
            if not self._settled(mark):
                raise

    def _settled(self, mark: tuple[int, int, int, str]) -> bool:
        try:
            return self.persist(lambda: self._happened(mark))
        except (pg.Error, errors.StoreError) as trouble:
            why = f"the connection broke during a COMMIT, and whether it happened cannot be seen ({trouble})"
        # Without a cause that persist() knows: to execute the operation again now would be blind.
        raise errors.StoreUnavailable(self.display, why)

    def _happened(self, mark: tuple[int, int, int, str]) -> bool:
        """Whether the transaction that wrote this event was committed; it is over when this returns.

        The event's number in the table is given once by a running server; a crashed one may give it again, but never
        with the same time of writing.
        """
        old = self._backend
        with contextlib.closing(self.plain()) as connection:
            # The server may not have noticed yet that we are gone, and be in the middle of that COMMIT.
            if old is not None:
                self._end_backend(connection, old)
            id, run, seq, ts = mark
            connection.execute("BEGIN")
            connection.execute("SELECT 1 FROM runs WHERE seq = %s FOR UPDATE", (run,))
            found = connection.execute(
                "SELECT 1 FROM events WHERE id = %s AND run_id = %s AND seq = %s AND ts = %s", (id, run, seq, ts)
            ).fetchone()
            connection.execute("ROLLBACK")
            return found is not None

    def _end_backend(self, connection: psycopg.Connection[Any], backend: tuple[int, str]) -> None:
        deadline = clock.monotonic() + LOCK_LIMIT
        while connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_start::text = %s",
            backend,
        ).fetchone():
            if clock.monotonic() > deadline:
                raise errors.StoreUnavailable(
                    self.display, "the connection broke, and whether the last write was stored is not known yet"
                )
            clock.sleep(0.02)

    def persist(self, action: Callable[[], T]) -> T:
        """Call ``action``, again after a lost race, and while a server that was reached before does not answer.

        Raises:
            StoreError: in the form that fits, once trying again is of no use.
        """
        lost = 0
        while True:
            try:
                value = action()
            except (pg.Error, errors.StoreError) as error:
                cause = error.__cause__ if isinstance(error, errors.StoreError) else error
                if isinstance(cause, RACES):
                    lost += 1
                    if lost > RACE_LIMIT:
                        raise
                    clock.sleep(jitter.uniform(0.0005, 0.002 * lost))
                elif not (isinstance(cause, pg.Error) and passes(cause, reached=self._reached) and self._patient()):
                    raise
            else:
                self._silent_since = None
                return value

    def _patient(self) -> bool:
        now = clock.monotonic()
        if self._silent_since is None:
            self._silent_since = now
            return True  # at once: often only this connection is broken, and the server is there
        silent = now - self._silent_since
        if silent > OUTAGE_LIMIT:
            return False
        clock.sleep(jitter.uniform(0.02, min(0.5, 0.05 + silent / 8)))
        return True

    def in_transaction(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether a transaction is open, a failed one included."""
        return connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)

    def intact(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether the transaction can go on; an error of the server ends it."""
        return connection.info.transaction_status == TransactionStatus.INTRANS

    def take_back(self, connection: psycopg.Connection[Any]) -> None:
        """Nothing: what was forbidden is known to the cursors that were lent."""

    def usable(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether the connection can go on after an error."""
        return connection.info.transaction_status == TransactionStatus.IDLE

    def committed(self, *_: object) -> None:
        """Nothing: the server looks after its own log."""

    def is_busy(self, error: BaseException) -> bool:
        """Reading is never busy here."""
        return False

    def retry_busy(self, action: Callable[[], T], why: str) -> T:
        """Never needed, since nothing is busy."""
        return action()

    def closing(self) -> None:
        """Close the connection that listens for news, when there is one; it is opened again at the next wait."""
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.close()

    def translate(self, error: BaseException) -> BaseException:
        """Our typed error for one of the driver's; anything else unchanged."""
        return translate(error, self.display)

    #: Whether a COMMIT failed by what the database's user put up.
    is_refusal = staticmethod(is_refusal)

    def blame_the_schema(self, error: BaseException) -> BaseException:
        """Nothing more: the server says itself what is missing."""
        return error
