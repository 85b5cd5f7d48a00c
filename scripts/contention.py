"""Eight processes write into one run at once; then everything is counted, and the longest wait is told."""

from __future__ import annotations

import json
import multiprocessing
import os
import sqlite3
import sys
import tempfile
import time
import warnings
from contextlib import closing
from typing import Any

WRITERS = 8


def write(db: str, number: int, count: int, barrier: Any, waits: Any) -> None:
    from agent_resume import Checkpoint, register_event_type

    warnings.simplefilter("ignore")
    register_event_type("tick", {"who": "writer", "i": "number"})
    longest = {"record": 0.0, "event": 0.0}
    with Checkpoint("shared", db=db) as run:
        run.event("loop", phase="start")  # the store is made, and what is imported late is there
        barrier.wait()
        for i in range(count):
            start = time.monotonic()
            run.record(f"{number}-{i}", i)
            middle = time.monotonic()
            run.event("tick", who=number, i=i)
            end = time.monotonic()
            longest["record"] = max(longest["record"], middle - start)
            longest["event"] = max(longest["event"], end - middle)
    waits.put(longest)


def check(db: str, count: int) -> None:
    total = WRITERS * count
    with closing(sqlite3.connect(db)) as database:
        seqs = [seq for (seq,) in database.execute("SELECT seq FROM events ORDER BY id")]
        assert seqs == list(range(1, len(seqs) + 1)), "a gap in seq"
        kinds = dict(database.execute("SELECT type, count(*) FROM events GROUP BY type"))
        assert (kinds["tick"], kinds["record"]) == (total, total), kinds
        assert database.execute("SELECT count(*) FROM steps").fetchone() == (total,)
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        order: dict[int, list[tuple[int, bool]]] = {}
        query = "SELECT data, step_key FROM events WHERE type IN ('tick', 'record') ORDER BY seq"
        for data, key in database.execute(query):
            said = json.loads(data) if key is None else dict(zip(("who", "i"), map(int, key.split("-")), strict=True))
            order.setdefault(said["who"], []).append((said["i"], key is None))
    assert order == {who: [(i, tick) for i in range(count) for tick in (False, True)] for who in range(WRITERS)}


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    context = multiprocessing.get_context("spawn")
    barrier, waits = context.Barrier(WRITERS + 1), context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        db = os.path.join(folder, "runs.db")
        writers = [context.Process(target=write, args=(db, number, count, barrier, waits)) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        barrier.wait()
        start = time.monotonic()
        found = [waits.get(timeout=600) for _ in writers]
        took = time.monotonic() - start
        for writer in writers:
            writer.join()
        check(db, count)
    longest = {kind: max(each[kind] for each in found) * 1000 for kind in ("record", "event")}
    print(f"{WRITERS} processes, {WRITERS * count:,} records and {WRITERS * count:,} events in {took:.1f} s")
    print(f"longest wait: record {longest['record']:.0f} ms, event {longest['event']:.0f} ms; no gap, nothing lost")


if __name__ == "__main__":
    main()
