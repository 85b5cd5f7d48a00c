"""Retries: which failures, how long the waits, and what a kill between two tries leaves."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import closing

import pytest
import raw
from loops import no_blocking_calls  # noqa: F401 - a fixture

from agent_resume import AsyncCheckpoint, Checkpoint, OutputNotStorable, Retry, StepTimeout, Store, agent_run, load_run

FAST = Retry(max_attempts=4, wait=0.01, jitter=0)


class Flaky:
    def __init__(self, fails, error=OSError):
        self.calls = 0
        self.fails = fails
        self.error = error

    def __call__(self):
        self.calls += 1
        if self.calls <= self.fails:
            raise self.error(f"call {self.calls}")
        return self.calls


def events(db, run_id="r"):
    with Store(db) as store:
        return [(event.type, event.attempt) for event in store.events(run_id) if event.step_key]


def test_each_attempt_is_an_event_with_its_error(db):
    with Checkpoint("r", db=db) as run:
        assert run.step("s", Flaky(2), retry=FAST) == 3
    assert events(db) == [("start", 1), ("error", 1), ("start", 2), ("error", 2), ("start", 3), ("done", 3)]
    with Store(db) as store:
        (first, *_) = [event.value for event in store.events("r") if event.type == "error"]
    assert first["error"]["message"] == "call 1"


def test_the_last_failure_is_raised_and_no_wait_follows_it(db):
    flaky = Flaky(9)
    with Checkpoint("r", db=db) as run:
        with pytest.raises(OSError, match="call 4"):
            run.step("s", flaky, retry=FAST)
        (step,) = run.timeline()
        assert (step.status, step.attempts, flaky.calls) == ("failed", 4, 4)
        assert "retryAt" not in (step.error or {})


def test_the_budget_begins_anew_and_the_attempt_numbers_go_on(db):
    for _ in range(2):
        with pytest.raises(OSError):
            agent_run("a", lambda run: run.step("s", Flaky(9), retry=FAST), db=db, run_id="r")
    (step,) = load_run("r", db=db).steps
    assert step.attempts == 8


@pytest.mark.parametrize(
    ("retry", "error"),
    [
        (Retry(on=ValueError, wait=0), OSError),
        (Retry(give_up_on=ConnectionError, wait=0), ConnectionResetError),
        (Retry(max_attempts=1), OSError),
    ],
)
def test_some_failures_are_not_tried_again(db, retry, error):
    flaky = Flaky(9, error)
    with Checkpoint("r", db=db) as run, pytest.raises(error):
        run.step("s", flaky, retry=retry)
    assert flaky.calls == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_leaves_a_step_is_never_tried_again(db, error):
    flaky = Flaky(9, error)
    with Checkpoint("r", db=db) as run, pytest.raises(error):
        run.step("s", flaky, retry=Retry(wait=0))
    assert flaky.calls == 1


async def test_cancellation_is_never_tried_again(db):
    calls = []

    async def slow():
        calls.append(1)
        await asyncio.sleep(0)
        raise asyncio.CancelledError

    async with AsyncCheckpoint("r", db=db) as run:
        with pytest.raises(asyncio.CancelledError):
            await run.step("s", slow, retry=Retry(wait=0))
    assert calls == [1]


async def test_asynchronous_steps_are_tried_again_too(db):
    flaky = Flaky(2)

    async def step():
        return flaky()

    async with AsyncCheckpoint("r", db=db) as run:
        assert await run.step("s", step, retry=FAST) == 3


def test_a_result_that_cannot_be_stored_is_not_tried_again(db):
    calls = []
    with Checkpoint("r", db=db) as run, pytest.raises(OutputNotStorable):
        run.step("s", lambda: calls.append(1) or object(), retry=Retry(wait=0))
    assert calls == [1]


def test_a_timeout_is_tried_again(db):
    async def body(run):
        calls = []

        async def slow():
            calls.append(1)
            await asyncio.sleep(30 if len(calls) == 1 else 0)
            return len(calls)

        return await run.step("s", slow, timeout=0.2, retry=FAST)

    assert asyncio.run(agent_run("a", body, db=db)) == 2
    assert issubclass(StepTimeout, Exception)


def test_waits_grow_up_to_a_limit_and_jitter_only_shortens_them():
    steady = Retry(wait=1, backoff=3, max_wait=20, jitter=0)
    assert [steady.delay(n) for n in (1, 2, 3, 4, 5000)] == [1, 3, 9, 20, 20]
    jittered = Retry(wait=10, backoff=1, jitter=0.5)
    assert all(5 <= jittered.delay(1) <= 10 for _ in range(200))


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0}, {"max_attempts": 2.5}, {"wait": -1}, {"wait": 1e12}, {"wait": float("nan")}, {"max_wait": float("inf")}, {"backoff": 0.5},
        {"jitter": 2},
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError):
        Retry(**wrong)


def test_what_is_no_exception_type_is_refused():
    with pytest.raises(TypeError):
        Retry(on="OSError")
    with pytest.raises(TypeError):
        Retry(give_up_on=(OSError, 3))


def test_killed_between_two_tries_the_number_goes_on_and_only_the_rest_is_waited(db, spawn_agent, tmp_path):
    script = tmp_path / "agent.py"
    script.write_text(
        "import time\n"
        "from agent_resume import Retry, agent_run, current_step\n"
        "def work():\n"
        "    print('attempt', current_step().attempt, time.time(), flush=True)\n"
        "    if current_step().attempt == 1: raise OSError('first')\n"
        "    return current_step().attempt\n"
        f"agent_run('a', lambda run: run.step('s', work, retry=Retry(wait=4, jitter=0)), db={db!r}, run_id='r')\n"
    )
    agent = spawn_agent(script, marker="attempt 1")
    while "error" not in [type for type, _ in events(db)]:
        time.sleep(0.05)
    agent.kill()
    due = json.loads(json.dumps(load_run("r", db=db).steps[0].error))["retryAt"]
    agent = spawn_agent(script, marker="attempt 2")
    assert agent.finish() == 0
    from agent_resume.clock import parse_iso

    called = next(float(line.split()[2]) for line in agent.lines if line.startswith("attempt 2"))
    assert called * 1000 >= parse_iso(due) - 50
    assert events(db) == [("start", 1), ("error", 1), ("start", 2), ("done", 2)]


def test_a_clock_that_was_set_back_holds_up_nobody_for_longer_than_the_longest_wait(db, clock):
    retry = Retry(wait=0.1, max_wait=0.2, jitter=0)
    with Checkpoint("r", db=db) as run, pytest.raises(OSError):
        run.step("s", Flaky(9), retry=Retry(max_attempts=1))
    # As if killed in the wait, an hour into the future.
    import sqlite3

    connection = sqlite3.connect(db)
    connection.execute("UPDATE steps SET error = json_set(error, '$.retryAt', '2026-01-31T10:08:07.006Z')")
    connection.commit()
    connection.close()
    with Checkpoint("r", db=db) as run:
        assert run.step("s", Flaky(0), retry=retry) == 1


@pytest.mark.parametrize("kept", [ValueError, (OSError, ValueError)])
def test_a_kept_failure_is_the_outcome_and_is_raised_again_without_a_call(db, kept):
    calls = []

    def fails():
        calls.append(1)
        raise ValueError("no such order")

    def body(run, crash):
        try:
            run.step("s", fails, keep_errors=kept, retry=FAST)
        except ValueError as error:
            text = str(error)
        if crash:
            raise RuntimeError
        return run.step("fallback", lambda: text)

    with pytest.raises(RuntimeError):
        agent_run("a", lambda run: body(run, True), db=db, run_id="r")
    assert agent_run("a", lambda run: body(run, False), db=db, run_id="r") == "no such order"
    assert calls == [1]


class Refused(Exception):
    def __init__(self, text, body):
        super().__init__(text)
        self.body = body


@pytest.mark.parametrize(
    "error",
    [
        KeyError(("Oslo", 3)),
        UnicodeDecodeError("utf8", b"\xff", 0, 1, "bad"),
        Refused("no", {"reason": ["quota"], "at": (1, 2)}),
        Refused("no", None),
        ValueError("too many", (1, 2)),
        ExceptionGroup("several", [ValueError(1), KeyError("x")]),
    ],
    ids=repr,
)
def test_a_kept_failure_is_raised_again_with_all_that_it_holds(db, error):
    calls = []

    def fails():
        calls.append(1)
        raise error

    for _ in range(2):
        with Checkpoint("r", db=db) as run, pytest.raises(type(error)) as caught:
            run.step("s", fails, keep_errors=Exception)
        found = caught.value
        assert (repr(found), str(found), vars(found)) == (repr(error), str(error), vars(error))
    assert calls == [1]
    (step,) = load_run("r", db=db).steps
    assert "exception" not in step.error
    assert step.error["message"] == str(error)


def test_a_kept_failure_is_kept_as_text_where_it_holds_a_secret_or_too_much(db):
    def fails(body):
        raise Refused("no", body)

    for key, body in (("secret", {"api_key": "sk-test-123"}), ("large", "x" * 100_000), ("odd", object())):
        for _ in range(2):
            with Checkpoint("r", db=db) as run, pytest.raises(Refused, match="no"):
                run.step(key, fails, body, keep_errors=Refused)
    with closing(raw.connect(db)) as database:
        stored = "".join(text for (text,) in database.execute("SELECT error FROM steps"))
    assert "sk-test-123" not in stored
    assert len(stored) < 20_000


@pytest.mark.parametrize("wrong", [[ValueError], ("ValueError",), "ValueError", int])
def test_what_keep_errors_cannot_mean_is_refused_before_the_call(db, wrong):
    calls = []
    with Checkpoint("r", db=db) as run, pytest.raises(TypeError, match="keep_errors"):
        run.step("s", lambda: calls.append(1), keep_errors=wrong)
    assert not calls
