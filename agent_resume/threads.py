"""Threads that are started where Ctrl-C may come in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def start_thread(target: Callable[..., Any], name: str, *args: Any) -> threading.Thread:
    """Start a thread that keeps no process alive.

    Raises:
        RuntimeError: no thread can be started.
    """
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    begin(thread)
    return thread


def begin(thread: threading.Thread) -> None:
    """Start ``thread``; a Ctrl-C meanwhile is a KeyboardInterrupt, however often it comes.

    Raises:
        RuntimeError: no thread can be started.
    """
    try:
        thread.start()
    except RuntimeError as error:
        # `start` waits on a condition. A second Ctrl-C, while that takes its lock back, makes Python let go of a lock
        # that it does not hold, and the RuntimeError of that hides the interrupt.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise
