"""The batch door: each operation has exactly one true outcome, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue

import pytest
from loops import no_blocking_calls  # noqa: F401 - a fixture

from agent_resume import (
    Checkpoint,
    RunLost,
    StoreBusy,
    StoreDamaged,
    StoreUnavailable,
    agent_run,
    database_batch,
    database_sqlite,
    databases,
)
from agent_resume.database_batch import Queued, puts_off
from agent_resume.database_location import resolve
from agent_resume.store_sql import next_seq
from agent_resume.threads import start_thread


@pytest.fixture
def store(db):
    location = resolve(db)
    opened = databases.acquire(location)
    opened.ensure_writable()
    yield opened
    databases.release(location)


def insert(tx, token):
    tx.cursor.execute("INSERT INTO owners (token, host, pid, beat_at) VALUES (?, 'h', 1, '')", (token,))
    return token


def refuses(tx, token):
    insert(tx, token)
    raise RunLost("r")


def breaks(tx, token):
    insert(tx, token)
    tx.cursor.execute("SELECT * FROM nothing_of_the_kind")


def stored(db):
    connection = sqlite3.connect(db)
    try:
        return {row[0] for row in connection.execute("SELECT token FROM owners")}
    finally:
        connection.close()


def together(store, *operations):
    """Queues operations so that they are committed in one batch."""
    held, release = threading.Event(), threading.Event()

    def block(tx):
        held.set()
        release.wait(20)

    first = store.batch.submit(block)
    held.wait(20)
    futures = [store.batch.submit(*operation) for operation in operations]
    release.set()
    first.result(20)
    return futures


def test_a_refusal_undoes_its_own_operation_alone(db, store):
    good, bad, other = together(store, (insert, "a"), (refuses, "b"), (insert, "c"))
    assert good.result(20) == "a"
    with pytest.raises(RunLost):
        bad.result(20)
    assert other.result(20) == "c"
    assert stored(db) == {"a", "c"}


def test_an_error_of_the_driver_lets_each_be_tried_by_itself(db, store):
    tried = []

    def counts(tx, token):
        tried.append(token)
        return insert(tx, token)

    good, bad, other = together(store, (counts, "a"), (breaks, "b"), (counts, "c"))
    assert (good.result(20), other.result(20)) == ("a", "c")
    with pytest.raises(StoreDamaged):  # its statement can only be wrong on tables that are not ours
        bad.result(20)
    assert stored(db) == {"a", "c"}
    assert tried == ["a", "a", "c"]


def test_when_the_transaction_cannot_begin_everybody_hears_of_it_after_one_wait(db, store, monkeypatch):
    monkeypatch.setattr(database_sqlite, "BUSY_LIMIT", 0.3)
    other = sqlite3.connect(db, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    futures = [store.batch.submit(insert, str(n)) for n in range(50)]
    outcomes = [future.exception(20) for future in futures]
    other.execute("ROLLBACK")
    other.close()
    assert {type(error) for error in outcomes} == {StoreBusy}
    assert len({id(error) for error in outcomes}) == 50
    assert store.batch.submit(insert, "later").result(20) == "later"


def test_one_commit_serves_a_whole_batch(store):
    commits = []
    commit = store.driver.committed
    store.driver.committed = lambda *args: commits.append(1) or commit(*args)
    for future in together(store, *[(insert, str(n)) for n in range(100)]):
        future.result(20)
    assert len(commits) <= 3


def beside_a_long_write(store, *work):
    """Calls each of ``work`` in a thread of its own while a write holds the lock, and lets that one go a little later."""
    held, release = threading.Event(), threading.Event()

    def block(tx):
        held.set()
        release.wait(20)

    holder = threading.Thread(target=store.direct, args=(block,))
    holder.start()
    held.wait(20)
    all_there = threading.Barrier(len(work) + 1)

    def begin(one):
        all_there.wait(20)
        return one()

    with ThreadPoolExecutor(len(work)) as pool:
        futures = [pool.submit(begin, one) for one in work]
        all_there.wait(20)
        time.sleep(0.3)
        release.set()
    holder.join()
    return futures


def test_threads_that_find_the_lock_taken_share_a_commit(db, store, monkeypatch):
    def slowly(*args):
        time.sleep(0.1)  # meanwhile all the others come
        return start_thread(*args)

    monkeypatch.setattr(database_batch, "start_thread", slowly)
    commits = []
    commit = store.driver.committed
    store.driver.committed = lambda *args: commits.append(1) or commit(*args)
    futures = beside_a_long_write(store, *[partial(store.direct, insert, str(n)) for n in range(20)])
    assert [future.result() for future in futures] == [str(n) for n in range(20)]
    assert len(stored(db)) == 20
    # The long one's, some for what had queued up, and one for each thread that came late on a busy machine.
    assert len(commits) <= 10


def test_each_thread_hears_of_its_own_refusal(db, store):
    work = [partial(store.direct, refuses if n % 5 == 0 else insert, str(n)) for n in range(20)]
    futures = beside_a_long_write(store, *work)
    assert [type(future.exception()) for future in futures] == [
        RunLost if n % 5 == 0 else type(None) for n in range(20)
    ]
    assert stored(db) == {str(n) for n in range(20) if n % 5}


def test_the_main_thread_waits_for_the_lock_itself(db, store):
    held = threading.Event()

    def block(tx):
        held.set()
        time.sleep(0.3)

    holder = threading.Thread(target=store.direct, args=(block,))
    holder.start()
    held.wait(20)
    assert store.direct(insert, "mine") == "mine"
    assert store.batch.ident is None  # the door was never asked
    holder.join()


def test_threads_wait_for_the_lock_themselves_when_the_doors_thread_cannot_be_started(db, store, monkeypatch):
    start = threading.Thread.start

    def no_door(thread):
        if thread.name == "agent-resume-commits":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", no_door)
    futures = beside_a_long_write(store, *[partial(store.direct, insert, str(n)) for n in range(4)])
    assert [future.result() for future in futures] == ["0", "1", "2", "3"]


def test_a_finalizer_that_writes_while_its_thread_queues_something_does_not_wait_for_itself(db, store):
    finalized = []

    class Collected(SimpleQueue):
        """Where the garbage collector comes in, once."""

        def put(self, item, block=True, timeout=None):
            if not finalized:
                finalized.append(1)
                finalized.append(store.direct(insert, "finalizer"))
            super().put(item)

    store.batch._queue = Collected()
    futures = beside_a_long_write(store, partial(store.direct, insert, "a"), partial(store.direct, insert, "b"))
    assert [future.result(20) for future in futures] == ["a", "b"]
    assert finalized == [1, "finalizer"]
    assert stored(db) == {"a", "b", "finalizer"}


def test_the_door_keeps_no_values_while_it_waits(store):
    class Value:
        """What an operation returns, and a weak reference can be had to."""

    kept = weakref.ref(store.batch.submit(lambda tx: Value()).result(20))
    end = time.monotonic() + 20
    while time.monotonic() < end and kept() is not None:
        time.sleep(0.05)
        gc.collect()
    assert kept() is None


def test_steps_in_one_commit_are_numbered_without_a_gap_whatever_else_is_in_it(db):
    """A number is checked once a commit and stored at its end; everybody else has to see it before."""
    stored_elsewhere = (
        "INSERT INTO steps (run_id, key, seq, status, output_format, output) "
        "SELECT seq, ?, 1000, 'completed', 'json', '\"elsewhere\"' FROM runs"
    )

    def complete_elsewhere():
        other = sqlite3.connect(db, isolation_level=None)
        other.executemany(stored_elsewhere, [("s30",), ("s90",)])
        other.close()

    async def work(number):
        return number

    async def body(run):
        await run.step("warm", work, 0)
        await asyncio.to_thread(complete_elsewhere)
        steps = [run.step(f"s{number}", work, number) for number in range(120)]
        events = [run.event("e", number=number) for number in range(20)]
        records = [run.record(f"r{number}", number) for number in range(20)]
        mixed = [one for three in zip(steps[::6], events, records, strict=True) for one in three]
        rest = [one for place, one in enumerate(steps) if place % 6]
        await asyncio.gather(*mixed, *rest)
        return [await run.get_step_result(f"s{number}") for number in range(120)]

    found = asyncio.run(agent_run("a", body, db=db))
    assert found == [number if number not in (30, 90) else "elsewhere" for number in range(120)]
    connection = sqlite3.connect(db)
    numbers = [seq for (seq,) in connection.execute("SELECT seq FROM events ORDER BY id")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert connection.execute("SELECT last_seq FROM runs").fetchone() == (len(numbers),)
    connection.close()


def test_an_operation_sees_what_those_before_it_in_its_commit_put_off(db, store):
    @puts_off
    def number(tx, place):
        return next_seq(tx, place, "")

    def last(tx):
        tx.cursor.execute("SELECT last_seq FROM runs")
        return tx.cursor.fetchone()[0]

    with Checkpoint("r", db=db) as run:
        run.record("warm", 1)
        place = run._core.where
        numbers = together(store, (number, place), (number, place), (last,), (number, place))
        found = [future.result(20) for future in numbers]
        assert found == [found[0], found[0] + 1, found[0] + 1, found[0] + 2]
        assert store.direct(last) == found[3]


def test_what_is_queued_at_close_is_committed_and_the_next_use_works(db, store):
    futures = [store.batch.submit(insert, str(n)) for n in range(200)]
    store.close()
    assert all(future.done() for future in futures)
    assert len(stored(db)) == 200
    assert store.batch.submit(insert, "after").result(20) == "after"


def test_closing_again_and_again_while_others_queue_loses_nothing(db, store):
    stop = threading.Event()
    acknowledged = []

    def worker(n):
        count = 0
        while not stop.is_set():
            acknowledged.append(store.batch.submit(insert, f"{n}-{count}").result(30))
            count += 1

    threads = [threading.Thread(target=worker, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        time.sleep(0.01)
        store.close()
    stop.set()
    for thread in threads:
        thread.join(40)
        assert not thread.is_alive()
    assert set(acknowledged) <= stored(db)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupt_in_the_doors_thread_is_an_outcome_and_the_door_goes_on(db, store, error):
    def interrupted(tx):
        raise error

    with pytest.raises((StoreUnavailable, MemoryError)):
        store.batch.submit(interrupted).result(20)
    for future in together(store, (interrupted,), (insert, "a")):
        assert future.exception(20) is None or isinstance(future.exception(20), (StoreUnavailable, MemoryError))
    assert store.batch.submit(insert, "b").result(20) == "b"


def test_a_caller_that_cannot_be_told_harms_nobody(store):

    def settle(value, error):
        raise RuntimeError("gone")

    store.batch.put(Queued(insert, ("a",), True, settle))
    assert store.batch.submit(insert, "b").result(20) == "b"


def test_operations_of_a_loop_that_was_closed_are_committed(db, store):
    from agent_resume.database_batch import Way

    loop = asyncio.new_event_loop()
    loop.close()
    store.batch.put(Queued(insert, ("a",), True, lambda value, error: None, Way(loop)))
    store.batch.submit(insert, "b").result(20)
    assert stored(db) == {"a", "b"}


def test_when_no_thread_can_be_started_nothing_waits(db, store, monkeypatch):
    store.batch.close()

    def start(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(StoreUnavailable, match="thread"):
            store.batch.submit(insert, "a")
    assert store.batch.submit(insert, "b").result(20) == "b"
    assert stored(db) == {"b"}


def test_helpers_keep_no_process_alive(run_python, db):
    done = run_python(
        "import time\nfrom agent_resume.database_helpers import Helpers\n"
        "helpers = Helpers()\n"
        "print(helpers.submit(lambda: 5).result())\n"
        "helpers.submit(lambda: time.sleep(600))"
    )
    assert (done.returncode, done.stdout.strip()) == (0, "5")


def test_case_007_after_a_failed_write_others_can_write_at_once(db):
    with Checkpoint("r", db=db) as run:
        with pytest.raises(TypeError):
            run.step("a", lambda: object())
        other = sqlite3.connect(db, timeout=0, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
        other.close()
        assert not run.has("a")


def test_operations_queued_together_have_all_their_outcomes_whoever_closes_the_store_meanwhile(db, store):
    ending = threading.Event()

    def close():
        while not ending.is_set():
            store.batch.close()

    closer = threading.Thread(target=close)
    closer.start()
    try:
        for n in range(400):
            found = store.batch.perform((insert, (f"{n}a",), False), (insert, (f"{n}b",), False))
            assert [(item.settled, item.value) for item in found] == [(True, f"{n}a"), (True, f"{n}b")]
    finally:
        ending.set()
        closer.join()
    assert len(stored(db)) == 800
