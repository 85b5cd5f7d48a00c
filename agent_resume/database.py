"""One database as a process sees it: its connections, the direct door to writing, reading, and forks.

Every write is one explicit BEGIN IMMEDIATE … COMMIT around one operation: a plain function of a ``Tx``. A process has
one write connection. Synchronous callers take the write lock and run the transaction themselves (no queue, no
hand-over); asynchronous ones, and threads that find the lock taken, go through the batch door, whose thread does the
same for all that is queued.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from . import clock, errors, faults
from .database_batch import BatchDoor, Queued
from .database_drivers import driver_of
from .database_helpers import Helpers
from .database_location import Location
from .database_translation import Translation
from .durability import ALWAYS, HEARD

if TYPE_CHECKING:
    from .database_sql import Tx

P = ParamSpec("P")
T = TypeVar("T")

#: Longest wait of a thread for the run.transactions of its process, in s.
TURN_PATIENCE = 30.0
#: After this long, in s, a run.transaction is not waited for any more; its time is over before (store_transaction).
LENT_PATIENCE = 11.0


class Database:
    """The connections of this process to one store. ``databases`` has one for each."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.display = location.display
        self.driver = driver_of(location)
        self.translation = Translation(self.driver, location.option)
        self._persist: Callable[[Callable[[], Any]], Any] | None = self.driver.persist
        self.users = 0
        self.generation = 0
        self._start_afresh()
        self._forked_badly = False
        self._ready = False
        self._has_tables = False

    def _start_afresh(self) -> None:
        self._lock = threading.RLock()  # a signal handler may come in between any two bytecodes, and write an event
        self._inside: int | None = None
        self._lent = False
        self._lent_at = 0.0
        self._writer: Tx | None = None
        self._readers: list[Tx] = []
        self._reading: dict[int, int] = {}
        self._readers_changed = threading.Condition()
        self.batch = BatchDoor(self.transact, self.driver, self.location)
        self.helpers = Helpers()
        self._closed_for_fork = False

    # -- writing -------------------------------------------------------------------------------------------------

    def direct(self, operation: Callable[..., T], /, *arguments: Any, full: int = ALWAYS) -> T:
        """Run ``operation`` in one transaction of the calling thread.

        Args:
            operation: a function of a ``Tx``; it must not run user code.
            full: how long the commit must last (``durability``).

        Raises:
            StoreError: in the form that fits; nothing was committed then, or its log could not be synced.
        """
        return self.transact(operation, arguments, full)

    def transact(self, operation: Callable[..., T], arguments: tuple[Any, ...], full: int, *, sync: bool = True) -> T:
        """``direct``, with the arguments as they are in an effect.

        Args:
            sync: false when the caller calls ``driver.sync`` before anybody hears of a ``HEARD`` commit.
        """
        me = threading.get_ident()
        if self._inside == me:
            raise errors.StoreBusy(
                self.display, seconds=0.0, why="called from inside one of its own transactions (a signal handler?)"
            )
        clean, lock = False, self._lock
        try:
            if not lock.acquire(False):
                done = None if me == self.batch.ident else self._with_others(operation, arguments, full)
                if done is not None:
                    return done.outcome()  # type: ignore[no-any-return]  # what the operation returned
                self._wait_for_the_lock()
            self._inside = me
            if self._persist is None:
                value: T = self._transaction(operation, arguments, full)
            else:
                value = self._persist(lambda: self._transaction(operation, arguments, full))
            self._inside = None
            lock.release()
            clean = True
            if full == HEARD and sync:
                self.driver.sync()
            return value
        finally:
            if not clean:  # also when an interrupt between two lines left the turn with this thread
                # No call before the release: the next Ctrl-C comes in at a call, and the lock would be kept for ever.
                if self._inside == me:
                    self._inside = None
                try:
                    lock.release()
                except RuntimeError:
                    pass

    def _with_others(self, operation: Callable[..., T], arguments: tuple[Any, ...], full: int) -> Queued | None:
        """In one commit with other threads that find the lock taken; None when that cannot be.

        The main thread stays out: Ctrl-C would take it away from a write that is still to be made.
        """
        if threading.current_thread() is threading.main_thread():
            return None
        try:
            done = self.batch.perform((operation, arguments, full), patient=False)
        except errors.StoreUnavailable:  # no thread can be started any more
            return None
        return done[0] if done else None

    def _wait_for_the_lock(self) -> None:
        # A thread that the function inside run.transaction waits for would wait for that transaction for ever.
        began = clock.monotonic()
        while not self._lock.acquire(True, 0.25):
            now = clock.monotonic()
            # One that outstays its time waits for somebody, and that may be this very thread.
            if self._lent and (now - began > TURN_PATIENCE or now - self._lent_at > LENT_PATIENCE):
                why = "another thread of this process is inside run.transaction"
                raise errors.StoreBusy(self.display, seconds=now - began, why=why)

    def _transaction(self, operation: Callable[..., T], arguments: tuple[Any, ...], full: int) -> T:
        driver, tx = self.driver, self._writer
        if tx is None or driver.in_transaction(tx.connection):
            tx = self._writable()
        else:
            driver.check_in_place()
        try:
            tx.weight, tx.mark, tx.later = 0, None, None
            value: T = driver.write(tx, operation, arguments, full)
        except BaseException as error:  # noqa: BLE001 - translated and raised
            try:
                self._abandon(tx)
            except BaseException:  # another Ctrl-C, before the transaction was ended
                self._abandon(tx)
                raise
            self.translation.reraise(error)
        faults.at("after-commit")
        driver.committed(tx.connection, tx.weight)
        return value

    def _abandon(self, tx: Tx) -> None:
        # Also for KeyboardInterrupt: a transaction left open would lock out every other process. The Ctrl-C after the
        # next may come in between; then the next use of the connection comes here again.
        self.driver.forget_durability()
        with contextlib.suppress(Exception):
            if self.driver.in_transaction(tx.connection):
                self.driver.take_back(tx.connection)
                tx.cursor.execute("ROLLBACK")
        if not self.driver.usable(tx.connection):
            self._writer = None
            with contextlib.suppress(Exception):
                tx.connection.close()

    def _writable(self) -> Tx:
        tx = self._writer
        if tx is not None and self.driver.in_transaction(tx.connection):
            self._abandon(tx)
            tx = self._writer
        if tx is not None:
            self.driver.check_in_place()
            return tx
        if self._forked_badly:
            raise errors.StoreForked(self.display)
        if not self._ready:
            from . import migrate

            migrate.open_for_writing(self.driver)
            self._ready = True
        else:
            self.driver.check_in_place()
        opened: Tx = self.driver.transaction_type(self.driver.connect(write=True), self.driver.dialect)
        self._writer = opened
        return opened

    @contextlib.contextmanager
    def held(self, check: Callable[..., object], /, *arguments: Any) -> Iterator[Tx]:
        """The write connection inside one full transaction, for ``run.transaction`` alone: user code runs in it.

        What that raises comes out as it is; the caller puts ``translation.of_ours`` around statements of ours.

        Args:
            check: the transaction's first operation; until it is over, a broken connection is replaced.
        """
        if self._inside == threading.get_ident():
            raise errors.StoreBusy(self.display, seconds=0.0, why="called from inside one of its own transactions")
        with self._lock:
            self._inside = threading.get_ident()
            self._lent, self._lent_at = True, clock.monotonic()
            try:
                begin = self._begin_held
                tx = (
                    begin(check, arguments) if self._persist is None else self._persist(lambda: begin(check, arguments))
                )
                try:
                    yield tx
                    faults.at("before-commit")
                    with self.translation.of_ours(commit=True):
                        self.driver.commit(tx)
                except BaseException:
                    self._abandon(tx)
                    raise
                self.driver.committed(tx.connection, 1 << 20)
            finally:
                self._lent = False
                self._inside = None

    def _begin_held(self, check: Callable[..., object], arguments: tuple[Any, ...]) -> Tx:
        tx = self._writable()
        try:
            tx.mark = tx.later = None
            self.driver.set_durability(tx.cursor.execute, True)
            self.driver.begin(tx.connection, tx.cursor.execute)
            check(tx, *arguments)
        except BaseException as error:  # noqa: BLE001 - translated and raised
            self._abandon(tx)
            self.translation.reraise(error)
        return tx

    def ensure_writable(self) -> None:
        """Open for writing now, so that a store that cannot be used is known before any step function is called."""
        self.direct(lambda _: None)

    # -- reading -------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether there is anything to read; a file that is just being made is there once its tables are."""
        if not self.driver.exists():
            return False
        if not (self._ready or self._has_tables):
            self._has_tables = not self.driver.is_blank()
            return self._has_tables
        return True

    def read(self, operation: Callable[Concatenate[Tx, P], T], /, *arguments: P.args, **named: P.kwargs) -> T:
        """Run an operation that only reads; each of its statements sees the newest committed state."""
        if self._persist is None:
            return self._read(operation, arguments, named)
        return self._persist(lambda: self._read(operation, arguments, named))  # type: ignore[no-any-return]  # what the operation returns

    def _read(self, operation: Callable[..., T], arguments: tuple[Any, ...], named: dict[str, Any]) -> T:
        with self._reader() as tx:
            try:
                return operation(tx, *arguments, **named)
            except Exception as error:
                if not self.driver.is_busy(error):
                    raise
            return self.driver.retry_busy(lambda: operation(tx, *arguments, **named), "it is being opened or closed")  # type: ignore[no-any-return]  # what the operation returns

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Tx]:
        """Several statements on one unchanging state; for code of ours only, since it keeps the log from resetting."""
        with self._reader() as tx:
            self.driver.begin_snapshot(tx.cursor.execute)
            try:
                yield tx
            finally:
                with contextlib.suppress(Exception):
                    tx.cursor.execute("ROLLBACK")

    @contextlib.contextmanager
    def _reader(self) -> Iterator[Tx]:
        tx = self._borrow()
        healthy = False
        try:
            yield tx
            healthy = True
        except BaseException as error:  # noqa: BLE001 - translated and raised
            self.translation.reraise(error)
        finally:
            self._give_back(tx, healthy)

    def _borrow(self) -> Tx:
        if self._forked_badly:
            raise errors.StoreForked(self.display)
        me = threading.get_ident()
        with self._readers_changed:
            self._reading[me] = self._reading.get(me, 0) + 1
            if self._readers:
                return self._readers.pop()
        try:
            made: Tx = self.driver.transaction_type(self._connect_reader(), self.driver.dialect, reading=True)
        except BaseException:
            self._settle_reader(me)
            raise
        return made

    def _connect_reader(self) -> Any:
        if self._ready:
            self.driver.check_in_place()
            return self.driver.connect(write=False)
        from . import migrate

        return migrate.open_for_reading(self.driver)

    def _give_back(self, tx: Tx, healthy: bool) -> None:
        with self._readers_changed:
            # Nobody closes what is kept for a store that was given back meanwhile.
            if healthy and self.users and len(self._readers) < 8:
                self._readers.append(tx)
                tx = None  # type: ignore[assignment]  # kept; nothing to close
            elif not self.driver.usable(tx.connection):
                while self._readers:  # a broken line: the idle ones are broken too
                    self._readers.pop().connection.close()
        if tx is not None:
            with contextlib.suppress(Exception):
                tx.connection.close()
        self._settle_reader(threading.get_ident())

    def _settle_reader(self, me: int) -> None:
        with self._readers_changed:
            left = self._reading[me] - 1
            if left:
                self._reading[me] = left
            else:
                del self._reading[me]
            self._readers_changed.notify_all()

    # -- lifetime ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit what is queued and close every connection; the next use opens afresh."""
        self.batch.close()
        self.helpers.close()
        with self._lock, self._readers_changed:
            self._close_held()
            self._ready = False

    def _close_held(self) -> None:
        self.driver.closing()
        while self._readers:
            self._readers.pop().connection.close()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.connection.close()

    # -- forks ---------------------------------------------------------------------------------------------------
    # A child's own new connection would share SQLite's inherited table of locks, and when the parent closed its last
    # connection the log would be deleted under the child. So nothing is open across a fork.

    def before_fork(self, deadline: float) -> None:
        """Take both doors and close every connection, unless its turn does not come in time."""
        me = threading.get_ident()
        if self._inside == me or me in self._reading:
            return
        try:
            if self._lock.acquire(timeout=max(0.0, deadline - clock.monotonic())):
                # Held until after the fork, so that no reader begins in between.
                self._readers_changed.acquire()
                patience = max(0.0, deadline - clock.monotonic())
                if self._readers_changed.wait_for(lambda: not self._reading, timeout=patience):
                    self._close_held()
                    self._closed_for_fork = True
        finally:
            if not self._closed_for_fork:
                self._open_doors()

    def _open_doors(self) -> None:
        # An interrupt may have come before either was had.
        with contextlib.suppress(RuntimeError):
            self._readers_changed.release()
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    def after_fork_in_parent(self) -> None:
        """Go on; connections are opened again at the next use."""
        if self._closed_for_fork:
            self._closed_for_fork = False
            self._open_doors()

    def after_fork_in_child(self) -> None:
        """Begin anew, or refuse for ever when the parent's connections could not be closed."""
        self._forked_badly = not self._closed_for_fork
        self._start_afresh()
        self.generation += 1
