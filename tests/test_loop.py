"""``run.loop``: turns that survive, with their budgets and verdicts kept by the loop itself."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
import raw

from agent_resume import Checkpoint, DuplicateStep, InvalidName, InvalidTransition, agent_run, load_run


def rows(db, query, *values):
    with closing(raw.connect(db)) as database:
        return database.execute(query, values).fetchall()


def notes(db):
    return [json.loads(data) for (data,) in rows(db, "SELECT data FROM events WHERE type = 'loop' ORDER BY seq")]


def counted(value):
    return (value or 0) + 1


def test_a_loop_turns_until_a_turn_says_done(db):
    def body(run):
        loop = run.loop("refine", max_turns=5)
        for turn in loop:
            if turn.step(counted, turn.last) == 3:
                turn.done()
        return loop.turns, loop.last, loop.status, loop.verdict, loop.reason, run.get_loop_state()

    state = {"verdict": "done", "status": "completed", "turns": 3}
    assert agent_run("job", body, run_id="r", db=db) == (3, 3, "completed", "done", None, state)
    assert [step.name for step in load_run("r", db=db).steps] == ["refine-1", "refine-2", "refine-3"]
    assert notes(db) == [
        {"phase": "start", "maxTurns": 5, "name": "refine"},
        {"phase": "iterate", "turn": 1, "maxTurns": 5, "name": "refine"},
        {"phase": "turn-done", "turn": 1, "done": False, "name": "refine"},
        {"phase": "iterate", "turn": 2, "fromTurn": 1, "maxTurns": 5, "name": "refine"},
        {"phase": "turn-done", "turn": 2, "done": False, "name": "refine"},
        {"phase": "iterate", "turn": 3, "fromTurn": 2, "maxTurns": 5, "name": "refine"},
        {"phase": "turn-done", "turn": 3, "done": True, "name": "refine"},
    ]


def test_a_loop_ends_when_its_turns_are_used_up_and_goes_on_under_a_larger_budget(db):
    def body(run, most):
        loop = run.loop("x", max_turns=most)
        numbers = [(turn.number, turn.step(counted, turn.last)) for turn in loop]
        return numbers, loop.status, loop.reason, run.get_loop_state()

    with Checkpoint("r", db=db) as run:
        ended = {"verdict": "continue", "status": "budget_exhausted", "turns": 2, "reason": "maxTurns"}
        assert body(run, 2) == ([(1, 1), (2, 2)], "budget_exhausted", "maxTurns", ended)
    with Checkpoint("r", db=db) as run:
        assert body(run, 2) == ([], "budget_exhausted", "maxTurns", ended)
    with Checkpoint("r", db=db) as run:
        assert body(run, 3)[0] == [(3, 3)]
    assert [note["reason"] for note in notes(db) if note["phase"] == "budget"] == ["maxTurns"] * 3


def test_a_loop_ends_when_its_time_is_used_up_in_all_executions_together(db):
    with Checkpoint("r", db=db) as run:
        for turn in run.loop("x", max_turns=2, max_seconds=3600):
            turn.step(int)
    with closing(raw.connect(db)) as database:
        database.execute("UPDATE steps SET duration_ms = 5000")
        database.commit()
    with Checkpoint("r", db=db) as run:
        loop = run.loop("x", max_seconds=10)
        assert list(loop) == []
        assert (loop.status, loop.reason, loop.turns) == ("budget_exhausted", "maxRuntimeMs", 2)
    with Checkpoint("r", db=db) as run:
        assert next(run.loop("x", max_seconds=3600)).number == 3


def test_a_resume_skips_the_finished_turns_and_carries_the_last_result(db):
    calls, loops = [], []

    def body(run):
        def work(last):
            calls.append(last)
            if len(calls) == 3:
                raise TimeoutError("third")
            return [len(calls)]

        seen = []
        loops.append(run.loop("x", max_turns=4))
        for turn in loops[-1]:
            seen.append(str(turn))
            turn.step(work, turn.last)
        return seen

    with pytest.raises(TimeoutError):
        agent_run("job", body, run_id="r", db=db)
    assert loops[-1].status == "failed"
    with Checkpoint("r", db=db) as run:
        assert run.get_loop_state() == {"verdict": "continue", "status": "failed", "turns": 2}
    assert agent_run("job", body, run_id="r", db=db) == ["3", "4"]
    assert calls == [None, [1], [2], [2], [4]]
    assert [note for note in notes(db) if note["phase"] == "failed"] == [
        {"phase": "failed", "turn": 3, "error": "third", "name": "x"}
    ]


_KILLED = """
import os, sys
from agent_resume import agent_run
db, where, ledger = sys.argv[1:]
def note(word):
    with open(ledger, "a") as file: file.write(f"{word}\\n")
def body(run):
    def work(last):
        note(f"work {last}")
        if where == "in the step" and last == 1: os.kill(os.getpid(), 9)
        return (last or 0) + 1
    loop = run.loop("x", max_turns=9)
    for turn in loop:
        value = turn.step(work, turn.last)
        if where == "before the verdict" and value == 2: os.kill(os.getpid(), 9)
        if where == "before done" and value == 3: os.kill(os.getpid(), 9)
        if value == 3: turn.done()
        if where == "after done" and value == 3: os.kill(os.getpid(), 9)
    return loop.last, loop.turns, loop.status
print(agent_run("job", body, run_id="r", db=db))
"""


@pytest.mark.parametrize("where", ["in the step", "before the verdict", "before done", "after done"])
def test_a_killed_loop_neither_repeats_a_turn_nor_turns_too_often(db, ledger, run_python, where):
    assert run_python(_KILLED, db, where, ledger.path).returncode == -9
    said = run_python(_KILLED, db, "nowhere", ledger.path)
    assert (said.returncode, said.stdout, said.stderr) == (0, "(3, 3, 'completed')\n", "")
    repeated = ["work 1"] if where == "in the step" else []
    assert sorted(ledger.words()) == sorted(["work None", "work 1", *repeated, "work 2"])


def test_a_verdict_of_ones_own_is_kept(db):
    with Checkpoint("r", db=db) as run:
        for turn in run.loop("x", max_turns=3):
            turn.step(int)
            turn.done({"score": (1, 2)})
            turn.done("only the first counts")
        assert run.get_loop_state()["verdict"] == {"score": (1, 2)}
    with Checkpoint("r", db=db) as run:
        loop = run.loop("x", max_turns=3)
        assert list(loop) == []
        assert (loop.status, loop.turns, loop.last) == ("completed", 1, 0)


def test_a_turn_without_a_step_counts_and_so_does_one_whose_failure_was_caught(db):
    with Checkpoint("r", db=db) as run:
        for turn in run.loop("x", max_turns=2):
            if turn.number == 2:
                with pytest.raises(ZeroDivisionError):
                    turn.step(lambda: 1 / 0)
    assert [(step.name, step.status, step.output) for step in load_run("r", db=db).steps] == [
        ("x-1", "completed", None), ("x-2", "completed", None),
    ]  # fmt: skip
    with Checkpoint("r", db=db) as run:
        assert [turn.number for turn in run.loop("x", max_turns=3)] == [3]


def test_two_loops_of_one_run_never_mistake_each_other(db):
    def body(run):
        counts = {}
        for name in ("a", "a-1", "b"):
            for turn in run.loop(name, max_turns=3):
                turn.step(counted, turn.last)
                counts[name] = turn.number
                if name == "a" and turn.number == 2:
                    turn.done()
        return counts, run.get_loop_state()

    state = {"verdict": "continue", "status": "budget_exhausted", "turns": 3, "reason": "maxTurns"}
    with Checkpoint("r", db=db) as run:
        assert body(run) == ({"a": 2, "a-1": 3, "b": 3}, state)
    with Checkpoint("r", db=db) as run:
        assert body(run) == ({}, state)


def test_turns_of_an_older_flow_are_gone_on_with(db):
    with Checkpoint("r", db=db) as run:
        for number in (1, 2):
            run.record(f"turn-{number}", {"result": number})
        run.event("loop", phase="turn-done", turn=2, done=False)
        run.event("loop", ["odd"])
    with Checkpoint("r", db=db) as run:
        loop = run.loop("turn", max_turns=3)
        replayed = next(loop)
        assert (replayed.number, replayed.last) == (2, {"result": 1})
        following = next(loop)
        assert (following.number, following.last) == (3, {"result": 2})


def test_done_belongs_to_its_own_turn(db):
    with Checkpoint("r", db=db) as run:
        loop = run.loop("x", max_turns=3)
        first = next(loop)
        first.step(int)
        next(loop)
        with pytest.raises(InvalidTransition, match="turn 1"):
            first.done()


@pytest.mark.parametrize("options", [{"max_turns": 0}, {"max_turns": True}, {"max_turns": 1.5}, {"max_seconds": 0}])
def test_budgets_that_cannot_be_meant_are_refused(db, options):
    with pytest.raises(ValueError, match="max_"):
        Checkpoint("r", db=db).loop("x", **options)


def test_a_loop_wants_a_name(db):
    with pytest.raises(InvalidName):
        Checkpoint("r", db=db).loop("")


def test_a_pause_in_a_turn_is_no_failure(db):
    from agent_resume import Paused, answer

    def body(run):
        for turn in run.loop("x", max_turns=2):
            turn.step(lambda number=turn.number: run.pause("go on?", name=f"q{number}"))
        return run.get_loop_state()["turns"]

    assert agent_run("job", body, run_id="r", db=db, on_pause="return") == Paused("r", "q1", "go on?", None)
    with Checkpoint("r", db=db) as run:
        assert "status" not in run.get_loop_state()
    answer("r", "q1", 1, db=db)
    answer("r", "q2", 2, db=db)
    assert agent_run("job", body, run_id="r", db=db) == 2


async def test_a_loop_turns_under_asyncio_too(db):
    async def body(run):
        loop = run.loop("refine", max_turns=5)

        async def work(last):
            return counted(last)

        async for turn in loop:
            if await turn.step(work, turn.last) == 3:
                await turn.done()
        return loop.turns, loop.last, await run.get_loop_state()

    state = {"verdict": "done", "status": "completed", "turns": 3}
    assert await agent_run("job", body, run_id="r", db=db) == (3, 3, state)


async def test_a_failed_turn_under_asyncio_is_run_again(db):
    calls = []

    async def body(run):
        async def work():
            calls.append(1)
            if len(calls) == 2:
                raise TimeoutError
            return len(calls)

        return [await turn.step(work) async for turn in run.loop("x", max_turns=2)]

    with pytest.raises(TimeoutError):
        await agent_run("job", body, run_id="r", db=db)
    assert await agent_run("job", body, run_id="r", db=db) == [3]


# -- the state that can be set by hand ---------------------------------------------------------------------------------


def test_loop_state_is_updated_in_part_and_none_is_a_value(db):
    with Checkpoint("r", db=db) as run:
        assert run.get_loop_state() == {}
        run.set_loop_state(verdict="continue", turns=1)
        run.set_loop_state(status=None, reason={"why": (1,)})
        run.set_loop_state()
    with Checkpoint("r", db=db) as run:
        assert run.get_loop_state() == {"verdict": "continue", "status": None, "turns": 1, "reason": {"why": (1,)}}
        assert run.get_loop_state()["reason"]["why"] == (1,)


def test_loop_state_is_durable_at_once(db, spawn_agent):
    agent = spawn_agent(
        "import sys, time\nfrom agent_resume import Checkpoint\nrun = Checkpoint('r', db=sys.argv[1])\n"
        "run.set_loop_state(turns=7)\nprint('set', flush=True); time.sleep(60)",
        db,
        marker="set",
    )
    agent.kill()
    assert Checkpoint("r", db=db).get_loop_state() == {"turns": 7}


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1000", None, True, 1 << 60])
def test_an_expectation_that_is_no_number_of_ms_is_ignored(db, value):
    with Checkpoint("r", db=db) as run:
        run.set_expect_max_ms(1000.4)
        run.set_expect_max_ms(value)
    assert rows(db, "SELECT expect_max_ms FROM runs") == [(1000,)]


def test_what_a_body_does_to_a_turns_result_does_not_reach_the_next_turn(db):
    def body(run):
        seen = []
        for turn in run.loop("l", max_turns=2):
            seen.append(turn.last)
            turn.step(lambda: {"h": [1]})["h"].append("changed by the body")
        return seen

    assert agent_run("a", body, run_id="a", db=db) == [None, {"h": [1]}]


def test_a_loop_goes_on_behind_a_turn_whose_step_was_killed_and_is_not_called_again(db, spawn_agent):
    code = "import sys, time\nfrom agent_resume import agent_run\ndef body(run):\n" \
        "    for turn in run.loop('l', max_turns=2):\n" \
        "        turn.step(lambda: print('in', flush=True) or time.sleep(60))\n" \
        "agent_run('a', body, run_id='a', db=sys.argv[1])"  # fmt: skip
    spawn_agent(code, db, marker="in").kill()
    assert agent_run("a", lambda run: [turn.number for turn in run.loop("l", max_turns=2)], run_id="a", db=db) == [1, 2]


def test_a_step_after_done_is_refused_not_left_out_in_silence(db):
    def body(run):
        for turn in run.loop("draft", max_turns=5):
            if turn.number == 2:
                turn.done()
                with pytest.raises(InvalidTransition, match="before its done"):
                    turn.step(pytest.fail)
            else:
                turn.step(lambda: "a draft")
        return run.get_loop_state()

    assert agent_run("a", body, run_id="a", db=db) == {"verdict": "done", "status": "completed", "turns": 2}


def test_a_refused_second_step_of_a_turn_changes_nothing_about_its_loop(db):
    def body(run):
        loop = run.loop("draft", max_turns=3)
        for turn in loop:
            turn.step(lambda: "good")
            if turn.number == 2:
                turn.done()
            with pytest.raises((DuplicateStep, InvalidTransition)):
                turn.step(lambda: "one more")
        return loop.status, run.get_loop_state()

    assert agent_run("a", body, run_id="a", db=db) == (
        "completed", {"verdict": "done", "status": "completed", "turns": 2},
    )  # fmt: skip


def test_a_loop_in_a_completed_run_hands_out_no_further_turn_and_changes_nothing(db):
    with Checkpoint("r", db=db) as run:
        for turn in run.loop("x", max_turns=2):
            turn.step(counted, turn.last)
        run.done()
        before = run.get_loop_state(), notes(db)
    with Checkpoint("r", db=db) as run:
        with pytest.raises(InvalidTransition):
            for turn in run.loop("x", max_turns=3):
                turn.step(pytest.fail)
        with pytest.raises(InvalidTransition):
            run.set_loop_state(status="other")
        assert (run.get_loop_state(), notes(db)) == before
