"""A full outcome's sync: after the write lock was let go, before anybody hears of it."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_resume import Checkpoint, agent_run, clock, database_sqlite_log, errors, load_run
from agent_resume.durability import ALWAYS, HEARD, PROCESS, both

pytestmark = pytest.mark.skipif(not database_sqlite_log.POSSIBLE, reason="SQLite syncs inside its commit here")


@pytest.fixture
def db(tmp_path: Path) -> str:
    """A file: these tests are about its log."""
    return str(tmp_path / "runs.db")


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What happens in each ``fdatasync`` of ours; the real one follows. SQLite's own are not seen."""
    inside: list[Callable[[], None]] = []
    real = os.fdatasync

    def fdatasync(handle: int) -> None:
        for look in inside:
            look()
        real(handle)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    return inside


def statuses(db: str) -> dict[str, str]:
    connection = sqlite3.connect(db)
    try:
        return dict(connection.execute("SELECT key, status FROM steps"))
    finally:
        connection.close()


def failing() -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_step_is_committed_and_others_can_write_while_its_log_is_synced(db: str, syncs: list[Any]) -> None:
    seen: list[dict[str, str]] = []

    def write_meanwhile() -> None:
        seen.append(statuses(db))
        other = sqlite3.connect(db, timeout=0, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
        other.close()

    with Checkpoint("r", db=db) as run:
        run.step("warm", str)
        syncs.append(write_meanwhile)
        run.step("s", str)
        run.record("kept", 1)
    assert seen[:2] == [
        {"warm": "completed", "s": "completed"},
        {"warm": "completed", "s": "completed", "kept": "completed"},
    ]


def test_a_step_returns_only_once_its_log_was_synced(db: str, syncs: list[Any]) -> None:
    go, returned = threading.Event(), threading.Event()

    def work() -> None:
        with Checkpoint("r", db=db) as run:
            run.step("warm", str)
            syncs.append(lambda: go.wait(20))
            run.step("s", str)
            returned.set()

    thread = threading.Thread(target=work)
    thread.start()
    while "s" not in statuses_when_there(db):
        pass
    assert not returned.wait(0.2)
    go.set()
    assert returned.wait(20)
    thread.join()


def statuses_when_there(db: str) -> dict[str, str]:
    try:
        return {key: status for key, status in statuses(db).items() if status == "completed"}
    except sqlite3.OperationalError:
        return {}


def test_start_marks_and_relaxed_outcomes_are_not_synced(db: str, syncs: list[Any]) -> None:
    count: list[int] = []
    syncs.append(lambda: count.append(1))
    with Checkpoint("full", db=db) as run:
        run.step("warm", str)
        count.clear()
        for number in range(10):
            run.step(f"s{number}", str)
        assert len(count) == 10
    with Checkpoint("relaxed", db=db, durability="relaxed") as run:
        run.step("warm", str)
        count.clear()
        for number in range(10):
            run.step(f"s{number}", str)
        assert not count


def test_threads_that_wait_for_a_sync_share_the_next_one(db: str, syncs: list[Any]) -> None:
    count: list[int] = []
    log = database_sqlite_log.Log(db, db)
    Path(f"{db}-wal").touch()
    log.attach(0)
    first, second = threading.Event(), threading.Event()

    def look() -> None:
        count.append(1)
        if len(count) == 1:
            first.set()
            second.wait(20)

    syncs.append(look)
    log.owe()
    threads = [threading.Thread(target=log.sync)]
    threads[0].start()
    first.wait(20)
    for _ in range(7):
        log.owe()
        threads.append(threading.Thread(target=log.sync))
        threads[-1].start()
    second.set()
    for thread in threads:
        thread.join()
    assert 2 <= len(count) <= 3, "one for the first, one for all that committed meanwhile"
    log.detach()


def test_a_signal_handler_may_record_while_its_thread_syncs(db: str, syncs: list[Any]) -> None:
    with Checkpoint("r", db=db) as run:
        run.step("warm", str)

        def handler() -> None:
            syncs.clear()
            run.record("handled", 1)

        syncs.append(handler)
        run.step("s", str)
    assert statuses(db) == {"warm": "completed", "s": "completed", "handled": "completed"}


def test_a_log_that_cannot_be_synced_is_an_error_that_keeps_the_result(db: str, syncs: list[Any]) -> None:
    calls: list[int] = []

    def pay() -> str:
        calls.append(1)
        return "paid"

    with Checkpoint("r", db=db) as run:
        run.step("warm", str)
        syncs.append(failing)
        with pytest.raises(errors.StoreUnavailable, match="could not be synced") as caught:
            run.step("s", pay)
        with pytest.raises(errors.StoreUnavailable, match="could not be synced"):
            run.has("s")
        assert caught.value.result == "paid"
        syncs.clear()
        # What was committed goes into the database itself before anything is written behind it.
        assert os.stat(f"{db}-wal").st_size > 0
        assert run.step("after", lambda: 2) == 2
        assert run.step("s", pay) == "paid"
        assert len(calls) == 1
    assert statuses(db) == {"warm": "completed", "s": "completed", "after": "completed"}


def test_nothing_is_written_behind_an_unsynced_log_that_others_read(db: str, syncs: list[Any]) -> None:
    with Checkpoint("r", db=db) as run:
        run.step("warm", str)
        reader = sqlite3.connect(db, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM steps").fetchone()
        syncs.append(failing)
        with pytest.raises(errors.StoreUnavailable):
            run.step("s", str)
        syncs.clear()
        with pytest.raises(errors.StoreUnavailable, match="others still use that log"):
            run.step("after", str)
        reader.close()
        run.step("after", str)
    assert statuses(db)["after"] == "completed"


def test_in_one_commit_of_many_those_that_need_no_sync_do_not_fail_with_it(db: str, syncs: list[Any]) -> None:
    with Checkpoint("r", db=db) as run:
        run.step("warm", str)
        database = run._core.store.database
        held = threading.Event()
        blocked = database.batch.submit(lambda _: held.wait(20), full=PROCESS)
        wanted = [database.batch.submit(lambda _: None, full=level) for level in (PROCESS, HEARD, PROCESS, HEARD)]
        syncs.append(failing)
        held.set()
        blocked.result(20)
        found = [future.exception(20) for future in wanted]
        syncs.clear()
    assert [type(error) for error in found] == [type(None), errors.StoreUnavailable] * 2
    assert found[1] is not found[3]


def test_what_another_process_may_not_have_synced_is_synced_before_it_is_handed_out(db: str, syncs: list[Any]) -> None:
    with Checkpoint("r", db=db) as run:
        run.step("a", str)
    count: list[int] = []
    syncs.append(lambda: count.append(1))

    def step(key: str) -> str:
        return second.step(key, str)

    with Checkpoint("r", db=db) as first, Checkpoint("r", db=db) as second:
        first.step("a", str)
        assert count, "the index that was loaded"
        second.step("a", str)
        second.record("entered", 1)
        first.step("b", str)
        for look in (second.has, second.get_step_result, second.count_completed_keys_with_prefix, step):
            count.clear()
            look("b")
            assert count
            second._core.index.pop("b", None)


def test_an_agent_that_goes_on_hands_out_what_is_durable(db: str, syncs: list[Any]) -> None:
    def body(run: Any) -> None:
        run.step("a", str)
        if not count:
            raise ValueError("the first time")

    count: list[int] = []
    with pytest.raises(ValueError, match="the first time"):
        agent_run("a", body, run_id="r", db=db)
    syncs.append(lambda: count.append(1))
    agent_run("a", body, run_id="r", db=db)
    assert load_run("r", db=db).status == "completed"


def test_closing_the_store_syncs_what_somebody_still_waits_for(db: str, syncs: list[Any]) -> None:
    Path(f"{db}-wal").touch()
    log = database_sqlite_log.Log(db, db)
    log.attach(0)
    log.owe()
    count: list[int] = []
    syncs.append(lambda: count.append(1))
    log.detach()
    assert count
    log.sync()
    assert len(count) == 1
    log.attach(0)
    log.owe()
    syncs.append(failing)
    log.detach()
    with pytest.raises(errors.StoreUnavailable):
        log.sync()


def test_a_turn_that_a_thread_of_the_parent_held_at_a_fork_is_not_waited_for(db: str) -> None:
    Path(f"{db}-wal").touch()
    log = database_sqlite_log.Log(db, db)
    log.attach(0)
    log.detach()
    thread = threading.Thread(target=log._turn.acquire)  # and the thread is gone, as in a child
    thread.start()
    thread.join()
    log.attach(0)
    log.owe()
    log.sync()
    log.detach()


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_flush_writes_to_the_log_also_in_the_millisecond_of_the_write_before(
    db: str, durability: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "now_ms", lambda: 1_769_850_487_006)
    log = Path(f"{db}-wal")

    def body(run: Any) -> None:
        run.step("a", lambda: 1)
        run.event("fallback", {"from": "a", "to": "b"})
        before = log.stat().st_size
        run.flush()
        assert log.stat().st_size > before  # a commit that writes no page syncs nothing either

    agent_run("agent", body, db=db, durability=durability)


def test_where_data_cannot_be_synced_through_any_descriptor_the_commit_does_it(
    db: str, syncs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_sqlite_log, "POSSIBLE", False)
    syncs.append(failing)
    with Checkpoint("r", db=db) as run:
        run.step("s", str)
        driver = run._core.store.database.driver
        assert driver._full is True
    with Checkpoint("r", db=db) as run:
        run.step("s", lambda: pytest.fail("called again"))


def test_levels_of_durability_add_up_to_the_stricter_one() -> None:
    assert both(PROCESS, HEARD) == both(HEARD, PROCESS) == HEARD
    assert both(HEARD, ALWAYS) == both(ALWAYS, HEARD) == both(ALWAYS, PROCESS) == ALWAYS
    assert both(PROCESS, PROCESS) == PROCESS
