"""Waiting for news of a run: until the server tells, or, where a store tells nobody, for a fraction of a second."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from . import clock
from .database_listen import ALL, Listener

if TYPE_CHECKING:
    from .database import Database

__all__ = ["ALL", "LOOK_ANYWAY", "NOTHING_SEEN", "wait", "wait_async"]

#: Longest sleep between two looks where nobody tells, in s (4 Hz).
LOOK_EVERY = 0.25
#: Even where the server tells, whoever waits looks again after this long, in s.
LOOK_ANYWAY = 30.0
#: What to wait beyond at first: such a wait ends as soon as nothing can be missed any more.
NOTHING_SEEN = -1
#: What a store that tells nobody counts.
_BLIND = 0

_making = threading.Lock()


def wait(database: Database, run: int, seen: int, seconds: float = LOOK_ANYWAY) -> int:
    """Wait for news of a run (``ALL``: of any) beyond the count ``seen``, ``seconds`` at most; the count now.

    Begin with ``NOTHING_SEEN``, look, then wait with what came back, look, and so on: nothing is missed, on either
    database.
    """
    listener = _listener(database)
    if listener is None:
        clock.sleep(min(seconds, LOOK_EVERY))
        return _BLIND
    return listener.wait(run, seen, min(seconds, LOOK_ANYWAY))


async def wait_async(database: Database, run: int, seen: int, seconds: float = LOOK_ANYWAY) -> int:
    """``wait`` for coroutines; no thread is blocked."""
    import asyncio

    listener = _listener(database)
    if listener is None:
        await asyncio.sleep(min(seconds, LOOK_EVERY))
        return _BLIND
    loop = asyncio.get_running_loop()
    told = asyncio.Event()

    def tell() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(told.set)

    listener.tell(run, seen, tell)
    try:
        async with asyncio.timeout(min(seconds, LOOK_ANYWAY)):
            await told.wait()
    except TimeoutError:
        pass
    finally:
        listener.forget(tell)
    return listener.count(run)


def _listener(database: Database) -> Listener | None:
    driver = database.driver
    if driver.name == "sqlite":
        return None
    with _making:
        if driver.listener is None or driver.listener.closed:
            driver.listener = Listener(driver)
        listener: Listener = driver.listener
        return listener
