"""What goes in comes out of a real database, and of a run whose process was killed between saving and resuming."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_values_round_trip import EXAMPLES, VALUES, check_round_trip, same

from agent_resume import Checkpoint, Run, Store, agent_run
from agent_resume.codec import DEFAULT


class Shelf:
    """A run that every value is recorded in; each is read back by a connection that knows nothing of it."""

    def __init__(self, db: Path) -> None:
        self.run = Checkpoint("shelf", db=Store(db, durability="relaxed"), progress=False)
        self.run.record("first", None)
        self.reader = sqlite3.connect(db)
        self.numbers = itertools.count()

    def there_and_back(self, value: Any) -> Any:
        key = f"value {next(self.numbers)}"
        assert same(self.run.record(key, value), value)
        (found,) = self.reader.execute(
            "SELECT output_format, output FROM steps WHERE run_id = 1 AND key = ?", (key,)
        ).fetchall()
        return DEFAULT.decode(*found)

    def close(self) -> None:
        self.reader.close()
        self.run.close()


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    shelf = Shelf(tmp_path_factory.mktemp("shelf") / "runs.db")
    yield shelf
    shelf.close()


@pytest.mark.timeout(600)
@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(value=VALUES)
def test_nested_values_of_all_kept_types_come_back_from_a_database(shelf: Shelf, value: Any) -> None:
    check_round_trip(value, shelf.there_and_back)


class Source:
    def __init__(self, values: list[Any]) -> None:
        self.left = list(values)

    def next(self) -> Any:
        return self.left.pop(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a child that holds the generated values is a forked one")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@settings(max_examples=12, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck))
@given(values=st.lists(VALUES, min_size=5, max_size=20))
def test_values_of_a_killed_run_come_back_in_the_next_process(
    values: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    db = tmp_path_factory.mktemp("killed") / "runs.db"
    child = os.fork()
    if child == 0:
        _save_and_be_killed(values, db)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    came_back: list[Any] = []

    def resumed(run: Run) -> None:
        empty = Source([])  # so that a step that is called fails
        came_back.extend(run.step(f"value {number}", empty.next) for number in range(len(values)))

    agent_run("values", resumed, run_id="r", db=db, progress=False)
    assert len(came_back) == len(values)
    assert all(map(same, came_back, values))


def _save_and_be_killed(values: list[Any], db: Path) -> None:
    def body(run: Run) -> None:
        source = Source(values)
        for number in range(len(values)):
            run.step(f"value {number}", source.next)
        os.kill(os.getpid(), signal.SIGKILL)

    try:
        agent_run("values", body, run_id="r", db=db, progress=False)
    finally:
        os._exit(1)
