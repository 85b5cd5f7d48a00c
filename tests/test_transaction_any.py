"""``run.transaction`` on the run's own database, whichever kind that is."""

from __future__ import annotations

import contextlib
import sqlite3

import psycopg
import pytest
import sqlalchemy

from agent_resume import AsyncCheckpoint, Checkpoint, InvalidTransition
from agent_resume.store_transaction_text import ending_in


def add(connection, word):
    connection.execute(sqlalchemy.text("INSERT INTO ledger VALUES (:word)"), {"word": word})
    return word


def words(run, key):
    return run.transaction(
        key, lambda connection: sorted(connection.execute(sqlalchemy.text("SELECT word FROM ledger")).scalars())
    )


@pytest.fixture
def run(db):
    with Checkpoint("r", db=db) as opened:
        opened.transaction(
            "make", lambda connection: connection.exec_driver_sql("CREATE TABLE ledger (word TEXT)") and None
        )
        yield opened


def test_it_commits_and_undoes(run):
    def fails(connection):
        add(connection, "b")
        raise LookupError

    assert run.transaction("a", lambda connection: add(connection, "a")) == "a"
    with pytest.raises(LookupError):
        run.transaction("b", fails)
    assert words(run, "look") == ["a"]


def test_the_functions_commit_and_rollback_act_on_its_own_writes(run):
    def fn(connection):
        add(connection, "kept")
        connection.commit()
        add(connection, "undone")
        connection.rollback()
        with connection.begin_nested():
            add(connection, "nested")
        connection.close()

    run.transaction("t", fn)
    assert words(run, "look") == ["kept", "nested"]


def test_an_error_of_another_database_is_the_functions_own(run, tmp_path):
    def locked(_):
        first, second = (sqlite3.connect(tmp_path / "other.db", timeout=0) for _ in range(2))
        with contextlib.closing(first), contextlib.closing(second):
            first.execute("BEGIN EXCLUSIVE")
            second.execute("BEGIN EXCLUSIVE")

    def unreachable(_):
        psycopg.connect("host=127.0.0.1 port=1")

    for fn, error in ((locked, sqlite3.OperationalError), (unreachable, psycopg.OperationalError)):
        with pytest.raises(error):
            run.transaction(fn.__name__, fn)
    assert words(run, "look") == []


def test_a_constraint_that_waits_for_the_commit_is_the_users_own(run, engine):
    def make(connection):
        connection.exec_driver_sql("CREATE TABLE account (id INTEGER PRIMARY KEY)")
        connection.exec_driver_sql(
            "CREATE TABLE entry (account INTEGER REFERENCES account(id) DEFERRABLE INITIALLY DEFERRED)"
        )

    run.transaction("accounts", make)
    error = sqlite3.IntegrityError if engine == "sqlite" else psycopg.errors.ForeignKeyViolation
    with pytest.raises(error):
        run.transaction("t", lambda connection: connection.exec_driver_sql("INSERT INTO entry VALUES (5)") and None)
    assert run.step("after", int) == 0


def test_the_store_is_not_to_be_called_from_inside(run):
    with pytest.raises(InvalidTransition):
        run.transaction("t", lambda connection: run.step("s", int))
    assert run.step("s", int) == 0


async def test_coroutines_have_it_too(db):
    async with AsyncCheckpoint("r", db=db) as run:
        make = "CREATE TABLE ledger (word TEXT)"
        await run.transaction("make", lambda connection: connection.exec_driver_sql(make) and None)
        assert await run.transaction("a", lambda connection: add(connection, "a")) == "a"


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "end",
        "/* a /* b */ */ Rollback",
        "-- a\nCOMMIT",
        "SELECT ';'; COMMIT",
        "RELEASE SAVEPOINT agent_resume_lent",
    ],
)
@pytest.mark.parametrize("raw", [False, True])
def test_no_statement_ends_it(run, statement, raw):
    def fn(connection):
        add(connection, "a")
        if raw:
            connection.connection.cursor().execute(statement)
        else:
            connection.exec_driver_sql(statement)

    for _ in range(2):
        with pytest.raises(Exception, match=r"authorized|is refused|syntax|one statement"):
            run.transaction("t", fn)
    assert words(run, "look") == []


@pytest.mark.parametrize(
    "text",
    [
        "select 1 as x$a$; commit; select 1 as y$a$",  # a $ inside a name
        "select $€$ ' $€$; commit; select ' '",
        r"select '\''; commit; select '\''",  # without standard_conforming_strings
        r"select 1 as €E'\'; commit; select '\''",
        "select E'a'\n'\\''; commit; select ''",  # the second line goes on as the first began
        "select 1 -- \r; commit",
        "select 1;end",
    ],
)
def test_an_ending_is_found_wherever_the_server_would_see_one(text):
    assert ending_in(text) in ("commit", "end")


@pytest.mark.parametrize(
    "text",
    [
        r"select E'\';commit'", "select e'a' ';commit'", "select $a$;commit$b$;commit$a$", 'select "a;commit"',
        "select 'C:\\dir; end'", "select a$b$, 'commit'", "rollback to mine", "select 'a' " + "--" * 2000 + "\\ commit",
        "create function f() returns int language sql begin atomic select 1; end",
    ],
)  # fmt: skip
def test_what_only_looks_like_an_ending_is_let_through(text):
    assert ending_in(text) is None


@pytest.mark.parametrize("text", ["commit", "it's; commit", 'a"; end', "$$; commit"])
def test_words_in_values_end_nothing(run, text):
    def fn(connection):
        connection.exec_driver_sql("INSERT INTO ledger VALUES ('{}')".format(text.replace("'", "''")))

    run.transaction("t", fn)
    assert words(run, "look") == [text]


def test_what_a_program_listens_for_on_all_its_engines_does_not_reach_the_store(run):
    seen = []

    def pragmas(connection, _):
        seen.append(connection)
        connection.cursor().execute("PRAGMA synchronous=OFF")  # inside our transaction an error, and before it worse

    sqlalchemy.event.listen(sqlalchemy.Engine, "connect", pragmas)
    try:
        assert run.transaction("t", lambda connection: add(connection, "a")) == "a"
        assert not seen
        sqlalchemy.create_engine("sqlite://").connect().close()
        assert seen
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "connect", pragmas)
