"""What this process is doing right now, and for how long that counts."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator, Hashable, Iterator
from typing import Any, Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)


class Execution(Protocol):
    """Something that says of itself when it is over."""

    over: bool


class Presence(Generic[K]):
    """Keys that somebody in this process holds, each for as long as its holder is at work.

    A holder is a flow, or an ``Execution``. Ctrl-C may come in between any two calls, also before a ``finally`` has
    done its work. A flow that was interrupted there has ended all the same, and its key is free, where a plain set
    would keep it for ever.
    """

    def __init__(self) -> None:
        #: For ``pop(key, None)`` in a ``finally`` by whoever holds the key: one call in C, which no signal cuts short.
        self.holders: dict[K, weakref.ref[Any]] = {}
        self._lock = threading.Lock()

    def take(self, key: K, holder: Generator[Any, Any, Any] | Execution) -> bool:
        """Hold a key; False when somebody else does."""
        mine = weakref.ref(holder)
        with self._lock:
            held = self.holders.get(key)
            if held is not None and _at_work(held()):
                return False
            self.holders[key] = mine
        return True

    def __contains__(self, key: object) -> bool:
        held = self.holders.get(key)  # type: ignore[arg-type]  # a dict may be asked for anything
        return held is not None and _at_work(held())

    def __iter__(self) -> Iterator[K]:
        return iter([key for key, held in list(self.holders.items()) if _at_work(held())])


def _at_work(holder: Generator[Any, Any, Any] | Execution | None) -> bool:
    if isinstance(holder, Generator):
        return holder.gi_frame is not None  # type: ignore[attr-defined]  # a flow is a plain generator
    return holder is not None and not holder.over
