"""``wait`` and ``sleep``: durable, and answered from elsewhere."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from loops import no_blocking_calls  # noqa: F401 - a fixture

from agent_resume import (
    AsyncCheckpoint,
    Checkpoint,
    InvalidName,
    InvalidTransition,
    Retry,
    Store,
    WaitTimeout,
    agent_run,
    answer,
    clock,
    load_run,
)


def asked(db, name, run_id="r"):
    """Blocks until a wait of that name is stored."""
    with Store(db) as store:
        while True:
            if store.exists() and any(run.id == run_id for run in store.list_runs()):
                for pause in store.pauses(run_id):
                    if pause.name == name and pause.asked_at:
                        return pause
            time.sleep(0.02)


def test_a_wait_ends_with_an_answer_from_elsewhere(db):
    def answerer():
        asked(db, "approve")
        assert answer("r", "approve", {"ok": True}, db=db)

    thread = threading.Thread(target=answerer)
    thread.start()
    with Checkpoint("r", db=db) as run:
        assert run.wait("approve", prompt="ship it?") == {"ok": True}
        assert run.status == "running"
    thread.join()
    with Checkpoint("r", db=db) as run:
        assert run.wait("approve") == {"ok": True}


def test_an_early_answer_is_kept_and_the_first_one_wins(db):
    with Checkpoint("r", db=db) as run:
        run.step("s", int)
        assert answer("r", "approve", 1, db=db)
        assert not answer("r", "approve", 2, db=db)
        assert run.wait("approve") == 1


def test_a_timeout_raises_or_gives_the_default_and_stays_so(db):
    with Checkpoint("r", db=db) as run:
        with pytest.raises(WaitTimeout) as caught:
            run.wait("a", timeout=0.05)
        assert caught.value.name == "a"
        assert run.wait("b", timeout=0.05, default="nobody") == "nobody"
        assert not answer("r", "b", "late", db=db)
    with Checkpoint("r", db=db) as run:
        assert run.wait("b", timeout=50) == "nobody"
        with pytest.raises(WaitTimeout):
            run.wait("a", timeout=50)
        # Without a default the question stays open: somebody may still answer it.
        assert answer("r", "a", "late", db=db)
        assert run.wait("a", timeout=50) == "late"


def test_none_is_a_default_and_an_answer(db):
    with Checkpoint("r", db=db) as run:
        assert run.wait("a", timeout=0.01, default=None) is None
        run.step("s", int)
        answer("r", "b", None, db=db)
        assert run.wait("b", timeout=30) is None


def test_a_sleep_is_slept_once(db):
    with Checkpoint("r", db=db) as run:
        before = time.monotonic()
        run.sleep("nap", 0.2)
        assert time.monotonic() - before >= 0.19
    with Checkpoint("r", db=db) as run:
        run.sleep("nap", 300)


def test_killed_waiters_go_on_with_the_deadline_they_began_with(db, spawn_agent, tmp_path):
    script = tmp_path / "agent.py"
    script.write_text(
        "import sys\n"
        "from agent_resume import agent_run\n"
        "def body(run):\n"
        "    print('waiting', flush=True)\n"
        "    got = run.wait('approve', timeout=3600, prompt='ok?')\n"
        "    run.sleep('nap', 2.0)\n"
        "    return got\n"
        f"print('result', agent_run('a', body, db={db!r}, run_id='r'), flush=True)\n"
    )
    agent = spawn_agent(script)
    deadline = asked(db, "approve").deadline
    agent.kill()
    agent = spawn_agent(script, marker="waiting")
    time.sleep(0.2)
    assert asked(db, "approve").deadline == deadline
    answer("r", "approve", "yes", db=db)
    until = asked(db, "nap").deadline
    agent.kill()
    agent = spawn_agent(script)
    assert agent.finish() == 0
    assert "result yes" in agent.output
    assert asked(db, "nap").deadline == until


async def test_other_tasks_go_on_while_one_waits(db):
    async with AsyncCheckpoint("r", db=db) as run:
        waiter = asyncio.create_task(run.wait("approve"))
        napper = asyncio.create_task(run.sleep("nap", 0.1))
        assert await run.step("s", asyncio.sleep, 0, "other") == "other"
        await napper
        await asyncio.to_thread(asked, db, "approve")
        await asyncio.to_thread(answer, "r", "approve", 5, db=db)
        assert await asyncio.wait_for(waiter, 30) == 5


async def test_a_cancelled_wait_can_be_waited_for_again(db):
    async with AsyncCheckpoint("r", db=db) as run:
        waiter = asyncio.create_task(run.wait("approve", timeout=600))
        await asyncio.to_thread(asked, db, "approve")
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        await asyncio.to_thread(answer, "r", "approve", 5, db=db)
        assert await run.wait("approve", timeout=600) == 5


def test_two_waiters_of_one_name_get_the_same_answer(db):
    with Checkpoint("r", db=db) as run:
        run.step("s", int)
        got = []
        threads = [threading.Thread(target=lambda: got.append(run.wait("approve"))) for _ in range(3)]
        for thread in threads:
            thread.start()
        asked(db, "approve")
        answer("r", "approve", 7, db=db)
        for thread in threads:
            thread.join()
    assert got == [7, 7, 7]


def test_what_was_asked_is_shown(db):
    with Checkpoint("r", db=db) as run:
        run.wait("a", timeout=0.01, prompt="ship it?", default=0)
    with Store(db) as store:
        types = [event.type for event in store.events("r")]
        assert [type for type in types if type in ("wait", "answered")] == ["wait", "answered"]
        (pause,) = store.pauses("r")
    assert (pause.kind, pause.reason, pause.answered_by) == ("wait", "ship it?", "timeout")
    assert load_run("r", db=db).status == "running"


def test_a_wait_without_a_name_is_refused(db):
    with Checkpoint("r", db=db) as run, pytest.raises(InvalidName):
        run.wait("")


async def test_a_wait_inside_an_agent(db):
    async def body(run):
        return await run.wait("x", timeout=0.05, default="none")

    assert await agent_run("a", body, db=db) == "none"


@pytest.mark.parametrize("kind", ["sleep", "wait"])
def test_a_clock_that_was_set_back_makes_nothing_last_longer(db, monkeypatch, kind):
    real, set_back = clock.now_ms, [0]
    monkeypatch.setattr("agent_resume.clock.now_ms", lambda: real() - set_back[0])
    threading.Timer(0.2, lambda: set_back.__setitem__(0, 86_400_000)).start()
    began = time.monotonic()
    with Checkpoint("r", db=db) as run:
        if kind == "sleep":
            run.sleep("nap", 0.8)
        else:
            assert run.wait("w", timeout=0.8, default="nobody") == "nobody"
    assert 0.7 < time.monotonic() - began < 30


@pytest.mark.parametrize("seconds", [1e12, float("nan"), float("inf"), "5", True])
def test_what_is_no_length_of_time_is_refused_before_it_is_stored(db, seconds):
    with Checkpoint("r", db=db) as run:
        with pytest.raises(ValueError, match="is a number of seconds"):
            run.wait("w", timeout=seconds, default=1)
        with pytest.raises(ValueError, match="is a number of seconds"):
            run.sleep("s", seconds)
        assert run.wait("w", timeout=0.01, default="mended") == "mended"


def test_a_sleep_cannot_be_answered_and_an_answer_cannot_be_slept(db):
    refused = []

    def answerer():
        asked(db, "nap")
        try:
            answer("r", "nap", 1, db=db)
        except InvalidTransition as error:
            refused.append(error)

    thread = threading.Thread(target=answerer)
    with Checkpoint("r", db=db) as run:
        thread.start()
        run.sleep("nap", 2)
        thread.join()
        answer("r", "other", 1, db=db)
        with pytest.raises(InvalidTransition, match="share their names"):
            run.sleep("other", 0.01)
    assert len(refused) == 1


@pytest.mark.parametrize("ask", ["pause", "wait"])
def test_a_sleep_answers_no_question_of_its_name(db, ask):
    def body(run):
        run.sleep("approval", 0.01)
        with pytest.raises(InvalidTransition, match="approval"):
            run.pause("pay?", name="approval") if ask == "pause" else run.wait("approval", timeout=1, default=1)
        assert run.wait("asked", timeout=0.01, default="nobody") == "nobody"
        with pytest.raises(InvalidTransition, match="asked"):
            run.pause("pay?", name="asked")
        with pytest.raises(InvalidTransition, match="asked"):
            run.sleep("asked", 0.01)
        return "went on"

    assert agent_run("a", body, db=db) == "went on"


def test_a_second_sleep_of_one_name_is_refused_instead_of_not_slept(db):
    with Checkpoint("r", db=db) as run:
        run.sleep("nap", 0.01)
        with pytest.raises(InvalidTransition, match="nap"):
            run.sleep("nap", 0.01)
        run.sleep("nap 2", 0.01)


def test_a_sleep_in_a_step_that_is_tried_again_is_not_slept_again(db):
    calls = []

    def outer(run):
        run.sleep("nap", 0.01)
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError

    agent_run("a", lambda run: run.step("outer", outer, run, retry=Retry(wait=0)), db=db)
    assert calls == [1, 1]


async def test_a_sleep_that_was_cancelled_may_be_slept_to_its_end(db):
    async with AsyncCheckpoint("r", db=db) as run:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run.sleep("nap", 0.4), 0.05)
        await run.sleep("nap", 0.4)


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e12])
def test_times_that_no_clock_has_are_refused_before_they_are_stored(db, seconds):
    with Checkpoint("r", db=db) as run:
        with pytest.raises(ValueError, match="seconds"):
            run.sleep("a", seconds)
        with pytest.raises(ValueError, match="seconds"):
            run.wait("b", timeout=seconds)
        run.step("s", int)
    with Store(db) as store:
        assert not store.pauses("r")
