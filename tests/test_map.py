"""``run.map`` with threads: order, keys, failures, resume, memory, contexts."""

from __future__ import annotations

import contextvars
import io
import itertools
import os
import random
import signal
import sys
import threading
import time
import tracemalloc

import pytest

from agent_resume import (
    Checkpoint,
    DuplicateStep,
    MapOutcome,
    RunCancelled,
    RunPaused,
    StepCodeChangedWarning,
    StepInputChangedWarning,
    Store,
    StoreUnavailable,
    agent_run,
    cancel,
    current_step,
    load_run,
)


def test_outcomes_come_in_the_order_of_the_items(db):
    def slow(n):
        time.sleep(random.uniform(0, 0.01))
        return n * n

    with Checkpoint("r", db=db) as run:
        outcomes = list(run.map("square", slow, range(40), concurrency=6))
    assert [outcome.value for outcome in outcomes] == [n * n for n in range(40)]
    assert outcomes[3] == MapOutcome("square[3]", True, 9, None, 1, False)
    assert {step.name for step in load_run("r", db=db).steps} == {f"square[{n}]" for n in range(40)}


def test_finished_items_are_answered_without_a_call_whatever_the_order(db):
    def body(run, items, fn):
        return [(o.key, o.value, o.cached, o.attempts) for o in run.map("m", fn, items)]

    first = agent_run("a", lambda run: body(run, [1, 2, 3], str) and run.step("x", int) * 1, db=db, run_id="r1")
    assert first == 0
    with Checkpoint("r", db=db) as run:
        list(run.map("m", str, [1, 2, 3]))
    with Checkpoint("r", db=db) as run:
        assert body(run, [3, 4, 1], str) == [("m[3]", "3", True, 1), ("m[4]", "4", False, 1), ("m[1]", "1", True, 1)]


def test_keys_are_the_items_own_or_told_or_their_digest(db):
    with Checkpoint("r", db=db) as run:
        keys = [o.key for o in run.map("m", str, ["a", 7])]
        assert keys == ["m[a]", "m[7]"]
        keys = [o.key for o in run.map("by id", str, [{"id": 5}, {"id": 6}], key=lambda item: item["id"])]
        assert keys == ["by id[5]", "by id[6]"]
        first, second, third = [o.key for o in run.map("d", str, [{"x": 1}, {"x": 2}, True])]
        assert len({first, second, third}) == 3
        assert third != "d[True]"
        with pytest.raises(TypeError, match="key="):
            list(run.map("bad", str, [1], key=lambda item: 1.5))


def test_equal_keys_are_duplicates_in_every_mode(db):
    for n, items in enumerate(([1, 2, 1], ["1", 1], [{"a": 1}, {"a": 1}])):
        with Checkpoint("r", db=db) as run:
            outcomes = run.map(f"m{n}", str, items, on_error="collect")
            assert next(outcomes).ok
            with pytest.raises(DuplicateStep, match="different keys with key=$"):
                list(outcomes)


def test_a_name_mapped_twice_is_a_duplicate_too(db):
    def body(run):
        list(run.map("m", str, [1, 2]))
        with pytest.raises(DuplicateStep, match="each map a name of its own, or its items other keys with key=$"):
            list(run.map("m", str, [2, 3]))
        assert [o.cached for o in run.map("other", str, [1])] == [False]

    agent_run("a", body, db=db)


def test_a_map_that_was_left_early_may_be_begun_again(db):
    def fails_once(n):
        if n == 3 and not failed:
            failed.append(n)
            raise OSError
        return n

    failed: list[int] = []

    def body(run):
        with pytest.raises(OSError):
            list(run.map("m", fails_once, range(5)))
        return [o.value for o in run.map("m", fails_once, range(5))]

    assert agent_run("a", body, db=db) == list(range(5))


def test_raise_begins_no_more_lets_those_in_flight_end_and_raises_the_first_in_order(db):
    called = []
    late = threading.Event()

    def fn(n):
        called.append(n)
        if n == 1:
            late.wait(20)
            raise ValueError("first in order")
        if n == 3:
            late.set()
            raise ValueError("first in time")
        return n

    with Checkpoint("r", db=db) as run:
        outcomes = run.map("m", fn, range(1000), concurrency=4)
        assert next(outcomes).value == 0
        with pytest.raises(ValueError, match="first in order"):
            list(outcomes)
    assert len(called) < 50
    states = {step.name: step.status for step in load_run("r", db=db).steps}
    assert states["m[1]"] == states["m[3]"] == "failed"
    assert not [name for name, status in states.items() if status == "running"]


def test_collect_makes_failures_outcomes(db):
    def fn(n):
        if n % 2 and broken:
            raise ValueError(n)
        return n

    broken = True
    with Checkpoint("r", db=db) as run:
        outcomes = list(run.map("m", fn, range(6), on_error="collect"))
    assert [o.ok for o in outcomes] == [True, False] * 3
    assert [str(o.error) for o in outcomes if not o.ok] == ["1", "3", "5"]
    broken = False
    with Checkpoint("r", db=db) as run:
        again = list(run.map("m", fn, range(6), on_error="collect"))
    assert [(o.ok, o.cached, o.attempts) for o in again] == [(True, True, 1), (True, False, 2)] * 3


def test_a_pause_or_cancellation_in_an_item_ends_the_map_in_every_mode(db):
    def asks(n):
        run.pause("may I?")

    with Checkpoint("r", db=db) as run, pytest.raises(RunPaused):
        list(run.map("m", asks, range(3), on_error="collect"))
    with Checkpoint("r2", db=db) as run, pytest.raises(RunCancelled):
        list(run.map("m", lambda n: cancel("r2", db=db), range(20), on_error="collect", concurrency=2))


def test_an_interrupt_in_an_item_is_raised_where_the_outcomes_are_taken(db):
    def fn(n):
        raise KeyboardInterrupt

    with Checkpoint("r", db=db) as run, pytest.raises(KeyboardInterrupt):
        list(run.map("m", fn, range(3), on_error="collect"))


def test_work_begins_with_the_first_next_and_mistakes_are_told_at_once(db):
    taken = []

    def items():
        for n in itertools.count():
            taken.append(n)
            yield n

    with Checkpoint("r", db=db) as run:
        outcomes = run.map("m", str, items(), concurrency=2)
        assert not taken
        assert [next(outcomes).value for _ in range(3)] == ["0", "1", "2"]
        outcomes.close()
        assert len(taken) < 20
        for wrong in ({"concurrency": 0}, {"on_error": "ignore"}, {"concurrency": True}):
            with pytest.raises(ValueError):
                run.map("m", str, [1], **wrong)
        with pytest.raises(TypeError):
            run.map("m", None, [1])
    assert not [thread for thread in threading.enumerate() if thread.name == "agent-resume-map"]


def test_trouble_in_the_items_comes_after_the_outcomes_before_it(db):
    def items():
        yield 1
        yield 2
        raise LookupError("no more")

    got = []
    with Checkpoint("r", db=db) as run, pytest.raises(LookupError):
        for outcome in run.map("m", str, items()):
            got.append(outcome.value)
    assert got == ["1", "2"]


def test_other_items_under_the_same_key_are_noticed(db):
    for item, expected in (({"id": 1, "v": 1}, None), ({"id": 1, "v": 2}, StepInputChangedWarning)):
        with Checkpoint("r", db=db) as run:
            outcomes = run.map("m", lambda item: item["v"], [item], key=lambda item: item["id"])
            if expected is None:
                assert next(outcomes).value == 1
            else:
                with pytest.warns(expected):
                    assert next(outcomes).value == 1


def test_workers_run_in_copies_of_the_callers_context(db):
    where = contextvars.ContextVar("where", default="nowhere")

    def fn(n):
        seen = (where.get(), current_step().key)
        where.set(f"worker {n}")
        return seen

    with Checkpoint("r", db=db) as run:
        where.set("here")
        values = [o.value for o in run.map("m", fn, range(20), concurrency=3)]
    assert values == [("here", f"m[{n}]") for n in range(20)]
    assert where.get() == "here"


def test_a_map_inside_a_step_belongs_to_its_attempt(db):
    crash = [True]

    def outer(run):
        values = [o.value for o in run.map("inner", str, range(4))]
        if crash.pop() if crash else False:
            raise OSError
        return values

    def body(run):
        with pytest.raises(OSError):
            run.step("outer", outer, run)
        return run.step("outer", outer, run)

    assert agent_run("a", body, db=db) == ["0", "1", "2", "3"]


def test_items_and_outcomes_are_not_kept(db):
    # The long form is scripts/real-agents map.
    def big(n):
        return "x" * 20_000

    with Checkpoint("r", db=db) as run:
        outcomes = run.map("m", big, iter(range(600)), concurrency=4)
        for _ in itertools.islice(outcomes, 100):
            pass
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            for _ in outcomes:
                pass
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak - before < 4_000_000  # the outputs alone are 10 MB


def test_a_resume_keeps_neither(db):
    with Checkpoint("r", db=db) as run:
        for _ in run.map("m", str, range(1000)):
            pass
    with Checkpoint("r", db=db) as run:
        outcomes = run.map("m", str, range(1000))
        next(outcomes)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for _ in outcomes:
                pass
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert after - before < 300_000


def test_a_forked_child_never_waits_for_the_parents_workers(db):
    with Checkpoint("r", db=db) as run:
        outcomes = run.map("m", lambda n: time.sleep(0.2) or n, range(8), concurrency=2)
        assert next(outcomes).value == 0
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            try:
                list(outcomes)
            except BaseException as error:
                os._exit(0 if type(error).__name__ == "StoreForked" else 3)
            os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert len(list(outcomes)) == 7


def test_a_bar_is_drawn_on_a_terminal_only(db, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream, drawn in ((io.StringIO(), False), (Terminal(), True)):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        with Checkpoint(f"r{drawn}", db=db, progress="auto") as run:
            for _ in run.map("fetch [x]", lambda n: time.sleep(0.01), range(30)):
                pass
        assert bool(stream.getvalue()) is drawn
    assert "fetch [x]" in stream.getvalue()
    assert "[run] fetch [x][3]" not in stream.getvalue()


def test_killed_three_times_no_acknowledged_item_is_called_again(db, spawn_agent, tmp_path, ledger):
    # The long form, with 10,000 items, is scripts/real-agents map.
    script = tmp_path / "agent.py"
    script.write_text(
        "import os, sys\n"
        "from agent_resume import agent_run\n"
        f"calls = os.open({str(ledger.path)!r}, os.O_CREAT | os.O_WRONLY | os.O_APPEND)\n"
        f"acks = os.open({str(tmp_path / 'acks.txt')!r}, os.O_CREAT | os.O_WRONLY | os.O_APPEND)\n"
        "def work(n):\n"
        "    os.write(calls, b'%d\\n' % n)\n"
        "    return n\n"
        "def body(run):\n"
        "    for outcome in run.map('item', work, range(2000)):\n"
        "        os.write(acks, b'%d\\n' % outcome.value)\n"
        "        if outcome.value == 5: print('going', flush=True)\n"
        f"agent_run('a', body, db={db!r}, run_id='r')\n"
        "print('finished', flush=True)\n"
    )
    acks = tmp_path / "acks.txt"
    acknowledged_before: list[set[str]] = []
    called_before: list[int] = []
    for _ in range(3):
        agent = spawn_agent(script, marker="going")
        time.sleep(random.uniform(0, 0.2))
        agent.process.send_signal(signal.SIGKILL)
        agent.finish()
        acknowledged_before.append(set(acks.read_text().split()))
        called_before.append(len(ledger.words()))
    assert spawn_agent(script).finish() == 0
    calls = ledger.words()
    for known, count in zip(acknowledged_before, called_before, strict=True):
        assert not known.intersection(calls[count:]), "an acknowledged item was called again"
    assert set(calls) == {str(n) for n in range(2000)}
    assert len(calls) <= 2000 + 3 * 8


def test_changed_code_is_told_once_for_all_items(db):
    with Checkpoint("r", db=db) as run:
        list(run.map("m", lambda n: n, range(20)))
    with Checkpoint("r", db=db) as run, pytest.warns(StepCodeChangedWarning) as told:
        assert [o.value for o in run.map("m", lambda n: n + 1, range(20))] == list(range(20))
    assert len(told) == 1


def test_a_key_that_raises_stop_iteration_does_not_end_the_items(db):
    got = []
    with Checkpoint("r", db=db) as run, pytest.raises(RuntimeError) as caught:
        for outcome in run.map("m", str, [["a"], [], ["c"]], key=lambda item: next(iter(item))):
            got.append(outcome.key)
    assert isinstance(caught.value.__cause__, StopIteration)
    assert got == ["m[a]"]


def test_when_the_commits_get_no_thread_the_map_ends_with_that_error(db, monkeypatch):
    start = threading.Thread.start

    def limited(thread):
        if thread.name == "agent-resume-commits":
            raise RuntimeError("can't start new thread")
        start(thread)

    with Checkpoint("r", db=db) as run:
        run.step("first", int)
        monkeypatch.setattr(threading.Thread, "start", limited)
        with pytest.raises(StoreUnavailable, match="no thread"):
            list(run.map("m", str, range(5), concurrency=2))
        monkeypatch.undo()
        assert [outcome.value for outcome in run.map("m", str, range(5), concurrency=2)] == ["0", "1", "2", "3", "4"]


def test_what_completes_an_item_begins_the_next_one_in_the_same_commit(db, monkeypatch):
    commits, all_queued = [], threading.Event()

    def items():
        yield from range(3)
        all_queued.set()

    with Checkpoint("r", db=db) as run:
        run.step("first", int)
        driver = run._core.store.database.driver
        committed = driver.committed
        monkeypatch.setattr(driver, "committed", lambda *args: (commits.append(1), committed(*args)))
        assert all(outcome.ok for outcome in run.map("m", lambda n: all_queued.wait(20), items(), concurrency=1))
        assert len(commits) == 4
    events = [(event.type, event.step_key) for event in Store(db).events("r") if event.step_key][2:]
    assert events == [(kind, f"m[{n}]") for n in range(3) for kind in ("start", "done")]
