"""Peers on the same disk, each in a venv of its own; what cannot be installed is left out and said."""

from __future__ import annotations

import statistics
import subprocess
import sys
import venv
from pathlib import Path

import bench_base
import bench_floors as floors

_DBOS = """
import sys, time
from dbos import DBOS
DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{sys.argv[1]}", "log_level": "ERROR", "run_admin_server": False})
@DBOS.step()
def work(number): return {"i": number, "text": "x" * 200}
took = []
@DBOS.workflow()
def flow(count):
    work(-1)
    begin = time.perf_counter()
    for number in range(count): work(number)
    took.append((time.perf_counter() - begin) / count * 1e6)
DBOS.launch(); flow(int(sys.argv[2])); DBOS.destroy()
print(took[0])
"""

_LANGGRAPH = """
import sqlite3, sys, time
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
connection = sqlite3.connect(sys.argv[1], check_same_thread=False)
saver = SqliteSaver(connection); saver.setup(); connection.execute("PRAGMA synchronous=FULL")
count = int(sys.argv[2]); config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
begin = time.perf_counter()
for number in range(count):
    checkpoint = empty_checkpoint(); checkpoint["channel_values"] = {"s": {"i": number, "text": "x" * 200}}
    config = saver.put(config, checkpoint, {"source": "loop", "step": number, "parents": {}}, {})
print((time.perf_counter() - begin) / count * 1e6)
"""

_PEERS = {
    "dbos on SQLite": ("dbos", _DBOS),
    "langgraph-checkpoint-sqlite, put alone": ("langgraph-checkpoint-sqlite", _LANGGRAPH),
}


def measure(bench: bench_base.Bench) -> None:
    """µs a step of each peer, and the ratio to ours in full durability."""
    home = Path(__file__).parent.parent / ".venv" / "peers"
    for title, (package, code) in _PEERS.items():
        python = _python(home / package, package)
        if python is None:
            print(f"{title}: could not be installed, left out", file=sys.stderr)
            continue
        theirs, ours = [], []
        for number in range(min(bench.rounds, 5)):
            path = floors.remove(bench.folder / f"peer{number}.db")
            done = subprocess.run([python, "-c", code, str(path), "500"], capture_output=True, text=True, timeout=120)
            if done.returncode:
                print(f"{title}: failed, left out: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
                break
            theirs.append(float(done.stdout.split()[-1]))
            ours.append(bench_base.steps_us(bench.folder, 500))
        else:
            middle = statistics.median(a / b for a, b in zip(theirs, ours, strict=True))
            bench.line(
                f"{title}, against a step of ours, full",
                middle,
                aim=1.0,
                least=True,
                note=f"{statistics.median(theirs):.0f} / {statistics.median(ours):.0f} µs",
            )


def _python(home: Path, package: str) -> Path | None:
    python = home / "bin" / "python"
    if not (home / "installed").exists():
        venv.create(home, with_pip=True, clear=True)
        command = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", package]
        if subprocess.run(command, stdout=sys.stderr).returncode:
            return None
        (home / "installed").touch()
    return python
