"""The parts of ``scripts/bench`` about whole processes: imports, the command line, memory."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import make_big_store
from bench_base import Bench

RUNS = 5_000
SQLALCHEMY = ["-c", "import sqlalchemy"]
# Not ru_maxrss: a child inherits that from the process it was forked from.
_PEAK = """
import atexit, sys
def peak():
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
"""
_STEPS = """
from agent_resume import agent_run
def body(run):
    for number in range(1000):
        run.step(f"s{number}", lambda: {"i": number, "text": "x" * 200})
agent_run("memory", body, db=sys.argv[1], durability="relaxed", progress=False)
"""
_OPENED = """
from agent_resume import Checkpoint
import agent_resume.agent
before = peak()
run = Checkpoint("long", db=sys.argv[1], progress=False)
run.get_step_result("r0")
print(peak() - before)
run.close()
"""
_LARGE = """
from agent_resume import Checkpoint
import agent_resume.agent
run = Checkpoint("large", db=sys.argv[1], durability="relaxed", progress=False)
run.step("small", lambda: 1)
text = "x" * (10 << 20)
before = peak()
run.step("large", lambda: text)
print(peak() - before)
run.close()
"""
_COMMAND = """
import runpy
atexit.register(lambda: print(peak(), file=sys.stderr))
sys.argv[0] = "agent-resume"
runpy.run_module("agent_resume", run_name="__main__")
"""


def command(bench: Bench) -> None:
    """Start-up of the library and the command line."""
    everything = "import agent_resume as a; [getattr(a, name) for name in a.__all__]"
    for what, code in (("import of every public name", everything), ("import agent_resume", "import agent_resume")):
        ratio, ours, floor = _against(bench, ["-c", code], SQLALCHEMY)
        note = f"{ours * 1e3:.0f} / {floor * 1e3:.0f} ms"
        bench.line(f"{what}, against import sqlalchemy", ratio, aim=1.25, note=note)
    for what, arguments, more in (
        ("agent-resume --version", ["--version"], {}),
        ("agent-resume --help", ["--help"], {}),
        ("completion of a command", [], _completing("agent-resume", "sh")),
        ("completion of an option", [], _completing("agent-resume", "show", "--st")),
    ):
        _, ours, floor = _against(bench, ["-m", "agent_resume", *arguments], ["-c", "pass"], **more)
        note = f"{ours * 1e3:.0f} / {floor * 1e3:.0f} ms"
        bench.line(f"{what}, above python -c pass", (ours - floor) * 1e3, "ms", aim=150, note=note)


def cli(bench: Bench) -> None:
    """``list``, ``show`` and completion on a small and a big store; wall time of the whole process."""
    for path, runs in _stores(bench):
        run = _asked(path, "SELECT id FROM runs ORDER BY last_seq DESC LIMIT 1")
        db, size = ["--db", str(path)], f"a store of {runs:,} runs"
        for what, arguments, more in (
            ("list", ["list", *db], {}),
            ("list --json (all runs)", ["list", "--json", *db], {}),
            ("show of its longest run", ["show", run, *db], {}),
            ("completing a run's id", [], _completing("agent-resume", "show", "--db", str(path), run[:3])),
        ):
            ratio, ours, floor = _against(bench, ["-m", "agent_resume", *arguments], SQLALCHEMY, **more)
            note = f"{ratio:.1f} × import sqlalchemy, {floor * 1e3:.0f} ms"
            bench.line(f"{what}, {size}", ours * 1e3, "ms", note=note)


def memory(bench: Bench) -> None:
    """Peak memory of processes of their own."""
    if not Path("/proc/self/status").exists():
        return
    path = str(bench.folder / "memory.db")
    bench.line("peak of python -c pass", _measured("print(peak())"), "MiB")
    bench.line("peak of import sqlalchemy", _measured("import sqlalchemy; print(peak())"), "MiB")
    bench.line("peak of a run of 1,000 steps", _measured(_STEPS + "print(peak())", path), "MiB")
    opened = _measured(_OPENED, str(bench.filled(bench.largest)))
    bench.line(f"opening a run of {bench.largest:,} steps, over its imports", opened, "MiB", aim=60)
    bench.line("a step with a result of 10 MiB, over the result", _measured(_LARGE, path), "MiB")
    for store, runs in _stores(bench):
        used = _measured(_COMMAND, "list", "--db", str(store))
        bench.line(f"peak of agent-resume list, a store of {runs:,} runs", used, "MiB")


def _stores(bench: Bench) -> list[tuple[Path, int]]:
    """A small store and a big one, and how many runs each has."""
    paths = [_made(bench, 10), bench.big or _made(bench, RUNS)]
    return [(path, _asked(path, "SELECT count(*) FROM runs")) for path in paths]


def _asked(path: Path, query: str) -> Any:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchone()[0]


def _made(bench: Bench, runs: int) -> Path:
    path = bench.folder / f"store-{runs}.db"
    if not path.exists():
        with contextlib.redirect_stdout(sys.stderr):
            make_big_store.main(str(path), runs)
    return path


def _against(bench: Bench, arguments: list[str], floor: list[str], **more: str) -> tuple[float, float, float]:
    """Both once for their bytecode, then in turn."""
    _seconds(*arguments, **more)
    _seconds(*floor)
    return bench.ratios(lambda: _seconds(*arguments, **more), lambda: _seconds(*floor))


def _seconds(*arguments: str, **more: str) -> float:
    begin = time.perf_counter()
    command = [sys.executable, *arguments]
    subprocess.run(command, check=True, env=os.environ | more, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def _completing(*words: str) -> dict[str, str]:
    """The environment in which bash asks for the completion of a line's last word."""
    at = str(len(words) - 1)
    return {"_AGENT_RESUME_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words), "COMP_CWORD": at}


def _measured(code: str, *arguments: str) -> float:
    """The last number that a program prints, in MiB."""
    done = subprocess.run([sys.executable, "-c", _PEAK + code, *arguments], capture_output=True, text=True, check=True)
    return float((done.stderr if code is _COMMAND else done.stdout).split()[-1])
