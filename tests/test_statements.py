"""Our statements: their texts for SQLite come with the package, and only what needs more loads SQLAlchemy."""

from __future__ import annotations

import gc
import importlib.util
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_resume import agent_run, list_runs, models, schema_tables, store_dump, store_queries, store_sql
from agent_resume.database_sql import Dialect, Statement, Tx
from agent_resume.database_sql_file import FileTx
from agent_resume.database_texts import TEXTS

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "make_statements.py"


@pytest.fixture(scope="module")
def compiled() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("make_statements", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script.compiled()


def test_the_texts_are_what_sqlalchemy_makes_of_the_statements(compiled):
    assert compiled == TEXTS, "run scripts/make-statements"


def test_every_statement_of_the_package_has_a_text_and_finds_it(compiled):
    ours = [one for one in gc.get_objects() if type(one) is Statement and one.build.__module__.startswith("agent_")]
    assert sorted(str(one._shipped()) for one in ours) == sorted(TEXTS.values())


def test_a_statement_that_has_no_text_is_compiled():
    from agent_resume.sql import bindparam, runs, select

    here = Statement(lambda: select(runs.c.id).where(runs.c.seq == bindparam("run")))
    assert here.text(Dialect("sqlite")) == "SELECT runs.id \nFROM runs \nWHERE runs.seq = :run"


@pytest.mark.parametrize(
    ("record", "table", "more"),
    [
        (models.RunRow, "runs", ()),
        (models.StepRow, "steps", ("output",)),
        (models.EventRow, "events", ()),
        (models.PauseRow, "pauses", ()),
        (models.OwnerRow, "owners", ()),
    ],
)
def test_the_fields_of_a_record_are_the_columns_of_its_table(record, table, more):
    assert (*store_sql.columns_of(record), *more) == tuple(schema_tables.metadata.tables[table].columns.keys())


def test_a_dump_leaves_out_no_column_but_the_numbers_of_this_store():
    for names, table, left_out in (
        (store_dump.RUN_COLUMNS, "runs", {"seq", "owner_token"}),
        (store_dump.STEP_COLUMNS, "steps", {"id", "run_id", "owner_token"}),
        (store_dump.EVENT_COLUMNS, "events", {"id", "run_id"}),
        (store_dump.PAUSE_COLUMNS, "pauses", {"id", "run_id"}),
    ):
        columns = schema_tables.metadata.tables[table].columns
        assert list(names) == [column.name for column in columns if column.name not in left_out]


COMMAND = "import sys\nfrom agent_resume.cli import main\nsys.argv = ['agent-resume', *{args!r}]\ntry: main()\nexcept SystemExit: pass\n"
AGENT = """
from agent_resume import agent_run
def body(run):
    run.step('a', int)
    run.step('b', lambda: [1])
    run.record('c', {'d': 1})
    run.event('said', word='hello')
    run.set_loop_state(verdict='good')
    assert [outcome.value for outcome in run.map('m', lambda item: item, [1, 2])] == [1, 2]
    for turn in run.loop('l', max_turns=2):
        turn.step(int)
    run.sleep('s', 0)
    if run.pause('go on?') != 'yes':
        raise ValueError('no')
"""


@pytest.mark.parametrize(
    "code",
    [
        COMMAND.format(args=["list"]),
        COMMAND.format(
            args=["list", "--status", "interrupted", "--name", "job", "--since", "1d", "--sort", "-updated"]
        ),
        COMMAND.format(args=["show", "r"]),
        COMMAND.format(args=["show", "job@latest", "--json"]),
        COMMAND.format(args=["events", "r"]),
        AGENT + "agent_run('job', body, run_id='r', on_pause='return')",
        AGENT
        + "from agent_resume import answer\nagent_run('job', body, run_id='new', on_pause='return')\n"
        + "answer('new', None, 'yes')\nagent_run('job', body, run_id='new')",
        "from agent_resume import Checkpoint\nwith Checkpoint('c') as run: run.step('s', int)",
        "from agent_resume import load_run, list_runs\nload_run('r').to_dict()\nlist(list_runs(status='running'))",
    ],
)
def test_a_store_that_is_there_is_read_and_written_without_sqlalchemy(
    db: str, run_python: Callable[..., Any], code: str
):
    agent_run("job", lambda run: run.pause("go on?"), run_id="r", db=db, on_pause="return")
    code += "\nimport sys\nprint([name for name in ('alembic', 'sqlalchemy') if name in sys.modules], file=sys.stderr)"
    done = run_python(code, fresh=True, AGENT_RESUME_DB=db)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]", done.stderr


@pytest.fixture
def plans(db: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """How SQLite goes about each query that the test makes."""
    agent_run("job", lambda run: run.step("s", int), db=db)
    found: dict[str, list[str]] = {}
    execute = FileTx.execute
    listed = Tx.listed

    def explain(text: str, values: Any) -> None:
        with sqlite3.connect(db) as plain:
            found[text] = [row[3] for row in plain.execute(f"EXPLAIN QUERY PLAN {text}", values)]
        plain.close()

    def executed(tx: Tx, statement: Statement, values: Any) -> None:
        explain(statement.text(Dialect("sqlite")), values)
        execute(tx, statement, values)

    def composed(tx: Tx, *args: Any, **named: Any) -> Any:
        before = tx._execute
        tx._execute = lambda text, values: (explain(text, values), before(text, values))
        try:
            return listed(tx, *args, **named)
        finally:
            tx._execute = before

    monkeypatch.setattr(FileTx, "execute", executed)
    monkeypatch.setattr(Tx, "listed", composed)
    return found


@pytest.mark.parametrize(
    ("wanted", "search"),
    [
        ({}, "SCAN runs"),  # backwards by its key, as far as the limit
        ({"name": "job"}, "SEARCH runs USING INDEX ix_runs_name_status (name=?)"),
        ({"status": "completed"}, "SEARCH runs USING INDEX ix_runs_status (status=?)"),
        ({"status": "interrupted"}, "SEARCH runs USING INDEX ix_runs_status (status=?)"),
        ({"status": "interrupted", "name": "job"}, "SEARCH runs USING INDEX ix_runs_name_status (name=? AND status=?)"),
    ],
)
def test_a_list_is_searched_by_indexes(db: str, plans: dict[str, list[str]], wanted: dict[str, str], search: str):
    list(list_runs(db=db, limit=5, **wanted))
    (plan,) = (plan for text, plan in plans.items() if "FROM runs" in text)
    assert search in plan
    assert ("USE TEMP B-TREE FOR ORDER BY" in plan) == ("interrupted" in wanted.values() or wanted == {"name": "job"})


def test_the_steps_of_a_list_are_searched_by_their_runs(db: str, plans: dict[str, list[str]]):
    (summary,) = list_runs(db=db)
    assert (summary.steps_total, summary.steps_completed) == (1, 1)
    (plan,) = (plan for text, plan in plans.items() if "FROM steps" in text)
    assert any(line.startswith("SEARCH steps USING INDEX") and "(run_id=?)" in line for line in plan), plan


def test_every_condition_and_order_of_a_list_means_what_it_says(db: str):
    from agent_resume import Store

    for name, end in (("a", None), ("b", ValueError("b")), ("a", None), ("c", None)):
        try:
            agent_run(name, lambda run, end=end: (_ for _ in ()).throw(end) if end else 1, db=db)
        except ValueError:
            pass
    with Store(db) as store:

        def names(**wanted: Any) -> list[str]:
            rows = store.ask(store_queries.runs_matching, store_queries.RunFilter(**wanted))
            assert {row.input for row in rows} <= {None}
            return [row.name for row in rows]

        assert names() == ["c", "a", "b", "a"]
        assert names(sort="created") == ["a", "b", "a", "c"]
        assert names(sort="name") == ["a", "a", "b", "c"]
        assert names(sort="-name", limit=2) == ["c", "b"]
        assert names(sort="status") == ["a", "a", "c", "b"]
        assert names(sort="-updated") == ["c", "a", "b", "a"]
        assert names(statuses=("failed",)) == ["b"]
        assert names(statuses=("failed", "completed"), name="a") == ["a", "a"]
        assert names(statuses=("failed", "running", "'")) == ["b"]
        assert names(since="2000-01-01T00:00:00.000Z", until="2001-01-01T00:00:00.000Z") == []
        assert names(since="2000-01-01T00:00:00.000Z", limit=1) == ["c"]
        newest = max(row.seq for row in store.ask(store_queries.runs_matching, store_queries.RunFilter()))
        assert names(before=newest) == ["a", "b", "a"]
        assert names(limit=0) == []
