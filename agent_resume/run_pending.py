"""What an execution keeps in memory for its next write: skipped steps, warnings it gave, events it lost."""

from __future__ import annotations

import threading

from .store_sql import Skips


class Pending:
    """Skips and lost events that the store has not been told of.

    Attributes:
        lost_events: events that this execution could not write.
        losses: those of them that the store has not been told of.
        lock: guards what several threads change here and in subclasses.
    """

    def __init__(self) -> None:
        # Reentrant: a signal handler may write an event between any two bytecodes.
        self.lock = threading.RLock()
        self._skipped: list[int] = []
        self._marks: list[tuple[str, str]] = []
        self._marked: set[tuple[str, str]] = set()
        self.lost_events = 0
        self.losses = 0

    @property
    def skips_kept(self) -> int:
        """How many skips wait for the next write."""
        return len(self._skipped)

    def mark(self, type: str, key: str) -> None:
        """Leave an event about a step for ``show``, with the next write; once an execution."""
        with self.lock:
            if (type, key) not in self._marked:
                self._marked.add((type, key))
                self._marks.append((type, key))

    def take_skips(self) -> Skips | None:
        """What was collected, for the next write."""
        if not self._skipped and not self._marks:
            return None
        with self.lock:
            taken, self._skipped = self._skipped, []
            marks, self._marks = self._marks, []
        return Skips(_ranges(taken), tuple(marks)) if taken or marks else None

    def return_skips(self, skips: Skips | None) -> None:
        """They were not stored after all."""
        if skips is not None:
            with self.lock:
                for first, last in skips.ranges:
                    self._skipped.extend(range(first, last + 1))
                self._marks.extend(skips.marks)

    def lose_event(self) -> None:
        """An event could not be written."""
        with self.lock:
            self.lost_events += 1
            self.losses += 1

    def take_losses(self) -> int:
        """How many lost events the store is to be told of now."""
        with self.lock:
            taken, self.losses = self.losses, 0
        return taken

    def return_losses(self, count: int) -> None:
        """It was not told after all."""
        with self.lock:
            self.losses += count


def _ranges(numbers: list[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] + 1 == number:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges
