"""Finding blocking calls on an event loop, for the tests of everything asynchronous."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import blockbuster
import pytest

_watch = blockbuster.BlockBuster()


@pytest.fixture(autouse=True)
def no_blocking_calls() -> Iterator[None]:
    """A call that blocks on a loop's thread raises; import this into a test file to have it there."""
    _watch.activate()
    yield
    _watch.deactivate()


@contextlib.contextmanager
def blocking_allowed() -> Iterator[None]:
    """For what the test itself does on its loop."""
    _watch.deactivate()
    try:
        yield
    finally:
        _watch.activate()
