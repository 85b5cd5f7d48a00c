"""``record``, ``has``, ``get_step_result`` and the counters."""

from __future__ import annotations

import threading
import warnings
from contextlib import closing

import pytest
import raw

from agent_resume import (
    Checkpoint,
    InvalidName,
    InvalidTransition,
    OutputNotStorable,
    RecordConflictWarning,
    StepInFlight,
    agent_run,
    load_run,
)

# A replayed step is given another function here, one that must not be called.
pytestmark = pytest.mark.filterwarnings("ignore::agent_resume.errors.StepCodeChangedWarning")


def rows(db, query, *values):
    with closing(raw.connect(db)) as database:
        return database.execute(query, values).fetchall()


@pytest.fixture
def run(db):
    with Checkpoint("r", db=db) as run:
        yield run


def test_a_recorded_value_is_a_completed_step_and_comes_back_decoded(run, db):
    assert run.record("k", {"t": (1, 2)}, {"model": "m"}) == {"t": (1, 2)}
    (step,) = load_run("r", db=db).steps
    assert (step.name, step.status, step.output, step.attempts) == ("k", "completed", {"t": (1, 2)}, 1)
    assert step.meta == {"model": "m"}
    assert run.step("k", pytest.fail) == {"t": (1, 2)}


def test_recording_an_equal_value_again_is_silent_and_writes_nothing(run, db):
    run.record("k", {"a": 1, "b": {"c": [1]}})
    before = rows(db, "SELECT last_seq FROM runs")
    assert run.record("k", {"b": {"c": [1]}, "a": 1}) == {"a": 1, "b": {"c": [1]}}
    assert rows(db, "SELECT last_seq FROM runs") == before


@pytest.mark.parametrize("other", [2, "1", 1.0, True, None, [1]])
def test_another_value_is_warned_about_and_the_first_one_is_returned(run, other):
    run.record("k", 1)
    with pytest.warns(RecordConflictWarning, match="'k'"):
        assert run.record("k", other) == 1
    assert type(run.get_step_result("k")) is int


def test_under_strict_a_conflict_is_an_error(db):
    with Checkpoint("r", db=db, strict=True) as run:
        run.record("k", 1)
        with pytest.raises(RecordConflictWarning):
            run.record("k", 2)
        assert run.get_step_result("k") == 1


def test_replace_overwrites_and_leaves_an_event(run, db):
    run.record("k", 1)
    assert run.record("k", 2, {"model": "n"}, replace=True) == 2
    assert run.get_step_result("k") == 2
    assert load_run("r", db=db).steps[0].output == 2
    assert rows(db, "SELECT data FROM events WHERE type = 'record' ORDER BY seq") == [(None,), ('{"replaced": true}',)]


def test_a_conflict_right_after_other_writes_is_still_a_conflict(run):
    """The fast path inserts without looking first; a key that is there must not be taken for a new row."""
    run.record("a", 1)
    for i in range(3):
        run.record(f"other-{i}", i)
        run.event("e")
        with pytest.warns(RecordConflictWarning) if i == 0 else warnings.catch_warnings():
            assert run.record("a", 99) == 1
    assert run.count_completed_keys_with_prefix("") == 4


def test_records_and_steps_share_their_names(run):
    assert run.step("s", lambda: 1) == 1
    with pytest.warns(RecordConflictWarning):
        assert run.record("s", 2) == 1


def test_a_failed_step_can_be_recorded_by_hand(run, db):
    with pytest.raises(ZeroDivisionError):
        run.step("s", lambda: 1 / 0)
    assert run.record("s", "by hand") == "by hand"
    (step,) = load_run("r", db=db).steps
    assert (step.status, step.output, step.error) == ("completed", "by hand", None)
    assert rows(db, "SELECT outcome FROM step_attempts WHERE key = 's'") == [("error",)]


def test_a_step_in_flight_cannot_be_recorded(run):
    def inside():
        with pytest.raises(StepInFlight):
            run.record("s", 1)
        return "own"

    assert run.step("s", inside) == "own"


def test_a_step_in_flight_in_another_process_cannot_be_recorded(run, db, spawn_agent):
    code = "import sys, time\nfrom agent_resume import Checkpoint\n" \
        "Checkpoint('r', db=sys.argv[1]).step('s', lambda: print('in', flush=True) or time.sleep(60))"  # fmt: skip
    other = spawn_agent(code, db, marker="in")
    with pytest.raises(StepInFlight):
        run.record("s", 1)
    other.kill()
    assert run.record("s", 1) == 1
    assert run.step("s", lambda: 2) == 1


def test_what_cannot_be_stored_is_refused_and_nothing_is_written(run, db):
    with pytest.raises(OutputNotStorable) as caught:
        run.record("k", {"a": [1, threading.Lock()]})
    assert "$" in caught.value.path
    assert not run.has("k")
    assert list(rows(db, "SELECT name FROM sqlite_master")) == [] or rows(db, "SELECT count(*) FROM runs") == [(0,)]


@pytest.mark.parametrize("key", ["a\0b", "\ud800", 5, None, b"k"])
def test_keys_that_cannot_be_one_are_refused_by_every_method(run, key):
    for call in (run.has, run.get_step_result, lambda key: run.record(key, 1), lambda key: run.step(key, int)):
        with pytest.raises(InvalidName):
            call(key)


@pytest.mark.parametrize(
    "key",
    ["", " ", "a\nb", "%s", "'; DROP TABLE runs; --", "ключ", "\U0001f600", "e\u0301", "é", "A", "a", "x" * 2000],
)
def test_any_other_key_is_itself_and_no_other(run, key):
    run.record("unlike", 0)
    run.record(key, {"is": key})
    assert run.has(key)
    assert run.get_step_result(key) == {"is": key}
    assert run.step(key, pytest.fail) == {"is": key}


def test_names_are_compared_code_point_by_code_point(run):
    keys = ["e\u0301", "é", "A", "a", "a ", "a\u200b"]
    for number, key in enumerate(keys):
        run.record(key, number)
    assert [run.get_step_result(key) for key in keys] == list(range(len(keys)))


# -- has, get_step_result ----------------------------------------------------------------------------------------------


def test_a_stored_none_and_nothing_can_be_told_apart(run):
    run.record("none", None)
    assert run.get_step_result("none") is None
    assert run.get_step_result("nothing") is None
    assert run.get_step_result("nothing", 7) == 7
    assert run.get_step_result("none", 7) is None
    assert (run.has("none"), run.has("nothing")) == (True, False)


def test_running_and_failed_steps_have_no_result(run):
    with pytest.raises(ZeroDivisionError):
        run.step("failed", lambda: 1 / 0)
    assert (run.has("failed"), run.get_step_result("failed", "none")) == (False, "none")
    assert run.step("running", lambda: (run.has("running"), run.get_step_result("running", "none"))) == (False, "none")


def test_large_results_are_transparent(run, db):
    value = {"text": "x" * 3_000_000, "list": list(range(1000))}
    assert run.record("big", value) == value
    assert run.step("big step", lambda: value) == value
    with Checkpoint("r", db=db) as again:
        assert again.get_step_result("big") == value
        assert again.step("big step", pytest.fail) == value


def test_results_of_other_processes_are_seen_at_once(run, db, run_python):
    run.record("mine", 1)
    said = run_python(f"from agent_resume import Checkpoint\nCheckpoint('r', db={db!r}).record('theirs', 2)")
    assert said.returncode == 0, said.stderr
    assert run.has("theirs")
    assert run.get_step_result("theirs") == 2
    assert run.count_completed_keys_with_prefix("") == 2
    assert run.step("theirs", pytest.fail) == 2


def test_case_059_caller_and_store_never_share_an_object(run, db):
    value = run.step("a", lambda: {"h": []})
    value["h"].append(1)
    with pytest.warns(UserWarning, match="already used"):
        again = run.step("a", pytest.fail)
    assert again == {"h": []}
    assert again is not value
    given = {"h": []}
    run.record("b", given)["h"].append(1)
    given["h"].append(2)
    assert run.get_step_result("b") == {"h": []}
    run.get_step_result("b")["h"].append(3)
    assert run.get_step_result("b") == {"h": []}
    assert load_run("r", db=db).to_dict()["steps"][0]["output"] == {"h": []}


# -- counting ----------------------------------------------------------------------------------------------------------


def test_counting_by_prefix_takes_the_prefix_literally(run):
    for key in ("turn-1", "turn-2", "turn-x", "turn-1.fix", "turn-02", "turn-", "Turn-3", "turn_4", "t%", "turn-٣"):
        run.record(key, 1)
    with pytest.raises(ZeroDivisionError):
        run.step("turn-9", lambda: 1 / 0)
    assert run.count_completed_keys_with_prefix("turn-") == 7
    assert run.count_completed_keys_with_prefix("turn-", digits_only=True) == 3
    assert run.count_completed_keys_with_prefix("t%") == 1
    assert run.count_completed_keys_with_prefix("none") == 0
    assert run.count_completed_keys_with_prefix("") == 10


def test_the_old_counter_works_and_names_its_successor(run):
    for key in ("turn-1", "turn-2", "turn-x"):
        run.record(key, 1)
    with pytest.warns(DeprecationWarning, match="count_completed_keys_with_prefix"):
        assert run.count_completed_turns() == 2


# -- order of calls ----------------------------------------------------------------------------------------------------


def test_a_closed_checkpoint_takes_no_new_work_and_can_still_be_read(db, caplog):
    run = Checkpoint("r", db=db)
    run.record("k", 1)
    run.close()
    run.close()
    for call in (lambda: run.record("x", 1), lambda: run.step("x", pytest.fail), lambda: run.pause("x"), run.done):
        with pytest.raises(InvalidTransition, match="closed"):
            call()
    run.event("e")
    assert "closed" in caplog.text
    assert run.get_step_result("k") == 1
    assert (run.has("x"), run.status) == (False, "running")
    with Checkpoint("r", db=db) as again:
        again.record("x", 2)


def test_records_of_a_lost_run_are_refused(db):
    from agent_resume import RunLost

    def body(run):
        run.record("mine", 1)
        with closing(raw.connect(db)) as database:
            database.execute("UPDATE runs SET epoch = epoch + 1")
            database.commit()
        with pytest.raises(RunLost):
            run.record("late", 1)
        run.event("late")
        with pytest.raises(RunLost):
            run.set_loop_state(turns=1)
        with pytest.raises(RunLost) as caught:
            run.step("late", lambda: 1)
        raise caught.value

    with pytest.raises(RunLost):
        agent_run("a", body, db=db)
    assert rows(db, "SELECT key FROM steps") == [("mine",)]
    assert rows(db, "SELECT count(*) FROM events WHERE type = 'late'") == [(0,)]


def test_no_refusal_leaves_a_gap_in_the_numbers(db):
    """Fast paths number first and look later; whatever is refused gives its number back."""
    from agent_resume import RunPaused

    with Checkpoint("r", db=db) as run:
        run.record("k", 1)
        for attempt in range(3):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run.record("k", attempt + 2)
            run.event("loop", turn=attempt)
            run.step("s" + str(attempt), lambda attempt=attempt: _refused(run, f"s{attempt}"))
            with pytest.raises(ZeroDivisionError):
                run.step("failing", lambda: 1 / 0)
            with pytest.raises(OutputNotStorable):
                run.step("odd", lambda: open)
            with pytest.raises(OutputNotStorable):
                run.record("odd too", open)
        run.set_loop_state(turns=1)
        with pytest.raises(RunPaused):
            run.pause("p")
        with pytest.raises(InvalidTransition):
            run.record("late", 1)
        run.event("loop", phase="start")
    seqs = [seq for (seq,) in rows(db, "SELECT seq FROM events ORDER BY id")]
    assert seqs == list(range(1, len(seqs) + 1))
    assert rows(db, "SELECT last_seq FROM runs") == [(len(seqs),)]


def _refused(run, key):
    with pytest.raises(StepInFlight):
        run.record(key, 1)
    with pytest.raises(StepInFlight):
        run.step(key, int)
    return 1


def test_under_strict_every_conflict_is_an_error_not_only_the_first(db):
    with Checkpoint("r", db=db, strict=True) as run:
        run.record("k", 1)
        for other in (2, 3, 2):
            with pytest.raises(RecordConflictWarning):
                run.record("k", other)
        assert run.record("k", 1) == 1


def test_a_step_whose_process_was_killed_can_be_recorded_and_its_attempt_is_known_to_be_unknown(db, spawn_agent):
    code = "import sys, time\nfrom agent_resume import agent_run\nagent_run('r', lambda run: " \
        "run.step('s', lambda: print('in', flush=True) or time.sleep(60)), run_id='r', db=sys.argv[1])"  # fmt: skip
    spawn_agent(code, db, marker="in").kill()
    assert agent_run("r", lambda run: run.record("s", "by hand"), run_id="r", db=db) == "by hand"
    types = rows(db, "SELECT type FROM events WHERE step_key = 's' ORDER BY seq")
    assert types == [("start",), ("unknown",), ("record",)]


def test_usage_in_a_recorded_reply_counts(run):
    reply = {"usage": {"input_tokens": 5, "output_tokens": 6}, "model": "m"}
    run.record("k", reply, {"cli": "claude"})
    assert run.timeline()[0].meta == {"inputTokens": 5, "outputTokens": 6, "model": "m", "cli": "claude"}


@pytest.mark.parametrize("meta", ["gpt", ["gpt"], 5])
def test_a_meta_that_is_no_dict_is_refused(run, meta):
    with pytest.raises(TypeError, match="meta is a dict"):
        run.record("k", 1, meta)
    assert not run.has("k")


def test_a_failure_that_keep_errors_kept_is_not_overwritten_without_a_word(db):
    def declined():
        raise ValueError("declined")

    with Checkpoint("r", db=db) as run, pytest.raises(ValueError, match="declined"):
        run.step("charge", declined, keep_errors=ValueError)
    with Checkpoint("r", db=db) as run:
        with pytest.raises(InvalidTransition, match="replace=True"):
            run.record("charge", "paid")
        with pytest.raises(ValueError, match="declined"):
            run.step("charge", declined, keep_errors=ValueError)
        assert run.record("charge", "paid", replace=True) == "paid"
    with Checkpoint("r", db=db) as run:
        assert run.get_step_result("charge") == "paid"


def test_replace_overwrites_an_equal_value_too_and_its_meta(run, db):
    run.record("k", 1, {"model": "old"})
    run.record("k", 1, {"model": "new"}, replace=True)
    assert run.timeline()[0].meta == {"model": "new"}
    assert rows(db, "SELECT count(*) FROM events WHERE type = 'record'") == [(2,)]


@pytest.mark.parametrize("prefix", ["\udc81", 5, None])
def test_a_prefix_that_no_key_can_have_is_refused(run, prefix):
    run.record("k", 1)
    with pytest.raises(InvalidName):
        run.count_completed_keys_with_prefix(prefix)


def test_what_a_hook_does_to_a_result_does_not_reach_the_agent(db):
    def spoil(event):
        if event.result is not None:
            event.result.clear()

    with Checkpoint("r", db=db, on_step=spoil) as run:
        assert (run.step("a", lambda: [1, 2]), run.record("b", [3])) == ([1, 2], [3])
        assert run.step("big", lambda: ["x" * 5000]) == ["x" * 5000]
    with Checkpoint("r", db=db, on_step=spoil) as run:
        assert (run.step("a", lambda: [1, 2]), run.step("big", list)) == ([1, 2], ["x" * 5000])
