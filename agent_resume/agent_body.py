"""Calling an agent's body, with its run as the one that decorated functions find."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import aio_calls, run_context

if TYPE_CHECKING:
    from .aio import AsyncRun
    from .run import Run
    from .store import Store


def is_async(fn: Any) -> bool:
    """Whether calling ``fn`` gives a coroutine, as far as it can be told before."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004 - its kind is asked, not whether it is callable


def call(fn: Callable[[Run], Any], run: Run) -> Any:
    """Call a plain body.

    Raises:
        TypeError: it returned something to be awaited, which nobody would do.
    """
    token = run_context.current_run.set(run)
    try:
        value = fn(run)
    finally:
        run_context.current_run.reset(token)
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError(
            "the agent's body returned something to be awaited; hand agent_run the coroutine function itself, not a "
            "lambda around it, and await the call"
        )
    return value


async def call_async(fn: Callable[[AsyncRun], Any], run: AsyncRun) -> Any:
    """Await a coroutine function's body."""
    token = run_context.current_run.set(run)
    try:
        return await fn(run)
    finally:
        run_context.leave_run(token)


#: Longest wait for a run that is being opened for a coroutine that was thrown away, in s.
OPENING = 60.0


def opened(open_run: Callable[[], bool], done: threading.Event) -> bool:
    """Open a run, and say when that has ended, however it did."""
    try:
        return open_run()
    finally:
        done.set()


async def end(store: Store, left_by: BaseException | None, fn: Callable[..., Any], *args: Any) -> Any:
    """Call one of the functions that end an execution; of a coroutine that is thrown away, without awaiting."""
    if isinstance(left_by, GeneratorExit):
        return fn(*args)
    return await aio_calls.shielded(store, fn, *args)


def refuse_unless_it_takes_a_run(fn: Callable[..., Any]) -> None:
    """Refuse a body that cannot be called with a run alone, before a run is made for it.

    Raises:
        TypeError: its signature says so.
    """
    if "__signature__" in getattr(fn, "__dict__", ()):  # what somebody wrote there need not be so
        return
    try:
        signature = inspect.signature(fn, follow_wrapped=False)
    except (TypeError, ValueError):  # code in C need not say
        return
    try:
        signature.bind(None)
    except TypeError:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise TypeError(
            f"agent_run calls the agent's body with one argument, the run, and {name}{signature} cannot be called so; "
            "write lambda run: … or def body(run): …, and functools.partial for more"
        ) from None


def refuse_while_importing(name: str) -> None:
    """Refuse to run an agent while a child process of multiprocessing imports the program again.

    Raises:
        RuntimeError: it does; the agent would run a second time, inside its own step.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is not None and getattr(process.current_process(), "_inheriting", False):
        raise RuntimeError(
            f"agent_run({name!r}, …) was reached while a child process imports the program again; put the call under "
            "if __name__ == '__main__':"
        )
