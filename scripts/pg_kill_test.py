"""SIGKILLs a PostgreSQL server again and again under the load of several agents, then looks what became of their work.

Each worker process is an agent with its own run: steps with acknowledged results, written to a ledger of its own the
moment ``step()`` returned. A worker that ends is started again with the same run, as a supervisor would. At the end:
every acknowledged step is in the store with the value that was returned, no step ran again after it had been
acknowledged, and every run is completed.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

WORKER = """
import os, sys, time
from agent_resume import agent_run
url, run_id, folder, steps, pause = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
calls = open(os.path.join(folder, f"{run_id}.calls"), "a", buffering=1)
acks = open(os.path.join(folder, f"{run_id}.acks"), "a", buffering=1)
def body(run):
    for number in range(steps):
        def work():
            calls.write(f"{number}\\n")
            time.sleep(pause)
            return {"n": number, "x": "x" * 50}
        value = run.step(f"step-{number}", work)
        assert value["n"] == number
        acks.write(f"{number}\\n")
        run.record(f"record-{number}", number)
        run.event("log", {"message": "tick", "n": number})
    return steps
assert agent_run("killed", body, run_id=run_id, db=url, progress=False) == steps
"""


class Outcome:
    """What a kill test found."""

    def __init__(self) -> None:
        self.kills = self.restarts = self.acknowledged = self.lost = self.again = self.unfinished = 0
        self.outputs: list[str] = []

    @property
    def well(self) -> bool:
        return not (self.lost or self.again or self.unfinished)

    def __str__(self) -> str:
        return (
            f"{self.kills} kills of the server, {self.acknowledged} steps acknowledged: {self.lost} lost, "
            f"{self.again} run again, {self.unfinished} runs unfinished; workers started again {self.restarts} times"
        )


class Crew:
    """The agents, each with a run of its own; one that ended before its run did is started again."""

    def __init__(self, url: str, folder: Path, processes: int, steps: int, pause: float, outcome: Outcome) -> None:
        self._command = [sys.executable, "-W", "ignore", "-c", WORKER, url]
        self._rest = [str(folder), str(steps), str(pause)]
        self._outcome = outcome
        self.ledgers = [folder / f"run-{number}.acks" for number in range(processes)]
        self._workers = [self._start(number) for number in range(processes)]

    def _start(self, number: int) -> subprocess.Popen[str]:
        command = [*self._command, f"run-{number}", *self._rest]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def tend(self) -> bool:
        """Start again whoever ended too early; whether all are done."""
        for number, worker in enumerate(self._workers):
            if worker.poll() not in (None, 0):
                self._outcome.outputs.append(worker.communicate()[0][-2000:])
                self._outcome.restarts += 1
                self._workers[number] = self._start(number)
        return all(worker.returncode == 0 for worker in self._workers)

    def at_work(self) -> bool:
        """Whether each has had a step acknowledged."""
        self.tend()
        return all(ledger.exists() and ledger.stat().st_size for ledger in self.ledgers)

    def end(self) -> None:
        """Leave nobody behind."""
        for worker in self._workers:
            if worker.poll() is None:
                worker.kill()
            worker.communicate()


def kill_test(kills: int, processes: int, seed: int, *, up: float = 1.0, pause: float = 0.01) -> Outcome:
    """Kill the server ``kills`` times while ``processes`` agents work; each is up for about ``up`` seconds."""
    from postgres_server import Server

    chance = random.Random(seed)
    outcome = Outcome()
    with Server() as server, tempfile.TemporaryDirectory() as name:
        url, folder, steps = server.create_database("killed"), Path(name), 25 + kills * 12
        crew = Crew(url, folder, processes, steps, pause, outcome)
        try:
            while not crew.at_work():
                time.sleep(0.05)
            for _ in range(kills):
                time.sleep(chance.uniform(0.3, 1.7) * up)
                server.kill()
                outcome.kills += 1
                time.sleep(chance.uniform(0.0, 0.5))
                server.start()
                crew.tend()
            deadline = time.monotonic() + 600
            while not crew.tend() and time.monotonic() < deadline:
                time.sleep(0.1)
        finally:
            crew.end()
        _look(url, folder, processes, steps, outcome)
    return outcome


def _look(url: str, folder: Path, processes: int, steps: int, outcome: Outcome) -> None:
    from agent_resume import Store

    with Store(url) as store:
        for number in range(processes):
            state = store.load_run(f"run-{number}")
            outcome.unfinished += state.status != "completed"
            stored = {step.name: step for step in state.steps if step.status == "completed"}
            acked = [int(line) for line in (folder / f"run-{number}.acks").read_text().split()]
            calls = Counter(int(line) for line in (folder / f"run-{number}.calls").read_text().split())
            outcome.acknowledged += len(set(acked))
            for step in set(acked):
                found = stored.get(f"step-{step}")
                outcome.lost += found is None or found.output["n"] != step
            # A step that was killed in its window may run twice, and is told so: its attempts are counted. One that
            # was completed may not: then it has more calls than attempts, or its outcome was stored before the last.
            for step in range(steps):
                found = stored.get(f"step-{step}")
                outcome.again += found is not None and calls[step] > found.attempts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    wanted = parser.parse_args()
    outcome = kill_test(wanted.kills, wanted.processes, wanted.seed)
    print(f"{outcome} (seed {wanted.seed})")
    if not outcome.well or outcome.restarts:
        print("\n".join(text for text in outcome.outputs[:3]))
    return 0 if outcome.well else 1


if __name__ == "__main__":
    raise SystemExit(main())
