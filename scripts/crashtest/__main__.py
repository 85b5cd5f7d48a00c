"""The crash test: SIGKILL at random instants and at every fault point, until everything is done."""

from __future__ import annotations

import argparse
import functools
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent_resume import faults
from crashtest import victim
from crashtest.arena import Arena
from crashtest.ledger import Findings, compare

Work = Callable[[], None]


@dataclass(frozen=True)
class Phase:
    """One way to kill: which runs, who works on them, and how many at once."""

    name: str
    #: For the number of kills wanted: how many runs.
    runs: Callable[[int], int]
    steps: int
    #: Given the task and the runs' ids: what each place works on.
    works: Callable[[victim.Task, list[str]], list[Work]]
    side_by_side: int
    longest: float
    fault: Callable[[random.Random, int], str | None] | None = None
    #: Steps that one kill can interrupt.
    at_once: int = 1


def _each_alone(task: victim.Task, runs: list[str]) -> list[Work]:
    return [functools.partial(victim.run_exclusively, task, run) for run in runs]


def _four_for_each(task: victim.Task, runs: list[str]) -> list[Work]:
    return [functools.partial(victim.run_exclusively, task, run) for run in runs for _ in range(4)]


def _four_sharing_each(task: victim.Task, runs: list[str]) -> list[Work]:
    return [functools.partial(victim.run_shared, task, run) for run in runs for _ in range(4)]


def _in_threads(task: victim.Task, runs: list[str]) -> list[Work]:
    groups = [runs[start : start + 4] for start in range(0, len(runs), 4)]
    return [functools.partial(victim.run_in_threads, task, group) for group in groups]


def _everybody_everything(task: victim.Task, runs: list[str]) -> list[Work]:
    return [functools.partial(victim.run_any, task, runs) for _ in range(4)] + _each_alone(task, runs)


def _at(point: str) -> Callable[[random.Random, int], str | None]:
    """Die when the point is passed for the Nth time; each fourth life is spared, so that all get on."""

    def fault(chance: random.Random, lives: int) -> str | None:
        # A run settles once.
        number = 1 if point == "while-settling" else chance.choice((1, 1, 2, 5, chance.randint(1, 60)))
        return None if lives % 4 == 3 else f"{point}:{number}"

    return fault


PHASES = [
    Phase("random instants", lambda kills: max(1, kills // 15), 50, _each_alone, 3, 0.25),
    Phase("four processes want each run", lambda kills: max(1, kills // 40), 50, _four_for_each, 4, 0.7),
    Phase("four processes share each run", lambda kills: max(1, kills // 20), 50, _four_sharing_each, 4, 0.4),
    Phase("four threads a process", lambda kills: 4 * max(1, kills // 10), 50, _in_threads, 2, 0.8, at_once=4),
    Phase("many workers, one file", lambda _: 40, 4, _everybody_everything, 4, 1.5),
    *(Phase(f"fault point {point}", lambda _: 3, 50, _each_alone, 3, 60.0, _at(point)) for point in faults.POINTS),
]


def run_phase(phase: Phase, folder: Path, kills: int, chance: random.Random) -> tuple[Arena, Findings]:
    folder.mkdir()
    steps = [f"s{number:02d}" for number in range(phase.steps)]
    task = victim.Task(folder / "runs.db", folder / "ledger", steps)
    task.ledger.touch()
    runs = [f"run-{number}" for number in range(phase.runs(kills))]
    fault = functools.partial(phase.fault, chance) if phase.fault is not None else None
    arena = Arena(task.ledger, chance, phase.longest, fault=fault)
    try:
        arena.fight(phase.works(task, runs), phase.side_by_side)
    finally:
        arena.end()
    found = compare(task.ledger, task.db, runs, steps, arena.kills * phase.at_once)
    if arena.hanging:
        found.add("hanging", f"{arena.hanging} undone after {arena.patience:g} s")
    if phase.fault is not None and arena.kills == 0:
        found.add("fault point never passed", phase.name)
    return arena, found


def main() -> int:
    parser = argparse.ArgumentParser(prog="crash-test", description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="about so many kills at random instants")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", default="", help="only phases whose name contains this")
    parser.add_argument("--verbose", action="store_true", help="one line for each phase, on stderr")
    wanted = parser.parse_args()
    seed = random.randrange(10**6) if wanted.seed is None else wanted.seed
    total, kills, lives, failures = Findings(), 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="crash-test-") as folder:
        victim.warm_up(Path(folder))
        for number, phase in enumerate(PHASES):
            if wanted.only not in phase.name:
                continue
            began = time.monotonic()
            chance = random.Random(f"{seed} {phase.name}")
            arena, found = run_phase(phase, Path(folder) / str(number), wanted.kills // 4, chance)
            total.merge(found)
            kills, lives, failures = kills + arena.kills, lives + arena.lives, failures + arena.failures
            if wanted.verbose or found.wrong:
                print(
                    f"{phase.name}: {arena.lives} lives, {arena.kills} kills, {arena.refusals} refused, {found.steps} "
                    f"steps, {found.ran_twice} ran twice, {time.monotonic() - began:.0f} s, wrong: {dict(found.wrong)}",
                    file=sys.stderr,
                )
    for example in total.examples:
        print(f"    {example}", file=sys.stderr)
    bad = sum(total.wrong.values()) + failures
    print(
        f"crash-test: {'FAILED' if bad else 'ok'}, seed {seed}: {kills} SIGKILLs in {lives} lives, {total.steps} steps; "
        f"acknowledged and lost {total.wrong['acknowledged step lost']}, completed and called again "
        f"{total.wrong['acknowledged step called again']}, damaged {total.wrong['damaged file']}, not resumed "
        f"{total.wrong['run not completed']}, anything else {bad - _named(total)}; "
        f"{total.ran_twice} steps ran twice inside their window, each told as attempt 2 after an unknown outcome"
    )
    return 1 if bad else 0


def _named(total: Findings) -> int:
    names = ("acknowledged step lost", "acknowledged step called again", "damaged file", "run not completed")
    return sum(total.wrong[name] for name in names)


if __name__ == "__main__":
    sys.exit(main())
