"""A store of many runs, made by bulk inserts; what it holds looks like an agent's work and is the same every time."""

from __future__ import annotations

import argparse
import datetime
import json
import random
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from agent_resume import Checkpoint

BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
STATUSES = ("completed",) * 90 + ("failed",) * 6 + ("paused", "interrupted", "cancelled", "running")
MODELS = ("claude-opus", "gpt-large", "gemini-pro", None)
RUN = "INSERT INTO runs (seq, last_seq, id, name, status, created_at, updated_at, finished_at) VALUES (?,?,?,?,?,?,?,?)"
STEP = (
    "INSERT INTO steps (run_id, key, seq, status, attempts, meta, started_at, finished_at, duration_ms, output_format,"
    " output_bytes, output) VALUES (?,?,?,?,1,?,?,?,?,'json',?,?)"
)
EVENT = "INSERT INTO events (run_id, seq, ts, type, step_key, attempt, data) VALUES (?,?,?,?,?,?,?)"


def main(file: str, runs: int = 100_000, steps: int = 20, events: bool = True) -> None:
    target = Path(file)
    if target.exists():
        sys.exit(f"{target} is there already")
    began = time.monotonic()
    with Checkpoint("first", db=target) as first:
        first.record("made", "by scripts/make-big-store")
    database = sqlite3.connect(target, isolation_level=None)
    database.execute("PRAGMA synchronous=OFF")
    database.execute("PRAGMA wal_autocheckpoint=0")
    dice = random.Random(1)
    for start in range(0, runs, 1000):
        database.execute("BEGIN IMMEDIATE")
        for number in range(start, min(runs, start + 1000)):
            add_run(database, dice, number + 10, steps, events)
        database.execute("COMMIT")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    took = time.monotonic() - began
    print(f"{target}: {runs:,} runs, {runs * steps:,} steps, {target.stat().st_size / 1e6:,.0f} MB, in {took:.0f} s")


def add_run(database: sqlite3.Connection, dice: random.Random, number: int, steps: int, events: bool) -> None:
    begin = BEGIN + datetime.timedelta(seconds=90 * number)
    name = f"agent-{dice.randrange(40)}"
    status = dice.choice(STATUSES)
    last = 1 + 2 * steps
    end = iso(begin, 2 * steps)
    ended = end if status in ("completed", "failed", "cancelled") else None
    database.execute(RUN, (number, last, f"{name}-{number}", name, status, iso(begin, 0), end, ended))
    database.executemany(STEP, (row for row in step_rows(dice, number, begin, steps)))
    if events:
        database.executemany(EVENT, event_rows(number, begin, steps))


def step_rows(dice: random.Random, run: int, begin: datetime.datetime, steps: int) -> Iterator[tuple[object, ...]]:
    for place in range(steps):
        model = dice.choice(MODELS)
        meta = (
            {"model": model, "inputTokens": dice.randrange(9000), "outputTokens": dice.randrange(900)}
            if model
            else None
        )
        output = json.dumps({"text": "x" * dice.randrange(200), "score": dice.random()})
        seq = 2 + 2 * place
        times = iso(begin, 2 * place), iso(begin, 2 * place + 1)
        yield (
            run, f"step-{place}", seq, "completed", json.dumps(meta) if meta else None, *times, dice.randrange(60_000),
            len(output), output,
        )  # fmt: skip


def event_rows(run: int, begin: datetime.datetime, steps: int) -> Iterator[tuple[object, ...]]:
    yield (run, 1, iso(begin, 0), "created", None, None, None)
    for place in range(steps):
        seq, key = 2 + 2 * place, f"step-{place}"
        yield (run, seq, iso(begin, 2 * place), "start", key, 1, None)
        yield (run, seq + 1, iso(begin, 2 * place + 1), "done", key, 1, '{"durationMs": 1000}')


def iso(begin: datetime.datetime, seconds: int) -> str:
    moment = begin + datetime.timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/make-big-store", description=__doc__)
    parser.add_argument("file", metavar="FILE", help="where to make it; nothing may be there")
    parser.add_argument("runs", metavar="RUNS", type=int, nargs="?", default=100_000, help="how many (default 100,000)")
    parser.add_argument("steps", metavar="STEPS", type=int, nargs="?", default=20, help="of each run (default 20)")
    return parser.parse_args()


if __name__ == "__main__":
    options = _options()
    main(options.file, options.runs, options.steps)
