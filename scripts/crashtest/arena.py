"""Starts lives, kills them, starts them again, until the work is done."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from crashtest import victim


@dataclass
class Place:
    """Where lives follow one another, working on the same thing."""

    work: Callable[[], None]
    pid: int = 0
    due: float = 0.0
    rest_until: float = 0.0
    lives: int = 0
    done: bool = False


@dataclass
class Arena:
    """Some places at once, and what became of their lives."""

    ledger: Path
    chance: random.Random
    #: The longest life in seconds before its kill; a life may get through before.
    longest: float
    #: Seconds after which what is still undone counts as hanging.
    patience: float = 300.0
    #: Names the fault of the next life, given how many lives there were; None: kill at a random instant.
    fault: Callable[[int], str | None] | None = None
    kills: int = 0
    refusals: int = 0
    failures: int = 0
    lives: int = 0
    hanging: int = 0
    _running: list[Place] = field(default_factory=list)

    def fight(self, works: list[Callable[[], None]], side_by_side: int) -> None:
        """Work everything off, at most so many lives at once."""
        waiting = [Place(work) for work in works]
        end = time.monotonic() + self.patience
        while waiting or self._running:
            while waiting and len(self._running) < side_by_side:
                self._running.append(waiting.pop(0))
            for place in list(self._running):
                self._look_at(place)
                if place.done:
                    self._running.remove(place)
            if time.monotonic() > end:
                self.hanging = len(self._running) + len(waiting)
                self.end()
                return
            time.sleep(0.0005)

    def end(self) -> None:
        """Leave no child behind."""
        for place in self._running:
            if place.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(place.pid, signal.SIGKILL)
                os.waitpid(place.pid, 0)
        self._running.clear()

    def _look_at(self, place: Place) -> None:
        if place.pid == 0:
            if time.monotonic() >= place.rest_until:
                self._start(place)
            return
        if time.monotonic() >= place.due:
            # A child that has ended keeps its number until it is reaped, so this meets no stranger.
            os.kill(place.pid, signal.SIGKILL)
            place.due = float("inf")
        pid, status = os.waitpid(place.pid, os.WNOHANG)
        if pid:
            place.pid = 0
            self._count(place, os.waitstatus_to_exitcode(status))

    def _start(self, place: Place) -> None:
        fault = self.fault(place.lives) if self.fault is not None else None
        place.lives += 1
        self.lives += 1
        # Squared: short lives are the interesting ones, long ones the ones that get on.
        allowed = self.longest * self.chance.random() ** 2 if self.fault is None else 60.0
        place.pid = victim.live(place.work, self.ledger, fault, self.chance.randrange(2**32))
        place.due = time.monotonic() + allowed

    def _count(self, place: Place, code: int) -> None:
        if code == 0:
            place.done = True
        elif code == -signal.SIGKILL:
            self.kills += 1
        elif code == 4:
            self.refusals += 1
            place.rest_until = time.monotonic() + 0.01
        else:
            # 1 left its reason in the ledger; anything else ended in a way that nobody foresaw.
            self.failures += code != 1
            place.done = True
