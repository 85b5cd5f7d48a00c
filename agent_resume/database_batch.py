"""The batch door: operations of coroutines and workers queue up, and one thread commits all that is queued at once.

Operations never run user code and may be executed again; they leave the queue only after COMMIT.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from .database_sql import Tx

#: Most operations in one transaction, so that one commit never holds the write lock for long.
BATCH_LIMIT = 512


@dataclass(slots=True)
class Queued:
    """One operation, and where its outcome goes.

    ``settle`` is called with the outcome in the door's thread, unless ``loop`` is set: then once a batch and loop, in
    that loop.
    """

    operation: Callable[..., Any]
    arguments: tuple[Any, ...]
    full: bool
    settle: Callable[[Any, BaseException | None], None]
    loop: asyncio.AbstractEventLoop | None = None
    value: Any = field(default=None, init=False)
    error: BaseException | None = field(default=None, init=False)

    def deliver(self) -> None:
        """Hand the outcome over."""
        self.settle(self.value, self.error)


class BatchDoor:
    """A queue with one daemon thread, started with the first operation.

    Args:
        direct: runs one operation in a transaction of its own and returns its value (the direct door).
        intact: after an error inside a transaction, whether the transaction is still open.
    """

    def __init__(
        self,
        direct: Callable[..., Any],
        intact: Callable[[Tx], bool],
    ) -> None:
        self._direct = direct
        self._intact = intact
        self._queue: deque[Queued] = deque()
        self._wake = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._closing = False
        self.idle = threading.Event()
        self.idle.set()

    def submit(self, operation: Callable[..., Any], *arguments: Any, full: bool = True) -> Future[Any]:
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

    def put(self, item: Queued) -> None:
        """Queue an operation that knows where its outcome goes."""
        with self._wake:
            if self._closing:
                raise RuntimeError("the store is closed; open it again")
            self._queue.append(item)
            self.idle.clear()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="agent-resume-commits", daemon=True)
                self._thread.start()
            self._wake.notify()

    def close(self) -> None:
        """Commit what is queued, then end the thread."""
        with self._wake:
            self._closing = True
            thread = self._thread
            self._wake.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._queue:
                    self.idle.set()
                    if self._closing:
                        return
                    self._wake.wait()
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_LIMIT))]
            self._commit(batch)
            _deliver(batch)

    def _commit(self, batch: list[Queued]) -> None:
        if len(batch) > 1:
            try:
                self._direct(self._all, batch, full=any(item.full for item in batch))
                return
            except BaseException:  # noqa: BLE001 - nothing of the batch was committed: each is tried by itself below
                for item in batch:
                    item.value = item.error = None
        for item in batch:
            try:
                item.value = self._direct(item.operation, *item.arguments, full=item.full)
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever queued the operation
                item.error = error

    def _all(self, tx: Tx, batch: list[Queued]) -> None:
        for item in batch:
            tx.cursor.execute("SAVEPOINT one")
            try:
                item.value = item.operation(tx, *item.arguments)
            except Exception as error:
                # Disk full and I/O errors end the whole transaction; going on would write in autocommit mode.
                if not self._intact(tx):
                    raise
                tx.cursor.execute("ROLLBACK TO one")
                item.error = error
            tx.cursor.execute("RELEASE one")


def _deliver(batch: list[Queued]) -> None:
    loops: dict[asyncio.AbstractEventLoop, list[Queued]] = {}
    for item in batch:
        if item.loop is None:
            item.deliver()
        else:
            loops.setdefault(item.loop, []).append(item)
    for loop, items in loops.items():
        try:
            loop.call_soon_threadsafe(_deliver_all, items)
        except RuntimeError:
            continue  # the loop was closed while its operations were queued; they are committed, nobody waits


def _deliver_all(items: list[Queued]) -> None:
    for item in items:
        item.deliver()
