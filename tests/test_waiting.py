"""``wait`` and ``sleep``: durable, and answered from elsewhere."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from loops import no_blocking_calls  # noqa: F401 - a fixture

from agent_resume import AsyncCheckpoint, Checkpoint, InvalidName, Store, WaitTimeout, agent_run, answer, load_run


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
