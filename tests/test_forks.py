"""Forks, multiprocessing, threads, and the end of the interpreter."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from agent_resume import Checkpoint, NoActiveStep, agent_run, current_step, load_run


def rows(db, query, *values):
    with closing(sqlite3.connect(db)) as database:
        return database.execute(query, values).fetchall()


def stored(db):
    assert rows(db, "PRAGMA integrity_check") == [("ok",)]
    return sorted(key for (key,) in rows(db, "SELECT key FROM steps WHERE status = 'completed'"))


_CASE_11 = """
import os, sys
from agent_resume import agent_run
db, how = sys.argv[1:]
def body(run):
    run.step("a", lambda: 1)
    pid = os.fork()
    if pid == 0:
        run.step("child", lambda: 2)
        if how == "exit": sys.exit(0)
        if how == "os._exit": os._exit(0)
        return "from the child"
    assert os.waitpid(pid, 0)[1] == 0
    return run.step("b", lambda: 3)
print(agent_run("job", body, run_id="r", db=db))
"""


@pytest.mark.parametrize("how", ["exit", "os._exit", "return"])
def test_case_011_a_forked_child_opens_its_own_connection(db, run_python, how):
    said = run_python(_CASE_11, db, how)
    assert (said.returncode, said.stderr) == (0, "")
    assert stored(db) == ["a", "b", "child"]
    assert rows(db, "SELECT status FROM runs") == [("completed",)], "the child settled nothing"
    assert load_run("r", db=db).result == 3


_MULTIPROCESSING = """
import multiprocessing, sys
from agent_resume import Checkpoint
db, method = sys.argv[1:]
def work(number):
    with Checkpoint("r", db=db) as run: return run.step(f"w{number}", lambda: number)
if __name__ == "__main__":
    run = Checkpoint("r", db=db)
    run.step("a", lambda: 1)
    with multiprocessing.get_context(method).Pool(3) as pool:
        print(sorted(pool.map(work, range(6))))
    run.step("b", lambda: 2)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_case_011_multiprocessing_of_every_kind(tmp_path, db, run_python, method):
    (tmp_path / "agent.py").write_text(_MULTIPROCESSING)
    said = run_python(tmp_path / "agent.py", db, method)
    assert (said.returncode, said.stdout, said.stderr) == (0, "[0, 1, 2, 3, 4, 5]\n", "")
    assert stored(db) == ["a", "b", *(f"w{number}" for number in range(6))]


_LOSER = """
import os, sys, time
from agent_resume import Checkpoint
db = sys.argv[1]
run = Checkpoint("r", db=db)
run.step("a", lambda: 1)
parent_gone, told = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(told)
    run.step("early", lambda: 1)
    os.read(parent_gone, 1)          # the parent closed its last connection and ended
    run.step("late", lambda: 2)
    os._exit(0)
os.close(parent_gone)
run.step("b", lambda: 3)
print(pid)
run.close()
"""


def test_a_child_outlives_its_parents_last_connection(db, run_python):
    import os
    import time

    said = run_python(_LOSER, db)
    assert said.returncode == 0, said.stderr
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            os.kill(int(said.stdout), 0)
        except ProcessLookupError:
            break
        time.sleep(0.02)
    assert stored(db) == ["a", "b", "early", "late"]


_FORKS_BESIDE_THREADS = """
import os, sys, threading
from agent_resume import Checkpoint
db = sys.argv[1]
run = Checkpoint("r", db=db)
stop = threading.Event()
counts = [0] * 3
def hammer(number):
    while not stop.is_set():
        run.step(f"t{number}-{counts[number]}", lambda: "x" * 100)
        run.has("t0-0")
        counts[number] += 1
threads = [threading.Thread(target=hammer, args=(number,)) for number in range(3)]
for thread in threads: thread.start()
children = []
for number in range(12):
    pid = os.fork()
    if pid == 0:
        try:
            run.step(f"child-{number}", lambda: number)
            code = 0
        except BaseException as error:
            sys.stderr.write(f"child {number}: {error!r}"); sys.stderr.flush(); code = 1
        os._exit(code)
    children.append(pid)
codes = [os.waitpid(pid, 0)[1] for pid in children]
stop.set()
for thread in threads: thread.join()
print(sum(counts), codes)
"""


def test_forks_beside_threads_that_write_and_read(db, run_python):
    said = run_python(_FORKS_BESIDE_THREADS, db)
    assert (said.returncode, said.stderr) == (0, "")
    total, codes = said.stdout.split(" ", 1)
    assert codes.strip() == str([0] * 12)
    assert len(stored(db)) == int(total) + 12


_FORK_IN_A_STEP = """
import os, sys
from agent_resume import agent_run
db = sys.argv[1]
def forking():
    pid = os.fork()
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
    return "parent"
def leaking():
    if os.fork() == 0: return "child"       # it returns into the step, and tries to store a second result
    os.wait()
    return "parent"
def body(run):
    return [run.step("forking", forking), run.step("leaking", leaking)]
print(os.getpid() and agent_run("job", body, run_id="r", db=db), flush=True)
"""


def test_a_step_that_forks_is_stored_by_its_own_process_alone(db, run_python):
    run_python(_FORK_IN_A_STEP, db)
    assert stored(db) == ["forking", "leaking"]
    assert rows(db, "SELECT status FROM runs") == [("completed",)]
    assert load_run("r", db=db).result == ["parent", "parent"]


_FORK_IN_A_TRANSACTION = """
import os, sys
from agent_resume import Store, Checkpoint
db = sys.argv[1]
store = Store(db)
run = Checkpoint("r", db=store)
run.record("before", 1)
with store.database.held(lambda tx: None) as tx:
    pid = os.fork()
    if pid == 0:
        try:
            run.record("child", 1)
        except BaseException as error:
            os._exit(7 if type(error).__name__ == "StoreForked" else 1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
run.record("after", 1)
print(code)
"""


def test_a_fork_inside_a_transaction_makes_the_childs_store_refuse(db, run_python):
    said = run_python(_FORK_IN_A_TRANSACTION, db)
    assert (said.stdout, said.stderr) == ("7\n", "")
    assert stored(db) == ["after", "before"]


_LATE_USE = """
import os, sys
from agent_resume import Checkpoint
db = sys.argv[1]
with Checkpoint("r", db=db) as run:
    run.step("a", lambda: 1)
assert run.has("a")                          # reading a closed one opens again
if os.fork() == 0:
    inherited = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
    if any(name.startswith(db) for name in inherited): os._exit(1)
    with Checkpoint("r", db=db) as other: other.step("child", lambda: 2)
    os._exit(0)
assert os.wait()[1] == 0, "the child inherited a descriptor of the database"
assert run.get_step_result("child") == 2
with Checkpoint("r", db=db) as other: other.step("b", lambda: 3)
"""


def test_a_store_that_was_closed_and_read_again_is_closed_for_a_fork_too(db, run_python):
    said = run_python(_LATE_USE, db)
    assert (said.returncode, said.stderr) == (0, "")
    assert stored(db) == ["a", "b", "child"]


def test_a_subprocess_disturbs_nothing(db):
    import subprocess
    import sys

    def body(run):
        return run.step("s", lambda: subprocess.run([sys.executable, "-c", "pass"], check=True).returncode)

    assert agent_run("a", body, db=db) == 0


# -- threads -----------------------------------------------------------------------------------------------------------


def test_case_010_the_run_works_from_any_thread_and_the_ambient_step_says_when_it_is_missing(db):
    def body(run):
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda i: run.step(f"s{i}", lambda: i), range(4)))

            def look():
                with pytest.raises(NoActiveStep):
                    pool.submit(current_step).result()
                return current_step().key

            return results, run.step("look", look)

    assert agent_run("job", body, db=db) == ([0, 1, 2, 3], "look")


# -- the end of the interpreter ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "Checkpoint('r').step('a', lambda: 1)",
        "run = Checkpoint('r'); run.step('a', lambda: 1); run.event('e'); run.has('a')",
        "import asyncio\nasync def main(): Checkpoint('r').step('a', lambda: 1)\nasyncio.run(main())",
        "import asyncio\nfrom agent_resume import agent_run\n"
        "async def body(run): return await run.step('a', lambda: 1)\nasyncio.run(agent_run('r', body, run_id='r'))",
        "import threading\nrun = Checkpoint('r')\nthreading.Thread(target=lambda: run.step('a', lambda: 1)).start()",
        "import sys\nCheckpoint('r').step('a', lambda: 1)\nsys.exit(0)",
        "import atexit\nrun = Checkpoint('r'); run.record('b', 1)\natexit.register(lambda: run.step('a', lambda: 1))",
    ],
)
def test_case_008_a_script_ends_by_itself(tmp_path, run_python, code):
    said = run_python(f"import warnings; warnings.simplefilter('ignore')\nfrom agent_resume import Checkpoint\n{code}")
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
    assert "a" in stored(tmp_path / ".agent-resume" / "runs.db")


def test_an_exit_hook_that_was_there_before_us_can_still_write(tmp_path, db, run_python):
    said = run_python(
        f"import atexit\natexit.register(lambda: run.step('late', lambda: 1))\n"
        f"from agent_resume import Checkpoint\nrun = Checkpoint('r', db={db!r}); run.step('a', lambda: 1)"
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert stored(db) == ["a", "late"]


def test_a_run_that_is_only_dropped_is_given_back(tmp_path):
    import gc

    from agent_resume import databases

    for number in range(5):
        Checkpoint("r", db=tmp_path / f"{number}.db").record("k", 1)
    gc.collect()
    with Checkpoint("r", db=tmp_path / "last.db") as run:
        run.record("k", 1)
        assert len(databases._open) == 1


_SIGNAL = """
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore")
from agent_resume import agent_run
db = sys.argv[1]
seen = []
def body(run):
    def handler(number, frame):
        run.event("signal", n=len(seen))
        run.has("s0")
        seen.append(1)
    signal.signal(signal.SIGUSR1, handler)
    stop = threading.Event()
    def fire():
        fired = 0
        while not stop.wait(0.0007):
            if len(seen) == fired:  # never one inside another's handler
                fired += 1
                os.kill(os.getpid(), signal.SIGUSR1)
        while len(seen) < fired: stop.wait(0.001)
    thread = threading.Thread(target=fire); thread.start()
    for i in range(300):
        run.step(f"s{i}", lambda: i)
        run.event("mine", i=i)
    stop.set()
    while thread.is_alive(): thread.join(0.01)
agent_run("job", body, run_id="r", db=db)
print(len(seen))
"""


def test_signal_handlers_that_write_events_never_hang_or_break_a_step(db, run_python):
    said = run_python(_SIGNAL, db)
    assert said.returncode == 0, said.stderr[-2000:]
    assert len(stored(db)) == 300
    seen = int(said.stdout)
    assert seen > 20
    events = rows(db, "SELECT count(*) FROM events WHERE type = 'signal'")[0][0]
    lost = rows(db, "SELECT json_extract(meta, '$.eventsLost') FROM runs")[0][0] or 0
    mine = rows(db, "SELECT count(*) FROM events WHERE type = 'mine'")[0][0]
    assert events + mine + lost == seen + 300
    assert mine == 300
