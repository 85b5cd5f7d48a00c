"""The file under the store fails: full, broken, foreign, gone. Typed errors, nothing made up, and it goes on after."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import agent_resume
from agent_resume import databases

Spawn = Callable[..., Any]
Cli = Callable[..., subprocess.CompletedProcess[str]]

# Forty steps of 20 kB. Every acknowledged one is noted, and the error that ends it is shown.
LARGE_STEPS = """
import os, resource, sys
import agent_resume

def effect(name):
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(f"called {name}\\n")
    return name * 5000

def body(run):
    for number in range(40):
        name = f"s{number:03d}"
        if name == os.environ.get("TROUBLE_AT"):
            open(os.environ["IOFAIL_NOW"], "w").close()
        assert run.step(name, effect, name) == name * 5000
        with open(os.environ["LEDGER"], "a") as ledger:
            ledger.write(f"ack {name}\\n")

limit = int(os.environ.get("FSIZE", "0"))
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    agent_resume.agent_run("job", body, run_id="job", db=sys.argv[1])
except agent_resume.StoreError as error:
    result = getattr(error, "result", agent_resume.errors.NO_RESULT)
    print(type(error).__name__, "carries", result[:4] if result else "nothing", "|", error, flush=True)
    sys.exit(6)
print("complete", flush=True)
"""


@pytest.fixture
def db(tmp_path: Path) -> str:
    """A file: these tests are about files, signals and processes."""
    return str(tmp_path / "runs.db")


def heard(ledger: Path) -> tuple[Counter[str], set[str]]:
    """How often each function was called, and which steps were acknowledged."""
    words = [line.split() for line in ledger.read_text().splitlines()]
    return Counter(name for kind, name in words if kind == "called"), {name for kind, name in words if kind == "ack"}


def told_truly(agent: Any, ledger: Path, error: str) -> None:
    """Either the function was not called at all, or its result is handed over."""
    called, acknowledged = heard(ledger)
    lost = set(called) - acknowledged
    assert len(lost) <= 1
    assert f"{error} carries {lost.pop() if lost else 'nothing'}" in agent.output


def resumes(db: str, ledger: Path, spawn_agent: Spawn) -> None:
    """After the cause is gone: the run completes, and what was acknowledged is not called again."""
    called, acknowledged = heard(ledger)
    again = spawn_agent(LARGE_STEPS, db, LEDGER=str(ledger))
    assert again.finish() == 0, again.output
    called_now, _ = heard(ledger)
    assert all(called_now[name] == called[name] == 1 for name in acknowledged)
    assert set(called_now) == {f"s{number:03d}" for number in range(40)}
    connection = sqlite3.connect(db)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_a_file_size_limit_is_a_full_store_and_the_result_is_handed_over(
    db: str, tmp_path: Path, spawn_agent: Spawn
) -> None:
    ledger = tmp_path / "ledger.txt"
    agent = spawn_agent(LARGE_STEPS, db, LEDGER=str(ledger), FSIZE=str(400_000))
    assert agent.finish() == 6, agent.output
    assert db in agent.output
    told_truly(agent, ledger, "StoreFull")
    resumes(db, ledger, spawn_agent)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=400k", "none", str(place)]
    if mount is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    databases._close_all()
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_a_full_store_and_the_run_goes_on_when_there_is_room(
    small_disk: Path, tmp_path: Path, spawn_agent: Spawn, cli: Cli
) -> None:
    db, ledger = str(small_disk / "runs.db"), tmp_path / "ledger.txt"
    agent = spawn_agent(LARGE_STEPS, db, LEDGER=str(ledger))
    assert agent.finish() == 6, agent.output
    told_truly(agent, ledger, "StoreFull")
    # Full from the start: known before any step function is called.
    (small_disk / "filler").write_bytes(b"")
    _fill(small_disk / "filler")
    called, _ = heard(ledger)
    agent = spawn_agent(LARGE_STEPS, db, LEDGER=str(ledger))
    assert agent.finish() == 6, agent.output
    assert "StoreFull carries nothing" in agent.output
    assert heard(ledger)[0] == called
    listed = cli("list", "--db", db)
    assert listed.returncode in (0, 6), listed.stderr
    (small_disk / "filler").unlink()
    subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
    resumes(db, ledger, spawn_agent)


def _fill(path: Path) -> None:
    with path.open("ab", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(512))


@pytest.fixture(scope="session")
def iofail(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The preloaded library that lets system calls fail."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("iofail") / "iofail.so"
    source = Path(__file__).with_name("iofail.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return str(library)


@pytest.mark.parametrize("calls", ["write", "sync", "write sync truncate", "read write"])
@pytest.mark.parametrize("skip", [0, 1, 2, 5])
def test_an_io_error_is_told_and_the_run_goes_on_when_it_is_gone(
    db: str, tmp_path: Path, spawn_agent: Spawn, iofail: str, calls: str, skip: int
) -> None:
    ledger = tmp_path / "ledger.txt"
    trouble = {
        "LD_PRELOAD": iofail, "IOFAIL_DIR": str(tmp_path), "IOFAIL_NOW": str(tmp_path / "now"), "IOFAIL_CALLS": calls,
        "IOFAIL_ERRNO": str(errno.EIO), "IOFAIL_SKIP": str(skip), "TROUBLE_AT": "s010", "LEDGER": str(ledger),
    }  # fmt: skip
    agent = spawn_agent(LARGE_STEPS, db, **trouble)
    assert agent.finish() == 6, agent.output
    told_truly(agent, ledger, "StoreUnavailable")
    (tmp_path / "now").unlink()
    resumes(db, ledger, spawn_agent)


def finished_run(db: str) -> None:
    def body(run: agent_resume.Run) -> None:
        for number in range(50):
            run.step(f"s{number}", lambda: "x" * 2000)

    with agent_resume.Store(db) as store:
        agent_resume.agent_run("r", body, run_id="r", db=store)
    databases._close_all()
    assert not os.path.exists(f"{db}-wal")


def zeroed(db: Path) -> None:
    content = bytearray(db.read_bytes())
    content[4096 : len(content) // 2] = bytes(len(content) // 2 - 4096)
    db.write_bytes(content)


def truncated(db: Path) -> None:
    db.write_bytes(db.read_bytes()[: db.stat().st_size // 2])


def text_file(db: Path) -> None:
    db.write_text("Dear database,\n" * 100)


def foreign(db: Path) -> None:
    db.unlink()
    connection = sqlite3.connect(db)
    connection.execute("CREATE TABLE theirs (id INTEGER)")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("damage", [zeroed, truncated, text_file, foreign])
def test_case_067_a_damaged_or_foreign_file_is_named_and_left_as_it_was(
    db: str, damage: Callable[[Path], None], cli: Cli
) -> None:
    finished_run(db)
    damage(Path(db))
    before = Path(db).read_bytes()
    called: list[str] = []
    with pytest.raises(agent_resume.StoreDamaged, match="runs.db") as caught:
        agent_resume.agent_run("r", lambda run: run.step("s", called.append, "s"), run_id="new", db=db)
    assert caught.value.path == db
    databases._close_all()
    for command in (("list",), ("show", "r"), ("resume", "r")):
        shown = cli(*command, "--db", db)
        assert shown.returncode == 6, (command, shown.stdout, shown.stderr)
        assert "runs.db" in shown.stderr
        assert "Traceback" not in shown.stderr
    assert called == []
    assert Path(db).read_bytes() == before


def test_case_067_an_empty_file_is_a_fresh_store(db: str, cli: Cli) -> None:
    Path(db).touch()
    assert cli("list", "--db", db, "--json").stdout.strip() == "[]"
    assert agent_resume.agent_run("r", lambda run: run.step("s", lambda: 1), db=db) == 1


@pytest.mark.parametrize("byte", [16, 18, 19, 20, 24, 40, 44, 100])
def test_a_damaged_header_never_gives_an_untyped_error(db: str, byte: int) -> None:
    finished_run(db)
    content = bytearray(Path(db).read_bytes())
    content[byte] ^= 0xFF
    Path(db).write_bytes(content)
    try:
        agent_resume.agent_run("r", lambda run: run.step("s", lambda: 1), run_id="new", db=db)
    except agent_resume.StoreError as error:
        assert db in str(error)


def test_case_068_a_folder_that_was_made_again_is_noticed_before_the_function_is_called(
    tmp_path: Path, cli: Cli
) -> None:
    data = tmp_path / "data"
    called: list[str] = []

    def body(run: agent_resume.Run) -> None:
        run.step("a", called.append, "a")
        shutil.rmtree(data)
        data.mkdir()
        run.step("b", called.append, "b")

    with pytest.raises(agent_resume.StoreMoved, match="a.db"):
        agent_resume.agent_run("r", body, run_id="r", db=data / "a.db")
    assert called == ["a"]
    listed = cli("list", "--db", data / "a.db", "--json")
    assert listed.stdout.strip() in ("[]", "")
    assert list(data.iterdir()) == [], "nothing was made in the new folder"


@pytest.mark.parametrize("how", ["deleted", "replaced", "moved"])
def test_a_file_that_is_gone_is_noticed_before_the_function_is_called(db: str, tmp_path: Path, how: str) -> None:
    called: list[str] = []
    other = tmp_path / "other.db"
    finished_run(str(other))

    def body(run: agent_resume.Run) -> None:
        run.step("a", called.append, "a")
        if how == "replaced":
            os.replace(other, db)
        elif how == "moved":
            os.rename(db, tmp_path / "elsewhere.db")
        else:
            os.unlink(db)
        run.step("b", called.append, "b")

    with pytest.raises(agent_resume.StoreMoved):
        agent_resume.agent_run("r", body, run_id="r", db=db)
    assert called == ["a"]


def test_a_file_that_goes_while_the_function_runs_gives_the_result_back(db: str) -> None:
    def body(run: agent_resume.Run) -> None:
        run.step("a", lambda: (os.unlink(db), "precious")[1])

    with pytest.raises(agent_resume.StoreMoved) as caught:
        agent_resume.agent_run("r", body, run_id="r", db=db)
    assert caught.value.result == "precious"


def may_be_bound() -> bool:
    return sys.platform.startswith("linux") or (hasattr(os, "geteuid") and os.geteuid() != 0)


@pytest.mark.skipif(not may_be_bound(), reason="needs POSIX permissions that bind this user")
@pytest.mark.parametrize("what", ["folder", "file", "both"])
def test_a_read_only_place_is_refused_before_any_function_is_called(
    tmp_path: Path, what: str, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    db = place / "runs.db"
    finished_run(str(db))
    if what != "folder":
        db.chmod(0o444)
    if what != "file":
        place.chmod(0o555)
    script = """
import ctypes, os, sys
if os.geteuid() == 0 and "BOUND" not in os.environ:
    # Root may write everywhere. Take that right away (CAP_DAC_OVERRIDE), and begin again without it.
    assert ctypes.CDLL(None).prctl(24, 1, 0, 0, 0) == 0
    os.environ["BOUND"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.argv])
import agent_resume
def body(run):
    run.step("called", lambda: print("called", flush=True))
for run_id in ("r2", "r"):
    try:
        agent_resume.agent_run("r", body, run_id=run_id, db=sys.argv[1])
        print("done", run_id)
    except agent_resume.StoreReadOnly as error:
        print("read-only", run_id, error)
print("listed", [run.id for run in agent_resume.list_runs(db=sys.argv[1])])
"""
    (tmp_path / "agent.py").write_text(script)
    done = run_python(tmp_path / "agent.py", db)
    place.chmod(0o755)
    assert "read-only r2" in done.stdout, done.stdout + done.stderr
    assert "called" not in done.stdout
    assert "listed ['r']" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("table", ["steps", "runs", "owners", "events"])
def test_a_store_with_a_missing_table_is_damaged_and_says_which(db: str, cli: Cli, table: str) -> None:
    agent_resume.agent_run("a", lambda run: run.step("s", int), run_id="r", db=db)
    databases._close_all()
    with sqlite3.connect(db) as database:
        database.execute("PRAGMA foreign_keys=OFF")
        database.execute(f"DROP TABLE {table}")
    for command in (["list"], ["show", "r"], ["doctor"]):
        said = cli(*command, "--db", db)
        if (table, command) == ("events", ["list"]):
            assert said.returncode == 0  # it reads none
            continue
        assert said.returncode in (1, 6) if command == ["doctor"] else said.returncode == 6, said.stderr
        assert "no such table" in said.stdout + said.stderr
    calls: list[int] = []
    with pytest.raises(agent_resume.StoreDamaged, match="no such table"):
        agent_resume.agent_run("a", lambda run: run.step("s", calls.append, 1), db=db)
    assert calls == []


def test_a_trigger_of_somebodys_own_gives_a_typed_error(db: str) -> None:
    agent_resume.agent_run("a", lambda run: None, db=db)
    with sqlite3.connect(db) as database:
        database.execute("CREATE TRIGGER no BEFORE INSERT ON steps BEGIN SELECT RAISE(ABORT, 'not here'); END")
    with pytest.raises(agent_resume.StoreUnavailable, match="not here"):
        agent_resume.agent_run("b", lambda run: run.step("s", int), db=db)


@pytest.mark.parametrize("output", ["x'00ff'", "NULL"])
def test_an_output_that_is_no_text_is_unreadable_not_lost(db: str, output: str) -> None:
    agent_resume.agent_run("a", lambda run: run.step("s", int), db=db)
    with sqlite3.connect(db) as database:
        database.execute(f"UPDATE steps SET output = {output}")
        database.execute("UPDATE runs SET status = 'failed'")
    with pytest.raises(agent_resume.StoredValueUnreadable):
        agent_resume.agent_run("a", lambda run: run.step("s", int), db=db)


def test_a_writer_that_holds_the_lock_is_named(db: str, spawn_agent: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    agent_resume.agent_run("a", lambda run: None, db=db)
    code = "import sqlite3, sys, time\ndb = sqlite3.connect(sys.argv[1], isolation_level=None)\n" \
        "db.execute('BEGIN IMMEDIATE')\nprint('held', flush=True)\ntime.sleep(60)"  # fmt: skip
    holder = spawn_agent(code, db, marker="held")
    monkeypatch.setattr("agent_resume.database_sqlite.BUSY_LIMIT", 0.2)
    with pytest.raises(agent_resume.StoreBusy) as caught:
        agent_resume.Checkpoint("r", db=db).record("k", 1)
    assert caught.value.holder == f"process {holder.pid}"
    assert f"process {holder.pid}" in str(caught.value)


_NO_DESCRIPTORS = """
import os, resource, sys
from agent_resume import Checkpoint, StoreError
import agent_resume.checkpoint
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
for spare in range(6):
    try:
        Checkpoint(f"r{spare}", db=f"{sys.argv[1]}-{spare}").step("a", lambda: print("called"))
    except StoreError as error:
        print("typed", "permissions" in str(error))
    os.close(taken.pop())
"""


def test_a_process_without_free_descriptors_is_told_so(db: str, run_python: Any) -> None:
    said = run_python(_NO_DESCRIPTORS, db)
    assert set(said.stdout.splitlines()) <= {"typed False", "called"}, said.stdout + said.stderr
    assert "typed False" in said.stdout
    assert said.returncode == 0, said.stderr


def test_leaving_a_checkpoint_with_an_error_of_ones_own_keeps_that_error(db: str, tmp_path: Path) -> None:
    with agent_resume.Checkpoint("r", db=db) as run:
        run.step("a", int)
    with pytest.raises(ValueError, match="mine") as caught, agent_resume.Checkpoint("r", db=db) as run:
        run.step("a", int)
        os.rename(db, tmp_path / "away.db")
        raise ValueError("mine")
    assert any("could not store what was pending" in note for note in caught.value.__notes__)


def test_a_store_that_was_closed_does_not_go_on_in_another_file(db: str) -> None:
    run = agent_resume.Checkpoint("r", db=db)
    run.step("a", int)
    run.close()
    os.unlink(db)
    with pytest.raises(agent_resume.StoreMoved):
        run._core.store.database.ensure_writable()
    assert not os.path.exists(db)
    with agent_resume.Checkpoint("other", db=db) as other:
        other.step("z", int)
    with pytest.raises(agent_resume.StoreMoved):
        run._core.store.database.ensure_writable()
