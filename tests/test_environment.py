"""Where a store may have to live: read-only folders, other users, file systems that cannot do it, odd working folders."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
import raw

from agent_resume import Checkpoint, StoreFull, StoreUnavailable, agent_run, databases, load_run

# Root may do anything anywhere; without its capabilities it is bound by permissions like everybody else.
GIVE_UP_POWERS = """
import ctypes
assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
"""


def rows(db, query, *values):
    with closing(raw.connect(db)) as database:
        return database.execute(query, values).fetchall()


def without_powers(work):
    """Runs ``work`` in a child that is bound by permissions; what it returned, as JSON."""
    if os.getuid() != 0:
        return work()
    databases._close_all()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            exec(GIVE_UP_POWERS)
            os.write(write, json.dumps(work()).encode())
            code = 0
        except BaseException as error:
            os.write(write, json.dumps(f"{type(error).__name__}: {error}").encode())
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text)


@pytest.fixture
def shared(tmp_path):
    """A folder whose permissions a test takes away."""
    place = tmp_path / "store"
    place.mkdir()
    yield place
    os.chmod(place, 0o755)


def finished(place, *, checkpointed=True):
    db = str(place / "runs.db")
    agent_run("job", lambda run: run.step("a", lambda: "kept"), run_id="r", db=db)
    databases._close_all()
    if not checkpointed:
        # A log that its writer left behind, as a kill would.
        pid = os.fork()
        if pid == 0:
            run = Checkpoint("r2", db=db)
            run.record("in the log", 1)
            os.kill(os.getpid(), 9)
        os.waitpid(pid, 0)
    for name in os.listdir(place):
        os.chmod(place / name, 0o444)
    os.chmod(place, 0o555)
    return db


def describe(error):
    return type(error).__name__, str(error)


def try_to_run(db):
    calls = []
    try:
        agent_run("job2", lambda run: calls.append(1), db=db)
    except BaseException as error:
        return [*describe(error), len(calls)]
    return ["nothing raised", "", len(calls)]


def test_case_071_a_finished_store_in_a_read_only_folder_can_be_read(shared):
    db = finished(shared)

    def look():
        state = load_run("r", db=db)
        with Checkpoint("r", db=db) as run:
            return [state.status, state.steps[0].output, run.get_step_result("a"), run.report()[:5]]

    assert without_powers(look) == ["completed", "kept", "kept", "# Run"]
    assert sorted(os.listdir(shared)) == ["runs.db"]


def test_case_071_writing_there_fails_before_any_step_is_called(shared):
    db = finished(shared)
    name, text, calls = without_powers(lambda: try_to_run(db))
    assert (name, calls) == ("StoreReadOnly", 0)
    assert db in text


def test_case_071_a_pending_log_there_is_told_apart(shared):
    db = finished(shared, checkpointed=False)
    assert os.path.getsize(f"{db}-wal") > 0

    def look():
        try:
            return load_run("r2", db=db).steps[0].output
        except BaseException as error:
            return list(describe(error))

    found = without_powers(look)
    assert found == 1 or (found[0] == "StoreReadOnly" and "folder" in found[1]), found


def test_case_071_the_commands_say_the_same(shared):
    db = finished(shared)
    code = "import sys\n" + (GIVE_UP_POWERS if os.getuid() == 0 else "")
    for command, wanted in ((["list"], 0), (["show", "r"], 0), (["resume", "r"], 0)):
        program = f"{code}sys.argv = ['agent-resume', *{command!r}, '--db', {db!r}]\nfrom agent_resume.cli import main\nmain()"
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=shared, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == wanted, (command, done)
        assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_written_is_named_when_a_store_is_to_be_made(shared):
    os.chmod(shared, 0o555)
    name, text, calls = without_powers(lambda: try_to_run(str(shared / "deep" / "runs.db")))
    assert (name, calls) == ("StoreReadOnly", 0)
    assert str(shared) in text


def test_a_file_of_another_user_that_may_not_even_be_read(shared):
    db = finished(shared)
    os.chmod(db, 0o000)

    def look():
        try:
            return load_run("r", db=db).status
        except BaseException as error:
            return list(describe(error))

    name, text = without_powers(look)
    assert name in ("StoreUnavailable", "StoreReadOnly")
    assert db in text


# -- case 70 -----------------------------------------------------------------------------------------------------------


class _Answering:
    """Stands in front of a connection whose file system answers the WAL switch in its own way."""

    def __init__(self, connection, answer):
        self._connection = connection
        self._answer = answer

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, text, *values):
        if text == "PRAGMA journal_mode=WAL":
            return self._answer(self._connection)
        return self._connection.execute(text, *values)


def _other_mode(connection):
    return connection.execute("SELECT 'delete'")


def _error(name):
    def answer(connection):
        error = sqlite3.OperationalError("locking protocol")
        error.sqlite_errorcode = getattr(sqlite3, name)
        error.sqlite_errorname = name
        raise error

    return answer


@pytest.mark.parametrize("answer", [_other_mode, _error("SQLITE_PROTOCOL"), _error("SQLITE_IOERR")])
def test_case_070_a_file_system_that_cannot_do_wal_is_named_before_any_step_is_called(db, monkeypatch, answer):
    from agent_resume import database_sqlite

    real = database_sqlite.SqliteDriver.plain
    monkeypatch.setattr(
        database_sqlite.SqliteDriver, "plain", lambda self, *mode: _Answering(real(self, *mode), answer)
    )
    calls = []
    with pytest.raises(StoreUnavailable) as caught:
        agent_run("job", lambda run: calls.append(1), db=db)
    assert calls == []
    assert db in str(caught.value)
    assert answer is not _other_mode or "AGENT_RESUME_DB" in str(caught.value)


# -- disks that fill up ------------------------------------------------------------------------------------------------

_LIMITED = """
import resource, signal, sys
from agent_resume import Checkpoint, StoreFull
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
db = sys.argv[1]
run = Checkpoint("r", db=db)
run.step("kept", lambda: "before")
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
stored, refused = 0, None
for i in range(40):
    try:
        run.step(f"s{i}", lambda: "x" * 200_000)
        stored += 1
    except StoreFull as error:
        refused = error
        break
assert refused is not None and len(refused.result) == 200_000
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
print(stored, run.get_step_result("kept"), db in str(refused))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits file sizes the Linux way")
def test_a_full_disk_is_said_so_and_loses_nothing_that_was_acknowledged(db, run_python):
    said = run_python(_LIMITED, db)
    assert said.returncode == 0, said.stderr
    stored, kept, named = said.stdout.split()
    assert (kept, named) == ("before", "True")
    assert rows(db, "PRAGMA integrity_check") == [("ok",)]
    assert rows(db, "SELECT count(*) FROM steps WHERE status = 'completed'") == [(int(stored) + 1,)]
    assert issubclass(StoreFull, Exception)


# -- working folders ---------------------------------------------------------------------------------------------------


def test_a_working_folder_that_was_deleted_hurts_only_relative_paths(tmp_path, db, run_python):
    said = run_python(
        "import os, sys, shutil\nfrom agent_resume import agent_run, StoreUnavailable\n"
        "gone = sys.argv[2]; os.mkdir(gone); os.chdir(gone); os.rmdir(gone)\n"
        "print(agent_run('job', lambda run: run.step('a', lambda: 1), db=sys.argv[1]))\n"
        "try: agent_run('job', lambda run: 1)\n"
        "except StoreUnavailable as error: print('working folder' in str(error))",
        db,
        tmp_path / "gone",
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "1\nTrue\n", "")


def test_a_change_of_the_working_folder_does_not_move_an_open_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with Checkpoint("r", db="runs.db") as run:
        run.record("a", 1)
        monkeypatch.chdir(tmp_path / "elsewhere")
        run.record("b", 2)
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == []
    assert len(load_run("r", db=tmp_path / "runs.db").steps) == 2


def test_a_store_reached_through_a_moved_folder_is_noticed(tmp_path):
    (tmp_path / "a").mkdir()
    run = Checkpoint("r", db=tmp_path / "a" / "runs.db")
    run.record("k", 1)
    os.rename(tmp_path / "a", tmp_path / "b")
    from agent_resume import StoreMoved

    with pytest.raises(StoreMoved):
        run.record("k2", 1)
    os.rename(tmp_path / "b", tmp_path / "a")
    run.record("k2", 1)
    run.close()


def test_a_missing_home_is_no_trouble(db, run_python):
    said = run_python(
        f"import os\nfor name in ('HOME', 'USER', 'LOGNAME', 'PATH', 'LANG'): os.environ.pop(name, None)\n"
        f"from agent_resume import agent_run\nprint(agent_run('job', lambda run: run.step('a', lambda: 'é'), db={db!r}) == 'é')",
        LC_ALL="C",
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "True\n", "")


@pytest.mark.parametrize("flags", [["-O"], ["-OO"], ["-B", "-I"], ["-X", "utf8=0"], ["-W", "error"]])
def test_python_may_be_started_with_any_of_its_flags(tmp_path, db, flags):
    code = (
        "import sys\nfrom agent_resume import agent_run\n"
        "def body(run):\n"
        "    run.step('a', lambda: {'t': (1,)})\n"
        "    run.event('loop', phase='start')\n"
        "    for turn in run.loop('l', max_turns=1): turn.step(int)\n"
        "    return run.report()[:5]\n"
        f"print(agent_run('job', body, db={db!r}))"
    )
    done = subprocess.run(
        [sys.executable, *flags, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "# Run\n", "")


def test_looking_into_a_file_that_may_not_be_written_leaves_nothing_behind_that_keeps_writers_out(shared):
    db = str(shared / "runs.db")
    agent_run("job", lambda run: run.step("a", lambda: "kept"), run_id="r", db=db)
    databases._close_all()
    os.chmod(db, 0o400)
    assert without_powers(lambda: load_run("r", db=db).status) == "completed"
    assert os.listdir(shared) == ["runs.db"]
