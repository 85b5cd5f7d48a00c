"""What is PostgreSQL's own: opening, racing writers, broken connections, and commits whose outcome is unknown."""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from agent_resume import Checkpoint, Store, agent_run, errors, load_run, schema, schema_tables, store_runs
from agent_resume.database_location import resolve
from agent_resume.database_sql import Tx


def dsn(url: str) -> str:
    return url.replace("+psycopg", "")


def rows(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn(url), autocommit=True) as connection:
        connection.execute("SET search_path TO agent_resume")
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description is not None else []


def cut(url: str) -> int:
    """Ends every connection to the database but this one, from the server's side; how many there were."""
    return rows(
        url,
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'agent-resume'",
    )[0][0]


# -- opening ---------------------------------------------------------------------------------------------------------


def test_everything_lives_in_a_schema_of_our_own(postgres_url: str) -> None:
    with Checkpoint("r", db=postgres_url) as run:
        run.record("a", 1)
    found = rows(postgres_url, "SELECT schemaname, tablename FROM pg_tables WHERE schemaname !~ '^(pg_|information)'")
    assert {name for name, _ in found} == {"agent_resume"}
    assert {name for _, name in found} == {"owners", "runs", "steps", "events", "pauses", schema.VERSION_TABLE}


def test_the_revisions_make_exactly_what_is_described(postgres_url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from sqlalchemy import create_engine

    Store(postgres_url).database.ensure_writable()
    engine = create_engine(postgres_url, connect_args={"options": "-csearch_path=agent_resume"})
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": schema.VERSION_TABLE})
        assert compare_metadata(context, schema_tables.metadata) == []
    engine.dispose()


def test_a_schema_of_another_program_is_left_alone(postgres_url: str) -> None:
    rows(postgres_url, "CREATE SCHEMA agent_resume")
    rows(postgres_url, "CREATE TABLE agent_resume.theirs (x int)")
    with pytest.raises(errors.StoreDamaged, match="another program"):
        Store(postgres_url).database.ensure_writable()
    assert rows(postgres_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'agent_resume'") == [(1,)]


def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    store = Store(postgres_url)
    store.database.ensure_writable()
    store.close()
    rows(postgres_url, f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(errors.StoreNewer):
        Store(postgres_url).database.ensure_writable()


def test_reading_creates_nothing(postgres_url: str) -> None:
    store = Store(postgres_url)
    assert list(store.list_runs()) == []
    with pytest.raises(errors.RunNotFound):
        store.load_run("nope")
    assert rows(postgres_url, "SELECT count(*) FROM pg_namespace WHERE nspname = 'agent_resume'") == [(0,)]


def test_a_server_that_was_never_reached_is_unavailable_at_once() -> None:
    with pytest.raises(errors.StoreUnavailable, match="refused"):
        Store("postgresql+psycopg://me:secret@127.0.0.1:1/db").database.ensure_writable()


def test_a_missing_database_is_named_and_no_password_is_shown(postgres: Any) -> None:
    url = f"postgresql+psycopg://postgres:secret@{postgres.address}/nowhere?sslpassword=secret2"
    with pytest.raises(errors.StoreUnavailable, match="nowhere") as caught:
        Store(url).database.ensure_writable()
    assert "secret" not in str(caught.value)
    assert "secret" not in resolve(url).display


@pytest.mark.parametrize(
    "parameter", ["client_encoding=latin1", "client_encoding=sql_ascii", "options=-cclient_encoding=latin1"]
)
def test_texts_are_utf8_whatever_the_url_says(postgres_url: str, parameter: str) -> None:
    url = f"{postgres_url}?{parameter}"
    assert agent_run("j", lambda run: run.step("é日", lambda: "日😀"), db=url, run_id="é") == "日😀"
    assert load_run("é", db=postgres_url).steps[0].output == "日😀"


def test_another_driver_is_refused_with_what_to_write() -> None:
    with pytest.raises(ValueError, match=r"postgresql\+psycopg"):
        Store("postgresql+psycopg2://me@127.0.0.1/db")


def _open_new(url: str) -> None:
    with Checkpoint("r", db=url) as run:
        run.record(f"from-{multiprocessing.current_process().pid}", True)


def test_six_processes_open_a_new_database_at_once(postgres_url: str) -> None:
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=_open_new, args=(postgres_url,)) for _ in range(6)]
    for child in children:
        child.start()
    for child in children:
        child.join(50)
    assert [child.exitcode for child in children] == [0] * 6
    assert len(load_run("r", db=postgres_url).steps) == 6


# -- values ----------------------------------------------------------------------------------------------------------


def test_values_come_back_equal_whatever_text_they_hold(postgres_url: str) -> None:
    value = {
        "nul": "a\0b",
        "half": "\ud800",
        "emoji": "😀",
        "backslash": "\\u0000 %s %(x)s ::text",
        "quote": "'\"",
        "big": 2**70,
    }

    def body(run: Any) -> Any:
        return run.step("one", lambda: value)

    assert agent_run("t", body, db=postgres_url, run_id="r") == value
    assert agent_run("t", body, db=postgres_url, run_id="r") == value
    assert load_run("r", db=postgres_url).steps[0].output == value


def test_views_stand_values_that_postgresql_cannot_take_apart(postgres_url: str) -> None:
    def bad() -> None:
        raise RuntimeError("half a pair \ud800 and a NUL \0 end")

    with Checkpoint("r", db=postgres_url) as run, pytest.raises(RuntimeError):
        run.step("bad", bad, meta={"inputTokens": 7, "model": "m\0"})
    ((error, tokens, model),) = rows(postgres_url, "SELECT error, input_tokens, model FROM step_timeline")
    assert error.startswith("half a pair ")
    assert (tokens, model) == (7, "m\ufffd")
    assert rows(postgres_url, "SELECT steps_failed FROM run_overview") == [(1,)]
    assert rows(postgres_url, "SELECT outcome FROM step_attempts") == [("error",)]


# -- racing writers --------------------------------------------------------------------------------------------------


def _together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Runs ``work`` in threads that begin together; what each returned or raised."""
    gate = threading.Barrier(count)
    found: list[Any] = [None] * count

    def run(number: int) -> None:
        gate.wait()
        try:
            found[number] = work(number)
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    return found


def _stores(url: str, count: int) -> list[Store]:
    """As many stores with a connection of their own each: another spelling of a URL is another database here."""
    return [Store(f"{url}?application_name=agent-resume-{number}") for number in range(count)]


def test_concurrent_creators_of_one_run_all_write_to_it(postgres_url: str) -> None:
    stores = _stores(postgres_url, 6)
    stores[0].database.ensure_writable()

    def work(number: int) -> None:
        with Checkpoint("shared", db=stores[number]) as run:
            run.record(f"key-{number}", number)

    assert _together(6, work) == [None] * 6
    assert len(load_run("shared", db=postgres_url).steps) == 6
    numbers = [seq for (seq,) in rows(postgres_url, "SELECT seq FROM events ORDER BY seq")]
    assert numbers == list(range(1, 8))
    for store in stores:
        store.close()


def test_one_key_recorded_by_many_at_once_has_one_value(postgres_url: str) -> None:
    stores = _stores(postgres_url, 5)
    with Checkpoint("shared", db=stores[0]) as run:
        run.record("first", 0)

    def work(number: int) -> Any:
        with Checkpoint("shared", db=stores[number]) as run:
            return run.record("key", "the same")

    assert _together(5, work) == ["the same"] * 5
    assert rows(postgres_url, "SELECT count(*) FROM events WHERE type = 'record' AND step_key = 'key'") == [(1,)]
    for store in stores:
        store.close()


def test_of_two_that_find_the_same_unfinished_run_one_takes_it(postgres_url: str) -> None:
    stores = _stores(postgres_url, 4)
    with pytest.raises(ZeroDivisionError):
        agent_run("agent", lambda run: 1 // 0, db=stores[0], run_id="left")

    def open_one(number: int) -> Any:
        store = stores[number]
        owner = store.owner
        request = store_runs.OpenRequest(store_runs.NewRun("agent"), owner.seed, owner.judge, owner.executing)
        return store.direct(store_runs.open_run, request)

    opened = _together(4, open_one)
    # Owners of this very process that are not open in the asking store count as dead, so each may be taken over: what
    # counts is that every one of them saw what the others had done, and none lost a race.
    assert not [found for found in opened if isinstance(found, BaseException)]
    assert sorted(found.run.epoch for found in opened if found.run.id == "left") == list(
        range(2, 2 + len([found for found in opened if found.run.id == "left"]))
    )
    for store in stores:
        store.close()


def test_generated_ids_never_clash(postgres_url: str, clock: Any) -> None:
    stores = _stores(postgres_url, 5)
    stores[0].database.ensure_writable()

    def create(number: int) -> str:
        return stores[number].direct(lambda tx: store_runs.create(tx, store_runs.NewRun("agent"), owner=None)).id

    ids = _together(5, create)
    assert len({str(found) for found in ids}) == 5
    assert all(str(found).startswith("agent-17698") for found in ids)
    for store in stores:
        store.close()


def test_a_cancelled_run_is_not_taken_by_one_that_was_about_to(postgres_url: str) -> None:
    with Store(postgres_url) as store:
        with pytest.raises(ZeroDivisionError):
            agent_run("agent", lambda run: 1 // 0, db=store, run_id="r")
        other = psycopg.connect(dsn(postgres_url))
        other.execute("SELECT 1 FROM agent_resume.runs WHERE id = 'r' FOR UPDATE")
        taken: list[str] = []
        opening = threading.Thread(
            target=lambda: taken.append(agent_run("agent", lambda run: run.id, db=store)), daemon=True
        )
        opening.start()
        while not rows(postgres_url, "SELECT 1 FROM pg_locks WHERE NOT granted"):
            assert opening.is_alive()
        other.execute("UPDATE agent_resume.runs SET status = 'cancelled' WHERE id = 'r'")
        other.commit()
        other.close()
        opening.join(30)
        assert taken
        assert taken != ["r"]
        assert load_run("r", db=store).status == "cancelled"


def test_a_lock_held_too_long_is_busy(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_resume import database_postgres

    monkeypatch.setattr(database_postgres, "_SETTINGS", database_postgres._SETTINGS.replace("'30s'", "'200ms'"))
    with Checkpoint("r", db=postgres_url) as run:
        run.record("a", 1)
        with psycopg.connect(dsn(postgres_url)) as other:
            other.execute("SELECT 1 FROM agent_resume.runs FOR UPDATE")
            with pytest.raises(errors.StoreBusy):
                run.record("b", 2)
        run.record("b", 2)


# -- broken connections ----------------------------------------------------------------------------------------------


def test_idle_connections_that_were_cut_are_replaced(postgres_url: str) -> None:
    calls: list[int] = []
    with Checkpoint("r", db=postgres_url) as run:
        run.record("a", 1)
        assert run.has("a")
        assert cut(postgres_url) >= 2
        assert run.has("a")
        assert run.step("b", lambda: calls.append(1)) is None
        cut(postgres_url)
        run.event("note", {"n": 1})
        run.record("c", 3)
    assert calls == [1]
    assert run.state().status == "running"
    assert rows(postgres_url, "SELECT attempts FROM steps WHERE key = 'b'") == [(1,)]


class Cut:
    """Cuts the writing connection at the end of one write: before the server gets the COMMIT, or after it has done it."""

    def __init__(self, store: Store, *, after: bool, times: int = 1) -> None:
        self.driver = store.database.driver
        self.after = after
        self.times = times

    def __enter__(self) -> Cut:
        self._commit, self._alone = self.driver.commit, Tx.one_alone
        self.driver.commit = self.commit
        Tx.one_alone = lambda tx, statement, values: self.alone(tx, statement, values)  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *_: object) -> None:
        del self.driver.commit
        Tx.one_alone = self._alone  # type: ignore[method-assign]

    def commit(self, tx: Any) -> None:
        if self.times and tx.begun:
            self.times -= 1
            tx.cursor = Broken(tx, self.after)
        self._commit(tx)

    def alone(self, tx: Any, statement: Any, values: Any) -> Any:
        if not self.times:
            return self._alone(tx, statement, values)
        self.times -= 1
        if self.after and not tx.connection.closed:
            self._alone(tx, statement, values)
        tx.connection.pgconn.finish()
        raise psycopg.OperationalError("the connection was cut by the test")


class Broken:
    """A cursor whose connection breaks at its next statement, before or after the server has executed it."""

    def __init__(self, tx: Any, after: bool) -> None:
        self.tx, self.cursor, self.after = tx, tx.cursor, after

    def execute(self, text: str, values: object = None, **options: object) -> None:
        if self.tx.connection.closed:
            raise psycopg.OperationalError("the connection is closed")
        assert text == "COMMIT"
        if self.after:
            self.cursor.execute(text)
        self.tx.connection.pgconn.finish()
        raise psycopg.OperationalError("the connection was cut by the test")


@pytest.mark.parametrize("after", [True, False])
def test_a_commit_of_unknown_outcome_is_settled_by_looking(postgres_url: str, after: bool) -> None:
    calls: list[str] = []
    with Store(postgres_url) as store, Checkpoint("r", db=store) as run:
        run.record("first", 0)
        with Cut(store, after=after):
            run.step("claimed-at-a-broken-commit", lambda: calls.append("a"))
        with Cut(store, after=after, times=0) as at:

            def arm() -> str:
                at.times = 1  # the next COMMIT is the one that stores this step's result
                calls.append("b")
                return "done"

            assert run.step("completed-at-a-broken-commit", arm) == "done"
        with Cut(store, after=after):
            run.record("recorded", {"x": 1})
        with Cut(store, after=after):
            run.event("note", {"n": 1})
        with Cut(store, after=after):
            run.set_loop_state(verdict="go")
    assert calls == ["a", "b"]
    assert rows(postgres_url, "SELECT key, status, attempts FROM steps ORDER BY seq") == [
        ("first", "completed", 1),
        ("claimed-at-a-broken-commit", "completed", 1),
        ("completed-at-a-broken-commit", "completed", 1),
        ("recorded", "completed", 1),
    ]
    found = rows(postgres_url, "SELECT type, step_key FROM events ORDER BY seq")
    assert found == [
        ("created", None), ("record", "first"), ("start", "claimed-at-a-broken-commit"),
        ("done", "claimed-at-a-broken-commit"), ("start", "completed-at-a-broken-commit"),
        ("done", "completed-at-a-broken-commit"), ("record", "recorded"), ("user:note", None), ("state", None),
    ] or found[7][0] == "note"  # fmt: skip
    assert len(found) == 9


@pytest.mark.parametrize("after", [True, False])
def test_a_step_with_an_effect_is_in_no_doubt_after_a_broken_claim(postgres_url: str, after: bool) -> None:
    calls: list[int] = []
    with Store(postgres_url) as store, Checkpoint("r", db=store) as run:
        run.record("first", 0)
        with Cut(store, after=after):
            run.step("pay", lambda: calls.append(1), effect="once")
    assert calls == [1]
    assert rows(postgres_url, "SELECT status, attempts FROM steps WHERE key = 'pay'") == [("completed", 1)]


@pytest.mark.parametrize("after", [True, False])
def test_a_run_is_created_once_whatever_breaks(postgres_url: str, after: bool) -> None:
    with Store(postgres_url) as store:
        store.database.ensure_writable()
        with Cut(store, after=after):
            agent_run("agent", lambda run: run.step("a", lambda: 1), db=store)
    assert rows(postgres_url, "SELECT status, epoch FROM runs") == [("completed", 1)]


def test_an_outcome_that_cannot_be_looked_up_is_told_and_nothing_is_executed_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent_resume import database_postgres

    monkeypatch.setattr(database_postgres, "OUTAGE_LIMIT", 0.3)
    with Store(postgres_url) as store, Checkpoint("r", db=store) as run:
        run.record("first", 0)
        with Cut(store, after=True), monkeypatch.context() as patch:
            patch.setitem(store.database.driver._arguments, "port", 1)
            with pytest.raises(errors.StoreUnavailable, match="cannot be seen"):
                run.set_loop_state(verdict="go")
        assert run.get_loop_state() == {"verdict": "go"}
    assert rows(postgres_url, "SELECT count(*) FROM events WHERE type = 'state'") == [(1,)]


def test_a_batch_whose_commit_broke_is_stored_once(postgres_url: str) -> None:
    import asyncio

    from agent_resume import AsyncCheckpoint

    async def work(store: Store) -> None:
        async with AsyncCheckpoint("r", db=store) as run:
            await run.record("first", 0)
            with Cut(store, after=True):
                await asyncio.gather(*(run.record(f"k{n}", n) for n in range(20)))

    with Store(postgres_url) as store:
        asyncio.run(work(store))
    assert rows(postgres_url, "SELECT count(*) FROM events WHERE type = 'record'") == [(21,)]


def test_an_import_whose_connection_broke_is_refused_not_halved(postgres_url: str, tmp_path: Any) -> None:
    with Checkpoint("r", db=tmp_path / "a.db") as run:
        run.record("a", 1)
        run.record("b", 2)
    with Store(tmp_path / "a.db") as source, Store(postgres_url) as target:
        target.database.ensure_writable()
        with source.dump_run("r") as dump, Cut(target, after=False), pytest.raises(errors.StoreUnavailable):
            target.import_run(dump)
        assert list(target.list_runs()) == []
        with source.dump_run("r") as dump:
            assert target.import_run(dump).action == "imported"
        with source.dump_run("r") as dump:
            assert target.import_run(dump).action == "identical"


def test_an_import_whose_commit_got_no_answer_is_settled_by_looking(postgres_url: str, tmp_path: Any) -> None:
    with Checkpoint("r", db=tmp_path / "a.db") as run:
        run.record("a", 1)
    with Store(tmp_path / "a.db") as source, Store(postgres_url) as target:
        target.database.ensure_writable()
        with source.dump_run("r") as dump, Cut(target, after=True):
            assert target.import_run(dump).action == "imported"
        assert [found.id for found in target.list_runs()] == ["r"]


def test_a_write_without_its_schema_is_refused(postgres_url: str) -> None:
    with Checkpoint("r", db=postgres_url) as run:
        run.record("a", 1)
        rows(postgres_url, "DROP SCHEMA agent_resume CASCADE")
        with pytest.raises(errors.StoreMoved):
            run.record("b", 2)


def test_a_connection_that_is_dropped_open_is_ended_without_a_warning(postgres_url):
    from agent_resume.database_postgres_line import connect

    url = postgres_url.replace("+psycopg", "")
    line = connect(url, autocommit=True)
    process = line.info.backend_pid
    del line
    gc.collect()
    with connect(url, autocommit=True) as other:
        deadline = time.monotonic() + 10
        while other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (process,)).fetchone():
            assert time.monotonic() < deadline


def test_the_schema_cannot_be_seen_without_its_grant_and_the_message_says_so(postgres: Any, postgres_url: str) -> None:
    with Checkpoint("r", db=postgres_url) as run:
        run.record("a", 1)
    rows(postgres_url, "DROP ROLE IF EXISTS nobody_special")
    rows(postgres_url, "CREATE ROLE nobody_special LOGIN")
    reader = postgres_url.replace("postgres@", "nobody_special@")
    with pytest.raises(errors.StoreReadOnly, match="GRANT"), Store(reader) as store:
        list(store.list_runs())
    rows(postgres_url, "GRANT USAGE ON SCHEMA agent_resume TO nobody_special")
    rows(postgres_url, "GRANT SELECT ON ALL TABLES IN SCHEMA agent_resume TO nobody_special")
    with Store(reader) as store:
        assert [found.id for found in store.list_runs()] == ["r"]
        with pytest.raises(errors.StoreReadOnly, match="GRANT"):
            store.database.ensure_writable()
            agent_run("j", int, db=store)


def test_the_rights_that_are_advised_are_enough(postgres_url: str, command: Any) -> None:
    Store(postgres_url).database.ensure_writable()
    rows(postgres_url, "DROP ROLE IF EXISTS worker")
    rows(postgres_url, "CREATE ROLE worker LOGIN")
    rows(postgres_url, "GRANT USAGE ON SCHEMA agent_resume TO worker")
    worker = postgres_url.replace("postgres@", "worker@")
    rows(postgres_url, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA agent_resume TO worker")
    with pytest.raises(errors.StoreReadOnly, match="ALL SEQUENCES IN SCHEMA agent_resume"):
        agent_run("j", int, db=worker)
    (advice,) = [
        found for found in json.loads(command("doctor", "--json", "--db", worker)[1]) if found["level"] == "note"
    ]
    assert "runs_seq_seq" in advice["text"]
    assert "GRANT USAGE ON ALL SEQUENCES IN SCHEMA agent_resume TO it" in advice["mend"]
    rows(postgres_url, "GRANT USAGE ON ALL SEQUENCES IN SCHEMA agent_resume TO worker")
    assert agent_run("j", lambda run: run.step("a", lambda: 1), db=worker) == 1
    assert "permissions" not in command("doctor", "--json", "--db", worker)[1]


@pytest.mark.parametrize(
    "made", ["", "CREATE VIEW agent_resume.theirs AS SELECT 1", "CREATE SEQUENCE agent_resume.theirs"]
)
def test_tables_that_cannot_be_made_are_a_typed_error(postgres: Any, postgres_url: str, made: str) -> None:
    rows(postgres_url, "DROP ROLE IF EXISTS maker")
    rows(postgres_url, "CREATE ROLE maker LOGIN")
    rows(postgres_url, "CREATE SCHEMA agent_resume")
    rows(postgres_url, "GRANT USAGE ON SCHEMA agent_resume TO maker")
    if made:
        rows(postgres_url, made)
    expected = errors.StoreDamaged if made else errors.StoreReadOnly
    with pytest.raises(expected), Store(postgres_url.replace("postgres@", "maker@")) as store:
        store.database.ensure_writable()


def test_tables_without_their_revision_are_left_alone(postgres_url: str) -> None:
    with Store(postgres_url) as store:
        store.database.ensure_writable()
    rows(postgres_url, f"DELETE FROM {schema.VERSION_TABLE}")
    with pytest.raises(errors.StoreDamaged, match="revision"), Store(postgres_url) as store:
        store.database.ensure_writable()


def test_a_line_lost_while_the_tables_are_made_is_replaced(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_resume import migrate

    run_revisions, cuts = migrate._run_revisions, []

    def breaking(driver: Any, connection: Any) -> None:
        if not cuts:
            cuts.append(cut(postgres_url))
        run_revisions(driver, connection)

    monkeypatch.setattr(migrate, "_run_revisions", breaking)
    with Store(postgres_url) as store:
        store.database.ensure_writable()
    assert cuts == [1]


def test_an_encoding_that_cannot_hold_every_text_is_refused_before_anything_is_made(postgres: Any) -> None:
    postgres.execute("DROP DATABASE IF EXISTS latin")
    postgres.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    with pytest.raises(errors.StoreUnavailable, match="LATIN1"), Store(postgres.url("latin")) as store:
        store.database.ensure_writable()
    assert rows(postgres.url("latin"), "SELECT count(*) FROM pg_namespace WHERE nspname = 'agent_resume'") == [(0,)]
    postgres.drop_database("latin")


@pytest.mark.parametrize(
    ("rest", "shown"),
    [
        ("u:secr/et@h/d", "u@h/d"),
        ("u:secr%2Fet@h:5/d?host=/a/b", "u@h:5/d?host=/a/b"),
        ("u:?secret@h/d", "u@h/d"),
        ("u:***@h/d", "u@h/d"),
        ("u@h/d?password=sec/ret&user=x", "u@h/d?user=x"),
        ("u@h/d?pass%77ord=secret", "u@h/d"),
        ("u:p@h/d?scram_client_key=a&scram_server_key=b&oauth_client_secret=c&sslpassword=d", "u@h/d"),
        ("u@h/d?options=-c%20my.password%3Dsecret", "u@h/d"),
        ("u:p@h/d?options=-c%20role%3Dx", "u@h/d?options=-c+role%3Dx"),
        ("u@h/d?host=/a/b", "u@h/d?host=/a/b"),
    ],
)
def test_no_form_of_a_password_is_shown(rest: str, shown: str) -> None:
    assert resolve(f"postgresql+psycopg://{rest}").display == f"postgresql+psycopg://{shown}"


@pytest.mark.parametrize(
    "rest", ["u:se/cr@et@h/d", "u:secret@h:xx/d", "u:secret@h/d?foo=bar", "u:secret@h/d?autocommit=1"]
)
def test_what_is_no_url_is_refused_and_not_quoted(rest: str) -> None:
    with pytest.raises(ValueError, match="not a database URL") as caught:
        Store(f"postgresql+psycopg://{rest}")
    assert "secret" not in str(caught.value)
    assert "et@" not in str(caught.value)


@pytest.mark.parametrize(("user", "database"), [("postgres", "nowhere"), ("nowhere", "postgres")])
def test_who_is_turned_away_is_told_what_to_look_at(postgres: Any, user: str, database: str) -> None:
    with pytest.raises(errors.StoreUnavailable, match=r"nowhere.*look at the URL's user, password and database"):
        Store(postgres.url(database).replace("postgres@", f"{user}@")).database.ensure_writable()


# -- run.transaction -------------------------------------------------------------------------------------------------


def _execute(*statements: str) -> Callable[[Any], None]:
    def fn(connection: Any) -> None:
        for statement in statements:
            connection.exec_driver_sql(statement)

    return fn


_DEFERRED = """
CREATE TABLE once (x int UNIQUE DEFERRABLE INITIALLY DEFERRED);
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM * FROM nowhere; END';
CREATE CONSTRAINT TRIGGER late AFTER DELETE ON once DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse();
INSERT INTO once VALUES (1)
"""


@pytest.mark.parametrize(
    ("statement", "raw", "error"),
    [
        ("SELECT 1/0", True, psycopg.errors.DivisionByZero),
        ("SELECT * FROM nowhere", True, psycopg.errors.UndefinedTable),
        ("INSERT INTO plain VALUES (1)", True, psycopg.errors.UniqueViolation),
        ("INSERT INTO plain VALUES (1)", False, Exception),  # SQLAlchemy's
        ("INSERT INTO once VALUES (1)", False, psycopg.errors.UniqueViolation),  # at our COMMIT, these two
        ("DELETE FROM once", False, psycopg.errors.UndefinedTable),
    ],
)
def test_what_a_transactions_function_did_fails_with_its_own_error(
    postgres_url: str, statement: str, raw: bool, error: type[Exception]
) -> None:
    with psycopg.connect(dsn(postgres_url)) as connection:
        connection.execute(_DEFERRED.encode())
        connection.execute("CREATE TABLE plain (x int UNIQUE)")
        connection.execute("INSERT INTO plain VALUES (1)")

    def fn(connection: Any) -> None:
        (connection.connection.cursor().execute if raw else connection.exec_driver_sql)(statement)

    with Checkpoint("r", db=postgres_url) as run:
        with pytest.raises(error) as caught:
            run.transaction("t", fn)
        assert not isinstance(caught.value, errors.AgentResumeError)
        assert run.step("after", int) == 0
    assert "agent_resume is missing" not in str(load_run("r", db=postgres_url).steps[0].error)


def test_a_line_that_is_lost_under_a_transaction_is_the_stores(postgres_url: str) -> None:
    with Checkpoint("r", db=postgres_url) as run, pytest.raises(errors.StoreUnavailable, match="can be reached"):
        run.transaction("t", lambda _: cut(postgres_url))


@pytest.mark.parametrize(
    "statement",
    ["SELECT 1 AS x$a$ ; COMMIT; SELECT 1 AS y$a$", r"SELECT '\'' ; COMMIT; SELECT '\''", "SELECT 1 -- \r; COMMIT"],
)
def test_a_commit_that_only_the_server_sees_as_one_is_refused(postgres_url: str, statement: str) -> None:
    rows(postgres_url, "CREATE TABLE public.mine (x int)")

    def fn(connection: Any) -> None:
        connection.exec_driver_sql("SET standard_conforming_strings TO off; SET escape_string_warning TO off")
        connection.exec_driver_sql("INSERT INTO mine VALUES (1)")
        connection.connection.cursor().execute(statement)

    with Checkpoint("r", db=postgres_url) as run, pytest.raises(errors.InvalidTransition):
        run.transaction("t", fn)
    assert rows(postgres_url, "SELECT x FROM public.mine") == []


@pytest.mark.parametrize("after", [True, False])
def test_a_transaction_begins_on_a_new_line_when_the_old_one_broke(postgres_url: str, after: bool) -> None:
    with Store(postgres_url) as store, Checkpoint("r", db=store) as run:
        run.record("a", 1)
        with Cut(store, after=after):
            assert run.transaction("cut at its claim", lambda connection: 1) == 1
        begin = store.database.driver.begin

        def cut_first(connection: Any, execute: Any) -> None:
            del store.database.driver.begin
            cut(postgres_url)
            begin(connection, execute)

        store.database.driver.begin = cut_first
        assert run.transaction("cut at its begin", lambda connection: 2) == 2
    assert rows(postgres_url, "SELECT status, attempts FROM steps") == [("completed", 1)] * 3


def test_nothing_that_a_transactions_function_set_stays(postgres_url: str) -> None:
    with Checkpoint("r", db=postgres_url) as run:
        run.transaction(
            "t",
            _execute(
                "SET default_transaction_read_only TO on", "SET search_path TO public", "SET statement_timeout TO '9s'",
                "CREATE TEMP TABLE runs (x int)", "SET ROLE pg_monitor",
            ),
        )  # fmt: skip
        assert run.step("after", lambda: 1) == 1
    assert rows(postgres_url, "SELECT key, status FROM steps ORDER BY seq") == [
        ("t", "completed"),
        ("after", "completed"),
    ]


def test_names_in_a_transaction_mean_what_they_mean_to_the_user(postgres_url: str) -> None:
    rows(postgres_url, "CREATE TABLE public.orders (x int)")
    rows(postgres_url, "CREATE TABLE public.steps (x int)")
    with Checkpoint("r", db=postgres_url) as run:
        run.transaction(
            "t", _execute("INSERT INTO orders VALUES (1)", "INSERT INTO steps VALUES (2)", "SELECT * FROM runs")
        )
        run.transaction("u", _execute("CREATE TABLE mine (x int)"))
    assert rows(postgres_url, "SELECT x FROM public.orders") == [(1,)]
    assert rows(postgres_url, "SELECT schemaname FROM pg_tables WHERE tablename = 'mine'") == [("public",)]


def test_an_error_of_sql_that_was_caught_is_no_error_of_the_store(postgres_url: str) -> None:
    def swallows(connection: Any) -> int:
        with contextlib.suppress(Exception):
            connection.exec_driver_sql("SELECT 1/0")
        return 1

    def goes_back(connection: Any) -> int:
        swallows(connection)
        connection.rollback()
        return 2

    with Checkpoint("r", db=postgres_url) as run:
        with pytest.raises(errors.InvalidTransition, match="rollback"):
            run.transaction("t", swallows)
        assert run.transaction("t", goes_back) == 2


def test_limits_of_the_server_on_idle_transactions_do_not_end_ours(postgres: Any, postgres_url: str) -> None:
    name = postgres_url.rpartition("/")[2]
    for setting in ("idle_in_transaction_session_timeout", "transaction_timeout"):
        postgres.execute(f"ALTER DATABASE {name} SET {setting} = '200ms'")
    with Checkpoint("r", db=postgres_url) as run:
        assert run.transaction("t", lambda connection: time.sleep(0.5) or 1) == 1


# -- the command line ------------------------------------------------------------------------------------------------


def test_doctor_looks_at_the_server_and_names_what_is_missing(postgres_url: str, command: Any) -> None:
    def topics(*args: str) -> tuple[int, dict[str, dict[str, str]]]:
        code, out, _ = command("doctor", "--json", "--db", postgres_url, *args)
        return code, {finding["topic"]: finding for finding in json.loads(out)}

    code, found = topics()
    assert (code, found["store"]["level"]) == (0, "note")
    with Checkpoint("r", db=postgres_url) as run:
        run.record("a", 1)
    code, found = topics()
    assert code == 0
    assert {finding["level"] for finding in found.values()} == {"ok"} or found["runs"]["level"] == "note"
    assert {"driver", "server", "schema", "tables", "size", "clocks", "runs"} <= set(found)
    assert "psycopg" in found["driver"]["text"]
    rows(postgres_url, "DROP TABLE events CASCADE")
    code, found = topics()
    assert (code, found["tables"]["level"], found["tables"]["text"]) == (1, "problem", "table events is missing")
    assert command("doctor", "--db", postgres_url.replace("postgres@", "nowhere@"))[0] == 1


def test_sql_reads_a_server_too(postgres_url: str, command: Any) -> None:
    assert command("sql", "SELECT 1", "--db", postgres_url)[0] == 6
    with Checkpoint("r", db=postgres_url) as run:
        run.step("a", lambda: {"x": "100%"}, meta={"inputTokens": 5})
    query = (
        "SELECT key, input_tokens, output::jsonb AS o FROM step_timeline t JOIN steps USING (key) WHERE t.run_id = :run"
    )
    code, out, err = command("sql", query, "-p", "run=r", "--json", "--db", postgres_url)
    assert code == 0, err
    assert json.loads(out) == [{"key": "a", "input_tokens": 5, "o": '{"x": "100%"}'}]
    code, out, _ = command("sql", "--schema", "--json", "--db", postgres_url)
    assert {"runs", "steps", "step_timeline"} <= {entry["name"] for entry in json.loads(out)}
    code, _, err = command("sql", "SELECT nope FROM runs", "--db", postgres_url)
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = command("sql", " -- nothing", "--db", postgres_url)
    assert (code, err) == (2, "agent-resume: that is no statement that gives rows; write one SELECT\n")


def test_sql_shows_what_python_cannot_hold(postgres_url: str, command: Any) -> None:
    with Checkpoint("r", db=postgres_url) as run:
        run.record("a", 1)
    values = (
        "'infinity'::date", "'-infinity'::timestamptz", "'0044-03-15 BC'::date", "'24:00'::time", "'1 mon'::interval",
        "ARRAY['infinity'::timestamp]", "daterange('2026-01-31', 'infinity')", "'infinity'::numeric", "'nan'::numeric",
    )  # fmt: skip
    code, out, err = command("sql", f"SELECT {', '.join(values)}", "--format", "csv", "--db", postgres_url)
    assert (code, err) == (0, "")
    assert out.splitlines()[1].startswith("infinity,-infinity,0044-03-15 BC,24:00:00,1 mon,")
    for value in values:
        assert command("sql", f"SELECT {value}", "--json", "--db", postgres_url)[0] == 0
    digits = "SELECT ('1' || repeat('0', 5000))::jsonb AS x"
    code, out, err = command("sql", digits, "--db", postgres_url)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "Exceeds the limit" in err


def test_sql_of_the_other_database_is_answered_with_this_ones(postgres_url: str, tmp_path: Any, command: Any) -> None:
    for place, wrong, right in (
        (postgres_url, "json_extract(meta, '$.tags.env')", "as_json(meta) -> 'tags' ->> 'env'"),
        (tmp_path / "a.db", "as_json(meta)", "json_extract(meta, '$.tags.env')"),
    ):
        with Checkpoint("r", db=place) as run:
            run.record("a", 1)
        assert command("tag", "r", "env=x", "--db", place)[0] == 0
        code, _, err = command("sql", f"SELECT {wrong} FROM runs", "--db", place)
        assert code == 2
        assert right.replace("env", "NAME") in err
        assert '"x"' in command("sql", f"SELECT {right} AS x FROM runs", "--json", "--db", place)[1]


def test_without_psycopg_the_store_is_unavailable_and_it_is_an_import_error(run_python: Any) -> None:
    code = """
import builtins, pickle, sys
import agent_resume
real = builtins.__import__
def missing(name, *rest):
    if name.partition(".")[0] == "psycopg":
        raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")
    return real(name, *rest)
builtins.__import__ = missing
url = "postgresql+psycopg://u:s3cret@127.0.0.1:1/d"
try:
    list(agent_resume.list_runs(db=url))
except ImportError as error:
    assert isinstance(error, agent_resume.StoreUnavailable), error
    assert error.path == "postgresql+psycopg://u@127.0.0.1:1/d" and str(error).startswith(error.path), error
    assert pickle.loads(pickle.dumps(error)).path == error.path
    print(error)
from agent_resume.cli import main
sys.argv = ["agent-resume", sys.argv[1], "--db", url]
main()
"""
    for what in ("list", "doctor"):
        done = run_python(code, what, fresh=True)
        assert done.returncode == 6, done.stderr
        hint = "a PostgreSQL store needs psycopg 3; pip install 'agent-resume[postgres]'"
        assert done.stdout == f"postgresql+psycopg://u@127.0.0.1:1/d: {hint}\n"
        assert done.stderr.endswith(f"{hint}\n")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM runs", "SELECT 1; COMMIT; DELETE FROM runs", "COMMIT; DELETE FROM runs", "EXPLAIN ANALYZE DELETE FROM runs",
        "WITH x AS (DELETE FROM runs RETURNING 1) SELECT * FROM x", "COPY runs TO '/tmp/agent-resume-elsewhere'",
        "SELECT set_config('transaction_read_only', 'off', false)", "SET default_transaction_read_only TO off",
    ],
)  # fmt: skip
def test_sql_changes_nothing_on_a_server(postgres_url: str, command: Any, statement: str) -> None:
    with Checkpoint("r", db=postgres_url) as run:
        run.record("a", 1)
    for parameters in ((), ("-p", "run=r")):
        code, out, err = command("sql", statement, *parameters, "--db", postgres_url)
        assert (code, out, err.count("\n")) == (2, "", 1)
    assert rows(postgres_url, "SELECT id FROM runs") == [("r",)]
