"""Processes that bench.py starts to write beside one another: ``bench_workers.py KIND DB COUNT NUMBER``.

Each says ``ready``, waits for a line, works, and prints when it began and ended, on the clock that all processes
share, and its longest single call.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import bench_floors as floors

from agent_resume import Checkpoint, Store


def _worker(kind: str, db: Path, count: int, number: int) -> Callable[[int], None]:
    name, _, durability = kind.partition("-")
    if name == "raw":
        connection = floors.connect(db, "FULL" if durability == "full" else "NORMAL")
        return lambda i: floors.upserts(connection, f"r{number}", 1, i)
    store = Store(db, durability="full" if durability == "full" else "relaxed")
    run = Checkpoint("shared" if name == "shared" else f"r{number}", db=store, progress=False)
    if name == "steps":
        return lambda i: run.step(f"{number}-{i}", floors.payload, i) and None
    return lambda i: run.record(f"{number}-{i}", floors.payload(i)) and None


def main() -> None:
    """Work when told to."""
    kind, db, count, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    work = _worker(kind, db, count, number)
    work(-1)
    print("ready", flush=True)
    sys.stdin.readline()
    longest = 0.0
    begin = time.monotonic()
    for i in range(count):
        before = time.monotonic()
        work(i)
        longest = max(longest, time.monotonic() - before)
    print(begin, time.monotonic(), longest, flush=True)


if __name__ == "__main__":
    main()
