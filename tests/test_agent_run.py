"""``agent_run``: owning a run, ending it, and what a killed one looks like."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
import raw

from agent_resume import (
    InvalidName,
    InvalidTransition,
    OutputNotStorable,
    RunCancelled,
    RunInUse,
    StepInputChangedWarning,
    Store,
    agent_run,
    cancel,
    database_sqlite_log,
    list_runs,
    load_run,
)

pytestmark = pytest.mark.filterwarnings("ignore::agent_resume.errors.StepCodeChangedWarning")


def rows(db, query, *values):
    with closing(raw.connect(db)) as database:
        return database.execute(query, values).fetchall()


_AGENT = """
import os, sys, time
from agent_resume import agent_run
db, ledger, sleep = sys.argv[1], sys.argv[2], float(sys.argv[3])
def note(word):
    with open(ledger, "a") as file: file.write(f"{word}\\n")
    return word
def slow():
    note("slow")
    print("in the step", flush=True)
    time.sleep(0 if os.path.exists(ledger + ".quick") else sleep)
    return "slow"
def body(run):
    return [run.step("first", note, "first"), run.step("slow", slow), run.step("last", note, "last")]
print(agent_run("job", body, run_id="r", db=db), flush=True)
"""


@pytest.fixture
def agent(tmp_path):
    path = tmp_path / "agent.py"
    path.write_text(_AGENT)
    return path


def test_case_052_a_killed_run_is_shown_as_interrupted_and_can_be_resumed(db, agent, ledger, spawn_agent, cli):
    killed = spawn_agent(agent, db, ledger.path, 60, marker="in the step")
    assert [run.shown_status for run in list_runs(db=db)] == ["running"]
    killed.kill()
    assert [run.shown_status for run in list_runs(db=db)] == ["interrupted"]
    assert load_run("r", db=db).status == "running", "stored by nobody"
    assert [run["status"] for run in json.loads(cli("list", "--json", "--db", db).stdout)] == ["interrupted"]
    shown = cli("show", "r", "--db", db)
    assert shown.returncode == 0
    assert "interrupted" in shown.stdout
    resumed = spawn_agent(agent, db, ledger.path, 0)
    assert resumed.finish() == 0, resumed.output
    assert ledger.words() == ["first", "slow", "slow", "last"]
    assert rows(db, "SELECT attempt, outcome FROM step_attempts WHERE key = 'slow'") == [(1, "unknown"), (2, "done")]


def test_case_052_a_stopped_process_is_alive_and_a_zombie_is_dead(db, agent, ledger, spawn_agent):
    live = spawn_agent(
        agent, db, ledger.path, 60, marker="in the step", fresh=True
    )  # a child of ours, which we do not reap
    live.signal(signal.SIGSTOP)
    assert [run.shown_status for run in list_runs(db=db)] == ["running"]
    with pytest.raises(RunInUse) as caught:
        agent_run("job", pytest.fail, run_id="r", db=db)
    assert caught.value.pid == live.pid
    assert str(live.pid) in str(caught.value)
    assert caught.value.since is not None
    os.kill(live.pid, signal.SIGKILL)
    end = time.monotonic() + 20
    # Its first thread is a zombie at once; it is dead when its other threads have ended too.
    while [run.shown_status for run in list_runs(db=db)] != ["interrupted"]:
        assert time.monotonic() < end, "killed, and not reaped yet"
        time.sleep(0.01)
    assert Path(f"/proc/{live.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_case_053_resume_takes_over_a_dead_owner_and_refuses_a_live_one(db, agent, ledger, spawn_agent, cli):
    live = spawn_agent(agent, db, ledger.path, 60, marker="in the step")
    refused = cli("resume", "r", "--exec", "--db", db)
    assert refused.returncode == 4, refused
    assert str(live.pid) in refused.stderr + refused.stdout
    live.kill()
    Path(f"{ledger.path}.quick").touch()
    epoch = rows(db, "SELECT epoch, owner_token FROM runs")
    looked = cli("resume", "r", "--db", db)
    assert looked.returncode == 130, looked
    assert rows(db, "SELECT epoch, owner_token FROM runs") == epoch, "looking takes nothing over"
    resumed = cli("resume", "r", "--exec", "--db", db)
    assert resumed.returncode == 0, resumed
    assert load_run("r", db=db).status == "completed"
    assert ledger.words() == ["first", "slow", "slow", "last"]
    again = cli("resume", "r", "--exec", "--db", db)
    assert again.returncode == 0
    assert ledger.words() == ["first", "slow", "slow", "last"]


def test_of_many_processes_that_resume_one_dead_run_exactly_one_gets_it(db, agent, ledger, spawn_agent):
    spawn_agent(agent, db, ledger.path, 60, marker="in the step").kill()
    agents = [spawn_agent(agent, db, ledger.path, 4) for _ in range(4)]
    codes = [each.finish() for each in agents]
    assert ledger.words() == ["first", "slow", "slow", "last"]
    losers = [each.output for each, code in zip(agents, codes, strict=True) if code]
    assert all("RunInUse" in output for output in losers)
    assert codes.count(0) >= 1
    assert rows(db, "SELECT epoch FROM runs") == [(2,)]


# -- how a run ends ----------------------------------------------------------------------------------------------------


def test_the_result_is_the_decoded_stored_value_on_every_path(db):
    result = {"t": (1, 2), "s": {3}, "b": b"x", "f": 1.0}
    first = agent_run("job", lambda run: result, run_id="r", db=db)
    second = agent_run("job", pytest.fail, run_id="r", db=db)
    assert first == second == result
    assert first is not result
    assert [type(value) for value in first.values()] == [tuple, set, bytes, float]
    assert load_run("r", db=db).result == result


def test_an_exception_that_leaves_the_body_fails_the_run(db):
    def body(run):
        run.step("a", lambda: 1)
        raise ValueError("why")

    with pytest.raises(ValueError, match="why") as caught:
        agent_run("job", body, run_id="r", db=db)
    assert not getattr(caught.value, "__notes__", [])
    state = load_run("r", db=db)
    assert (state.status, state.error["message"]) == ("failed", "why")
    assert rows(db, "SELECT owner_token FROM runs") == [(None,)]
    assert rows(db, "SELECT count(*) FROM owners") == [(0,)]


def test_a_result_that_cannot_be_stored_fails_the_run_and_no_step_is_repeated(db):
    calls = []

    def body(run, result):
        run.step("a", lambda: calls.append(1))
        return result

    with pytest.raises(OutputNotStorable) as caught:
        agent_run("job", lambda run: body(run, open), run_id="r", db=db)
    assert caught.value.path == "$"
    assert load_run("r", db=db).status == "failed"
    assert agent_run("job", lambda run: body(run, "fine"), run_id="r", db=db) == "fine"
    assert calls == [1]


def test_ctrl_c_interrupts_the_run_and_the_next_start_goes_on(db, agent, ledger, spawn_agent):
    stopped = spawn_agent(agent, db, ledger.path, 60, marker="in the step")
    stopped.signal(signal.SIGINT)
    assert stopped.finish() != 0
    assert load_run("r", db=db).status == "interrupted"
    assert rows(db, "SELECT key, status FROM steps") == [("first", "completed"), ("slow", "interrupted")]
    assert spawn_agent(agent, db, ledger.path, 0).finish() == 0


def test_a_generator_as_body_is_refused_as_a_result(db):
    def body(run):
        yield run.step("a", lambda: 1)

    with pytest.raises(OutputNotStorable):
        agent_run("job", body, db=db)


def test_a_cancelled_run_stays_cancelled(db):
    def body(run):
        cancel(run.id, db=db)
        run.step("a", pytest.fail)

    with pytest.raises(RunCancelled):
        agent_run("job", body, run_id="r", db=db)
    with pytest.raises(RunCancelled):
        agent_run("job", pytest.fail, run_id="r", db=db)
    assert load_run("r", db=db).status == "cancelled"


def test_a_body_that_swallows_its_cancellation_ends_cancelled_all_the_same(db):
    def body(run):
        try:
            run.cancel()
        except BaseException:
            return "as if nothing had happened"

    with pytest.raises(RunCancelled):
        agent_run("job", body, run_id="r", db=db)
    assert rows(db, "SELECT status, result FROM runs") == [("cancelled", None)]


def test_a_run_that_is_being_executed_is_in_use_for_nested_calls_too(db):
    def body(run):
        with pytest.raises(RunInUse):
            agent_run("job", pytest.fail, run_id="r", db=db)
        return 1

    assert agent_run("job", body, run_id="r", db=db) == 1


def test_the_names_must_be_names(db):
    for name in ("", None, 5, "a\0b", "\ud800", "x" * 2001, "ж" * 1001):
        with pytest.raises(InvalidName):
            agent_run(name, pytest.fail, db=db)
    for run_id in ("", 5, "a\0b", "x" * 2001):
        with pytest.raises(InvalidName):
            agent_run("job", pytest.fail, run_id=run_id, db=db)
    assert not os.path.exists(db)


@pytest.mark.parametrize("name", [" ", "a/b\\c", "%s", "..", "'; DROP TABLE runs; --", "тест", "a\nb", "x" * 2000])
def test_every_other_name_works(db, name):
    assert agent_run(name, lambda run: run.step(name, lambda: run.name), db=db, run_id=name) == name
    assert [run.name for run in list_runs(db=db, name=name)] == [name]
    assert load_run(name, db=db).id == name


def test_options_that_cannot_be_meant_are_refused_before_anything_is_opened(db):
    for options in ({"on_pause": "stop"}, {"durability": "none"}, {"on_duplicate": "?"}):
        with pytest.raises(ValueError, match="not"):
            agent_run("job", pytest.fail, db=db, **options)
    with pytest.raises(TypeError):
        agent_run("job", None, db=db)
    assert not os.path.exists(db)


def test_the_run_says_who_it_is_and_what_it_was_given(db):
    given = {"topic": "whales", "pages": (1, 2)}

    def body(run):
        run.step("a", lambda: 1)
        return run.id, run.name, run.status, run.input == given, run.state().steps[0].name, len(run.timeline())

    assert agent_run("job", body, run_id="r", input=given, db=db) == ("r", "job", "running", True, "a", 1)


def test_a_run_of_another_name_is_not_ones_own(db):
    agent_run("mine", lambda run: 1, run_id="r", db=db)
    with pytest.raises(InvalidTransition, match="'mine'"):
        agent_run("other", pytest.fail, run_id="r", db=db)


def test_another_input_under_the_same_id_is_warned_about_and_the_stored_one_stays(db):
    with pytest.raises(ZeroDivisionError):
        agent_run("job", lambda run: 1 / 0, run_id="r", input=1, db=db)
    with pytest.warns(StepInputChangedWarning):
        assert agent_run("job", lambda run: run.input, run_id="r", input=2, db=db) == 1
    with pytest.raises(StepInputChangedWarning):
        agent_run("job", pytest.fail, run_id="r", input=2, db=db, strict=True)


def test_strict_can_come_from_the_environment(db, monkeypatch):
    monkeypatch.setenv("AGENT_RESUME_STRICT", "1")
    agent_run("job", lambda run: 1, run_id="r", input=1, db=db)
    with pytest.raises(StepInputChangedWarning):
        agent_run("job", pytest.fail, run_id="r", input=2, db=db)


def test_relaxed_durability_survives_the_process_and_flush_makes_it_full(db, spawn_agent):
    code = (
        "import os, sys\nfrom agent_resume import agent_run\n"
        "def body(run):\n"
        "    for i in range(50): run.step(f's{i}', lambda: i)\n"
        "    run.event('loop', phase='start'); run.flush()\n"
        "    print('flushed', flush=True); os.kill(os.getpid(), 9)\n"
        "agent_run('job', body, run_id='r', db=sys.argv[1], durability='relaxed')"
    )
    agent = spawn_agent(code, db, marker="flushed")
    assert agent.finish() == -9
    assert rows(db, "SELECT count(*) FROM steps WHERE status = 'completed'") == [(50,)]


def test_the_level_of_each_transaction_is_what_was_asked_for(db, monkeypatch):
    """What SQLite is told before each BEGIN, seen on the statements themselves; and which commits we sync."""
    store = Store(db)
    store.database.ensure_writable()
    said = []
    store.database._writer.connection.set_trace_callback(said.append)
    if database_sqlite_log.POSSIBLE:
        monkeypatch.setattr("os.fdatasync", lambda _: said.append("SYNC"))

    def levels(durability):
        said.clear()

        def body(run):
            said.clear()
            run.step("a", lambda: 1)
            run.event("loop", phase="start")
            run.record("b", 1)
            run.step("c", lambda: 1, effect="once")
            run.flush()

        agent_run("job", body, db=store, durability=durability)
        level, seen = "FULL", []
        for text in said:
            if text.startswith("PRAGMA synchronous="):
                level = text.partition("=")[2]
            elif text == "COMMIT":
                seen.append(level)
            elif text == "SYNC":
                assert seen[-1] == "NORMAL"
                seen[-1] = "SYNCED"
        return seen[:7]

    synced = "SYNCED" if database_sqlite_log.POSSIBLE else "FULL"

    # start, outcome; event; record; start and outcome of effect="once"; flush
    assert levels("full") == ["NORMAL", synced, "NORMAL", synced, "FULL", synced, "FULL"]
    assert levels("relaxed") == ["NORMAL", "NORMAL", "NORMAL", "NORMAL", "FULL", "NORMAL", "FULL"]


def test_a_store_can_be_relaxed_as_a_whole(db):
    with Store(db, durability="relaxed") as store:
        assert agent_run("job", lambda run: run._core.full, db=store) is False
        assert agent_run("job", lambda run: run._core.full, db=store, durability="full") is True
    with pytest.raises(ValueError, match="durability"):
        Store(db, durability="none")


class Odd(Exception):
    def __getattribute__(self, name):
        if name == "__class__":
            raise RuntimeError("the proxy is gone")
        return object.__getattribute__(self, name)


def test_an_exception_that_will_not_say_its_class_is_raised_and_stored_all_the_same(db):
    error = Odd("real cause")

    def body(run):
        raise error

    try:
        agent_run("r", body, run_id="r", db=db)
    except BaseException as caught:
        assert caught is error
    assert load_run("r", db=db).status == "failed"


def test_an_id_made_of_a_long_name_can_be_given_back(db):
    name = "ж" * 1000
    for _ in range(2):
        agent_run(name, lambda run: run.id, db=db)
    ids = [run.id for run in list_runs(db=db)]
    assert len(set(ids)) == 2
    for run_id in ids:
        assert agent_run(name, lambda run: run.id, run_id=run_id, db=db) == run_id


def test_an_async_agent_that_was_not_awaited_is_told_by_the_name_that_was_called(db):
    async def body(run):
        return 1

    with pytest.warns(RuntimeWarning, match="coroutine 'agent_run' was never awaited"):
        agent_run("job", body, db=db)
        gc.collect()
