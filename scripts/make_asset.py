"""A small store with a run in each state that a file may hold: completed, failed, paused, cut off in a step."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

from agent_resume import Run, agent_run, schema

HOST = "builder"

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    asset = ROOT / "tests" / "assets" / f"{schema.HEAD}.db"
    if asset.exists():
        sys.exit(f"{asset.relative_to(ROOT)} is there already and stays as it is")
    asset.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["AGENT_RESUME_HOST"] = HOST
        db = Path(folder) / "runs.db"
        fill(str(db))
        # A process of its own, which dies in the middle of its second step and leaves its owner row behind.
        subprocess.run([sys.executable, __file__, "cut-off", str(db)], check=False)
        tidy(db, folder)
        shutil.copyfile(db, asset)
    print(f"wrote {asset.relative_to(ROOT)}, {asset.stat().st_size:,} bytes")


def tidy(db: Path, folder: str) -> None:
    """One file without a log beside it, and without traces of the machine that made it."""
    places = {sys.executable: "python3", str(ROOT): "/project", folder: "/elsewhere"}
    with sqlite3.connect(db) as database:
        for table, column in (("runs", "command"), ("runs", "error"), ("steps", "error"), ("events", "data")):
            for old, new in places.items():
                database.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (old, new))
        # Above the largest number that any kernel gives, so that no live process can ever have it.
        database.execute("UPDATE owners SET pid = 4194305, started = 1")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.execute("PRAGMA journal_mode=DELETE")
    # Or what was replaced is still to be found on free pages.
    database.execute("VACUUM")
    database.close()


def fill(db: str) -> None:
    def completed(run: Run) -> list[object]:
        run.record("recorded", {"by": "hand"}, {"model": "m-1", "inputTokens": 3, "outputTokens": 4})
        run.event("gate", name="lint", status="pass")
        return [run.step(f"part-{part}", lambda part: {"part": part, "tuple": (1, 2)}, part) for part in (1, 2, 3)]

    def failed(run: Run) -> None:
        run.step("first", lambda: "kept")
        run.step("second", lambda: 1 / 0)

    def paused(run: Run) -> object:
        run.step("first", lambda: "kept")
        return run.pause("go on?", {"because": "it costs"}, name="approval")

    agent_run("completed", completed, run_id="completed-1", db=db, input={"topic": "whales"})
    try:
        agent_run("failed", failed, run_id="failed-1", db=db)
    except ZeroDivisionError:
        pass
    agent_run("paused", paused, run_id="paused-1", db=db, on_pause="return")


def cut_off(run: Run) -> None:
    run.step("first", lambda: "kept")
    run.step("second", os._exit, 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["cut-off"]:
        agent_run("cut-off", cut_off, run_id="cut-off-1", db=sys.argv[2])
    else:
        main()
