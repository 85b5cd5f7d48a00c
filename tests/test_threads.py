"""Ctrl-C while a thread is being started, on the thread that starts it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from agent_resume.threads import begin, start_thread

Trace = Callable[[FrameType, str, Any], Any]


class InterruptIn:
    """Raises KeyboardInterrupt at one line of the condition that a start waits on, counted as they are reached.

    There a signal does come in. In the middle of a ``with`` it does not, though a tracer would.
    """

    def __init__(self, line: int) -> None:
        self.wanted = line
        self.lines = 0
        self.hidden = False

    def __call__(self, frame: FrameType, kind: str, argument: Any) -> Trace | None:
        if frame.f_code.co_filename != threading.__file__:
            return None
        if kind == "line" and frame.f_code.co_qualname in ("Condition.wait", "Condition._acquire_restore"):
            self.lines += 1
            if self.lines == self.wanted:
                raise KeyboardInterrupt
        return self

    def __enter__(self) -> InterruptIn:
        sys.settrace(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)


@pytest.fixture
def slow_switches() -> Iterator[None]:
    """The thread that is started waits for ours to wait; a tracer that was set before, coverage's, is put back."""
    tracer, interval = sys.gettrace(), sys.getswitchinterval()
    sys.setswitchinterval(5)
    yield
    sys.setswitchinterval(interval)
    sys.settrace(tracer)


def interrupted(line: int) -> InterruptIn:
    """Start a thread with an interrupt at that line; whatever comes, it is the interrupt or nothing."""
    go = threading.Event()
    thread = threading.Thread(target=go.wait, daemon=True)
    interrupt = InterruptIn(line)
    try:
        with interrupt:
            begin(thread)
    except KeyboardInterrupt as error:
        interrupt.hidden = error.__suppress_context__
    finally:
        go.set()
    if thread.ident is not None:
        thread.join()
    return interrupt


def test_an_interrupt_while_a_thread_starts_is_no_runtime_error(slow_switches: None) -> None:
    reached = interrupted(0).lines
    assert reached > 5
    outcomes = [interrupted(line) for line in range(1, reached + 1)]
    assert any(interrupt.hidden for interrupt in outcomes), "Python's own RuntimeError never came up"


def test_no_thread_to_be_had_is_still_a_runtime_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    for name in ("_start_new_thread", "_start_joinable_thread"):
        if hasattr(threading, name):
            monkeypatch.setattr(threading, name, refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        start_thread(int, "never")
