"""A batch of asynchronous steps meets a full or broken disk: each step has exactly one true outcome."""

from __future__ import annotations

import errno
import json
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_crash_files import iofail, small_disk  # noqa: F401 - fixtures

# Sixty steps of 20 kB at once. What each caller heard is printed.
BATCH = """
import asyncio, json, os, sys
import agent_resume

async def work(name):
    await asyncio.sleep(0)
    return name * 5000

async def main():
    async with agent_resume.AsyncCheckpoint("batch", db=sys.argv[1]) as run:
        await run.step("warm", work, "warm")
        if "IOFAIL_NOW" in os.environ:
            open(os.environ["IOFAIL_NOW"], "w").close()
        names = [f"s{number:03d}" for number in range(60)]
        heard = await asyncio.gather(*(run.step(name, work, name) for name in names), return_exceptions=True)
        for name, outcome in zip(names, heard):
            if isinstance(outcome, BaseException):
                carried = getattr(outcome, "result", None)
                print(json.dumps([name, type(outcome).__name__, carried == name * 5000]))
            else:
                print(json.dumps([name, "ok", outcome == name * 5000]))

try:
    asyncio.run(main())
except agent_resume.StoreError as error:
    print(json.dumps(["end", type(error).__name__, False]))
"""


@pytest.fixture
def db(tmp_path: Path) -> str:
    """A file: these tests are about files."""
    return str(tmp_path / "runs.db")


def heard(output: str) -> dict[str, tuple[str, bool]]:
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
    return {name: (kind, whole) for name, kind, whole in lines if name != "end"}


def completed(db: str) -> set[str]:
    connection = sqlite3.connect(db)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = connection.execute("SELECT key, output FROM steps WHERE status = 'completed'").fetchall()
    finally:
        connection.close()
    assert all(json.loads(text) == key * 5000 for key, text in rows)
    return {key for key, _ in rows} - {"warm"}


def goes_on(db: str, spawn_agent: Callable[..., Any]) -> None:
    again = spawn_agent(BATCH, db)
    assert again.finish() == 0, again.output
    assert set(heard(again.output).values()) == {("ok", True)}
    assert len(completed(db)) == 60


def test_on_a_full_disk_some_are_stored_and_the_others_are_told(
    small_disk: Path,  # noqa: F811
    spawn_agent: Callable[..., Any],
) -> None:
    db = str(small_disk / "runs.db")
    agent = spawn_agent(BATCH, db)
    agent.finish()
    subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
    said = heard(agent.output)
    assert {kind for kind, _ in said.values()} <= {"ok", "StoreFull"}, agent.output
    assert "StoreFull" in {kind for kind, _ in said.values()}
    assert {name for name, (kind, _) in said.items() if kind == "ok"} == completed(db)
    goes_on(db, spawn_agent)


@pytest.mark.parametrize(("calls", "skip"), [("write", 0), ("write", 9), ("sync", 0), ("sync", 1)])
def test_on_a_broken_disk_each_caller_is_told_the_truth(
    db: str,
    tmp_path: Path,
    spawn_agent: Callable[..., Any],
    iofail: str,  # noqa: F811
    calls: str,
    skip: int,
) -> None:
    now = tmp_path / "now"
    trouble = {
        "LD_PRELOAD": iofail, "IOFAIL_DIR": str(tmp_path), "IOFAIL_NOW": str(now), "IOFAIL_CALLS": calls,
        "IOFAIL_ERRNO": str(errno.EIO), "IOFAIL_SKIP": str(skip),
    }  # fmt: skip
    agent = spawn_agent(BATCH, db, **trouble)
    agent.finish()
    now.unlink()
    said = heard(agent.output)
    assert len(said) == 60, agent.output
    assert {kind for kind, _ in said.values()} <= {"ok", "StoreUnavailable"}
    if skip == 0:  # later ones may not come: a few batches do for all of them
        assert "StoreUnavailable" in {kind for kind, _ in said.values()}
    acknowledged = {name for name, (kind, _) in said.items() if kind == "ok"}
    # What was written and could not be synced may be there, and nobody was told that it is.
    assert acknowledged <= completed(db)
    goes_on(db, spawn_agent)
