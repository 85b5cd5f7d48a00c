"""LISTEN and NOTIFY: whoever waits is woken, and nobody asks the database again and again meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import psycopg
import pytest

from agent_resume import AsyncCheckpoint, Checkpoint, RunCancelled, Store, answer, cancel
from agent_resume.store_notify import ALL, LOOK_ANYWAY, NOTHING_SEEN


def listening(url: str) -> int:
    """How many slots somebody listens to."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
        ).fetchone()
    assert row is not None
    return int(row[0])


def until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_wait_is_woken_by_its_answer(postgres_url: str) -> None:
    found: list[Any] = []

    def agent() -> None:
        with Checkpoint("r", db=postgres_url) as run:
            found.append(run.wait("approval"))

    with Store(postgres_url) as store:
        store.database.ensure_writable()
        waiting = threading.Thread(target=agent)
        waiting.start()
        until(lambda: listening(postgres_url))
        time.sleep(0.3)  # it has looked, and waits for news
        began = time.monotonic()
        assert answer("r", "approval", {"ok": True}, db=store)
        waiting.join(LOOK_ANYWAY)
        assert found == [{"ok": True}]
        # The time alone is no test of speed: without news the next look would be half a minute away.
        assert time.monotonic() - began < LOOK_ANYWAY / 2


async def test_coroutines_are_woken_and_no_thread_waits_for_them(postgres_url: str) -> None:
    async with AsyncCheckpoint("r", db=postgres_url) as run:
        waits = [asyncio.create_task(run.wait(f"w{number}")) for number in range(12)]
        await asyncio.to_thread(until, lambda: listening(postgres_url))
        for number in range(12):
            await asyncio.to_thread(answer, "r", f"w{number}", number, db=postgres_url)
        async with asyncio.timeout(LOOK_ANYWAY / 2):
            assert await asyncio.gather(*waits) == list(range(12))


def test_a_waiting_run_hears_that_it_was_cancelled(postgres_url: str) -> None:
    ended: list[BaseException] = []

    def agent() -> None:
        try:
            with Checkpoint("r", db=postgres_url) as run:
                run.sleep("long", 600)
        except BaseException as error:
            ended.append(error)

    sleeping = threading.Thread(target=agent)
    sleeping.start()
    until(lambda: listening(postgres_url))
    cancel("r", db=postgres_url)
    sleeping.join(LOOK_ANYWAY)
    assert [type(error) for error in ended] == [RunCancelled]


def test_nothing_is_missed_between_a_look_and_the_next_wait(postgres_url: str) -> None:
    with Store(postgres_url) as store, Checkpoint("r", db=store) as run:
        run.record("first", 0)
        seq = store.find_run("r").seq
        seen = store.await_news(seq, NOTHING_SEEN, 30)
        assert seen >= 0
        run.record("between", 1)
        until(lambda: store.database.driver.listener.count(seq) > seen)
        began = time.monotonic()
        newer = store.await_news(seq, seen, 30)
        assert newer > seen
        assert time.monotonic() - began < 15
        assert store.await_news(seq, newer, 0.2) == newer


def test_news_of_any_run_can_be_waited_for(postgres_url: str) -> None:
    with Store(postgres_url) as store:
        store.database.ensure_writable()
        seen = store.await_news(ALL, NOTHING_SEEN, 30)
        with Checkpoint("another", db=postgres_url) as run:
            run.record("a", 1)
        assert store.await_news(ALL, seen, 30) > seen


def test_nobody_is_notified_where_nobody_listens(postgres_url: str) -> None:
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("LISTEN agent_resume")  # without the lock that our listeners hold
        with Checkpoint("r", db=postgres_url) as run:
            for number in range(20):
                run.record(f"k{number}", number)
        assert list(connection.notifies(timeout=0.3)) == []


def test_a_broken_listening_connection_counts_as_news_and_is_made_again(postgres_url: str) -> None:
    with Store(postgres_url) as store, Checkpoint("r", db=store) as run:
        run.record("first", 0)
        seq = store.find_run("r").seq
        seen = store.await_news(seq, NOTHING_SEEN, 30)
        with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        broken = store.await_news(seq, seen, 30)
        assert broken > seen
        until(lambda: listening(postgres_url))
        run.record("second", 2)
        assert store.await_news(seq, broken, 30) > broken


def test_a_closed_store_listens_no_more(postgres_url: str) -> None:
    store = Store(postgres_url)
    with Checkpoint("r", db=store) as run:
        run.record("first", 0)
    store.await_news(store.find_run("r").seq, NOTHING_SEEN, 30)
    threads = [thread for thread in threading.enumerate() if thread.name == "agent-resume-news"]
    assert len(threads) == 1
    store.close()
    assert not threads[0].is_alive()


@pytest.mark.parametrize("url", ["sqlite"])
def test_on_sqlite_a_wait_for_news_is_a_short_sleep(url: str, tmp_path: Any) -> None:
    with Store(tmp_path / "runs.db") as store, Checkpoint("r", db=store) as run:
        run.record("first", 0)
        assert store.await_news(1) == store.await_news(1, 0)
