"""The schema: equal to its migrations, upgraded in one piece, by one process at a time, or not at all."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from agent_resume import (
    Checkpoint,
    Store,
    StoreBusy,
    StoreError,
    agent_run,
    list_runs,
    load_run,
    migrate,
    schema,
    schema_tables,
)

REPOSITORY = Path(__file__).resolve().parent.parent


def normal(text):
    """SQL without what only the author's layout decides."""
    return re.sub(r"\s*([(),])\s*", r"\1", re.sub(r"\s+", " ", text.replace('"', ""))).strip()


def parts(text):
    """The clauses of a CREATE TABLE, split at its outer commas: their order says nothing for constraints."""
    body = normal(text)
    inside = body[body.index("(") + 1 : body.rindex(")")]
    clauses, depth, start = [], 0, 0
    for index, character in enumerate(inside):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            clauses.append(inside[start:index])
            start = index + 1
    return [*clauses, inside[start:]]


def objects(path):
    with closing(sqlite3.connect(path)) as database:
        found = database.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {(kind, name): sql for kind, name, sql in found if name not in ("sqlite_sequence", schema.VERSION_TABLE)}


@pytest.fixture
def migrated(db):
    Store(db).database.ensure_writable()
    return db


@pytest.fixture
def described(tmp_path):
    from sqlalchemy import create_engine

    path = tmp_path / "described.db"
    engine = create_engine(f"sqlite:///{path}")
    schema_tables.metadata.create_all(engine)
    with engine.begin() as connection:
        for text in schema.view_statements("sqlite"):
            connection.exec_driver_sql(text)
    engine.dispose()
    return path


def test_the_migrations_make_exactly_the_described_schema(migrated, described):
    made, wanted = objects(migrated), objects(described)
    assert made.keys() == wanted.keys()
    for key, sql in wanted.items():
        if key[0] == "table":
            columns = [part for part in parts(sql) if not part.startswith("CONSTRAINT")]
            assert [part for part in parts(made[key]) if not part.startswith("CONSTRAINT")] == columns, key
            assert sorted(parts(made[key])) == sorted(parts(sql)), key
        else:
            assert normal(made[key]) == normal(sql), key


def test_views_checks_and_indexes_are_part_of_that_comparison(migrated):
    made = objects(migrated)
    assert {name for kind, name in made if kind == "view"} == set(schema.VIEW_NAMES)
    assert {name for kind, name in made if kind == "index"} == {"ix_runs_name_status", "ix_runs_status"}
    checks = [part for (kind, _), sql in made.items() if kind == "table" for part in parts(sql) if " CHECK" in part]
    assert len(checks) == 4


def test_alembics_own_comparison_finds_no_difference(migrated):
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from sqlalchemy import create_engine

    engine = create_engine(f"sqlite:///{migrated}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": schema.VERSION_TABLE})
        assert compare_metadata(context, schema_tables.metadata) == []
    engine.dispose()


def test_the_revisions_on_disk_are_those_that_the_schema_names():
    files = sorted((REPOSITORY / "migrations" / "versions").glob("*.py"))
    assert tuple(path.name.split("_")[0] for path in files) == schema.REVISIONS
    assert schema.REVISIONS[-1] == schema.HEAD


def test_every_view_answers_on_a_store_with_everything_in_it(migrated):
    def body(run):
        run.step("a", lambda: {"usage": {"input_tokens": 3, "output_tokens": 4}, "model": "m"})
        run.record("odd", 1, {"inputTokens": "many", "model": None})
        with pytest.raises(ZeroDivisionError):
            run.step("b", lambda: 1 / 0)
        return 1

    agent_run("a", body, run_id="r", db=migrated)
    with closing(sqlite3.connect(migrated)) as database:
        database.row_factory = sqlite3.Row
        (overview,) = database.execute("SELECT * FROM run_overview").fetchall()
        timeline = database.execute("SELECT * FROM step_timeline ORDER BY seq").fetchall()
        attempts = database.execute("SELECT * FROM step_attempts ORDER BY key, attempt").fetchall()
    assert (overview["run_id"], overview["steps"], overview["steps_completed"], overview["steps_failed"]) == (
        "r",
        3,
        2,
        1,
    )
    assert (overview["input_tokens"], overview["output_tokens"]) == (3, 4)
    assert [(row["key"], row["model"], row["error"]) for row in timeline] == [
        ("a", "m", None), ("odd", None, None), ("b", None, "division by zero"),
    ]  # fmt: skip
    assert [(row["key"], row["attempt"], row["outcome"]) for row in attempts] == [("a", 1, "done"), ("b", 1, "error")]


# -- upgrading ---------------------------------------------------------------------------------------------------------

_NEXT = '''
"""A column more, by a rebuild of the table."""
import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade(op=op):
    with op.batch_alter_table("runs", recreate="always") as batch:
        batch.add_column(sa.Column("colour", sa.Text))
'''


@pytest.fixture
def next_release(tmp_path, monkeypatch):
    """Makes this process one of a later release, whose revisions are 0001 and 0002; returns the new revision's file."""
    folder = tmp_path / "migrations"
    (folder / "versions").mkdir(parents=True)
    for name in ("env.py", "script.py.mako", "versions/0001_initial.py"):
        source = REPOSITORY / "migrations" / name
        if source.exists():
            (folder / name).write_bytes(source.read_bytes())
    (folder / "versions" / "0002_colour.py").write_text(_NEXT)

    def become():
        from agent_resume import databases

        databases._close_all()
        monkeypatch.setattr(schema, "HEAD", "0002")
        monkeypatch.setattr(schema, "REVISIONS", ("0001", "0002"))
        monkeypatch.setattr(migrate, "migrations_folder", lambda: folder)
        return folder / "versions" / "0002_colour.py"

    return become


def _filled(db):
    def body(run):
        run.step("a", lambda: "kept")
        run.pause("go on?", name="q")

    agent_run("job", body, run_id="r", db=db, on_pause="return")


def rows(db, query):
    with closing(sqlite3.connect(db)) as database:
        return database.execute(query).fetchall()


def test_an_upgrade_keeps_every_row_and_leaves_the_old_file_beside_it(tmp_path, db, next_release):
    _filled(db)
    before = {table: rows(db, f"SELECT * FROM {table}") for table in ("steps", "events", "pauses")}
    next_release()
    with Checkpoint("other", db=db) as run:
        run.record("k", 1)
    assert rows(db, f"SELECT * FROM {schema.VERSION_TABLE}") == [("0002",)]
    assert rows(db, "SELECT id, colour FROM runs ORDER BY seq") == [("r", None), ("other", None)]
    for table, old in before.items():
        assert rows(db, f"SELECT * FROM {table}")[: len(old)] == old, table
    (copy,) = tmp_path.glob("runs.db.0001-*.bak")
    assert rows(copy, f"SELECT * FROM {schema.VERSION_TABLE}") == [("0001",)]
    assert rows(copy, "SELECT id FROM runs") == [("r",)]
    assert os.stat(copy).st_mode & 0o777 == 0o600


def test_an_upgrade_that_fails_half_way_changes_nothing(db, next_release):
    _filled(db)
    before = objects(db)
    broken = next_release()
    broken.write_text(_NEXT + "    op.execute('DELETE FROM steps')\n    raise RuntimeError('half way')\n")
    with pytest.raises(RuntimeError, match="half way"):
        agent_run("job", pytest.fail, db=db)
    assert objects(db) == before
    assert rows(db, "SELECT key FROM steps") == [("a",)]
    assert rows(db, f"SELECT * FROM {schema.VERSION_TABLE}") == [("0001",)]
    broken.write_text(_NEXT)
    with Checkpoint("other", db=db) as run:
        run.record("k", 1)
    assert rows(db, f"SELECT * FROM {schema.VERSION_TABLE}") == [("0002",)]


def test_a_new_file_whose_making_fails_stays_usable(db, next_release):
    broken = next_release()
    broken.write_text(_NEXT + "    raise RuntimeError('half way')\n")
    with pytest.raises(RuntimeError, match="half way"):
        Checkpoint("r", db=db).record("k", 1)
    assert rows(db, "SELECT * FROM sqlite_master") == []
    broken.write_text(_NEXT)
    with Checkpoint("r", db=db) as run:
        run.record("k", 1)


def test_no_upgrade_beside_a_live_owner(db, next_release, spawn_agent):
    live = spawn_agent(
        "import time\nfrom agent_resume import agent_run\n"
        f"agent_run('job', lambda run: run.step('a', lambda: print('in', flush=True) or time.sleep(60)), db={db!r})",
        marker="in",
    )
    next_release()
    with pytest.raises(StoreBusy) as caught:
        agent_run("other", pytest.fail, db=db)
    assert f"process {live.pid}" in str(caught.value)
    live.kill()
    assert agent_run("other", lambda run: run.step("a", lambda: 1), db=db) == 1
    assert rows(db, f"SELECT * FROM {schema.VERSION_TABLE}") == [("0002",)]


def test_readers_never_upgrade_and_read_what_they_can(db, next_release, caplog):
    _filled(db)
    next_release()
    assert [run.id for run in list_runs(db=db)] == ["r"]
    assert "0001" in caplog.text
    assert rows(db, f"SELECT * FROM {schema.VERSION_TABLE}") == [("0001",)]


def test_threads_that_upgrade_different_files_do_not_disturb_each_other(tmp_path):
    barrier = threading.Barrier(8)
    failures = []

    def open_one(number):
        barrier.wait()
        try:
            with Checkpoint("r", db=tmp_path / f"{number}.db") as run:
                run.step("s", lambda: number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=open_one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_migrations_are_found_through_the_package_and_never_through_the_working_folder(tmp_path, run_python, db):
    (tmp_path / "migrations" / "versions").mkdir(parents=True)
    (tmp_path / "migrations" / "env.py").write_text("raise SystemExit('a stranger ran')")
    (tmp_path / "alembic.ini").write_text("[alembic]\nscript_location = migrations\n")
    said = run_python(f"from agent_resume import Checkpoint\nCheckpoint('r', db={db!r}).record('k', 1)")
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def test_a_migrations_folder_beside_the_package_alone_may_be_a_strangers(tmp_path, monkeypatch):
    (tmp_path / "agent_resume").mkdir()
    (tmp_path / "migrations").mkdir()
    monkeypatch.setattr(migrate, "__file__", str(tmp_path / "agent_resume" / "migrate.py"))
    with pytest.raises(RuntimeError, match="broken installation"):
        migrate.migrations_folder()
    (tmp_path / "alembic.ini").touch()
    assert migrate.migrations_folder() == tmp_path / "migrations"


def test_case_088_opening_a_store_leaves_logging_as_it_was(tmp_path, run_python, db):
    said = run_python(
        f"""
import logging, sys
log = logging.getLogger("app")
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(name)s %(message)s")
state = lambda: (list(logging.root.handlers), logging.root.level, log.disabled, log.level,
                 [name for name, it in logging.root.manager.loggerDict.items()
                  if any(type(handler) is not logging.NullHandler for handler in getattr(it, "handlers", ()))])
before = state()
from agent_resume import Checkpoint
Checkpoint("r", db={db!r}).step("a", lambda: 1)
assert state() == before, (before, state())
log.info("still here")
""",
        fresh=True,
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "app still here\n", "")


def test_a_damaged_installation_is_no_store_error(db, monkeypatch):
    def gone():
        raise RuntimeError("broken installation: agent_resume/_migrations is missing; reinstall agent-resume")

    monkeypatch.setattr(migrate, "migrations_folder", gone)
    with pytest.raises(RuntimeError, match="reinstall") as caught:
        agent_run("a", pytest.fail, db=db)
    assert not isinstance(caught.value, StoreError)


_HOST_REVISION = """
import hook
revision = "a1"
down_revision = None
def upgrade():
    from alembic import op
    hook.between()
    op.execute("CREATE TABLE host_table (x INTEGER)")
"""
_HOST_ENV = """
from alembic import context
from sqlalchemy import create_engine
with create_engine(context.config.get_main_option("sqlalchemy.url")).begin() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
"""


def test_case_088_a_new_store_made_in_the_middle_of_the_hosts_own_migration_disturbs_neither(tmp_path, run_python):
    (tmp_path / "host" / "versions").mkdir(parents=True)
    (tmp_path / "host" / "env.py").write_text(_HOST_ENV)
    (tmp_path / "host" / "versions" / "a1.py").write_text(_HOST_REVISION)
    (tmp_path / "hook.py").write_text("between = None")
    code = """
import sqlite3, threading, hook
from alembic import command
from alembic.config import Config
from agent_resume import Checkpoint
def ours(name):
    with Checkpoint("r", db=name) as run: run.step("a", int)
def between():
    ours("here.db")
    thread = threading.Thread(target=ours, args=("beside.db",)); thread.start(); thread.join()
hook.between = between
config = Config()
config.set_main_option("script_location", "host")
config.set_main_option("sqlalchemy.url", "sqlite:///host.db")
command.upgrade(config, "head")
print(*(name for name, in sqlite3.connect("host.db").execute("SELECT name FROM sqlite_master WHERE name = 'host_table'")))
"""
    said = run_python("import sys; sys.path.insert(0, '.')" + code)
    assert said.stdout == "host_table\n", said.stderr
    for name in ("here.db", "beside.db"):
        assert load_run("r", db=tmp_path / name).steps[0].status == "completed"
