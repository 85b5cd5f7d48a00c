"""What every part of ``scripts/bench`` measures with."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench_floors as floors

from agent_resume import Checkpoint, Run, Store, agent_run

HERE = Path(__file__).parent
SIZES = (100, 1_000, 10_000, 100_000)
BATCH = 250
_unused = itertools.count()


@dataclass
class Bench:
    """Where to measure, how often, and where figures go.

    Attributes:
        largest: no run is made longer than this.
        big: a store of many runs that is there already; None: one is made.
    """

    folder: Path
    rounds: int
    largest: int
    big: Path | None
    name: str
    add: Callable[..., None]

    def line(self, what: str, figure: float, unit: str = "×", **more: object) -> None:
        """Report a figure."""
        self.add(self.name, what, figure, unit, **more)

    def ratios(
        self, ours: Callable[[], float], floor: Callable[[], float], rounds: int | None = None
    ) -> tuple[float, float, float]:
        """Medians of interleaved rounds: the ratios of the rounds, ours, the floor."""
        pairs = [(ours(), floor()) for _ in range(rounds or self.rounds)]
        return (
            statistics.median(a / b for a, b in pairs),
            statistics.median(a for a, _ in pairs),
            statistics.median(b for _, b in pairs),
        )

    def filled(self, size: int) -> Path:
        """A store with one run, ``long``, of so many records; made once, then used again."""
        path = self.folder / f"filled-{size}.db"
        if not path.exists():
            with Store(path, durability="relaxed") as store, Checkpoint("long", db=store, progress=False) as run:
                for number in range(size):
                    run.record(f"r{number}", floors.payload(number))
        return path


@contextmanager
def steps_of(path: Path, durability: Any) -> Iterator[Callable[[], float]]:
    """A function that adds a batch of steps to the run ``long`` of a filled store and gives µs a step."""
    with Store(path, durability=durability) as store, Checkpoint("long", db=store, progress=False) as run:

        def batch(count: int = BATCH) -> float:
            keys = [f"s{next(_unused)}" for _ in range(count)]
            begin = time.perf_counter()
            for number, key in enumerate(keys):
                run.step(key, lambda number=number: floors.payload(number))
            return (time.perf_counter() - begin) / count * 1e6

        batch(10)
        yield batch


def steps_us(
    folder: Path, count: int, durability: Any = "full", *, cpu: bool = False, neighbour: bool = False
) -> float:
    """µs a step inside ``agent_run``, in a new store; the first step is not counted."""
    path = floors.remove(folder / "ours.db")
    clock = time.process_time if cpu else time.perf_counter
    took = 0.0

    def body(run: Run) -> None:
        nonlocal took
        run.step("warm", lambda: floors.payload(0))
        begin = clock()
        for number in range(count):
            run.step(f"s{number}", lambda number=number: floors.payload(number))
        took = (clock() - begin) / count * 1e6

    if neighbour:
        with floors.Spinner():
            agent_run("bench", body, db=path, durability=durability, progress=False)
    else:
        agent_run("bench", body, db=path, durability=durability, progress=False)
    return took
