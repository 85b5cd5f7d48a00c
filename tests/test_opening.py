"""Opening a store: where it is, what is made, who is refused, and many opening it at once."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy

from agent_resume import (
    Checkpoint,
    RunNotFound,
    Store,
    StoreBusy,
    StoreDamaged,
    StoreMoved,
    StoreNewer,
    StoreReadOnly,
    StoreUnavailable,
    agent_run,
    list_runs,
    load_run,
    schema,
)

BARRIER = """
import os, sys, time
def barrier(folder, name, count):
    open(os.path.join(folder, name), "w").close()
    prefix = name.split("@")[0]
    end = time.monotonic() + 40
    while sum(entry.split("@")[0] == prefix for entry in os.listdir(folder)) < count:
        if time.monotonic() > end: sys.exit("the others did not come")
        time.sleep(0.001)
"""


def rows(db, query, *values):
    with closing(sqlite3.connect(db)) as database:
        return database.execute(query, values).fetchall()


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


# -- where -------------------------------------------------------------------------------------------------------------


def test_the_usual_place_is_a_folder_in_the_working_folder(in_tmp_path):
    agent_run("a", lambda run: run.step("s", int))
    assert (in_tmp_path / ".agent-resume" / "runs.db").is_file()


def test_db_wins_over_state_dir_and_that_over_the_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENT_RESUME_DB", str(tmp_path / "env.db"))
    assert Store().display == str(tmp_path / "env.db")
    assert Store(state_dir=tmp_path / "folder").display == str(tmp_path / "folder" / "runs.db")
    assert Store(tmp_path / "given.db", state_dir=tmp_path / "folder").display == str(tmp_path / "given.db")


@pytest.mark.parametrize("spelling", ["runs.db", "./x/../runs.db", "sqlite:///runs.db", "link.db"])
def test_every_spelling_of_a_path_is_the_same_store(in_tmp_path, spelling):
    (in_tmp_path / "link.db").symlink_to("runs.db")
    with Checkpoint("r", db=in_tmp_path / "runs.db") as run:
        run.record("k", 1)
        assert load_run("r", db=spelling).steps[0].output == 1


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Store("~/runs.db").display == str(tmp_path / "runs.db")


@pytest.mark.parametrize("place", ["", ":memory:", "sqlite://", "sqlite:///:memory:", "mysql://host/db"])
def test_what_is_no_place_for_a_store_is_refused_at_once(place):
    with pytest.raises(ValueError, match="store"):
        Store(place)


@pytest.mark.parametrize(
    "begin",
    ["postgresql+psycopg:/", "postgresql:/", "POSTGRES:", "postgresql+psycopg:", "postgresql//", "mysql:/", "sqlite:/"],
)
@pytest.mark.parametrize("rest", ["u:s3cret@h/d", "u:s3cret@h/d?x=a://b"])
def test_a_url_without_its_slashes_is_no_file_and_is_not_quoted(in_tmp_path, begin, rest):
    with pytest.raises(ValueError, match="://; a file of such a name is ./") as caught:
        Store(f"{begin}{rest}")
    assert "s3cret" not in str(caught.value)
    assert list(in_tmp_path.iterdir()) == []
    assert Store(f"./{begin}x.db").display == os.path.realpath(f"{begin}x.db")


@pytest.mark.parametrize(
    "name", ["with space.db", "100%.db", "q?mode=ro#x.db", "ünï☃.db", "-rf.db", "a'b\"c.db", "x.db\n"]
)
def test_hostile_file_names_are_names(tmp_path, name):
    agent_run("a", lambda run: run.step("s", lambda: 1), run_id="r", db=tmp_path / name)
    assert load_run("r", db=tmp_path / name).steps[0].output == 1
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.endswith(("-wal", "-shm"))) == [name]


# -- what is made ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o022, 0o000, 0o077])
def test_file_log_and_folders_are_the_owners_alone_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        db = tmp_path / "deep" / "er" / "runs.db"
        with Checkpoint("r", db=db) as run:
            run.record("k", 1)
            assert {mode(path) for path in db.parent.iterdir()} == {0o600}
        assert mode(db.parent) == mode(db.parent.parent) == 0o700
    finally:
        os.umask(before)


def test_permissions_of_what_was_there_are_left_alone(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o755)
    (folder / "runs.db").touch(mode=0o640)
    os.chmod(folder / "runs.db", 0o640)
    with Checkpoint("r", state_dir=folder) as run:
        run.record("k", 1)
    assert (mode(folder), mode(folder / "runs.db")) == (0o755, 0o640)


def test_a_gitignore_is_written_only_into_the_folder_that_we_made(in_tmp_path):
    Checkpoint("r").record("k", 1)
    assert (in_tmp_path / ".agent-resume" / ".gitignore").read_text() == "*\n"
    other = in_tmp_path / "other" / ".agent-resume"
    other.mkdir(parents=True)
    Checkpoint("r", db=other / "runs.db").record("k", 1)
    assert not (other / ".gitignore").exists()
    Checkpoint("r", db=in_tmp_path / "elsewhere" / "runs.db").record("k", 1)
    assert not (in_tmp_path / "elsewhere" / ".gitignore").exists()


def test_nothing_lies_beside_the_database_but_its_log(tmp_path, db):
    with Checkpoint("r", db=db) as run:
        run.record("k", 1)
        assert {path.name for path in tmp_path.iterdir()} <= {"runs.db", "runs.db-wal", "runs.db-shm"}
    assert [path.name for path in tmp_path.iterdir()] == ["runs.db"]


def test_reading_what_is_not_there_creates_nothing(tmp_path):
    db = tmp_path / "none" / "runs.db"
    assert list(list_runs(db=db)) == []
    with pytest.raises(RunNotFound):
        load_run("r", db=db)
    run = Checkpoint("r", db=db)
    assert (run.has("k"), run.get_step_result("k"), run.status, run.get_pause_context()) == (False, None, "running", {})
    run.close()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_becomes_a_store(db):
    Path(db).touch()
    assert list(list_runs(db=db)) == []
    Checkpoint("r", db=db).record("k", 1)
    assert load_run("r", db=db).steps[0].output == 1


def test_every_connection_is_prepared_as_the_design_says(db):
    store = Store(db)
    store.database.ensure_writable()
    read = store.database.read

    def pragmas(tx):
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "trusted_schema", "mmap_size")
        return {name: tx.cursor.execute(f"PRAGMA {name}").fetchone()[0] for name in names}

    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 0, "trusted_schema": 0}
    assert store.direct(pragmas) == {**wanted, "mmap_size": 0}
    assert read(pragmas) == {**wanted, "mmap_size": 0}
    with pytest.raises(StoreReadOnly):
        read(lambda tx: tx.cursor.execute("DELETE FROM runs"))


def test_the_file_says_whose_it_is(db):
    Checkpoint("r", db=db).record("k", 1)
    assert rows(db, "PRAGMA application_id") == [(schema.APPLICATION_ID,)]
    assert rows(db, f"SELECT * FROM {schema.VERSION_TABLE}") == [(schema.HEAD,)]
    assert rows(db, "PRAGMA journal_mode") == [("wal",)]


# -- who is refused ----------------------------------------------------------------------------------------------------


def _foreign(path):
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE runs (mine TEXT)")
        database.execute("PRAGMA user_version=7")
        database.commit()


def _marked_foreign(path):
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA application_id=252006673")
        database.execute("CREATE TABLE t (x)")
        database.commit()


def _no_database(path):
    Path(path).write_bytes(b"these are my notes, not a database\n" * 200)


def _short(path):
    Path(path).write_bytes(b"abc")


def _headless(path):
    Checkpoint("r", db=path).record("k", 1)
    from agent_resume import databases

    databases._close_all()
    with open(path, "r+b") as file:
        file.write(b"\0" * 100)


@pytest.mark.parametrize("make", [_foreign, _marked_foreign, _no_database, _short, _headless])
def test_a_foreign_or_broken_file_is_refused_and_not_one_byte_of_it_changes(db, make):
    make(db)
    before = Path(db).read_bytes()
    calls = []
    with pytest.raises(StoreDamaged) as caught:
        agent_run("a", lambda run: calls.append(1), db=db)
    assert db in str(caught.value)
    with pytest.raises(StoreDamaged):
        list(list_runs(db=db))
    with pytest.raises(StoreDamaged):
        Checkpoint("r", db=db)
    assert calls == []
    assert Path(db).read_bytes() == before
    assert [path.name for path in Path(db).parent.iterdir()] == ["runs.db"]


def test_case_061_a_store_of_a_newer_release_is_refused_and_stays_as_it_is(db, cli):
    agent_run("a", lambda run: run.step("s", int), run_id="r", db=db)
    from agent_resume import databases

    databases._close_all()
    with closing(sqlite3.connect(db)) as file:
        file.execute("PRAGMA journal_mode=DELETE")
        file.execute(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'")
        file.commit()
    before = Path(db).read_bytes()
    with pytest.raises(StoreNewer) as caught:
        agent_run("a", pytest.fail, db=db)
    assert (caught.value.found, caught.value.known) == ("9999", schema.HEAD)
    assert "newer" in str(caught.value)
    assert "9999" in str(caught.value)
    with pytest.raises(StoreNewer):
        list(list_runs(db=db))
    with pytest.raises(StoreNewer):
        Checkpoint("r", db=db)
    for arguments in (["list"], ["show", "r"], ["resume", "r"]):
        said = cli(*arguments, "--db", db)
        assert said.returncode == 6, said
        assert "newer" in said.stderr
        assert "Traceback" not in said.stderr
    assert Path(db).read_bytes() == before


def test_a_store_whose_version_was_lost_is_refused(db):
    Checkpoint("r", db=db).record("k", 1)
    with closing(sqlite3.connect(db)) as file:
        file.execute(f"DELETE FROM {schema.VERSION_TABLE}")
        file.commit()
    from agent_resume import databases

    databases._close_all()
    with pytest.raises(StoreDamaged):
        agent_run("a", pytest.fail, db=db)
    with pytest.raises(StoreDamaged):
        list(list_runs(db=db))
    assert rows(db, "SELECT key FROM steps") == [("k",)]


@pytest.mark.parametrize("place", ["folder", "file/below", "folder/none/../../folder"])
def test_a_place_that_cannot_hold_a_file_is_named(tmp_path, place):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailable) as caught:
        agent_run("a", pytest.fail, db=tmp_path / place)
    assert str(tmp_path) in str(caught.value)


def test_a_deleted_or_replaced_file_is_noticed_before_the_next_write(tmp_path, db):
    run = Checkpoint("r", db=db)
    run.step("kept", lambda: 1)
    os.rename(db, tmp_path / "away.db")
    calls = []
    with pytest.raises(StoreMoved):
        run.step("lost", lambda: calls.append(1))
    Path(db).touch()
    with pytest.raises(StoreMoved):
        run.record("lost", 1)
    run.event("lost")  # never raises
    assert calls == []
    assert run.get_step_result("kept") == 1


def test_a_store_deleted_while_a_step_runs_costs_an_error_that_holds_the_result(db):
    def delete():
        os.unlink(db)
        return "paid for"

    with pytest.raises(StoreMoved) as caught:
        agent_run("a", lambda run: run.step("s", delete), db=db)
    assert caught.value.result == "paid for"


def test_after_a_loss_a_new_run_can_begin_in_a_new_file(db):
    with Checkpoint("r", db=db) as run:
        run.step("a", lambda: 1)
        os.unlink(db)
    for suffix in ("-wal", "-shm"):
        Path(db + suffix).unlink(missing_ok=True)
    with Checkpoint("r", db=db) as run:
        assert run.step("a", lambda: 2) == 2


# -- many at once ------------------------------------------------------------------------------------------------------

_OPENER = (
    BARRIER
    + """
import threading
from agent_resume import Checkpoint
folder, number = sys.argv[1:]
failures = []
def open_and_step(name):
    try:
        with Checkpoint("r", db=os.path.join(folder, "new.db")) as run:
            run.step(name, lambda: name)
    except BaseException as error:
        failures.append(f"{name}: {error!r}")
import agent_resume.checkpoint
threads = [threading.Thread(target=open_and_step, args=(f"s{number}-{i}",)) for i in range(20)]
barrier(folder, f"go@{number}", 8)
for thread in threads: thread.start()
for thread in threads: thread.join()
print(failures)
sys.exit(bool(failures))
"""
)


@pytest.mark.timeout(150)
def test_a_hundred_and_sixty_first_opens_at_once_all_succeed(tmp_path, spawn_agent):
    agents = [spawn_agent(_OPENER, tmp_path, number) for number in range(8)]
    assert [(agent.finish(), agent.output) for agent in agents] == [(0, "[]")] * 8
    db = tmp_path / "new.db"
    assert rows(db, "PRAGMA journal_mode") == [("wal",)]
    assert rows(db, f"SELECT count(*) FROM {schema.VERSION_TABLE}") == [(1,)]
    assert rows(db, "SELECT count(*) FROM steps WHERE status = 'completed'") == [(160,)]
    assert rows(db, "SELECT count(*) FROM runs") == [(1,)]


_CASE_4 = (
    BARRIER
    + """
from agent_resume import Checkpoint
import agent_resume.checkpoint
folder, number = sys.argv[1:]
for again in range(8):
    barrier(folder, f"go{again}@{number}", 8)
    with Checkpoint("r", db=os.path.join(folder, f"new{again}.db")) as run:
        run.step(f"s{number}", lambda: number)
"""
)


@pytest.mark.timeout(150)
def test_case_004_eight_processes_open_one_new_file_again_and_again(tmp_path, spawn_agent):
    agents = [spawn_agent(_CASE_4, tmp_path, number) for number in range(8)]
    assert [(agent.finish(), agent.output) for agent in agents] == [(0, "")] * 8
    for again in range(8):
        db = tmp_path / f"new{again}.db"
        assert rows(db, "PRAGMA journal_mode") == [("wal",)]
        assert rows(db, "SELECT count(*) FROM steps WHERE status = 'completed'") == [(8,)]


@pytest.mark.timeout(200)  # twenty interpreters start at once
def test_case_005_twenty_lists_and_one_creator_at_once(tmp_path, run_python):
    list_it = "from agent_resume.cli import main; import sys; sys.argv = ['agent-resume', 'list', '--db', 'new.db', '--json']; main()"
    create = "from agent_resume import Checkpoint\nwith Checkpoint('r', db='new.db') as run: run.step('a', int)"
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", create if number == 7 else list_it], cwd=tmp_path, stdout=pipe, stderr=pipe
        )
        for number in range(20)
    ]
    try:
        said = [process.communicate(timeout=150) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    for number, (out, err) in enumerate(said):
        assert processes[number].returncode == 0, err
        if number != 7:
            assert isinstance(json.loads(out), list), (out, err)
    assert rows(tmp_path / "new.db", f"SELECT count(*) FROM {schema.VERSION_TABLE}") == [(1,)]


def test_listing_a_missing_store_says_so_and_creates_nothing(tmp_path, cli):
    said = cli("list", "--json", "--db", "new.db")
    assert (said.returncode, json.loads(said.stdout)) == (0, [])
    assert "new.db" in said.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_just_being_made_is_not_there_yet(db):
    with closing(sqlite3.connect(db)) as file:
        file.execute("PRAGMA journal_mode=WAL")
        assert os.path.getsize(db) > 0
        assert list(list_runs(db=db)) == []
        with pytest.raises(RunNotFound):
            load_run("r", db=db)
        Checkpoint("r", db=db).record("k", 1)
    assert load_run("r", db=db).steps[0].output == 1


def test_opening_waits_for_a_writer_that_holds_the_whole_file(db):
    Checkpoint("r", db=db).record("k", 1)
    from agent_resume import databases

    databases._close_all()
    with closing(sqlite3.connect(db, isolation_level=None, check_same_thread=False)) as file:
        file.execute("PRAGMA locking_mode=EXCLUSIVE")
        file.execute("PRAGMA journal_mode=DELETE")
        file.execute("BEGIN EXCLUSIVE")

        def let_go():
            file.execute("COMMIT")
            file.execute("PRAGMA locking_mode=NORMAL")
            file.execute("SELECT count(*) FROM runs").fetchall()

        timer = threading.Timer(0.4, let_go)
        timer.start()
        assert load_run("r", db=db).steps[0].output == 1
        timer.join()


def test_a_wait_that_runs_out_names_the_file_and_the_time(db, monkeypatch):
    run = Checkpoint("r", db=db)
    run.record("k", 1)
    monkeypatch.setattr("agent_resume.database_sqlite.BUSY_LIMIT", 0.3)
    with closing(sqlite3.connect(db, isolation_level=None)) as file:
        file.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy) as caught:
            run.record("k2", 1)
        file.execute("ROLLBACK")
    assert db in str(caught.value)
    assert caught.value.seconds >= 0.3
    run.record("k2", 1)


def test_a_read_that_meets_another_process_recovering_the_log_is_tried_again(db):
    Checkpoint("r", db=db).record("k", 1)
    answers = iter([sqlite3.SQLITE_BUSY_RECOVERY, sqlite3.SQLITE_BUSY, None])

    def operation(tx):
        code = next(answers)
        if code is not None:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = code
            raise error
        return "read"

    assert Store(db).ask(operation) == "read"


# -- what lies there ---------------------------------------------------------------------------------------------------


def test_a_name_that_is_not_utf_8_is_a_name(tmp_path):
    db = f"{tmp_path}/\udcff.db"
    with Checkpoint("r", db=db) as run:
        run.step("a", lambda: 1)
    assert load_run("r", db=db).steps[0].output == 1


_FOREIGN_WITH_A_LOG = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("PRAGMA journal_mode=WAL")
database.execute("CREATE TABLE notes(x)")
database.commit()
os.kill(os.getpid(), 9)
"""


def test_a_foreign_log_is_not_even_emptied(db, run_python):
    run_python(_FOREIGN_WITH_A_LOG, db)
    before = {name: Path(name).read_bytes() for name in (db, f"{db}-wal")}
    with pytest.raises(StoreDamaged):
        agent_run("a", pytest.fail, db=db)
    assert {name: Path(name).read_bytes() for name in before} == before


def test_one_stray_byte_is_no_empty_store(db):
    Path(db).write_bytes(b"x")
    with pytest.raises(StoreDamaged):
        agent_run("a", pytest.fail, db=db)
    assert Path(db).read_bytes() == b"x"


def test_a_link_that_leads_to_itself_is_an_unavailable_store(tmp_path):
    (tmp_path / "loop.db").symlink_to(tmp_path / "loop.db")
    with pytest.raises(StoreUnavailable):
        agent_run("a", pytest.fail, db=tmp_path / "loop.db")


def test_a_log_that_somebody_tidied_away_is_noticed_before_the_next_function_is_called(db):
    run = Checkpoint("r", db=db)
    run.step("kept", lambda: 1)
    os.unlink(f"{db}-wal")
    calls = []
    with pytest.raises(StoreMoved) as caught:
        run.step("lost", lambda: calls.append(1))
    assert f"{db}-wal" in str(caught.value)
    assert calls == []


@pytest.mark.parametrize("name", ["100%25.db", "a?b.db", "a b#c.db"])
def test_the_url_that_connect_prints_opens_this_very_store(tmp_path, cli, name):
    with Checkpoint("r", db=tmp_path / name) as run:
        run.step("a", lambda: 1)
    url = json.loads(cli("connect", "--json", "--db", name).stdout)["url"]
    with sqlalchemy.create_engine(url).connect() as connection:
        assert connection.execute(sqlalchemy.text("SELECT count(*) FROM runs")).scalar() == 1
    assert load_run("r", db=url).steps[0].output == 1
    assert {path.name.removesuffix("-wal").removesuffix("-shm") for path in tmp_path.glob("*.db*")} == {name}
