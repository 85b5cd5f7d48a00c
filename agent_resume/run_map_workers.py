"""The threads of ``run.map``: each drives the steps of items, and writes through the batch door."""

from __future__ import annotations

import contextvars
import os
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import run_calls, store_steps
from .run_effects import Write
from .threads import start_thread

if TYPE_CHECKING:
    from .run_map import MapCore, Slot


_COMPLETE = store_steps.complete


class Item:
    """One item's step in a worker: everything is done but its writes, which the worker performs.

    Attributes:
        write: what is to be written next; None once the item has its outcome.
    """

    __slots__ = ("_context", "_flow", "_mapping", "_slot", "write")

    def __init__(self, mapping: MapCore, context: contextvars.Context, slot: Slot) -> None:
        self._mapping = mapping
        self._context = context
        self._slot = slot
        self.write: Write | None = None
        if mapping.stopped:
            slot.done.open()  # handed out before the failure, not begun
            return
        self._flow = mapping.flow(slot)
        self.go_on(None, None)

    @property
    def wanted(self) -> tuple[Callable[..., Any], tuple[Any, ...], int]:
        """The write, as the batch door wants it."""
        assert self.write is not None  # the worker looks first
        return self.write.operation, self.write.arguments, self.write.full

    def go_on(self, value: Any, error: BaseException | None) -> None:
        """Go on to the next write, or to the end."""
        store = self._mapping.core.store
        try:
            self.write, result = self._context.run(run_calls.advance, self._flow, store, value, error)
        except BaseException as raised:  # noqa: BLE001 - it is raised where the outcomes are collected
            self.write = None
            self._mapping.ended(self._slot, None, raised)
        else:
            if self.write is None:
                self._mapping.ended(self._slot, result, None)
        if self.write is None:
            self._slot.done.open()


class Workers:
    """Daemon threads that drive the steps of items; as many as are needed, at most ``concurrency``."""

    def __init__(self, mapping: MapCore) -> None:
        self._mapping = mapping
        self._tasks: queue.SimpleQueue[tuple[contextvars.Context, Slot] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.pid = os.getpid()

    def submit(self, context: contextvars.Context, slot: Slot) -> None:
        """Let a worker do an item, in a copy of the caller's context."""
        self._tasks.put((context.copy(), slot))
        if len(self._threads) < self._mapping.wanted.concurrency:
            self._threads.append(start_thread(self._work, "agent-resume-map"))

    def _work(self) -> None:
        item = None
        while (item := item or self._next()) is not None:
            item = self._go_on(item) if item.write is not None else None

    def _next(self) -> Item | None:
        task = self._tasks.get()
        return None if task is None else Item(self._mapping, *task)

    def _go_on(self, item: Item) -> Item | None:
        """Write what an item wants written, and go on with it; the one to go on with next."""
        # What completes an item goes in one commit with what begins the next one.
        following = self._following() if item.write is not None and item.write.operation is _COMPLETE else None
        if following is None:
            self._write(item)
            return item
        self._write(item, following)
        while item.write is not None:  # it could not be completed, and has more to write
            self._write(item)
        return following

    def _following(self) -> Item | None:
        try:
            task = self._tasks.get_nowait()
        except queue.Empty:
            return None
        if task is None:
            self._tasks.put(None)  # one for each worker: this one comes to it later
            return None
        item = Item(self._mapping, *task)
        return item if item.write is not None else None

    def _write(self, *items: Item) -> None:
        try:
            outcomes = self._mapping.core.store.database.batch.perform(*(item.wanted for item in items))
        except BaseException as error:  # noqa: BLE001 - no thread for the commits; each item must hear of it
            for item in items:
                item.go_on(None, error)
            return
        for item, outcome in zip(items, outcomes, strict=True):
            item.go_on(outcome.value, outcome.error)

    def end(self, *, wait: bool) -> None:
        """Let the workers go once what is in flight has ended."""
        for _ in self._threads:
            self._tasks.put(None)
        if wait and os.getpid() == self.pid:
            for thread in self._threads:
                thread.join()
