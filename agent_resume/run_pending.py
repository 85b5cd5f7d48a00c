"""What an execution keeps in memory for its next write: the steps it skipped, and the events it lost."""

from __future__ import annotations

import json
import threading


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
        self.lost_events = 0
        self.losses = 0

    @property
    def skips_kept(self) -> int:
        """How many skips wait for the next write."""
        return len(self._skipped)

    def take_skips(self) -> str | None:
        """The collected skips as JSON for the next write."""
        if not self._skipped:
            return None
        with self.lock:
            taken, self._skipped = self._skipped, []
        return json.dumps({"ranges": _ranges(taken)}) if taken else None

    def return_skips(self, text: str | None) -> None:
        """They were not stored after all."""
        if text is not None:
            with self.lock:
                for first, last in json.loads(text)["ranges"]:
                    self._skipped.extend(range(first, last + 1))

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
