"""Long proofs of coroutines, run.map and run.transaction; see scripts/real-agents."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agent_resume import AsyncCheckpoint, AsyncRun, agent_run, load_run

HOLDER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
connection.execute("ROLLBACK")
"""

MAP = """
import os, resource, sys
from agent_resume import agent_run
calls, acks = (os.open(name, os.O_CREAT | os.O_WRONLY | os.O_APPEND) for name in sys.argv[2:4])
def items():
    for n in range(int(sys.argv[4])):
        yield n
def work(n):
    os.write(calls, b"%d\\n" % n)
    return {"n": n, "text": "x" * 200}
def body(run):
    early = 0
    for count, outcome in enumerate(run.map("item", work, items())):
        os.write(acks, b"%d\\n" % outcome.value["n"])
        if count == 1000:
            early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return early
early = agent_run("map", body, db=sys.argv[1], run_id="r")
print(early, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""

LEDGER = """
import sys
import sqlalchemy
from agent_resume import agent_run
def write(n):
    def fn(connection):
        connection.execute(sqlalchemy.text("INSERT INTO ledger VALUES (:n)"), {"n": n})
        return n
    return fn
def body(run):
    print("going", flush=True)
    for n in range(int(sys.argv[2])):
        run.transaction(f"t{n}", write(n))
agent_run("ledger", body, db=sys.argv[1], run_id="r")
print("finished", flush=True)
"""


def verdict(ok: bool, text: str) -> bool:
    """One line, and whether it is good."""
    print(f"{'ok  ' if ok else 'FAIL'} {text}", flush=True)
    return ok


def start(code: str, *args: object) -> subprocess.Popen[str]:
    """A child that runs ``code``."""
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def prove_loop(folder: Path, options: argparse.Namespace) -> bool:
    """1,000 steps at once while another process holds the write lock for 3 s; the gaps of a 50 ms ticker."""
    db = folder / "runs.db"
    gaps: list[float] = []

    async def ticker() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.05)
            gaps.append(time.monotonic() - before - 0.05)

    async def work(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async def body(run: AsyncRun) -> int:
        await run.step("warm", work, 0)
        holder = await asyncio.to_thread(start, HOLDER, db, 3.0)
        await asyncio.to_thread(holder.stdout.readline)  # type: ignore[union-attr]  # a pipe was asked for
        watching = asyncio.create_task(ticker())
        await asyncio.gather(*(run.step(f"s{n}", work, n) for n in range(1000)))
        watching.cancel()
        await asyncio.to_thread(holder.wait)
        return len(gaps)

    begun = time.monotonic()
    asyncio.run(agent_run("loop", body, db=db, run_id="r"))
    took = time.monotonic() - begun
    done = sum(step.status == "completed" for step in load_run("r", db=db).steps)
    largest = max(gaps) * 1000
    return verdict(
        done == 1001 and largest < 250,
        f"loop: 1,000 steps at once beside a write lock held for 3 s: {done - 1} stored in {took:.1f} s, largest gap of a "
        f"50 ms ticker {largest:.0f} ms late ({len(gaps)} ticks; load {os.getloadavg()[0]:.1f})",
    )


def prove_map(folder: Path, options: argparse.Namespace) -> bool:
    """run.map over 10,000 items, killed three times by SIGKILL."""
    calls, acks, count = folder / "calls", folder / "acks", 10_000
    known: list[tuple[set[str], int]] = []
    for fraction in (0.15, 0.4, 0.7):
        child = start(MAP, folder / "runs.db", calls, acks, count)
        while child.poll() is None and (not acks.exists() or acks.stat().st_size < fraction * count * 4.9):
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
        known.append((set(acks.read_text().split()), len(calls.read_text().split())))
        acks.write_text("")
    child = start(MAP, folder / "runs.db", calls, acks, count)
    output, _ = child.communicate()
    called = calls.read_text().split()
    again = sum(len(before.intersection(called[length:])) for before, length in known)
    early, late = map(int, output.split())
    ok = child.returncode == 0 and not again and len(set(called)) == count and late - early < 16_000
    return verdict(
        ok,
        f"map: {count:,} items, 3 SIGKILLs: {len(called):,} calls, {again} of an acknowledged item; peak memory "
        f"{late / 1024:.0f} MiB, {max(0, late - early) / 1024:.1f} MiB of it after the first 1,000",
    )


def prove_cancel(folder: Path, options: argparse.Namespace) -> bool:
    """200 random cancellations around ``await run.step``; another run writes all the while."""
    chance = random.Random(options.seed)

    async def work(name: str) -> str:
        await asyncio.sleep(chance.choice([0, 0, 0.001, 0.003]))
        return name

    async def main() -> tuple[int, int, float]:
        wrong = whole = 0
        longest = 0.0
        async with (
            AsyncCheckpoint("r", db=folder / "a.db") as run,
            AsyncCheckpoint("other", db=folder / "a.db") as other,
        ):
            await run.step("warm", work, "warm")
            for n in range(200):
                task = asyncio.create_task(run.step(f"s{n}", work, f"s{n}"))
                await asyncio.sleep(chance.uniform(0, 0.006))
                task.cancel()
                outcome = (await asyncio.gather(task, return_exceptions=True))[0]
                begun = time.monotonic()
                await other.step(f"o{n}", work, "other")
                longest = max(longest, time.monotonic() - begun)
                stored = await run.get_step_result(f"s{n}")
                whole += stored is not None
                wrong += stored not in (None, f"s{n}") or (outcome == f"s{n}" and stored is None)
            wrong += sum(step.status not in ("completed", "interrupted") for step in await run.timeline())
        return wrong, whole, longest

    wrong, whole, longest = asyncio.run(main())
    return verdict(
        not wrong,
        f"cancel: 200 random cancellations: {whole} stored whole, {200 - whole} not at all, {wrong} otherwise; another "
        f"run's step never took longer than {longest * 1000:.0f} ms",
    )


def prove_transaction(folder: Path, options: argparse.Namespace) -> bool:
    """run.transaction under many SIGKILLs: one row a step in a table of the same file."""
    db, count = folder / "runs.db", max(200, options.kills * 4)
    agent_run("setup", lambda run: None, db=db)
    connection = sqlite3.connect(db)
    connection.execute("CREATE TABLE ledger (n INTEGER)")
    connection.commit()
    connection.close()
    chance = random.Random(options.seed)
    kills = 0
    while kills < options.kills:
        child = start(LEDGER, db, count)
        child.stdout.readline()  # type: ignore[union-attr]  # a pipe was asked for
        time.sleep(chance.uniform(0, 0.02))
        child.send_signal(signal.SIGKILL)
        child.communicate()
        if child.returncode > 0:
            return verdict(False, f"transaction: the agent failed after {kills} SIGKILLs")
        kills += child.returncode < 0
    child = start(LEDGER, db, count)
    child.communicate()
    connection = sqlite3.connect(db)
    rows, distinct = connection.execute("SELECT count(*), count(DISTINCT n) FROM ledger").fetchone()
    unknown = connection.execute("SELECT count(*) FROM events WHERE type = 'unknown'").fetchone()[0]
    connection.close()
    return verdict(
        child.returncode == 0 and rows == distinct == count,
        f"transaction: {kills} SIGKILLs ({unknown} inside a step): {rows:,} rows for {count:,} steps, {distinct:,} of "
        "them distinct",
    )


PROOFS: dict[str, Callable[[Path, argparse.Namespace], bool]] = {
    "loop": prove_loop,
    "map": prove_map,
    "cancel": prove_cancel,
    "transaction": prove_transaction,
}


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("proof", nargs="*", help=f"{', '.join(PROOFS)}; all of them when none is named")
    parser.add_argument("--kills", type=int, default=500, help="SIGKILLs of the transaction proof")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    ok = True
    for name in options.proof or PROOFS:
        with tempfile.TemporaryDirectory() as folder:
            ok &= PROOFS[name](Path(folder), options)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
