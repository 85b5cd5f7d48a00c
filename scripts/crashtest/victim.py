"""The agents that are killed. They run in forks of a process that has everything imported, so that a life is cheap."""

from __future__ import annotations

import os
import random
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agent_resume
from agent_resume import faults
from crashtest.ledger import Ledger


@dataclass(frozen=True)
class Task:
    """What a life works on."""

    db: Path
    ledger: Path
    steps: list[str]
    #: Longest sleep inside a step, in seconds: where a kill at a random instant finds something to interrupt.
    nap: float = 0.002


def step_function(ledger: Ledger, run: str, step: str, nap: float) -> Callable[[], str]:
    """A function with a side effect in the ledger and a value that no other call returns."""

    def effect() -> str:
        lock = ledger.inside(run, step)
        try:
            value = os.urandom(6).hex()
            ledger.write("begin", run, step, value)
            faults.at("in-function")
            time.sleep(random.random() * nap)
            ledger.write("end", run, step, value)
            return value
        finally:
            os.close(lock)

    return effect


def body(task: Task, ledger: Ledger, run_id: str, *, shuffled: bool = False) -> Callable[[Any], str]:
    """All steps, each acknowledged in the ledger as soon as ``step()`` has returned."""

    def work(run: Any) -> str:
        steps = random.sample(task.steps, len(task.steps)) if shuffled else task.steps
        for step in steps:
            value = run.step(step, step_function(ledger, run_id, step, task.nap))
            ledger.write("ack", run_id, step, value)
        return "finished"

    return work


#: Named refusals that competitors must expect; their exit code says "not this time".
REFUSALS = (agent_resume.RunInUse, agent_resume.StepInFlight)


def run_exclusively(task: Task, run_id: str) -> None:
    """One whole run, as its only owner."""
    ledger = Ledger(task.ledger)
    agent_resume.agent_run("victim", body(task, ledger, run_id), run_id=run_id, db=task.db)


def run_in_threads(task: Task, run_ids: list[str]) -> None:
    """Several runs at once, a thread each."""
    failures: list[BaseException] = []

    def work(run_id: str) -> None:
        try:
            run_exclusively(task, run_id)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=work, args=(run_id,)) for run_id in run_ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in failures:
        raise error


def run_shared(task: Task, run_id: str) -> None:
    """One run that others work on as well, through a Checkpoint; whoever gets through all steps finishes it."""
    ledger = Ledger(task.ledger)
    with agent_resume.Checkpoint(run_id, db=task.db) as run:
        body(task, ledger, run_id, shuffled=True)(run)
        run.done()


def run_any(task: Task, run_ids: list[str]) -> None:
    """All runs in a random order; those that others have at hand are left to them."""
    for run_id in random.sample(run_ids, len(run_ids)):
        try:
            run_exclusively(task, run_id)
        except agent_resume.RunInUse:
            continue


def warm_up(folder: Path) -> None:
    """Import everything that a life needs, by living once; lives are forked from a process with one thread."""
    with agent_resume.Store(folder / "warm.db") as store:
        agent_resume.agent_run("warm", lambda run: run.step("s", str), db=store)
        with agent_resume.Checkpoint("shared", db=store) as run:
            run.step("s", str)
    left = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if left:
        raise RuntimeError(f"threads are left when the store is closed: {left}")


def live(work: Callable[[], None], ledger: Path, fault: str | None, seed: int) -> int:
    """Fork a life; returns its process id. Exit codes: 0 all done, 4 refused, 1 anything else."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        random.seed(seed)
        if fault is not None:
            faults.at = faults.parse(fault)
        work()
        code = 0
    except REFUSALS:
        code = 4
    except BaseException as error:  # noqa: BLE001 - a forked life must not go on in its parent's code
        frames = [f"{frame.name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        text = f"{type(error).__name__}: {error} at {' > '.join(frames)}".replace("\n", " ")
        Ledger(ledger).write("error", "-", "-", text)
    finally:
        os._exit(code)
