"""``AsyncRun.map``: a task an item. What is decided is decided in ``run_map.py``."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any

from . import aio_calls, run_flows
from .run_core import RunCore
from .run_map import MOST_SKIPS, MapCore, MapOutcome, Slot, Wanted
from .run_map_bar import Bar

#: The loop gets its turn after so many items that needed no waiting.
TURN = 64

Tasks = dict[Slot, asyncio.Task[None]]


async def outcomes(
    core: RunCore, wanted: Wanted, items: Iterable[Any] | AsyncIterable[Any]
) -> AsyncIterator[MapOutcome]:
    """The outcomes, in the order of the items; work begins with the first ``anext``."""
    mapping = MapCore(core, wanted)
    await aio_calls.drive(core.store, mapping.begin_flow())
    tasks: Tasks = {}
    bar = Bar(core, wanted.name, items)
    if bar.wanted:
        await aio_calls.in_own_thread(importlib.import_module, "rich.progress")  # reads files, so not on the loop
    try:
        with bar:
            async for outcome in _collect(mapping, tasks, _each(items)):
                bar.advance()
                yield outcome
    except asyncio.CancelledError:
        for task in tasks.values():
            task.cancel()
        raise
    finally:
        mapping.stopped = True
        await _outlast(tasks)


async def _each(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
        return
    for number, item in enumerate(items):
        if number % TURN == 0:
            await asyncio.sleep(0)
        yield item


async def _collect(mapping: MapCore, tasks: Tasks, items: AsyncIterator[Any]) -> AsyncIterator[MapOutcome]:
    begun = asyncio.Semaphore(mapping.wanted.concurrency)
    window = mapping.window
    while True:
        await _fill(mapping, tasks, items, begun)
        if not window:
            break
        slot = window.popleft()
        await _wait(tasks, slot)
        if slot.over:
            window.appendleft(slot)
            break
        yield mapping.result(slot)
        if mapping.core.skips_kept > MOST_SKIPS:
            await aio_calls.drive(mapping.core.store, run_flows.flush_log_flow(mapping.core))
    for slot in window:
        await _wait(tasks, slot)
    mapping.finish()


async def _fill(mapping: MapCore, tasks: Tasks, items: AsyncIterator[Any], begun: asyncio.Semaphore) -> None:
    while mapping.room:
        try:
            item = await anext(items)
        except StopAsyncIteration:
            mapping.more = False
            return
        except Exception as error:  # noqa: BLE001 - raised after the outcomes of the items before it
            mapping.give_up(error)
            return
        slot = mapping.take(item)
        if slot is not None and slot.outcome is None:
            tasks[slot] = asyncio.create_task(_do(mapping, slot, begun))


async def _do(mapping: MapCore, slot: Slot, begun: asyncio.Semaphore) -> None:
    try:
        async with begun:
            if mapping.stopped:
                return  # handed out before the failure, not begun
            value = await aio_calls.drive(mapping.core.store, mapping.flow(slot))
    except BaseException as error:  # noqa: BLE001 - it is raised where the outcomes are collected
        mapping.ended(slot, None, error)
    else:
        mapping.ended(slot, value, None)


async def _wait(tasks: Tasks, slot: Slot) -> None:
    task = tasks.get(slot)
    if task is not None:
        await asyncio.wait([task])
        del tasks[slot]


async def _outlast(tasks: Tasks) -> None:
    """Wait for what is in flight, however often this task is cancelled."""
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks.values() if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
            for task in pending:
                task.cancel()
    if cancelled is not None:
        raise cancelled
