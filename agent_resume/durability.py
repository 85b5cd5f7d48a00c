"""How long a commit lasts, from when on. True and False mean ``ALWAYS`` and ``PROCESS`` where one of these is wanted."""

from __future__ import annotations

from typing import Final

#: It survives the end of the process, not a power cut.
PROCESS: Final = 0
#: It survives a power cut, and nobody sees it before it does: the sync is part of the commit.
ALWAYS: Final = 1
#: It survives a power cut from when its caller hears of it; other processes may see it a moment before. On SQLite the
#: sync comes after the write lock was let go, so that those of several processes and threads overlap.
HEARD: Final = 2


def both(first: int, second: int) -> int:
    """What satisfies both."""
    return ALWAYS if ALWAYS in (first, second) else max(first, second)
