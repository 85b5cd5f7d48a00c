"""The power-cut test: record programs at work, cut the power at random moments, look at what is left."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from powercut import agent, plain
from powercut.record import CannotRecordError, Cut, Recording, build_shim, cuts, record

#: How many acknowledged things a cut lost, and what else is wrong.
Check = Callable[[Cut], tuple[int, list[str]]]


@dataclass(frozen=True)
class Scenario:
    """Programs to record, and what a cut may do to them."""

    name: str
    commands: Callable[[Path], Sequence[Sequence[str]]]
    check: Check
    #: "nothing" of what was acknowledged may be lost; only a "suffix" may; or it must be: without a loss the recorder
    #: would be blind ("teeth").
    may_lose: str = "nothing"


@dataclass
class Outcome:
    scenario: Scenario
    recording: Recording
    cuts: int = 0
    losses: int = 0
    complaints: list[str] | None = None

    @property
    def good(self) -> bool:
        if self.scenario.may_lose == "teeth":
            return self.losses > 0
        return not self.complaints and (self.scenario.may_lose == "suffix" or self.losses == 0)

    def line(self) -> str:
        text = (
            f"{self.scenario.name}: {self.cuts} cuts, {self.recording.acknowledged} acknowledged, "
            f"{self.recording.syncs} syncs, lossy {self.losses} (allowed: {self.scenario.may_lose})"
        )
        complaints = [] if self.scenario.may_lose == "teeth" else self.complaints or []
        return text + "".join(f"\n    {complaint}" for complaint in complaints[:5])


def plain_scenario(mode: str, workers: int, may_lose: str, commits: int = 60) -> Scenario:
    def commands(root: Path) -> list[list[str]]:
        program = [sys.executable, "-m", "powercut.plain", str(root / "rows.db"), mode]
        return [[*program, str(worker), str(commits)] for worker in range(workers)]

    name = f"SQLite, {mode}, {workers} process{'es' if workers > 1 else ''}"
    return Scenario(name, commands, lambda cut: plain.lost(cut, "rows.db"), may_lose)


def agent_scenario(name: str, runs: int, durability: str, may_lose: str, steps: int = 40) -> Scenario:
    names = [f"run-{number}" for number in range(runs)]

    def commands(root: Path) -> list[list[str]]:
        # In a folder that the store has to make.
        db = str(root / "new" / "runs.db")
        return [[sys.executable, "-m", "powercut.agent", db, run, str(steps), durability] for run in names]

    def check(cut: Cut) -> tuple[int, list[str]]:
        return agent.lost(cut, "new/runs.db", names, steps)

    return Scenario(name, commands, check, may_lose)


SCENARIOS = {
    "plain": [
        plain_scenario("full", 1, "nothing"),
        plain_scenario("full", 3, "nothing"),
        plain_scenario("mixed", 1, "nothing"),
        plain_scenario("mixed", 3, "nothing"),
        plain_scenario("normal", 1, "suffix"),
        plain_scenario("normal", 3, "suffix"),
        plain_scenario("off", 1, "teeth"),
        plain_scenario("rollback", 1, "teeth"),
    ],
    "agent": [
        agent_scenario("an agent", 1, "full", "nothing"),
        agent_scenario("three agents, one file", 3, "full", "nothing"),
        agent_scenario("an agent, relaxed", 1, "relaxed", "suffix"),
        agent_scenario("three agents, one file, relaxed", 3, "relaxed", "suffix"),
    ],
}


def run(scenario: Scenario, shim: Path, place: Path, count: int, chance: random.Random) -> Outcome:
    root = place / "disk"
    root.mkdir(parents=True)
    recording = record(shim, root, place / "journal", scenario.commands(root))
    outcome = Outcome(scenario, recording, complaints=[])
    for cut in cuts(recording, count, chance, place / "image"):
        lost, complaints = scenario.check(cut)
        outcome.cuts += 1
        outcome.losses += lost > 0
        outcome.complaints = [*(outcome.complaints or []), *(f"moment {cut.moment}: {text}" for text in complaints)]
        if lost and scenario.may_lose == "nothing":
            outcome.complaints.append(f"moment {cut.moment}: {lost} of {len(cut.acknowledged)} acknowledged lost")
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="power-cut", description=__doc__)
    parser.add_argument("--cuts", type=int, default=200, help="power cuts for each scenario")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", choices=sorted(SCENARIOS), default=None)
    parser.add_argument("--verbose", action="store_true", help="one line for each scenario, on stderr")
    wanted = parser.parse_args()
    seed = random.randrange(10**6) if wanted.seed is None else wanted.seed
    outcomes = []
    # Recorded programs are started with the interpreter and the path of this one.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH")])
    )
    with tempfile.TemporaryDirectory(prefix="power-cut-") as folder:
        try:
            shim = build_shim(Path(folder))
            for group, scenarios in SCENARIOS.items():
                if wanted.only in (None, group):
                    for number, scenario in enumerate(scenarios):
                        chance = random.Random(f"{seed} {scenario.name}")
                        outcome = run(scenario, shim, Path(folder) / f"{group}{number}", wanted.cuts, chance)
                        outcomes.append(outcome)
                        if wanted.verbose or not outcome.good:
                            print(outcome.line(), file=sys.stderr)
        except CannotRecordError as reason:
            print(f"power-cut: not run: {reason}")
            return 77
    bad = [outcome for outcome in outcomes if not outcome.good]
    real = [outcome for outcome in outcomes if outcome.scenario.may_lose != "teeth"]
    print(
        f"power-cut: {'FAILED' if bad else 'ok'}, seed {seed}: {sum(outcome.cuts for outcome in real)} power cuts in "
        f"{len(real)} scenarios; where nothing may be lost, {_losses(real, 'nothing')} cuts lost something "
        f"acknowledged; relaxed, {_losses(real, 'suffix')} lost a suffix; damaged or out of order "
        f"{sum(len(outcome.complaints or []) for outcome in real)}; "
        f"the recorder sees unsafe settings: {all(o.good for o in outcomes if o.scenario.may_lose == 'teeth')}"
    )
    return 1 if bad else 0


def _losses(outcomes: list[Outcome], kind: str) -> int:
    return sum(outcome.losses for outcome in outcomes if outcome.scenario.may_lose == kind)


if __name__ == "__main__":
    sys.exit(main())
