"""``effect="once"``: never run blindly a second time, whatever died where."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
from loops import no_blocking_calls  # noqa: F401 - a fixture

from agent_resume import (
    NOT_DONE,
    UNKNOWN,
    AsyncCheckpoint,
    Checkpoint,
    OutputNotStorable,
    RunLost,
    StepInDoubt,
    StepInFlight,
    Store,
    Verified,
    agent_run,
    current_step,
    load_run,
)
from agent_resume.faults import POINTS

AGENT = """
import sys
from agent_resume import StepInDoubt, Verified, NOT_DONE, agent_run
def pay():
    with open(sys.argv[1], 'a') as ledger: ledger.write('paid\\n')
    return 'receipt'
def verify():
    with open(sys.argv[1]) as ledger: return Verified('receipt') if ledger.read() else NOT_DONE
def body(run):
    run.step('before', int)
    if len(sys.argv) > 3:
        open(sys.argv[1], 'a').close()
        return run.step('pay', pay, effect='once', verify=verify)
    return run.step('pay', pay, effect='once')
try:
    print('result', agent_run('a', body, run_id='r', db=sys.argv[2]))
except StepInDoubt:
    print('in doubt')
    sys.exit(9)
"""

#: Each point of the second step, and of settling: the first step passes the same ones once before.
FAULTS = [f"{point}:{n}" for point in POINTS for n in ((3, 4, 5, 6) if "commit" in point else (1, 2))]


def steps(db):
    return {step.name: step for step in load_run("r", db=db).steps}


@pytest.mark.parametrize("fault", FAULTS)
def test_killed_at_any_point_it_is_done_or_in_doubt_and_never_done_twice(db, run_python, ledger, fault):
    first = run_python(AGENT, ledger.path, db, AGENT_RESUME_FAULTS=fault)
    second = run_python(AGENT, ledger.path, db)
    assert second.returncode in (0, 9), second.stderr
    paid = len(ledger.words())
    assert paid <= 1
    if second.returncode == 0:
        assert paid == 1
        assert "result receipt" in second.stdout
    else:
        assert first.returncode == -9
        assert steps(db)["pay"].status == "in_doubt"
        # It stays in doubt until somebody decides.
        assert run_python(AGENT, ledger.path, db).returncode == 9
    assert len(ledger.words()) == paid


@pytest.mark.parametrize("fault", ["after-claim:2", "after-return:2", "before-commit:6", "after-commit:5"])
def test_verify_decides_what_a_kill_left_open(db, run_python, ledger, fault):
    assert run_python(AGENT, ledger.path, db, "verify", AGENT_RESUME_FAULTS=fault).returncode == -9
    second = run_python(AGENT, ledger.path, db, "verify")
    assert second.returncode == 0, second.stderr
    assert "result receipt" in second.stdout
    assert ledger.words() == ["paid"]


def test_two_processes_at_once_pay_once(db, ledger):
    script = AGENT.replace("import StepInDoubt", "import Checkpoint, StepInDoubt")
    script = script.replace("agent_run('a', body, run_id='r', db=sys.argv[2])", "body(Checkpoint('r', db=sys.argv[2]))")
    script = script.replace("    run.step('before', int)\n", "")
    for n in range(3):
        ledger.path.unlink(missing_ok=True)
        target = f"{db}{n}"
        started = [
            subprocess.Popen(
                [sys.executable, "-c", script, str(ledger.path), target], stderr=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        outcomes = [(process.communicate(timeout=40)[1], process.returncode) for process in started]
        assert ledger.words() == ["paid"], outcomes
        # The other one got the stored result, or was told that the step is in flight.
        for text, code in outcomes:
            assert code == 0 or "StepInFlight" in text, text


def test_a_failure_is_no_doubt_but_what_leaves_the_step_is(db):
    calls = []

    def pay(error):
        calls.append(1)
        if error is not None:
            raise error
        return "paid"

    with Checkpoint("r", db=db) as run:
        with pytest.raises(OSError):
            run.step("refused", pay, OSError("refused"), effect="once")
        assert run.step("refused", pay, None, effect="once") == "paid"
        with pytest.raises(KeyboardInterrupt):
            run.step("left", pay, KeyboardInterrupt(), effect="once")
        with pytest.raises(StepInDoubt) as caught:
            run.step("left", pay, None, effect="once")
    assert (caught.value.run_id, caught.value.key) == ("r", "left")
    assert "--mark-done" in str(caught.value)
    assert len(calls) == 3


def test_a_result_that_could_not_be_stored_is_a_doubt(db):
    with Checkpoint("r", db=db) as run:
        with pytest.raises(OutputNotStorable) as caught:
            run.step("pay", object, effect="once")
        assert isinstance(caught.value.result, object)
        with pytest.raises(StepInDoubt):
            run.step("pay", object, effect="once")


@pytest.mark.parametrize("verdict", [Verified("receipt"), Verified(None), NOT_DONE, UNKNOWN, "yes"])
def test_what_verify_may_say(db, verdict):
    calls = []

    def pay():
        calls.append(1)
        if len(calls) == 1:
            raise SystemExit(1)
        return "again"

    with Checkpoint("r", db=db) as run:
        with pytest.raises(SystemExit):
            run.step("pay", pay, effect="once")

        def ask():
            return run.step("pay", pay, effect="once", verify=lambda: verdict)

        if isinstance(verdict, Verified):
            assert ask() == verdict.value
            assert calls == [1]
            assert run.has("pay")
        elif verdict is NOT_DONE:
            assert ask() == "again"
            assert [step.attempts for step in run.timeline()] == [2]
        else:
            with pytest.raises(StepInDoubt if verdict is UNKNOWN else TypeError):
                ask()
            assert calls == [1]


async def test_verify_may_be_asynchronous(db):
    async def pay():
        raise SystemExit

    async def verify():
        return Verified("seen")

    async with AsyncCheckpoint("r", db=db) as run:
        with pytest.raises(SystemExit):
            await run.step("pay", pay, effect="once")
        assert await run.step("pay", pay, effect="once", verify=verify) == "seen"


def test_verify_without_once_is_a_mistake(db):
    with Checkpoint("r", db=db) as run, pytest.raises(ValueError):
        run.step("s", int, verify=lambda: UNKNOWN)


def test_verify_that_is_no_function_is_a_mistake_at_once(db):
    with Checkpoint("r", db=db) as run, pytest.raises(TypeError, match="verify"):
        run.step("s", int, effect="once", verify=5)


def test_the_idempotency_key_is_the_same_for_every_attempt_and_for_no_other_step(db):
    keys = []

    def note():
        keys.append(current_step().idempotency_key)
        if len(keys) == 1:
            raise OSError

    with Checkpoint("r", db=db) as run:
        with pytest.raises(OSError):
            run.step("a", note)
        run.step("a", note)
        run.step("b", note)
    with Checkpoint("r2", db=db) as run:
        run.step("a", note)
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_in_threads_of_ones_own_there_is_no_current_step(db):
    from agent_resume import NoActiveStep

    found = []

    def fn():
        def look():
            try:
                current_step()
            except NoActiveStep as error:
                found.append(error)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    with Checkpoint("r", db=db) as run:
        run.step("s", fn)
    assert len(found) == 1


# -- cases -----------------------------------------------------------------------------------------------------------


def test_case_019_a_late_failure_does_not_repeat_an_early_effect(db):
    posts, tries = [], []

    def flaky():
        tries.append(1)
        if len(tries) < 3:
            raise TimeoutError
        return "ok"

    def body(run):
        run.step("post", lambda: posts.append(1))
        return run.step("flaky", flaky)

    for _ in range(3):
        try:
            result = agent_run("job", body, db=db)
        except TimeoutError:
            result = None
    assert result == "ok"
    assert posts == [1]
    with Store(db) as store:
        (run,) = store.list_runs()
        attempts = {step.name: step.attempts for step in store.load_run(run.id).steps}
    assert attempts == {"post": 1, "flaky": 3}


def test_case_020_a_finished_run_calls_nothing_again(db):
    calls = []

    def body(run):
        run.step("a", lambda: calls.append("a"))
        calls.append("body")
        return {"done": True}

    assert agent_run("job", body, db=db, run_id="j1") == {"done": True}
    assert agent_run("job", body, db=db, run_id="j1") == {"done": True}
    assert calls == ["a", "body"]


def test_case_043_a_failure_is_not_remembered_like_a_result(db):
    calls = []

    def b(fixed):
        calls.append("b")
        if not fixed:
            raise ValueError("a bug")
        return "b"

    def body(run, fixed):
        run.step("a", lambda: calls.append("a"))
        return run.step("b", lambda: b(fixed))

    with pytest.raises(ValueError):
        agent_run("job", lambda run: body(run, False), db=db, run_id="r")
    assert agent_run("job", lambda run: body(run, True), db=db, run_id="r") == "b"
    assert calls == ["a", "b", "b"]
    with Store(db) as store:
        (error,) = [event.value for event in store.events("r") if event.type == "error"]
    assert error["error"]["message"] == "a bug"


def test_case_010_an_explicit_run_works_from_any_thread(db):
    from concurrent.futures import ThreadPoolExecutor

    def body(run):
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda n: run.step(f"s{n}", lambda: n), range(4)))

    assert agent_run("a", body, db=db) == [0, 1, 2, 3]


def test_case_011_a_forked_child_and_its_parent_both_write(db):
    import os
    import sqlite3

    with Checkpoint("r", db=db) as run:
        run.step("a", int)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run.step("child", int)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        run.step("b", int)
    assert set(steps(db)) == {"a", "child", "b"}
    connection = sqlite3.connect(db)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_step_in_flight_elsewhere_is_told_with_its_process(db, spawn_agent):
    agent = spawn_agent(
        "import time\nfrom agent_resume import Checkpoint\n"
        f"Checkpoint('r', db={db!r}).step('s', lambda: (print('inside', flush=True), time.sleep(60)))",
        marker="inside",
    )
    with Checkpoint("r", db=db) as run:
        with pytest.raises(StepInFlight) as caught:
            run.step("s", int)
        assert caught.value.pid == agent.pid
        agent.kill()
        time.sleep(0.05)
        assert run.step("s", int) == 0


#: Another process, while ``verify`` is asked here: it is left in its own attempt, or knows the result.
OTHER = """
import sys
from agent_resume import Checkpoint, NOT_DONE, Verified
def pay():
    print('paid')
    raise KeyboardInterrupt
with Checkpoint('r', db=sys.argv[1]) as run:
    try:
        run.step('pay', pay, effect='once', verify=lambda: NOT_DONE if sys.argv[2] == 'tries' else Verified('receipt'))
    except KeyboardInterrupt:
        pass
"""


def dies():
    raise KeyboardInterrupt  # nobody knows whether it happened


@pytest.mark.parametrize("stale", [NOT_DONE, Verified("old")], ids=repr)
def test_what_verify_said_of_one_attempt_does_not_decide_about_a_later_one(db, run_python, stale):
    asked, paid = [], []

    def verify():
        asked.append(1)
        if len(asked) > 1:
            return UNKNOWN
        assert run_python(OTHER, db, "tries").stdout == "paid\n"
        return stale

    with Checkpoint("r", db=db) as run:
        with pytest.raises(KeyboardInterrupt):
            run.step("pay", dies, effect="once")
        with pytest.raises((StepInDoubt, RunLost)):
            run.step("pay", lambda: paid.append(1), effect="once", verify=verify)
    assert not paid
    assert (steps(db)["pay"].status, steps(db)["pay"].attempts) == ("in_doubt", 2)


@pytest.mark.filterwarnings("ignore::agent_resume.StepCodeChangedWarning")
def test_what_another_process_has_verified_meanwhile_is_returned(db, run_python):
    paid = []

    def verify():
        assert run_python(OTHER, db, "knows").returncode == 0
        return NOT_DONE

    with Checkpoint("r", db=db) as run:
        with pytest.raises(KeyboardInterrupt):
            run.step("pay", dies, effect="once")
        assert run.step("pay", lambda: paid.append(1), effect="once", verify=verify) == "receipt"
    assert not paid


def test_skips_before_a_step_that_stays_in_doubt_are_told_in_each_execution(db):
    def body(run, once=lambda: None):
        run.step("first", int)
        run.step("once", once, effect="once")

    def left():
        raise SystemExit

    with pytest.raises(SystemExit):
        agent_run("a", lambda run: body(run, left), db=db, run_id="r")
    for _ in range(3):
        with pytest.raises(StepInDoubt):
            agent_run("a", body, db=db, run_id="r")
    assert [event.type for event in Store(db).events("r")].count("skips") == 3
