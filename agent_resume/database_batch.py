"""The batch door: operations of coroutines and workers queue up, and one thread commits all that is queued at once.

Operations never run user code and may be executed again, since a batch that fails is tried one by one. Whatever
happens to the door's thread, every operation that was queued gets exactly one outcome: nobody waits for ever.
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from . import clock, errors
from .durability import ALWAYS, HEARD, both
from .errors_base import name_store
from .threads import start_thread

if TYPE_CHECKING:
    import asyncio

    from .database_location import Location
    from .database_sql import Tx

log = logging.getLogger("agent_resume")

F = TypeVar("F", bound=Callable[..., Any])
Queue = SimpleQueue["Queued | None"]

#: Most operations in one transaction, so that one commit never holds the write lock for long.
BATCH_LIMIT = 512
#: Outcomes handed over in one turn of an event loop.
TURN = 32
#: Longest wait of a user's thread for the one that starts the door's thread, in s.
STARTING = 0.25


@dataclass(slots=True)
class Queued:
    """One operation, and where its outcome goes.

    ``settle`` is called with the outcome in the door's thread, or, when there is a ``way`` into a loop, in that loop.
    There an interrupt may make it come twice.
    """

    operation: Callable[..., Any]
    arguments: tuple[Any, ...]
    full: int
    settle: Callable[[Any, BaseException | None], None]
    way: Way | None = None
    value: Any = field(default=None, init=False)
    error: BaseException | None = field(default=None, init=False)
    tried: bool = field(default=False, init=False)
    settled: bool = field(default=False, init=False)

    def deliver(self) -> None:
        """Hand the outcome over."""
        self.settle(self.value, self.error)

    def outcome(self) -> Any:
        """The value, or the error is raised."""
        if self.error is not None:
            raise self.error
        return self.value


_put_off: set[Callable[..., Any]] = set()


def puts_off(operation: F) -> F:
    """Mark an operation that may put statements off (``Tx.later``); what all others see has been written before."""
    _put_off.add(operation)
    return operation


class Latch:
    """``threading.Event`` without what makes that slow: it is opened once, from anywhere, and waited for."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self, *_: object) -> None:
        """Let everybody go on who waits, now or later; only once."""
        self._lock.release()

    def wait(self) -> None:
        """Until it is open."""
        with self._lock:
            pass


def _nobody(*_: object) -> None:
    """Whom the outcome of an operation is told that nobody waits for by itself."""


class BatchDoor:
    """A queue with one daemon thread, started with the first operation and again after ``close``.

    Args:
        transact: runs one operation in a transaction of its own and returns its value (``Database.transact``).
        driver: syncs, and knows after an error inside a transaction whether that is still open.
        location: of the store, for messages.
    """

    def __init__(self, transact: Callable[..., Any], driver: Any, location: Location) -> None:
        self._transact, self._driver = transact, driver
        self._location = location
        self._lock = threading.Lock()
        self._queue: Queue = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def ident(self) -> int | None:
        """Number of the door's own thread; None when it does not run."""
        thread = self._thread
        return None if thread is None else thread.ident

    def submit(self, operation: Callable[..., Any], *arguments: Any, full: int = ALWAYS) -> Future[Any]:
        """Queue an operation; its outcome comes in the future."""
        future: Future[Any] = Future()

        def settle(value: Any, error: BaseException | None) -> None:
            if not future.set_running_or_notify_cancel():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)

        self.put(Queued(operation, arguments, full, settle))
        return future

    def perform(self, *writes: tuple[Callable[..., Any], tuple[Any, ...], int], patient: bool = True) -> list[Queued]:
        """Queue operations and wait until all have their outcomes; for threads that no signal interrupts.

        Args:
            writes: operation, arguments, and how long its commit must last (``durability``).
            patient: also wait for others that queue something at this moment. Not for threads of the user's: a finalizer
                may come in while this very thread queues something, and would wait for itself.

        Returns:
            The operations with their outcomes; nothing when they were not queued.
        """
        latch = Latch()
        # In this order they are committed and told, so the last one's outcome is the last.
        queued = [
            Queued(*write, latch.open if number == len(writes) else _nobody) for number, write in enumerate(writes, 1)
        ]
        if patient:
            self.put(*queued)
        elif not self._lock.acquire(timeout=STARTING if self._thread is None else 0):
            return []
        else:
            try:
                self._put(queued)
            finally:
                self._lock.release()
        latch.wait()
        return queued

    def put(self, *items: Queued) -> None:
        """Queue operations that know where their outcomes go; several stay together, whoever closes the store meanwhile.

        Raises:
            StoreUnavailable: no thread can be started (a limit, or the interpreter is going down).
        """
        with self._lock:
            self._put(items)

    def _put(self, items: Iterable[Queued]) -> None:
        if self._thread is None:
            self._start()
        for item in items:
            self._queue.put(item)

    def _start(self) -> None:
        # The queue is the thread's own: one that is ending cannot take what is meant for the next.
        try:
            self._thread = start_thread(self._work, "agent-resume-commits", self._queue)
        except RuntimeError as error:
            raise errors.StoreUnavailable(self._location.display, f"no thread for its commits ({error})") from error
        except BaseException:
            # Ctrl-C: if the thread did begin, it ends, and none waits beside the next one.
            self._queue.put(None)
            self._queue = SimpleQueue()
            raise

    def close(self) -> None:
        """Commit what is queued, then end the thread; the next operation starts another."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._queue.put(None)
                self._queue = SimpleQueue()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _work(self, queue: Queue) -> None:
        while batch := _next(queue):
            try:
                self._commit(batch)
            except BaseException as error:  # the thread must go on, and everybody must hear of it
                log.error("the commits of %s were interrupted", self._location.display, exc_info=error)
                self._give_up(batch)
            try:
                _deliver(batch)
            except BaseException:
                log.exception("outcomes of %s could not be handed over", self._location.display)
            del batch  # its values are not kept until there is a next one

    def _give_up(self, batch: list[Queued]) -> None:
        for item in batch:
            if not item.settled:
                item.error = errors.StoreUnavailable(
                    self._location.display, "its commit was interrupted, so whether this was stored is unknown",
                    "resume the run: it looks what is stored",
                )  # fmt: skip

    def _commit(self, batch: list[Queued]) -> None:
        if len(batch) > 1 and self._commit_together(batch):
            return
        for number, item in enumerate(batch):
            try:
                item.value = self._transact(item.operation, item.arguments, item.full)
            except errors.StoreBusy as error:
                _refuse(batch[number:], error)  # each would wait as long again
                return
            except (Exception, errors.RunCancelled) as error:  # noqa: BLE001 - it belongs to whoever queued the operation
                item.error = error
            item.settled = True

    def _commit_together(self, batch: list[Queued]) -> bool:
        """Commit all in one transaction; False when each is to be tried by itself."""
        full = functools.reduce(both, (item.full for item in batch))
        # A refusal is rare, and savepoints cost as much as the operations: they come in once there was one.
        for operation in (_all, self._all_apart):
            try:
                self._transact(operation, (batch,), full, sync=False)
            except (Exception, errors.RunCancelled) as error:  # noqa: BLE001 - handed to whoever queued the operations
                if not batch[0].tried:
                    # The transaction was never begun (the store is busy, gone, …): trying each would only take longer.
                    _refuse(batch, error)
                    return True
                # It was rolled back as a whole: executed again, each operation has its own true outcome.
                for item in batch:
                    item.value = item.error = None
                if isinstance(error, errors.StoreError) or not isinstance(error, _REFUSALS):
                    return False
            else:
                self._settle(batch, full)
                return True
        return False

    def _settle(self, batch: list[Queued], full: int) -> None:
        """It is committed. What cannot be synced is an error of those that asked for that."""
        trouble = None
        if full == HEARD:
            try:
                self._driver.sync()
            except errors.StoreUnavailable as error:
                trouble = error
        for item in batch:
            if trouble is not None and item.full and item.error is None:
                item.error = _copy(trouble)
            item.settled = True

    def _all_apart(self, tx: Tx, batch: list[Queued]) -> None:
        tx.begin_now()
        execute = tx.cursor.execute
        for item in batch:
            item.tried = True
            execute("SAVEPOINT one")
            try:
                item.value = item.operation(tx, *item.arguments)
            except _REFUSALS as error:
                # A refusal of ours. Errors of the driver end the batch instead: disk full and I/O errors end the
                # whole transaction, and going on would write in autocommit mode.
                if not self._driver.intact(tx.connection):
                    raise
                execute("ROLLBACK TO one")
                name_store(error, self._location.option)
                item.error = error
            execute("RELEASE one")


_REFUSALS = (errors.AgentResumeError, errors.RunCancelled)  #: What an operation refuses with.


def _next(queue: Queue) -> list[Queued] | None:
    """What is queued, once there is something; None at the end of the queue."""
    first = queue.get()
    if first is None:
        return None
    batch = [first]
    # Those whose outcomes the last batch brought are about to queue their next operation: a batch without them is a
    # sync more. It has filled once nobody has anything to add.
    before = -1
    while before < (size := queue.qsize()) < BATCH_LIMIT:
        before = size
        clock.let_others_run()
    for _ in range(min(size, BATCH_LIMIT - 1)):
        item = queue.get()
        if item is None:
            queue.put(None)  # nothing comes behind it: whoever put it has left this queue
            break
        batch.append(item)
    return batch


def _all(tx: Tx, batch: list[Queued]) -> None:
    tx.begin_now()
    tx.later = {}
    for item in batch:
        item.tried = True
        if item.operation not in _put_off:
            tx.run_later()
        item.value = item.operation(tx, *item.arguments)
    tx.run_later()


def _refuse(batch: list[Queued], error: BaseException) -> None:
    """Give ``error`` to operations that were not executed: an object each, since notes and results are put on them."""
    for item in batch:
        item.error = error if item is batch[0] else _copy(error)
        item.settled = True


def _copy(error: BaseException) -> BaseException:
    if not isinstance(error, errors.AgentResumeError):
        return error
    rebuild, arguments = error.__reduce__()
    copy: BaseException = rebuild(*arguments)
    copy.__cause__ = error.__cause__
    return copy


def _deliver(batch: list[Queued]) -> None:
    ways: dict[Way, list[Queued]] = {}
    for item in batch:
        if item.way is None:
            _hand_over(item)
        else:
            ways.setdefault(item.way, []).append(item)
    for way, items in ways.items():
        way.bring(items)


class Way:
    """The way of outcomes into one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._waiting: deque[Queued] = deque()

    def bring(self, items: list[Queued]) -> None:
        """Called in the door's thread."""
        self._waiting.extend(items)
        loop = self._loop()
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self._hand_over_some)
        except RuntimeError:
            self._waiting.clear()  # the loop was closed meanwhile; they are committed, and nobody waits

    def again(self) -> None:
        """Called in the loop: what an interrupt left there is handed over after all."""
        loop = self._loop()
        if self._waiting and loop is not None and not loop.is_closed():
            loop.call_soon(self._hand_over_some)

    def _hand_over_some(self) -> None:
        # A few at a time: each wakes a task, and five hundred of them in one turn of the loop are a gap for all others.
        # Each stays in the queue until it was handed over: Ctrl-C may come in between any two calls.
        try:
            for _ in range(min(TURN, len(self._waiting))):
                _hand_over(self._waiting[0])
                self._waiting.popleft()
        finally:
            self.again()


def _hand_over(item: Queued) -> None:
    try:
        item.deliver()
    except Exception:
        log.exception("an outcome could not be handed over")  # the others still get theirs
