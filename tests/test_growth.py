"""The files stay small: the log beside open readers, and large values that nobody asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agent_resume
from agent_resume import databases, store_index

MIB = 1 << 20


@pytest.fixture
def db(tmp_path: Path) -> str:
    """A file: these tests are about files, signals and processes."""
    return str(tmp_path / "runs.db")


def wal_size(db: str) -> int:
    try:
        return os.stat(f"{db}-wal").st_size
    except FileNotFoundError:
        return 0


def several_runs(store: agent_resume.Store, count: int) -> None:
    for number in range(count):
        agent_resume.agent_run("before", lambda run: run.step("s", lambda: 1), run_id=f"before-{number}", db=store)


@pytest.mark.timeout(180)
def test_case_073_the_log_stays_small_with_a_reader_left_open_half_way(db: str) -> None:
    largest = 0
    with agent_resume.Store(db) as store:
        several_runs(store, 3)
        half_way = iter(store.list_runs())
        next(half_way)
        with store.dump_run("before-0") as dump:
            # An export holds one state while it reads; a listing holds nothing between its pages.
            next(iter(dump.steps))

        def body(run: agent_resume.Run) -> None:
            nonlocal largest
            for number in range(4000):
                run.step(f"s{number}", lambda: "x" * 3000)
                if number % 50 == 0:
                    largest = max(largest, wal_size(db))

        agent_resume.agent_run("writer", body, db=store)
        assert [run.id for run in half_way] == ["before-1", "before-0"]
    assert 0 < largest < 64 * MIB
    databases._close_all()
    assert wal_size(db) == 0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_case_074_a_large_value_is_stored_once_and_never_read_for_a_listing(
    db: str, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    big = 50_000_000

    def body(run: agent_resume.Run) -> None:
        run.step("big", lambda: "x" * big)
        for number in range(200):
            run.step(f"s{number}", str, number)
        raise RuntimeError("not yet")

    # The report resumed 200 times; the size does not depend on it.
    for _ in range(20):
        with pytest.raises(RuntimeError, match="not yet"):
            agent_resume.agent_run("job", body, run_id="job", db=db)
    databases._close_all()
    assert os.stat(db).st_size < big + 4 * MIB
    listed = run_python(
        """
import resource, sys
import agent_resume
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print([run.id for run in agent_resume.list_runs(db=sys.argv[1])])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
""",
        db,
    )
    ids, grown = listed.stdout.splitlines()
    assert ids == "['job']"
    assert int(grown) < 45, "a listing must not read the large value"


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(sys.platform == "win32", reason="compares sizes of open files")
def test_many_processes_keep_one_log_small(db: str, tmp_path: Path, spawn_agent: Callable[..., Any]) -> None:
    script = """
import sys, agent_resume
def body(run):
    for number in range(400):
        run.step(f"s{number}", lambda: "x" * 20000)
agent_resume.agent_run("job", body, run_id=sys.argv[1], db="runs.db")
"""
    agents = [spawn_agent(script, f"run-{number}") for number in range(3)]
    largest = 0
    while any(agent.process.poll() is None for agent in agents):
        largest = max(largest, wal_size(db))
    assert [agent.finish() for agent in agents] == [0, 0, 0]
    assert 0 < largest < 64 * MIB
    assert wal_size(db) == 0


def test_small_results_beyond_the_indexs_room_are_read_when_they_are_asked_for(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [10, 500, 900, 1025, 40, 700]

    def body(run: Any) -> list[str]:
        return [run.step(f"s{number}", "x".__mul__, size) for number, size in enumerate(sizes)]

    def fails(run: Any) -> None:
        body(run)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        agent_resume.agent_run("job", fails, run_id="r", db=db)
    monkeypatch.setattr(store_index, "INDEX_BYTES", 1000)
    loaded: list[bool] = []

    def again(run: Any) -> list[str]:
        index = run._core.index.values()
        loaded.extend(entry[6] is not None for entry in index)
        assert len({id(entry[5]) for entry in index}) == 1, "one text for a format, however many steps have it"
        return body(run)

    assert agent_resume.agent_run("job", again, run_id="r", db=db) == ["x" * size for size in sizes]
    # What one result leaves no room for, a smaller one behind it does not get either.
    assert loaded == [True, True, False, False, False, False]
