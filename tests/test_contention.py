"""Many writers at once: threads, processes, coroutines. Nobody loses anything, nobody sees a lock."""

from __future__ import annotations

import json
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import raw

from agent_resume import Checkpoint, StepInFlight, Store, StoreUnavailable, agent_run, load_run

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
    with closing(raw.connect(db)) as database:
        return database.execute(query, values).fetchall()


def in_threads(*functions):
    failures = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_case_001_two_threads_step_in_lockstep(db):
    barrier = threading.Barrier(2)

    def worker(number):
        with Checkpoint(f"r{number}", db=db) as run:
            for turn in range(200):
                barrier.wait(30)
                assert run.step(f"s{turn}", lambda turn=turn: turn, turn) == turn

    assert in_threads(lambda: worker(1), lambda: worker(2)) == []
    assert rows(db, "SELECT count(*) FROM steps WHERE status = 'completed'") == [(400,)]


_CASE_2 = """
import sys
from agent_resume import agent_run
agent_run("job", lambda run: [run.step(f"s{i}", lambda: i) for i in range(25)], run_id=sys.argv[1], db=sys.argv[2])
"""


def test_case_002_eight_processes_write_their_own_runs(db, spawn_agent, cli):
    agents = [spawn_agent(_CASE_2, f"run-{number}", db) for number in range(8)]
    assert [(agent.finish(), agent.output) for agent in agents] == [(0, "")] * 8
    listed = json.loads(cli("list", "--json", "--db", db).stdout)
    assert sorted((run["id"], run["status"], run["stepsCompleted"]) for run in listed) == [
        (f"run-{number}", "completed", 25) for number in range(8)
    ]


_BUSY = """
import sqlite3, sys
import agent_resume.database_sqlite as driver
driver.BUSY_LIMIT = 0.3
from agent_resume import agent_run
agent_run("job", lambda run: run.step("s", int), db=sys.argv[1])
"""


def test_case_002_a_wait_that_runs_out_is_never_a_silent_stop(db, run_python):
    Store(db).database.ensure_writable()
    with closing(sqlite3.connect(db, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        said = run_python(_BUSY, db)
        holder.execute("ROLLBACK")
    assert said.returncode == 1
    assert "StoreBusy" in said.stderr
    assert db in said.stderr
    assert rows(db, "SELECT count(*) FROM runs") == [(0,)]


_ONE_RUN = (
    BARRIER
    + """
import warnings
warnings.simplefilter("ignore")
from agent_resume import Checkpoint, register_event_type
register_event_type("tick", {"i": "number"})
db, folder, number, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
longest = 0.0
with Checkpoint("shared", db=db) as run:
    barrier(folder, f"go@{number}", 8)
    for i in range(count):
        start = time.monotonic()
        run.record(f"{number}-{i}", i)
        longest = max(longest, time.monotonic() - start)
        run.event("tick", who=number, i=i)
print(f"{longest * 1000:.0f}")
"""
)


def check_shared_run(db, writers, count):
    """No gap, nothing lost, each writer's own order kept."""
    seqs = [seq for (seq,) in rows(db, "SELECT seq FROM events ORDER BY id")]
    assert seqs == list(range(1, len(seqs) + 1))
    assert rows(db, "SELECT last_seq FROM runs") == [(len(seqs),)]
    assert rows(db, "SELECT count(*), count(DISTINCT key) FROM steps WHERE status = 'completed'") == [
        (writers * count, writers * count)
    ]
    kinds = dict(rows(db, "SELECT type, count(*) FROM events GROUP BY type"))
    assert (kinds["tick"], kinds["record"]) == (writers * count, writers * count)
    order = {}
    for data, key in rows(db, "SELECT data, step_key FROM events WHERE type IN ('tick', 'record') ORDER BY seq"):
        who, i = (json.loads(data)["who"], json.loads(data)["i"]) if key is None else map(int, key.split("-"))
        order.setdefault(who, []).append((i, key is None))
    assert order == {who: [(i, tick) for i in range(count) for tick in (False, True)] for who in range(writers)}


def test_eight_processes_record_and_tick_into_one_run(tmp_path, db, spawn_agent):
    count = 150
    agents = [spawn_agent(_ONE_RUN, db, tmp_path, number, count) for number in range(8)]
    for agent in agents:
        assert agent.finish() == 0, agent.output
        assert agent.output.isdigit(), agent.output
    check_shared_run(db, 8, count)


def test_case_058_two_processes_append_to_one_run(db, spawn_agent):
    agent = (
        "import sys, warnings\nwarnings.simplefilter('ignore')\nfrom agent_resume import Checkpoint\n"
        "run = Checkpoint('r', db=sys.argv[1])\n"
        "for i in range(100): run.record(f'{sys.argv[2]}-{i}', i); run.event('e')"
    )
    agents = [spawn_agent(agent, db, name) for name in "ab"]
    assert [(agent.finish(), agent.output) for agent in agents] == [(0, "")] * 2
    assert rows(db, "SELECT count(*) FROM steps") == [(200,)]
    assert rows(db, "SELECT count(*) FROM events WHERE type = 'e'") == [(200,)]


def test_sixteen_threads_share_one_run_object(db):
    run = Checkpoint("r", db=db)

    def work(number):
        for i in range(20):
            assert run.step(f"{number}-{i}", lambda i=i: [i], i) == [i]
            run.record(f"rec-{number}-{i}", {"i": i})

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    seqs = [seq for (seq,) in rows(db, "SELECT seq FROM events ORDER BY id")]
    assert seqs == list(range(1, len(seqs) + 1))
    assert run.count_completed_keys_with_prefix("") == 640
    assert rows(db, "SELECT count(*) FROM owners") == [(1,)]
    run.close()
    assert rows(db, "SELECT count(*) FROM owners") == [(0,)]


def test_an_owner_that_ends_beside_another_never_takes_the_others_row_away(db, monkeypatch):
    """A run begins between another's decision to take this process's row away, as the last one, and doing so."""
    store = Store(db)
    ending = Checkpoint("ending", db=store)
    ending.record("k", 1)
    inside, ended = threading.Event(), threading.Event()
    found = []

    def body(run):
        inside.set()
        ended.wait(30)
        query = "SELECT count(*) FROM owners o JOIN runs r ON o.token = r.owner_token WHERE r.id = ?"
        found.append(rows(db, query, run.id))

    beginning = threading.Thread(target=lambda: agent_run("job", body, run_id="beginning", db=store))
    real = store.database.direct

    def direct(operation, *arguments, **options):
        if operation.__name__ in ("_drop", "drop_owner") and not beginning.ident:
            beginning.start()
            inside.wait(30)
        return real(operation, *arguments, **options)

    monkeypatch.setattr(store.database, "direct", direct)
    ending.close()
    ended.set()
    beginning.join()
    assert found == [[(1,)]]
    assert rows(db, "SELECT count(*) FROM owners") == [(0,)]


def test_a_checkpoint_keeps_its_owner_when_another_run_of_this_process_ends(db):
    with Store(db) as store:
        first = Checkpoint("first", db=store)
        second = Checkpoint("second", db=store)
        first.record("k", 1)

        def long():
            first.close()
            return rows(
                db, "SELECT count(*) FROM steps s JOIN owners o ON o.token = s.owner_token WHERE s.key = 'long'"
            )

        assert second.step("long", long) == [[1]] or second.get_step_result("long") == [(1,)]
        second.close()


def test_one_run_is_executed_once_at_a_time_also_by_threads_of_one_process(db):
    from agent_resume import RunInUse

    store = Store(db)
    inside, most, refused = [], [], []
    barrier = threading.Barrier(8)

    def body(run):
        inside.append(1)
        most.append(len(inside))
        run.step("s", lambda: threading.Event().wait(0.02) and None)
        inside.pop()
        raise TimeoutError("again")

    def work():
        for _ in range(10):
            barrier.wait(30)
            try:
                agent_run("job", body, run_id="one", db=store)
            except TimeoutError:
                pass
            except RunInUse:
                refused.append(1)

    assert in_threads(*[work] * 8) == []
    assert max(most) == 1
    assert len(most) + len(refused) == 80


def test_case_007_a_failed_save_leaves_nothing_locked(db, run_python):
    run = Checkpoint("r", db=db)
    with pytest.raises(TypeError):
        run.step("a", lambda: object())
    said = run_python(f"from agent_resume import Checkpoint\nprint(Checkpoint('r2', db={db!r}).step('b', lambda: 2))")
    assert (said.returncode, said.stdout) == (0, "2\n")
    assert rows(db, "SELECT status, output FROM steps WHERE key = 'a'") == [("failed", None)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
def test_case_007_whatever_leaves_a_transaction_rolls_it_back(db, error):
    store = Store(db)
    store.database.ensure_writable()

    def operation(tx):
        tx.cursor.execute("INSERT INTO owners (token, host, pid, beat_at) VALUES ('t', 'h', 1, 'now')")
        raise error

    with pytest.raises(error):
        store.direct(operation)
    with closing(sqlite3.connect(db, timeout=0, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert other.execute("SELECT count(*) FROM owners").fetchall() == [(0,)]
        other.execute("ROLLBACK")


def test_a_failing_constraint_in_the_middle_leaves_the_connection_usable(db):
    store = Store(db)
    store.database.ensure_writable()
    with pytest.raises(StoreUnavailable, match="refused a row"):
        store.direct(lambda tx: tx.cursor.execute("INSERT INTO runs (id) VALUES ('x')"))
    with Checkpoint("r", db=store) as run:
        assert run.step("a", lambda: 1) == 1


def test_a_stranger_that_reads_all_the_time_stops_nobody(db):
    """A SELECT held open by another program: writers go on, the log cannot be reset meanwhile, nothing is lost."""
    run = Checkpoint("r", db=db)
    run.record("first", 1)
    with closing(sqlite3.connect(db, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM steps").fetchall() == [(1,)]
        for i in range(30):
            run.record(f"big-{i}", "x" * 200_000)
        assert reader.execute("SELECT count(*) FROM steps").fetchall() == [(1,)]
        reader.execute("COMMIT")
        assert reader.execute("SELECT count(*) FROM steps").fetchall() == [(31,)]
    for i in range(30, 60):
        run.record(f"big-{i}", "x" * 200_000)
    assert len(load_run("r", db=db).steps) == 61


_READ_AND_DIE = """
import os, sqlite3, sys
from agent_resume import agent_run
db, ledger = sys.argv[1:]
def body(run):
    for i in range(10_000):
        run.step(f"s{i}", lambda: {"i": i})
        with open(ledger, "a") as file: file.write(f"s{i}\\n")
        for _ in range(2):
            own = sqlite3.connect(db)
            assert own.execute("SELECT count(*) FROM steps WHERE status = 'completed'").fetchone() == (i + 1,)
            own.execute("SELECT * FROM run_overview").fetchall(); own.execute("SELECT * FROM step_attempts").fetchall()
            own.close()
        if i == 60: print("far enough", flush=True)
agent_run("job", body, run_id="r", db=db)
"""


def test_reading_with_plain_sqlite_from_two_processes_then_sigkill_loses_nothing(db, ledger, spawn_agent):
    agent = spawn_agent(_READ_AND_DIE, db, ledger.path)
    agent.wait_for("far enough")
    for _ in range(30):
        with closing(raw.connect(db)) as other:
            assert other.execute("SELECT status FROM runs").fetchall() == [("running",)]
            other.execute("SELECT * FROM step_timeline").fetchall()
    agent.kill()
    acknowledged = ledger.words()
    assert len(acknowledged) > 60
    stored = {key for (key,) in rows(db, "SELECT key FROM steps WHERE status = 'completed'")}
    assert stored.issuperset(acknowledged)
    assert rows(db, "PRAGMA integrity_check") == [("ok",)]


def test_the_same_step_is_never_executed_twice_at_once(db):
    run = Checkpoint("r", db=db)
    calls, values, refused = [], [], []
    barrier = threading.Barrier(8)

    def work():
        barrier.wait(30)
        try:
            values.append(run.step("s", lambda: calls.append(1) or threading.Event().wait(0.1) or len(calls)))
        except StepInFlight:
            refused.append(1)

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert in_threads(*[work] * 8) == []
    assert calls == [1]
    assert set(values) == {1}
    assert len(values) + len(refused) == 8
