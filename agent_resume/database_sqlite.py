"""Opening one SQLite file, and what SQLite's errors mean.

Rules taken from SQLite's documentation: ``PRAGMA journal_mode`` ignores the busy timeout and answers with the mode
really in force (pragma.html#pragma_journal_mode); ``synchronous`` cannot change inside a transaction
(pragma.html#pragma_synchronous); an ``immutable=1`` file is read without locks and without a ``-wal`` (uri.html).
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from . import clock, errors, faults, schema
from .clock import jitter
from .database_location import DEFAULT_FOLDER, Location, make_folders, size_of
from .database_sql import Dialect
from .database_sql_file import FileTx
from .database_sqlite_errors import blame_the_schema, primary_code, translate
from .database_sqlite_files import OpenFiles
from .database_sqlite_log import OWN_CHECKPOINTS, Log
from .durability import ALWAYS, HEARD

if TYPE_CHECKING:
    from .database_sql import Tx

T = TypeVar("T")

#: Longest wait for another writer, in s.
BUSY_LIMIT: Final = 30.0
#: A usual transaction holds the lock for some 0.1 ms: so often the next try comes as soon as the system lets it.
SHORT_WAITS: Final = 10

_OLDEST: Final = (3, 35, 0)
#: No database is smaller, in bytes: its first page is at least this (fileformat2.html#page_size).
_SMALLEST: Final = 512


class SqliteDriver:
    """How one SQLite file is created, opened, locked and understood."""

    name: Final = "sqlite"
    transaction_type: Final = FileTx
    #: Nothing is tried again: who has the lock races with nobody, and a file does not go away for a while.
    persist: Final = None

    def __init__(self, location: Location) -> None:
        self.path = location.target
        self.display = location.display
        self.dialect = Dialect(self.name)
        self._files = OpenFiles(self.path, self.display)
        self.check_in_place = self._files.check
        self._log = Log(self.path, self.display)
        self.sync, self.sync_seen, self.committed = self._log.sync, self._log.sync_seen, self._log.committed
        self._full: bool | None = None

    # -- the file ------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether there is a file with anything in it.

        Raises:
            StoreDamaged: what is there is neither a file nor a folder; SQLite would wait for ever for a pipe's writer.
        """
        try:
            about = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise errors.StoreUnavailable(self.display, str(error.strerror)) from error
        if not (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)):
            raise errors.StoreDamaged(self.display, "no file but a pipe, a socket or a device")
        return about.st_size > 0

    def is_blank(self) -> bool:
        """Whether the file has no tables: another process may be about to make them."""
        try:
            connection = self.plain("ro")
        except errors.StoreError:
            return False  # opening it says properly what is wrong
        try:
            return self.revision(connection) is None
        except errors.StoreError:
            return False
        finally:
            connection.close()

    def create(self) -> None:
        """Make the file (0600) and its missing folders (0700); both only when missing."""
        if sqlite3.sqlite_version_info < _OLDEST:
            wanted = ".".join(map(str, _OLDEST))
            raise errors.StoreUnavailable(
                self.display,
                f"this Python links SQLite {sqlite3.sqlite_version}, older than {wanted}",
                "use a Python with a newer SQLite",
            )
        folder = Path(self.path).parent
        self.exists()  # whatever cannot be opened as a file is refused
        self.check_in_place()  # a store that was open before is not made anew
        try:
            made = make_folders(folder)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            if made and folder.name == DEFAULT_FOLDER:
                (folder / ".gitignore").write_text("*\n", encoding="utf-8")
        except OSError as error:
            raise self._os_error(error) from error

    def _os_error(self, error: OSError) -> errors.StoreError:
        why = error.strerror or str(error)
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return errors.StoreReadOnly(self.display, f"cannot be created ({why})")
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return errors.StoreFull(self.display, why)
        return errors.StoreUnavailable(self.display, f"cannot be created ({why})")

    def remember_identity(self) -> None:
        """Note which file was opened, so that ``check_in_place`` can tell when it is another one.

        Raises:
            StoreMoved: this store has been open before, with another file in its place.
            StoreError: it is not there any more, or a link that leads nowhere.
        """
        try:
            self._files.remember()
        except OSError as error:
            raise self._os_error(error) from error

    # -- connections ---------------------------------------------------------------------------------------------

    def plain(self, mode: str = "rw") -> sqlite3.Connection:
        """A connection without any pragma, for the first look. ``mode`` is SQLite's URI mode, or ``immutable``."""
        if mode == "ro" and not os.access(self.path, os.W_OK) and not os.path.exists(f"{self.path}-wal"):
            # Opened read-only, a file that may not be written gets a log and an index of its own mode, which then stay and
            # keep every later writer out. With no log there is nobody who writes.
            mode = "immutable"
        query = "immutable=1" if mode == "immutable" else f"mode={mode}"
        uri = f"file:{quote(os.fsencode(self.path))}?{query}"
        try:
            # Ours is the autocommit mode: every BEGIN is explicit.
            return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=0)
        except sqlite3.Error as error:
            raise self.translate(error) from error

    def revision(self, connection: sqlite3.Connection) -> str | None:
        """The schema revision, or None in an empty database.

        Raises:
            StoreDamaged: not a database, or another program's.
            StoreNewer: a revision that this version does not know.
        """
        try:
            ((mark,),) = self._look(connection, "PRAGMA application_id")
            names = {name for (name,) in self._look(connection, "SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not names and mark == 0:
                if 0 < size_of(self.path) < _SMALLEST:  # SQLite takes one stray byte for an empty database
                    raise errors.StoreDamaged(self.display, "not a SQLite database")
                return None
            if schema.VERSION_TABLE not in names or mark not in (0, schema.APPLICATION_ID):
                raise errors.StoreDamaged(self.display, "a SQLite database of another program")
            found = [row[0] for row in self._look(connection, f"SELECT version_num FROM {schema.VERSION_TABLE}")]  # noqa: S608 - a constant of ours
        except sqlite3.Error as error:
            raise self.translate(error) from error
        if not found:
            raise errors.StoreDamaged(self.display, "its schema revision is missing")
        if len(found) > 1 or found[0] not in schema.REVISIONS:
            raise errors.StoreNewer(self.display, found=", ".join(sorted(found)), known=schema.HEAD)
        return str(found[0])

    def _look(self, connection: sqlite3.Connection, text: str) -> list[Any]:
        # Also reading is busy for a moment: while another process switches to WAL, recovers a log or closes as the last.
        found: list[Any] = self.retry_busy(lambda: connection.execute(text).fetchall(), "it is being opened or closed")
        return found

    def _recognise(self, connection: sqlite3.Connection, *, learn: bool = False) -> None:
        try:
            ((mark,),) = self._look(connection, "PRAGMA user_version")
            self._files.recognise(mark, learn=learn)
        except sqlite3.Error as error:
            connection.close()
            raise self.translate(error) from error
        except errors.StoreMoved:
            connection.close()
            raise

    def is_busy(self, error: BaseException) -> bool:
        """Whether a reading operation that failed this way succeeds when it is tried again."""
        return isinstance(error, sqlite3.OperationalError) and primary_code(error) == sqlite3.SQLITE_BUSY

    def prepare(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Set what every connection of ours needs; the reason stands beside each."""
        try:
            self._switch_to_wal(connection)
            for pragma in (
                "synchronous=FULL",  # an acknowledged step survives a power cut
                "foreign_keys=ON",  # off by default in SQLite
                "busy_timeout=0",  # SQLite's own waiting starves writers and is deaf to Ctrl-C; ours is in begin()
                "trusted_schema=OFF",  # a file from elsewhere runs no functions from its schema
                "mmap_size=0",  # an I/O error must be an error, not a SIGBUS
                f"wal_autocheckpoint={0 if OWN_CHECKPOINTS else 1000}",
            ):
                connection.execute(f"PRAGMA {pragma}").close()
        except sqlite3.Error as error:
            raise self.translate(error) from error
        return connection

    def _switch_to_wal(self, connection: sqlite3.Connection) -> None:
        def switch() -> str:
            return str(connection.execute("PRAGMA journal_mode=WAL").fetchone()[0])

        mode = self.retry_busy(switch, "the switch to WAL")
        if mode != "wal":
            raise errors.StoreUnavailable(
                self.display,
                f"this file system cannot do write-ahead logging (SQLite answered {mode!r})",
                "put the store on a local disk: AGENT_RESUME_DB=/local/folder/runs.db, db= or --db",
            )

    def connect(self, *, write: bool) -> sqlite3.Connection:
        """A prepared connection; a reading one refuses to write."""
        connection = self.plain()
        try:
            self._recognise(connection, learn=True)
            self.prepare(connection)
            if not write:
                connection.execute("PRAGMA query_only=ON").close()
        except BaseException:
            connection.close()
            raise
        if write:
            self._full = True
            self._log.attach(self._files.remember_log())
        return connection

    def connect_reading(self) -> sqlite3.Connection:
        """A reading connection that works on files and in folders one may not write.

        Raises:
            StoreReadOnly: a log is pending and the folder is not writable, so the last writes cannot be seen.
        """
        connection = self.plain("ro")
        try:
            self._look(connection, "SELECT count(*) FROM sqlite_master")
        except sqlite3.OperationalError as error:
            connection.close()
            if primary_code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR):
                raise self.translate(error) from error
            if size_of(f"{self.path}-wal"):
                raise errors.StoreReadOnly(
                    self.display, "its folder is not writable, and reading the pending -wal file needs that"
                ) from error
            connection = self.plain("immutable")
        except BaseException as error:
            connection.close()
            translated = self.translate(error)
            if translated is error:
                raise
            raise translated from error
        self._recognise(connection)
        for pragma in ("query_only=ON", "trusted_schema=OFF", "mmap_size=0"):
            connection.execute(f"PRAGMA {pragma}").close()
        return connection

    #: Nothing is said around the function of run.transaction.
    lending: Final = None
    engine_arguments: Final[tuple[str, dict[str, Any]]] = ("sqlite+pysqlite://", {})

    @contextlib.contextmanager
    def upgrading(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Around an upgrade: inside a transaction this pragma does nothing, and a rebuild would empty child tables."""
        connection.execute("PRAGMA foreign_keys=OFF").close()
        try:
            yield
        finally:
            connection.execute("PRAGMA foreign_keys=ON").close()

    def beat_is_old(self, connection: sqlite3.Connection, beat_at: str) -> bool:
        """Unknown: the clock that wrote it may be another boot's."""
        return False

    def lock_schema(self, connection: sqlite3.Connection) -> None:
        """Nothing: ``begin`` holds the whole file."""

    # -- transactions --------------------------------------------------------------------------------------------

    def set_durability(self, execute: Any, full: bool) -> None:
        """Choose the sync level of the next transaction; inside one it would be an error."""
        if self._full is not full:
            self._full = None
            execute("PRAGMA synchronous=FULL" if full else "PRAGMA synchronous=NORMAL")
            self._full = full

    def forget_durability(self) -> None:
        """After an exception the level counts as unknown."""
        self._full = None

    def begin(self, connection: sqlite3.Connection, execute: Any) -> None:
        """BEGIN IMMEDIATE, waiting our way for other writers."""
        try:
            execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY:
                raise
            self.retry_busy(lambda: execute("BEGIN IMMEDIATE"), "another writer holds it")

    def begin_snapshot(self, execute: Any) -> None:
        """One unchanging state for several reads."""
        execute("BEGIN")
        # A deferred BEGIN takes nothing yet; the first read does.
        self.retry_busy(lambda: execute("SELECT 1 FROM sqlite_master").fetchone(), "it is being opened or closed")

    def retry_busy(self, action: Any, why: str) -> Any:
        """Call ``action`` until it is not busy any more: a few shortest sleeps, then 0.2–1 ms, after a second up to 20 ms.

        Raises:
            StoreBusy: still busy after ``BUSY_LIMIT``.
        """
        start, short = clock.monotonic(), SHORT_WAITS
        while True:
            try:
                return action()
            except sqlite3.OperationalError as error:
                if primary_code(error) != sqlite3.SQLITE_BUSY:
                    raise
                if short:
                    short -= 1
                    clock.sleep(0.00001)
                    continue
                waited = clock.monotonic() - start
                if waited > BUSY_LIMIT:
                    holder = self._files.holder()
                    raise errors.StoreBusy(self.display, seconds=waited, holder=holder, why=why) from None
            span = 0.001 if waited < 1 else min(0.02, 0.001 * waited * 4)
            clock.sleep(jitter.uniform(span / 5, span))

    def write(self, tx: Tx, operation: Callable[..., T], arguments: tuple[Any, ...], full: int) -> T:
        """One whole transaction of that durability; in ``HEARD`` its caller calls ``sync`` before anybody hears of it."""
        execute, log = tx.cursor.execute, self._log
        within = full == ALWAYS or (full == HEARD and not log.open)
        if self._full is not within:
            self.set_durability(execute, within)
        if log.torn:
            log.mend(tx.connection)
        self.begin(tx.connection, execute)
        value = operation(tx, *arguments)
        faults.at("before-commit")
        execute("COMMIT")
        if full == HEARD and not within:
            log.owe()
        return value

    def commit(self, tx: Tx) -> None:
        """COMMIT; a file gives an answer, whatever it is."""
        tx.cursor.execute("COMMIT")

    def intact(self, connection: sqlite3.Connection) -> bool:
        """Whether the transaction can go on after an error in it."""
        return connection.in_transaction

    def in_transaction(self, connection: sqlite3.Connection) -> bool:
        """Whether a transaction is open; SQLite ends it by itself after some errors."""
        return connection.in_transaction

    def take_back(self, connection: sqlite3.Connection) -> None:
        """End what was forbidden on a connection that was lent: an interrupt may have come in before that."""
        connection.set_authorizer(None)

    def usable(self, connection: sqlite3.Connection) -> bool:
        """Whether the connection can go on after an error, when everything was rolled back."""
        try:
            return not connection.in_transaction
        except sqlite3.ProgrammingError:  # it is closed
            return False

    def closing(self) -> None:
        """Every connection is about to be closed."""
        self._log.detach()
        self._files.forget_log()  # SQLite deletes it with the last connection

    def translate(self, error: BaseException) -> BaseException:
        """Our typed error for one of the driver's; anything else unchanged."""
        return translate(error, self.path, self.display)

    def is_refusal(self, error: BaseException) -> bool:
        """Whether a COMMIT failed by what the database's user put up: a foreign key that waited for it."""
        return isinstance(error, sqlite3.IntegrityError)

    def blame_the_schema(self, error: BaseException) -> BaseException:
        """The same for an error that a statement of our own cannot cause."""
        return blame_the_schema(error, self.display)
