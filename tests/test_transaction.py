"""``run.transaction``: the function's writes and the step's completion are one commit."""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import threading
import time

import pytest
import sqlalchemy
from loops import blocking_allowed, no_blocking_calls  # noqa: F401 - a fixture

from agent_resume import (
    AsyncCheckpoint,
    Checkpoint,
    InvalidTransition,
    OutputNotStorable,
    StepTimeout,
    StoreBusy,
    agent_run,
    answer,
    current_step,
    database,
    load_run,
    run_context,
    store_transaction,
)


def rows(db, table="ledger"):
    connection = sqlite3.connect(db)
    try:
        return [row[0] for row in connection.execute(f"SELECT word FROM {table} ORDER BY rowid")]
    except sqlite3.OperationalError:
        return []
    finally:
        connection.close()


def add(connection, word):
    connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS ledger (word TEXT)")
    connection.execute(sqlalchemy.text("INSERT INTO ledger VALUES (:word)"), {"word": word})
    return word


def status(db, key):
    return {step.name: step.status for step in load_run("r", db=db).steps}[key]


def test_writes_and_completion_are_committed_together_and_once(db):
    calls = []

    def body(run):
        def fn(connection):
            calls.append(current_step().key)
            return {"word": add(connection, "a")}

        return run.transaction("t", fn)

    assert agent_run("a", body, db=db, run_id="r") == {"word": "a"}
    with Checkpoint("r", db=db) as run:
        assert run.get_step_result("t") == {"word": "a"}
    assert rows(db) == ["a"]
    assert calls == ["t"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_undoes_the_writes_and_is_recorded(db, error):
    def fails(connection):
        add(connection, "a")
        raise error

    with Checkpoint("r", db=db) as run:
        with pytest.raises(error):
            run.transaction("t", fails)
        assert rows(db) == []
        assert status(db, "t") == ("failed" if error is ValueError else "interrupted")
        run.transaction("t", lambda connection: add(connection, "b"))
    assert rows(db) == ["b"]


def test_a_result_that_cannot_be_stored_undoes_them_too(db):
    with Checkpoint("r", db=db) as run, pytest.raises(OutputNotStorable):
        run.transaction("t", lambda connection: add(connection, "a") and object())
    assert rows(db) == []


def test_an_error_of_the_database_is_the_users_own(db):
    with Checkpoint("r", db=db) as run, pytest.raises(sqlalchemy.exc.OperationalError, match="no such table"):
        run.transaction("t", lambda connection: connection.exec_driver_sql("INSERT INTO missing VALUES (1)"))


def test_the_functions_commit_rollback_and_close_act_on_its_own_writes_alone(db):
    def fn(connection):
        add(connection, "committed")
        connection.commit()
        add(connection, "rolled back")
        connection.rollback()
        add(connection, "left open")
        with connection.begin_nested() as inner:
            add(connection, "inner")
            inner.rollback()
        connection.close()
        return 1

    with Checkpoint("r", db=db) as run:
        run.transaction("t", fn)

        def gives_up(connection):
            add(connection, "no")
            connection.commit()
            raise LookupError

        with pytest.raises(LookupError):
            run.transaction("u", gives_up)
    assert rows(db) == ["committed", "left open"]


@pytest.mark.parametrize(
    "statement",
    ["COMMIT", "ROLLBACK", "END", "commit;", "RELEASE agent_resume_lent", "ROLLBACK TO agent_resume_lent", "BEGIN"],
)
def test_raw_statements_cannot_end_it_either(db, statement):
    def fn(connection):
        add(connection, "a")
        connection.exec_driver_sql(statement)

    with Checkpoint("r", db=db) as run:
        with pytest.raises(sqlalchemy.exc.DBAPIError):
            run.transaction("t", fn)
        assert rows(db) == []
        run.step("after", int)


def test_the_connection_is_of_no_use_afterwards(db):
    kept = []
    with Checkpoint("r", db=db) as run:
        run.transaction("t", lambda connection: kept.append(connection) or add(connection, "a"))
        with pytest.raises(Exception):
            add(kept[0], "b")
        run.step("s", int)
    assert rows(db) == ["a"]


def test_calls_on_the_store_from_inside_are_refused_at_once(db):
    with Checkpoint("r", db=db) as run:
        for n, call in enumerate(
            (
                lambda: run.step("inner", int),
                lambda: run.record("k", 1),
                lambda: run.has("x"),
                lambda: run.transaction("u", lambda connection: 1),
                lambda: run.wait("w"),
                lambda: next(run.map("m", str, [1])),
                lambda: run.status,
            )
        ):
            with pytest.raises(InvalidTransition, match="inside run.transaction"):
                run.transaction(f"t{n}", lambda connection, call=call: call())
        with pytest.raises(StoreBusy):
            run.transaction("answer", lambda connection: answer("r", "x", 1, db=db))
        # An event never raises: it is counted as lost.
        run.transaction("event", lambda connection: run.event("gate", name="x"))
        assert run._core.lost_events == 1
        assert run.step("after", int) == 0


def test_a_function_that_takes_too_long_is_rolled_back_while_it_runs(db, monkeypatch):
    monkeypatch.setattr(store_transaction, "TRANSACTION_LIMIT", 0.3)
    other_wrote = threading.Event()

    def other():
        with Checkpoint("other", db=db) as run:
            run.step("s", int)
            other_wrote.set()

    def slow(connection):
        add(connection, "a")
        deadline = time.monotonic() + 20
        outside = sqlite3.connect(db, timeout=0, isolation_level=None)
        try:
            while time.monotonic() < deadline:
                try:
                    outside.execute("BEGIN IMMEDIATE")
                    outside.execute("ROLLBACK")
                    break
                except sqlite3.OperationalError:
                    time.sleep(0.05)
            else:
                pytest.fail("the write lock was never given back")
        finally:
            outside.close()
        add(connection, "after the limit")

    with Checkpoint("r", db=db) as run:
        with pytest.raises(StepTimeout):
            run.transaction("t", slow)
        with pytest.raises(StepTimeout):
            run.transaction(
                "endless",
                lambda connection: connection.exec_driver_sql(
                    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
                ).fetchall(),
            )
        thread = threading.Thread(target=other)
        thread.start()
        assert other_wrote.wait(20)
        thread.join()
        assert status(db, "t") == "failed"
    assert rows(db) == []


async def test_for_coroutines_the_function_runs_in_a_thread(db):
    async with AsyncCheckpoint("r", db=db) as run:
        here = threading.get_ident()
        assert await run.transaction("t", lambda connection: add(connection, "a") and threading.get_ident()) != here
        with pytest.raises(ValueError):
            await run.transaction("u", lambda connection: int(add(connection, "b")))
        assert await run.step("s", int) == 0
    with blocking_allowed():
        assert rows(db) == ["a"]


async def test_cancelled_while_it_commits_it_is_stored_whole(db):
    import asyncio

    async with AsyncCheckpoint("r", db=db) as run:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def fn(connection):
            loop.call_soon_threadsafe(begun.set)
            time.sleep(0.1)
            return add(connection, "a")

        task = asyncio.create_task(run.transaction("t", fn))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await run.has("t")
    with blocking_allowed():
        assert rows(db) == ["a"]


AGENT = """
import sys
import sqlalchemy
from agent_resume import agent_run
engine = sqlalchemy.create_engine(f"sqlite:///{sys.argv[2]}") if len(sys.argv) > 2 else None
def write(word):
    def fn(connection):
        connection.execute(sqlalchemy.text("INSERT INTO ledger VALUES (:word)"), {"word": word})
        return word
    return fn
def body(run):
    print('going', flush=True)
    for n in range(60):
        run.transaction(f"t{n}", write(str(n)), engine)
agent_run('a', body, db=sys.argv[1], run_id='r')
print('finished', flush=True)
"""


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_killed_again_and_again_there_is_one_row_a_step(db, spawn_agent, tmp_path, where):
    # 500 kills are scripts/real-agents transaction.
    theirs = str(tmp_path / "theirs.db")
    ledger = db if where == "here" else theirs
    if where == "here":
        Checkpoint("setup", db=db).step("s", int)
    connection = sqlite3.connect(ledger)
    connection.execute("CREATE TABLE ledger (word TEXT)")
    connection.commit()
    connection.close()
    arguments = (db,) if where == "here" else (db, theirs)
    kills = 0
    for _ in range(12):
        agent = spawn_agent(AGENT, *arguments, marker="going")
        time.sleep(random.uniform(0, 0.08))
        if agent.process.poll() is None:
            agent.process.send_signal(signal.SIGKILL)
            kills += 1
        agent.finish()
        found = rows(ledger)
        assert len(found) == len(set(found))
    assert spawn_agent(AGENT, *arguments).finish() == 0
    assert rows(ledger) == [str(n) for n in range(60)]
    assert kills


@pytest.mark.parametrize("fault", ["in-function:5", "after-return:5", "before-commit:12", "after-commit:12"])
@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_killed_at_each_point_there_is_one_row_a_step(db, run_python, tmp_path, where, fault):
    theirs = str(tmp_path / "theirs.db")
    ledger = db if where == "here" else theirs
    if where == "here":
        Checkpoint("setup", db=db).step("s", int)
    connection = sqlite3.connect(ledger)
    connection.execute("CREATE TABLE ledger (word TEXT)")
    connection.commit()
    connection.close()
    arguments = (db,) if where == "here" else (db, theirs)
    assert run_python(AGENT, *arguments, AGENT_RESUME_FAULTS=fault).returncode == -9
    assert run_python(AGENT, *arguments).returncode == 0
    assert rows(ledger) == [str(n) for n in range(60)]


# -- another database ------------------------------------------------------------------------------------------------


@pytest.fixture
def theirs(tmp_path):
    made = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'theirs.db'}")
    yield made
    made.dispose()


def test_another_database_keeps_the_completion_beside_the_work(db, theirs, tmp_path):
    with Checkpoint("r", db=db) as run:
        assert run.transaction("t", lambda connection: add(connection, "a"), theirs) == "a"
    with theirs.connect() as connection:
        (row,) = connection.exec_driver_sql("SELECT run_id, step_key, attempt FROM agent_resume_completions")
    assert tuple(row) == ("r", "t", 1)
    assert rows(tmp_path / "theirs.db") == ["a"]


def test_committed_there_and_not_told_here_it_is_adopted(db, theirs, tmp_path):
    with Checkpoint("r", db=db) as run:
        run.transaction("t", lambda connection: add(connection, "a"), theirs)
    # As after a kill between the two commits: the step seems to be running, and nobody was told.
    connection = sqlite3.connect(db)
    connection.execute("UPDATE steps SET status = 'running', owner_token = NULL, output = NULL, output_format = NULL")
    connection.execute("DELETE FROM events WHERE type = 'done'")
    connection.commit()
    connection.close()
    with Checkpoint("r", db=db) as run:
        assert run.transaction("t", lambda connection: add(connection, "again"), theirs) == "a"
    assert rows(tmp_path / "theirs.db") == ["a"]


def test_run_again_on_purpose_it_is_done_again(db, theirs, tmp_path):
    with Checkpoint("r", db=db) as run:
        run.transaction("t", lambda connection: add(connection, "a"), theirs)
    connection = sqlite3.connect(db)
    connection.execute("UPDATE steps SET status = 'interrupted', output = NULL, output_format = NULL")
    connection.commit()
    connection.close()
    with Checkpoint("r", db=db) as run:
        assert run.transaction("t", lambda connection: add(connection, "b"), theirs) == "b"
    assert rows(tmp_path / "theirs.db") == ["a", "b"]


def test_a_run_of_the_same_id_in_another_store_is_another_step(db, theirs, tmp_path):
    for n, store in enumerate((db, f"{db}2")):
        with Checkpoint("r", db=store) as run:
            time.sleep(0.005)
            run.transaction("t", lambda connection, n=n: add(connection, str(n)), theirs)
    assert rows(tmp_path / "theirs.db") == ["0", "1"]


@pytest.mark.parametrize("action", ["commit", "rollback"])
def test_ending_the_transaction_there_is_refused(db, theirs, tmp_path, action):
    def fn(connection):
        add(connection, "a")
        getattr(connection, action)()

    with Checkpoint("r", db=db) as run, pytest.raises(InvalidTransition):
        run.transaction("t", fn, theirs)
    assert rows(tmp_path / "theirs.db") == []


def test_a_failure_there_leaves_nothing_there(db, theirs, tmp_path):
    def fn(connection):
        add(connection, "a")
        raise LookupError

    with Checkpoint("r", db=db) as run:
        with pytest.raises(LookupError):
            run.transaction("t", fn, theirs)
        with pytest.raises(TypeError, match="Engine"):
            run.transaction("u", fn, "sqlite://")
    assert rows(tmp_path / "theirs.db") == []


def test_from_inside_another_database_the_store_may_be_used(db, theirs):
    with Checkpoint("r", db=db) as run:
        assert run.transaction("t", lambda connection: run.step("inner", lambda: 5), theirs) == 5


@pytest.mark.parametrize("patience", ["TURN_PATIENCE", "LENT_PATIENCE"])
def test_a_thread_that_the_function_waits_for_is_refused_instead_of_waiting_for_ever(db, monkeypatch, patience):
    monkeypatch.setattr(f"agent_resume.database.{patience}", 0.2)
    refused = []

    def write_elsewhere(run):
        with pytest.raises(StoreBusy) as caught:
            run.record("from a thread", 1)
        refused.append(caught.value)

    def function(connection):
        thread = threading.Thread(target=write_elsewhere, args=(run,))
        thread.start()
        thread.join()
        return "done"

    with Checkpoint("r", db=db) as run:
        run.record("before", 1)
        assert run.transaction("t", function) == "done"
        assert "inside run.transaction" in str(refused[0])
        run.record("from a thread", 2)


def test_usage_of_a_transactions_result_counts(db):
    reply = {"usage": {"input_tokens": 1, "output_tokens": 2}}
    with Checkpoint("r", db=db) as run:
        run.transaction("t", lambda connection: reply)
        assert run.timeline()[0].meta == {"inputTokens": 1, "outputTokens": 2}


@pytest.mark.parametrize("how", ["engine", "option", "driver"])
def test_an_engine_without_transactions_is_refused_before_anything_is_written(db, tmp_path, how):
    url, calls = f"sqlite:///{tmp_path / 'theirs.db'}", []
    if how == "engine":
        engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    elif how == "option":
        engine = sqlalchemy.create_engine(url).execution_options(isolation_level="AUTOCOMMIT")
    else:
        engine = sqlalchemy.create_engine(url, connect_args={"isolation_level": None})
    with Checkpoint("r", db=db) as run:
        for _ in range(2):
            with pytest.raises(ValueError, match="AUTOCOMMIT"):
                run.transaction("t", calls.append, engine)
    with engine.connect() as connection:
        assert not list(connection.exec_driver_sql("SELECT * FROM agent_resume_completions"))
    engine.dispose()
    assert not calls


def test_an_engine_that_begins_by_hand_has_transactions(db, tmp_path):
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'theirs.db'}", connect_args={"isolation_level": None})
    sqlalchemy.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    with Checkpoint("r", db=db) as run:
        assert run.transaction("t", lambda connection: add(connection, "a"), engine) == "a"
    engine.dispose()


@pytest.mark.parametrize("statement", ["COMMIT", " end transaction", "ROLLBACK"])
def test_raw_statements_cannot_end_it_there_either(db, theirs, tmp_path, statement):
    def fn(connection):
        add(connection, "a")
        with connection.begin_nested():
            add(connection, "b")
        connection.exec_driver_sql(statement)

    with Checkpoint("r", db=db) as run:
        for _ in range(2):
            with pytest.raises(InvalidTransition):
                run.transaction("t", fn, theirs)
    assert rows(tmp_path / "theirs.db") == []


def test_a_completion_that_was_left_behind_half_way_is_no_result(db, theirs):
    def leave_behind(connection):
        connection.connection.dbapi_connection.commit()  # past every guard
        raise LookupError

    with Checkpoint("r", db=db) as run:
        with pytest.raises(LookupError):
            run.transaction("t", leave_behind, theirs)
        with pytest.raises(ValueError, match="half-way"):
            run.transaction("t", leave_behind, theirs)


def test_a_transaction_that_a_statement_ended_is_no_timeout(db):
    def fn(connection):
        connection.exec_driver_sql("CREATE TABLE t (n INTEGER PRIMARY KEY)")
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
        with contextlib.suppress(sqlalchemy.exc.IntegrityError):
            connection.exec_driver_sql("INSERT OR ROLLBACK INTO t VALUES (1)")

    with Checkpoint("r", db=db) as run, pytest.raises(InvalidTransition, match="rolls back"):
        run.transaction("t", fn)


_TIMES_UP = """
import faulthandler, random, sys
from sqlalchemy import exc
from agent_resume import Checkpoint, StepTimeout, store_transaction
faulthandler.dump_traceback_later(30, exit=True)
times = random.Random(3)
def busy(connection):
    number = 0
    while True:
        number += 1
        try:
            # Each a text of its own, so that SQLite asks for permission, and wrong, so that its words are read.
            connection.exec_driver_sql(f"SELECT {number} FROM no_such_table")
        except exc.OperationalError:
            pass
with Checkpoint("r", db=sys.argv[1], durability="relaxed") as run:
    for number in range(40):
        store_transaction.TRANSACTION_LIMIT = times.uniform(0.001, 0.02)
        try:
            run.transaction(f"t{number}", busy)
        except StepTimeout:
            pass
print("done")
"""


def test_a_time_that_ends_in_the_middle_of_a_statement_hangs_nobody(db, run_python):
    said = run_python(_TIMES_UP, db)
    assert said.stdout == "done\n", said.stderr[-3000:]


def test_threads_that_waited_for_the_lock_before_it_began_are_let_go_as_well(db, monkeypatch):
    monkeypatch.setattr(database, "LENT_PATIENCE", 0.5)
    stop, seen = threading.Event(), []

    def body(run):
        def writer(number):
            while not stop.is_set():
                run.event("e", {"n": number})

        threads = [threading.Thread(target=writer, args=(number,), daemon=True) for number in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)

        def fn(connection):
            stop.set()
            for thread in threads:
                thread.join(20)
            seen.extend(thread.is_alive() for thread in threads)

        run.transaction("t", fn)

    agent_run("a", body, db=db, run_id="r", progress=False)
    assert seen == [False] * 4


@pytest.mark.parametrize("trouble", [KeyboardInterrupt, RuntimeError("can't start new thread")])
def test_trouble_while_it_begins_leaves_the_store_usable(db, monkeypatch, trouble):
    start = threading.Timer.start

    def broken(timer):
        start(timer)
        raise trouble

    def body(run):
        run.step("a", int)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Timer, "start", broken)
            with pytest.raises((KeyboardInterrupt, RuntimeError)):
                run.transaction("t", lambda connection: add(connection, "lost"))
        run.step("b", int)
        return run.transaction("t", lambda connection: add(connection, "kept"))

    assert agent_run("a", body, db=db, run_id="r") == "kept"
    assert rows(db) == ["kept"]


@pytest.mark.parametrize("place", ["let_go", "_call"])
def test_an_interrupt_where_the_connection_is_taken_back_leaves_the_store_usable(db, monkeypatch, place):
    def interrupted(*_):
        raise KeyboardInterrupt

    def body(run):
        with monkeypatch.context() as patch:
            if place == "let_go":
                patch.setattr(store_transaction.Borrowed, "let_go", interrupted)
            else:
                patch.setattr(run_context, "lent", _Interrupting())
            with pytest.raises(KeyboardInterrupt):
                run.transaction("t", lambda connection: add(connection, "lost"))
        assert run.step("b", int) == 0
        return run.transaction("t", lambda connection: add(connection, "kept"))

    assert agent_run("a", body, db=db, run_id="r") == "kept"
    assert rows(db) == ["kept"]


class _Interrupting:
    """Stands for a ContextVar whose ``set`` a Ctrl-C follows before its token is had."""

    def __init__(self):
        self._real = run_context.lent

    def get(self):
        return self._real.get()

    def set(self, value):
        token = self._real.set(value)
        if value is not None:
            raise KeyboardInterrupt
        return token
