"""The soak test: everything at once on one file, for as long as wanted."""

from __future__ import annotations

import argparse
import functools
import os
import random
import sqlite3
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import agent_resume
from crashtest import victim
from crashtest.arena import Arena
from crashtest.ledger import Findings, compare

#: Bytes; the log is checkpointed at a few MiB, a reader in the way delays that.
LOG_LIMIT = 64 << 20
STEPS = [f"s{number:02d}" for number in range(20)]


def read_slowly(db: Path, ledger: Path, until: float) -> None:
    """List, stop half way, look at one run whole, and begin again: what a dashboard does."""
    failures = victim.Ledger(ledger)
    while time.monotonic() < until:
        try:
            with agent_resume.Store(db) as store:
                for number, run in enumerate(store.list_runs()):
                    store.load_run(run.id)
                    if number % 7 == 3:
                        with store.dump_run(run.id) as dump:
                            sum(1 for _ in dump.events)
                        time.sleep(0.02)
        except agent_resume.StoreUnavailable:
            time.sleep(0.05)  # nothing was stored yet
        except agent_resume.AgentResumeError as error:
            failures.write("error", "-", "-", f"reader:{type(error).__name__}:{error}".replace("\n", " "))
            return


def fork_a_child(task: victim.Task, run_id: str) -> None:
    """A run whose process forks in the middle, the child working on a run of its own."""

    def work(run: agent_resume.Run) -> str:
        victim.body(victim.Task(task.db, task.ledger, STEPS[:10]), victim.Ledger(task.ledger), run_id)(run)
        pid = os.fork()
        if pid == 0:
            with agent_resume.Checkpoint(f"{run_id} child {os.getpid()}", db=task.db) as mine:
                mine.step("only", str)
            os._exit(0)
        os.waitpid(pid, 0)
        ledger = victim.Ledger(task.ledger)
        return victim.body(victim.Task(task.db, task.ledger, STEPS[10:]), ledger, run_id)(run)

    agent_resume.agent_run("victim", work, run_id=run_id, db=task.db)


@dataclass
class Soak:
    """The load so far."""

    folder: Path
    chance: random.Random
    runs: int = 0
    kills: int = 0
    lives: int = 0
    rounds: int = 0
    largest_log: int = 0

    def round(self, found: Findings) -> None:
        """One batch of runs of all kinds, killed until they are done, and compared."""
        self.rounds += 1
        db, ledger = self.folder / "runs.db", self.folder / f"ledger-{self.rounds}"
        ledger.touch()
        task = victim.Task(db, ledger, STEPS)
        ids = [f"run-{self.rounds}-{number}" for number in range(9)]
        works = [
            *(functools.partial(victim.run_exclusively, task, run_id) for run_id in ids[:3]),
            *(functools.partial(victim.run_shared, task, ids[3]) for _ in range(2)),
            functools.partial(victim.run_in_threads, task, ids[4:7]),
            functools.partial(fork_a_child, task, ids[7]),
            functools.partial(fork_a_child, task, ids[8]),
        ]
        self.chance.shuffle(works)
        reader = victim.live(
            functools.partial(read_slowly, db, ledger, time.monotonic() + 5), ledger, None, self.rounds
        )
        arena = Arena(ledger, self.chance, longest=0.8)
        try:
            arena.fight(works, 3)
        finally:
            arena.end()
            os.waitpid(reader, 0)
        if arena.hanging:
            found.add("hanging", f"round {self.rounds}")
        self.largest_log = max(self.largest_log, _size(f"{db}-wal"))
        if self.largest_log > LOG_LIMIT:
            found.add("log too large", f"round {self.rounds}: {self.largest_log} bytes")
        # A kill can interrupt a step in each of up to three threads.
        found.merge(compare(ledger, db, ids, STEPS, 3 * arena.kills))
        self.runs, self.kills, self.lives = self.runs + len(ids), self.kills + arena.kills, self.lives + arena.lives


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=None)
    wanted = parser.parse_args()
    seed = random.randrange(10**6) if wanted.seed is None else wanted.seed
    found = Findings()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        victim.warm_up(Path(folder))
        soak = Soak(Path(folder), random.Random(seed))
        end = time.monotonic() + wanted.seconds
        while time.monotonic() < end and not found.wrong:
            soak.round(found)
        connection = sqlite3.connect(Path(folder) / "runs.db")
        left = connection.execute("SELECT count(*) FROM runs WHERE status NOT IN ('completed', 'running')").fetchone()[
            0
        ]
        connection.close()
        size = _size(f"{folder}/runs.db") >> 10
    for example in found.examples:
        print(f"    {example}", file=sys.stderr)
    print(
        f"soak: {'FAILED' if found.wrong else 'ok'}, seed {seed}: {soak.rounds} rounds, {soak.runs} runs, {found.steps} "
        f"steps, {soak.kills} kills in {soak.lives} lives, {found.ran_twice} steps ran twice, {left} runs left undone, "
        f"largest log {soak.largest_log >> 10} KiB, file {size} KiB, wrong: {dict(found.wrong)}"
    )
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
