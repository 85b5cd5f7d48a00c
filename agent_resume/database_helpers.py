"""Threads beside the batch door: a few that read and open for coroutines, and one for what takes its time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from .threads import start_thread

#: Threads for what coroutines may not do on their loop: reading, opening.
HELPERS = 4


class Helpers:
    """A few daemon threads that call what may block.

    Not a ThreadPoolExecutor: that one keeps the process alive until its last call has ended, and refuses work once the
    interpreter begins to go down. Not asyncio's default pool either: it can be full of the user's tools.
    """

    def __init__(self, size: int = HELPERS) -> None:
        self._size = size
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0

    def submit(self, fn: Callable[[], Any]) -> Future[Any]:
        """Call ``fn`` on one of the threads.

        Raises:
            RuntimeError: not one thread can be started.
        """
        with self._lock:
            if self._threads < self._size:
                try:
                    start_thread(self._serve, "agent-resume-reads")
                except RuntimeError:
                    if not self._threads:
                        raise
                else:
                    self._threads += 1
        future: Future[Any] = Future()
        self._work.put((future, fn))
        return future

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            fulfil(*item)
            del item  # its value is not kept until the next call

    def close(self) -> None:
        """End the threads once they have called what was submitted; a later ``submit`` starts others."""
        with self._lock:
            threads, self._threads = self._threads, 0
        for _ in range(threads):
            self._work.put(None)


def fulfil(future: Future[Any], fn: Callable[[], Any]) -> None:
    """Call ``fn`` for ``future``, unless that was cancelled before."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        value = fn()
    except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the future
        future.set_exception(error)
    else:
        future.set_result(value)
