"""A library with manners: light to import, silent, without global state, gone when its work is done."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import sys
import threading
import warnings

import pytest

from agent_resume import Checkpoint, Store, StoreBusy, agent_run, errors

HEAVY = ("alembic", "typer", "tabulate", "rich", "sqlalchemy", "pydantic", "psutil", "asyncio")


def test_case_087_importing_loads_nothing_heavy_and_touches_no_disk(tmp_path, run_python):
    said = run_python(
        f"import agent_resume, sys\nprint([name for name in {HEAVY!r} if name in sys.modules])", fresh=True
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "[]\n", "")
    assert list(tmp_path.iterdir()) == []


def test_case_087_importtime_names_none_of_them(tmp_path):
    import subprocess

    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import agent_resume"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    loaded = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert not loaded.intersection(HEAVY)
    assert "agent_resume" in loaded


def test_case_087_sqlalchemy_and_alembic_come_only_to_make_or_change_a_schema(db, run_python):
    code = (
        "import sys\nfrom agent_resume import Checkpoint\n"
        f"with Checkpoint('r', db={db!r}) as run: run.step('a', int)\n"
        "print('sqlalchemy' in sys.modules, 'alembic' in sys.modules)"
    )
    assert run_python(code, fresh=True).stdout == "True True\n"
    assert run_python(code.replace("'a'", "'b'"), fresh=True).stdout == "False False\n"


def test_a_whole_run_prints_nothing(db, run_python):
    said = run_python(
        "import sys\nfrom agent_resume import agent_run, answer, list_runs\ndb = sys.argv[1]\n"
        "def body(run):\n"
        "    run.step('a', lambda: 1); run.record('b', 2); run.event('loop', phase='start')\n"
        "    for turn in run.loop('l', max_turns=2): turn.step(int)\n"
        "    return run.pause('q')\n"
        "agent_run('job', body, run_id='r', db=db, on_pause='return')\n"
        "answer('r', 'q', 1, db=db)\n"
        "agent_run('job', body, run_id='r', db=db)\nlist(list_runs(db=db))",
        db,
        fresh=True,
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def _state():
    return {
        "signals": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)},
        "excepthook": sys.excepthook,
        "threading.excepthook": threading.excepthook,
        "filters": list(warnings.filters),
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "umask": _umask(),
        "argv": list(sys.argv),
        "stdout": sys.stdout,
        "recursion": sys.getrecursionlimit(),
        "trace": sys.gettrace(),
    }


def _umask():
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_global_state_is_left_as_it_was(db):
    agent_run("warm up", lambda run: run.step("a", lambda: 1), db=db)
    before = _state()
    agent_run("job", lambda run: run.step("a", lambda: 1), db=db)
    assert _state() == before


def test_no_thread_of_ours_is_left_or_keeps_the_process_alive(db):
    before = set(threading.enumerate())

    def body(run):
        ours = [thread for thread in threading.enumerate() if thread not in before]
        assert all(thread.daemon for thread in ours), ours
        return run.step("a", lambda: 1)

    agent_run("job", body, db=db)
    assert set(threading.enumerate()) == before


def test_descriptors_do_not_leak(db):
    def count():
        return len(os.listdir("/proc/self/fd"))

    agent_run("job", lambda run: run.step("a", lambda: 1), db=db)
    before = count()
    for _ in range(30):
        agent_run("job", lambda run: run.step("a", lambda: 1) and run.has("a"), db=db)
        with Checkpoint("r", db=db) as run:
            run.record("k", 1)
    assert count() <= before


def test_the_log_stays_bounded(db):
    run = Checkpoint("r", db=db)
    for i in range(150):
        run.record(f"k{i}", "x" * 200_000)
    assert os.path.getsize(f"{db}-wal") < 12 << 20
    run.close()
    assert not os.path.exists(f"{db}-wal")


SECRET = "sk-thisisverysecret0123456789abcdef"


def test_no_sql_parameter_is_in_an_error(db, monkeypatch):
    import sqlite3

    monkeypatch.setattr("agent_resume.database_sqlite.BUSY_LIMIT", 0.05)
    run = Checkpoint("r", db=db)
    run.record("k", 1)
    holder = sqlite3.connect(db, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy) as caught:
        run.record("secret", SECRET)
    holder.close()
    error = caught.value
    while error is not None:
        assert SECRET not in str(error)
        assert SECRET not in repr(error)
        error = error.__cause__ or error.__context__


def test_every_error_is_one_of_ours_and_ends_with_what_to_do():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BaseException)]
    for kind in kinds:
        if issubclass(kind, errors.AgentResumeWarning):
            assert issubclass(kind, UserWarning)
        elif kind.__name__ in ("RunPaused", "RunCancelled"):
            assert not issubclass(kind, Exception)
    assert issubclass(errors.StepTimeout, TimeoutError)
    assert issubclass(errors.WaitTimeout, TimeoutError)


def test_errors_survive_pickling(db):
    import pickle

    run = Checkpoint("r", db=db)
    run.record("k", 1)
    run.done()
    with pytest.raises(errors.InvalidTransition) as caught:
        run.step("x", pytest.fail)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.run_id, again.status) == (str(caught.value), "r", "completed")


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_progress_into_a_full_device_does_not_stop_the_agent(db, run_python):
    said = run_python(
        f"import sys\nsys.stderr = open('/dev/full', 'w')\nfrom agent_resume import agent_run\n"
        f"r = agent_run('job', lambda run: [run.step('a', int), run.step('b', int)], db={db!r}, progress=True)\n"
        f"print(r, flush=True); import os; os._exit(0)"
    )
    assert said.stdout == "[0, 0]\n"


def test_the_public_names_do_what_the_design_says():
    import agent_resume

    assert {"agent_run", "Checkpoint", "Store", "load_run", "list_runs", "answer", "cancel", "format_timeline"} <= set(
        agent_resume.__all__
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", agent_resume.__version__)
    with pytest.raises(AttributeError):
        agent_resume.nothing_of_that_name


def test_a_store_is_a_context_manager_and_can_be_closed_twice(db):
    with Store(db) as store:
        assert json.dumps([run.to_dict() for run in store.list_runs()]) == "[]"
    store.close()


_ODD_STDERR = """
import io, sys
from agent_resume import Checkpoint, agent_run
real = sys.stderr
class Tee:
    def write(self, text): return real.write(text)
closed = io.StringIO(); closed.close()
for number, stream in enumerate((Tee(), closed, object())):
    for progress in ("auto", True):
        sys.stderr = stream
        print(agent_run("r", lambda run: run.step("a", lambda: number), db=sys.argv[1], progress=progress))
"""


def test_a_stderr_that_cannot_even_say_whether_it_is_a_terminal_is_no_trouble(db, run_python):
    said = run_python(_ODD_STDERR, db)
    assert said.stdout.split() == ["0", "0", "1", "1", "2", "2"]


def test_waiting_for_another_writer_draws_nothing_from_the_programs_own_random_numbers(db):
    with Checkpoint("r", db=db) as run:
        run.step("a", int)
        holder = sqlite3.connect(db, isolation_level=None, check_same_thread=False)
        holder.execute("BEGIN IMMEDIATE")
        threading.Timer(0.3, holder.rollback).start()
        random.seed(5)
        before = random.getstate()
        run.step("b", int)
        assert random.getstate() == before
        holder.close()
