"""A step: once, durably, told about, and honest about what failed."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import closing
from datetime import timedelta, timezone

import pytest
import raw

from agent_resume import (
    Checkpoint,
    DuplicateStep,
    DuplicateStepWarning,
    InvalidName,
    InvalidTransition,
    OutputNotStorable,
    StepInFlight,
    Store,
    ValueCodec,
    agent_run,
    format_timeline,
    load_run,
)

# A replayed step is given another function here, one that must not be called.
pytestmark = pytest.mark.filterwarnings("ignore::agent_resume.errors.StepCodeChangedWarning")


def rows(db, query, *values):
    with closing(raw.connect(db)) as database:
        return database.execute(query, values).fetchall()


def boom(*args):
    raise AssertionError("a stored step was called")


class ApiError(Exception):
    def __init__(self, *, status):
        super().__init__(f"status {status}")
        self.status = status


# -- failures ----------------------------------------------------------------------------------------------------------


def test_case_019_an_early_effect_is_not_repeated_by_a_late_failure(db, ledger, cli):
    def flaky():
        ledger.note("flaky")
        if len(ledger.words()) < 4:
            raise TimeoutError("upstream")
        return "fine"

    def body(run):
        run.step("post", lambda: ledger.note("post"))
        return run.step("flaky", flaky)

    for _ in range(2):
        with pytest.raises(TimeoutError):
            agent_run("job", body, db=db)
    assert agent_run("job", body, db=db) == "fine"
    assert ledger.words() == ["post", "flaky", "flaky", "flaky"]
    assert rows(db, "SELECT count(*) FROM runs") == [(1,)]
    assert rows(db, "SELECT attempt, outcome FROM step_attempts WHERE key = 'flaky'") == [
        (1, "error"), (2, "error"), (3, "done"),
    ]  # fmt: skip
    (run_id,) = rows(db, "SELECT id FROM runs")[0]
    shown = cli("show", run_id, "--db", db)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("upstream") >= 1 or "3" in shown.stdout


def test_case_020_a_completed_run_gives_its_result_and_calls_nothing(db, cli):
    body = lambda run: run.step("first", lambda: {"n": (1, 2)})  # noqa: E731 - a body
    assert agent_run("job", body, run_id="j1", db=db) == {"n": (1, 2)}
    assert agent_run("job", boom, run_id="j1", db=db) == {"n": (1, 2)}
    said = cli("resume", "j1", "--db", db)
    assert said.returncode == 0, said.stderr
    assert "completed" in said.stdout


def test_case_037_an_error_with_its_own_constructor_is_kept_as_text(db, cli):
    def fail():
        raise ApiError(status=500)

    with pytest.raises(ApiError) as caught:
        agent_run("job", lambda run: run.step("s", fail), run_id="r", db=db)
    assert caught.value.status == 500
    (step,) = load_run("r", db=db).steps
    assert step.error["message"] == "status 500"
    assert step.error["type"].endswith("ApiError")
    assert "in fail" in step.error["traceback"]
    for command in ("show", "resume"):
        said = cli(command, "r", "--db", db)
        assert "Traceback (most recent call last)" not in said.stderr
        assert "status 500" in said.stdout, said


def test_case_038_the_real_error_is_the_one_that_is_raised(db):
    error = ValueError("real cause", threading.Lock())

    def bad():
        raise error

    with Checkpoint("r", db=db) as run, pytest.raises(ValueError, match="real cause") as caught:
        run.step("a", bad)
    assert caught.value is error
    (step,) = load_run("r", db=db).steps
    assert step.status == "failed"
    assert "real cause" in step.error["message"]


class _Hostile(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    def __repr__(self):
        raise RuntimeError("no repr")

    @property
    def code(self):
        raise SystemExit("no code")


class _Silent(Exception):
    def __getattribute__(self, name):
        raise RuntimeError(name)


class _Surrogate(Exception):
    def __str__(self):
        return "bad \ud800 text\0 end"


@pytest.mark.parametrize("kind", [_Hostile, _Silent, _Surrogate])
def test_an_error_that_fights_being_described_is_recorded_and_raised_all_the_same(db, kind):
    def bad():
        raise kind

    with Checkpoint("r", db=db) as run, pytest.raises(kind):
        run.step("a", bad)
    (step,) = load_run("r", db=db).steps
    assert step.status == "failed"
    assert kind.__name__ in step.error["type"]


def test_an_interrupt_while_a_result_is_taken_apart_is_recorded(db):
    class Slow:
        pass

    def encode(value):
        raise KeyboardInterrupt

    with Store(db, codecs=[ValueCodec("slow", Slow, encode, list)]) as store:
        run = Checkpoint("r", db=store)
        with pytest.raises(KeyboardInterrupt):
            run.step("a", Slow)
        (step,) = run.timeline()
        assert step.status == "interrupted"


def test_the_traceback_that_the_caller_sees_ends_in_the_users_code(db):
    def deep():
        return 1 / 0

    with Checkpoint("r", db=db) as run:
        try:
            run.step("a", deep)
        except ZeroDivisionError as error:
            frames = traceback.extract_tb(error.__traceback__)
            assert error.__context__ is None
            assert error.__cause__ is None
            assert not getattr(error, "__notes__", [])
        else:
            pytest.fail("nothing raised")
    assert frames[-1].name == "deep"
    assert frames[0].filename == __file__
    assert len([frame for frame in frames if "agent_resume" in frame.filename and "tests" not in frame.filename]) <= 4


def test_a_failed_step_whose_failure_cannot_be_stored_raises_its_own_error_with_a_note(db, monkeypatch):
    monkeypatch.setattr("agent_resume.database_sqlite.BUSY_LIMIT", 0.05)
    holder = sqlite3.connect(db, isolation_level=None)

    def bad():
        holder.execute("BEGIN IMMEDIATE")
        raise ValueError("real cause")

    with closing(holder), Checkpoint("r", db=db) as run:
        with pytest.raises(ValueError, match="real cause") as caught:
            run.step("a", bad)
        assert any("could not store" in note for note in caught.value.__notes__)
        holder.execute("ROLLBACK")
        assert run.step("a", lambda: 2) == 2
    assert rows(db, "SELECT attempt, outcome FROM step_attempts") == [(1, "unknown"), (2, "done")]


def test_a_result_that_cannot_be_saved_is_handed_over_with_the_error(db, monkeypatch):
    monkeypatch.setattr("agent_resume.database_sqlite.BUSY_LIMIT", 0.05)
    from agent_resume import StoreBusy

    holder = sqlite3.connect(db, isolation_level=None)

    def work():
        holder.execute("BEGIN IMMEDIATE")
        return "paid for"

    with closing(holder), Checkpoint("r", db=db) as run:
        with pytest.raises(StoreBusy) as caught:
            run.step("a", work)
        assert caught.value.result == "paid for"
        holder.execute("ROLLBACK")
        assert not run.has("a")


@pytest.mark.parametrize(
    "value",
    [lambda: 1, threading.Lock(), (i for i in ()), open, sys, timezone(timedelta(hours=1), "\udc81")],
    ids=["function", "lock", "generator", "builtin", "module", "surrogate"],
)
def test_a_result_that_cannot_be_kept_is_refused_named_and_handed_back(db, value):
    with Checkpoint("r", db=db) as run, pytest.raises(OutputNotStorable) as caught:
        run.step("a", lambda: {"x": [value]})
    assert caught.value.key == "a"
    assert caught.value.path == "$.x[0]"
    assert caught.value.result == {"x": [value]}
    (step,) = load_run("r", db=db).steps
    assert (step.status, step.error["reason"]) == ("failed", "output not storable")


def test_case_043_a_mended_step_runs_again_and_the_failed_attempt_stays_on_record(db):
    calls = []

    def broken():
        raise KeyError("the bug")

    def body(run, work):
        run.step("a", lambda: calls.append("a"))
        return run.step("b", work)

    with pytest.raises(KeyError):
        agent_run("job", lambda run: body(run, broken), run_id="r", db=db)
    assert load_run("r", db=db).status == "failed"
    assert agent_run("job", lambda run: body(run, lambda: "mended"), run_id="r", db=db) == "mended"
    assert calls == ["a"]
    assert rows(db, "SELECT attempt, outcome, error FROM step_attempts WHERE key = 'b'") == [
        (1, "error", "'the bug'"), (2, "done", None),
    ]  # fmt: skip
    assert load_run("r", db=db).error is None


def test_case_044_a_late_result_never_changes_the_stored_one(db):
    run = Checkpoint("r", db=db)
    release, begun = threading.Event(), threading.Event()

    def slow():
        begun.set()
        release.wait(30)
        return 1

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run.step, "a", slow)
        begun.wait(30)
        with pytest.raises(FutureTimeout):
            future.result(timeout=0.05)
        with pytest.raises(StepInFlight):
            run.step("a", lambda: 2)
        release.set()
        assert future.result() == 1
    run.close()
    with Checkpoint("r", db=db) as again:
        assert again.step("a", boom) == 1


def test_a_timed_out_call_goes_on_and_its_late_result_is_dropped_and_logged(db, caplog):
    release = threading.Event()
    ended = threading.Event()

    def slow():
        try:
            release.wait(30)
            return "late"
        finally:
            ended.set()

    with Checkpoint("r", db=db) as run:
        with pytest.raises(TimeoutError):
            run.step("a", slow, timeout=0.05)
        assert run.step("a", lambda: "second") == "second"
        release.set()
        ended.wait(30)
        for _ in range(200):
            if "dropped" in caplog.text:
                break
            threading.Event().wait(0.01)
        assert run.get_step_result("a") == "second"
    assert "dropped" in caplog.text


def test_a_result_of_a_run_that_was_deleted_meanwhile_is_handed_back(db):
    from agent_resume import RunLost

    def work():
        with closing(raw.connect(db)) as database:
            database.execute("PRAGMA foreign_keys=ON")
            database.execute("DELETE FROM runs")
            database.commit()
        return "paid for"

    with pytest.raises(RunLost) as caught:
        agent_run("job", lambda run: run.step("a", work), run_id="r", db=db)
    assert caught.value.result == "paid for"
    assert agent_run("job", lambda run: run.step("a", lambda: "again"), run_id="r", db=db) == "again"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_exception_is_an_interruption_never_a_failure_or_a_result(db, error):
    def leave():
        raise error

    with pytest.raises(error):
        agent_run("job", lambda run: run.step("a", leave), run_id="r", db=db)
    state = load_run("r", db=db)
    assert (state.status, state.steps[0].status) == ("interrupted", "interrupted")
    assert agent_run("job", lambda run: run.step("a", lambda: 1), db=db) == 1


def test_stop_iteration_stays_one(db):
    with Checkpoint("r", db=db) as run, pytest.raises(StopIteration):
        run.step("a", lambda: next(iter(())))


# -- nesting -----------------------------------------------------------------------------------------------------------


def test_case_046_a_step_inside_a_step_is_kept_when_the_outer_one_is_repeated(db, ledger):
    def body(run):
        def outer():
            value = run.step("inner", lambda: ledger.note("inner") or 5)
            run.event("loop", phase="iterate")
            run.record("recorded", value)
            if ledger.words().count("outer") == 0:
                ledger.note("outer")
                raise TimeoutError
            ledger.note("outer")
            return value + 1

        return run.step("outer", outer)

    with pytest.raises(TimeoutError):
        agent_run("job", body, run_id="r", db=db)
    assert agent_run("job", body, run_id="r", db=db) == 6
    assert ledger.words() == ["inner", "outer", "outer"]
    assert rows(db, "SELECT step_key, attempt FROM events WHERE type = 'loop'") == [("outer", 1), ("outer", 2)]


def test_case_046_deep_nesting_and_a_whole_run_inside_a_step(db):
    store = Store(db)

    def descend(run, depth):
        return 0 if depth == 0 else run.step(f"level-{depth}", descend, run, depth - 1) + 1

    def body(run):
        inner = run.step("inner run", lambda: agent_run("other", lambda other: other.step("x", lambda: 7), db=store))
        return descend(run, 20), inner

    assert agent_run("job", body, db=store) == (20, 7)
    assert rows(db, "SELECT name, status FROM runs ORDER BY seq") == [("job", "completed"), ("other", "completed")]
    assert rows(db, "SELECT count(*) FROM steps WHERE status = 'completed'") == [(22,)]


def test_case_046_a_step_that_calls_itself_is_refused_at_once(db):
    with Checkpoint("r", db=db) as run, pytest.raises(StepInFlight):
        run.step("a", lambda: run.step("a", boom))


def test_no_transaction_is_open_while_user_code_runs(db):
    def free():
        with closing(sqlite3.connect(db, timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            other.execute("ROLLBACK")
        return True

    def hook(event):
        assert free()

    with Checkpoint("r", db=db, on_step=hook) as run:
        assert run.step("a", free)
        assert run.step("b", free, timeout=30)


# -- identity ----------------------------------------------------------------------------------------------------------


def test_one_name_twice_in_an_execution_is_an_error_under_agent_run(db):
    def body(run):
        run.step("a", lambda: 1)
        with pytest.raises(DuplicateStep):
            run.step("a", boom)
        return run.step("b", lambda: 2)

    assert agent_run("job", body, db=db) == 2


def test_on_duplicate_chooses_what_a_second_use_gives(db):
    def body(run):
        return [run.step("a", lambda i=i: i) for i in range(3)]

    assert agent_run("number", body, db=db, on_duplicate="number") == [0, 1, 2]
    with pytest.warns(DuplicateStepWarning):
        assert agent_run("return", body, db=db, on_duplicate="return") == [0, 0, 0]
    with pytest.raises(ValueError, match="on_duplicate"):
        agent_run("x", body, db=db, on_duplicate="whatever")


def test_after_a_failed_attempt_the_same_name_is_a_retry(db):
    def body(run):
        for attempt in range(3):
            try:
                return run.step("a", lambda attempt=attempt: 1 // attempt)
            except ZeroDivisionError:
                continue
        return None

    assert agent_run("job", body, db=db) == 1


def test_wrong_arguments_are_refused_before_anything_happens(db):
    with Checkpoint("r", db=db) as run:
        for call in (
            lambda: run.step("a", 5),
            lambda: run.step("a", None),
            lambda: run.step("a", boom, timeout=0),
            lambda: run.step("a", boom, on_change="perhaps"),
            lambda: run.step("a", boom, effect="twice"),
            lambda: run.step("a", boom, retry=3),
            lambda: run.step("a", boom, meta="text"),
            lambda: run.step("a", boom, isolation="thread"),
            lambda: run.step("a", boom, verify=boom),
            lambda: run.step("a", boom, keyword=1),
            lambda: run.step(),
        ):
            with pytest.raises((TypeError, ValueError)):
                call()
    assert not os.path.exists(db)


def test_an_ended_execution_takes_no_late_steps(db):
    kept = []
    with pytest.raises(ZeroDivisionError):
        agent_run("job", lambda run: kept.append(run) or 1 / 0, run_id="r", db=db)
    with pytest.raises(InvalidTransition):
        kept[0].step("late", boom)
    agent_run("job", lambda run: kept.append(run), run_id="r", db=db)
    with pytest.raises(InvalidTransition):
        kept[1].step("late", boom)
    with pytest.raises(InvalidTransition):
        kept[1].record("late", 1)


# -- telling -----------------------------------------------------------------------------------------------------------


def test_on_step_hears_of_start_done_skip_and_error(db):
    heard = []

    def body(run):
        run.step("a", lambda: [1])
        run.record("rec", 2)
        run.step("b", lambda: 1 // len(again))

    again = []
    with pytest.raises(ZeroDivisionError):
        agent_run("job", body, run_id="r", db=db, on_step=heard.append)
    again.append(1)
    agent_run("job", body, run_id="r", db=db, on_step=heard.append)
    assert [(event.kind, event.key) for event in heard] == [
        ("start", "a"), ("done", "a"), ("done", "rec"), ("start", "b"), ("error", "b"),
        ("skip", "a"), ("start", "b"), ("done", "b"),
    ]  # fmt: skip
    done, error, skip = heard[1], heard[4], heard[5]
    assert (done.result, done.run_id, done.error) == ([1], "r", None)
    assert done.duration_ms >= 0
    assert isinstance(error.error, ZeroDivisionError)
    assert skip.result == [1]


def test_a_hook_that_raises_is_logged_and_changes_nothing(db, caplog):
    def hook(event):
        raise RuntimeError("the hook's own trouble")

    assert agent_run("job", lambda run: run.step("a", lambda: 1), db=db, on_step=hook) == 1
    assert caplog.text.count("the hook's own trouble") >= 2
    assert {record.name for record in caplog.records} == {"agent_resume"}


def test_a_hook_that_changes_what_it_is_given_changes_nothing(db):
    def hook(event):
        if event.result:
            event.result.append("spoilt")

    with Checkpoint("r", db=db, on_step=hook) as run:
        run.step("a", lambda: ["kept"])
        assert run.get_step_result("a") == ["kept"]
    with Checkpoint("r", db=db) as run:
        assert run.step("a", boom) == ["kept"]


def test_progress_lines_go_to_stderr_when_wanted_and_are_one_line_each(db, capsys):
    def body(run):
        run.step("a\nb", lambda: 1)
        with pytest.raises(ValueError, match="x"):
            run.step("c", lambda: int("x\x1b[31m"))

    for _ in range(2):
        try:
            agent_run("job", body, run_id="r", db=db, progress=True)
        finally:
            said = capsys.readouterr()
    assert said.out == ""
    agent_run("job", body, run_id="other", db=db, progress=True)
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert lines[0] == "[run] a\\nb"
    assert lines[1] == "[run] c"
    assert lines[2].startswith("[error] c: ")
    assert "\x1b" not in said.err


def test_off_a_terminal_nothing_is_printed_and_a_missing_stderr_hurts_nobody(db, run_python):
    said = run_python(
        f"import sys\nfrom agent_resume import agent_run\nsys.stderr = None\n"
        f"for progress in ('auto', True, False): agent_run('job', lambda run: run.step('a', int), db={db!r}, progress=progress)"
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def test_the_timeline_prints_as_documented(db):
    with Checkpoint("r", db=db) as run:
        run.step("create-plan", lambda: 1)
        with pytest.raises(TimeoutError):
            run.step("write-response", lambda: (_ for _ in ()).throw(TimeoutError("API timeout")))
        text = run.step("look", lambda: format_timeline(run.state()))
    with closing(raw.connect(db)) as database:
        database.execute("UPDATE steps SET duration_ms = 1234 WHERE key = 'create-plan'")
        database.execute("UPDATE steps SET duration_ms = 100 WHERE key = 'write-response'")
        database.commit()
    lines = format_timeline(load_run("r", db=db)).splitlines()
    assert lines[0] == "create-plan    completed  1.2s"
    assert lines[1] == "write-response failed     0.1s  Error: API timeout"
    assert text.splitlines()[2] == "look           running    ..."


def test_skips_are_stored_as_one_event_of_ranges(db):
    def body(run):
        for i in range(50):
            run.step(f"s{i}", lambda: 1)
        return run.step("last", lambda: 1 // len(again))

    again = []
    with pytest.raises(ZeroDivisionError):
        agent_run("job", body, run_id="r", db=db)
    again.append(1)
    agent_run("job", body, run_id="r", db=db)
    skips = rows(db, "SELECT data FROM events WHERE type = 'skips'")
    assert len(skips) == 1
    (ranges,) = (json.loads(data)["ranges"] for (data,) in skips)
    seqs = [seq for (seq,) in rows(db, "SELECT seq FROM steps WHERE key LIKE 's%' ORDER BY seq")]
    covered = [seq for first, last in ranges for seq in range(first, last + 1)]
    assert covered == seqs


def test_nothing_is_logged_for_a_healthy_run(db, caplog):
    with caplog.at_level(logging.DEBUG):
        agent_run("job", lambda run: run.step("a", lambda: 1), db=db)
    assert [record for record in caplog.records if record.name.startswith("agent_resume")] == []


@pytest.mark.parametrize("what", ["step", "record", "wait", "sleep", "map", "loop", "nested"])
def test_a_key_may_have_two_thousand_bytes_on_either_database(db, what):
    import random

    shuffled = random.Random(7)

    def key(size):
        return "".join(chr(shuffled.randrange(0x4E00, 0x9FFF)) for _ in range(size // 3)) + "x" * (size % 3)

    def use(run, size):
        if what == "step":
            return run.step(key(size), int)
        if what == "record":
            return run.record(key(size), 1)
        if what == "wait":
            return run.wait(key(size), timeout=0, default=1)
        if what == "sleep":
            return run.sleep(key(size), 0)
        if what == "map":
            return [outcome.value for outcome in run.map(key(size - 1002), len, [key(1000)])]
        if what == "loop":
            return [turn.number for turn in run.loop(key(size - 20), max_turns=12)]
        return run.step("o" * 1000, lambda: run.step(key(size - 1001), int, repeat=True))

    with Checkpoint("r", db=db) as run:
        use(run, 2000)
    with Checkpoint("n", db=db) as run, pytest.raises(InvalidName, match="at most"):
        use(run, 2001)
