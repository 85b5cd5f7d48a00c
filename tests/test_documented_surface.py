"""What the two documented systems offer, under its name here: one test a row of the README's table."""

from __future__ import annotations

import json
import re
import warnings

import pytest

from agent_resume import (
    EVENT_TYPES,
    Checkpoint,
    EventType,
    RunPaused,
    Store,
    agent_run,
    answer,
    cancel,
    format_timeline,
    list_runs,
    load_run,
    register_event_type,
)


def events_of(db, run_id):
    with Store(db) as store:
        return store.events(run_id)


def test_agent_run_calls_the_body_with_a_run_and_returns_its_result(db):
    assert agent_run("support", lambda run: run.step("plan", lambda: {"order": 17}), db=db) == {"order": 17}


def test_agent_run_with_a_run_id_returns_a_completed_runs_result_and_calls_nothing(db):
    agent_run("support", lambda run: run.step("plan", lambda: 1), run_id="support-1", db=db)
    assert agent_run("support", pytest.fail, run_id="support-1", db=db) == 1


def test_agent_run_keeps_its_store_in_the_state_dir(tmp_path):
    agent_run("support", lambda run: run.step("plan", int), state_dir=tmp_path / "state")
    assert (tmp_path / "state" / "runs.db").exists()
    assert [run.name for run in list_runs(state_dir=tmp_path / "state")] == ["support"]


def test_on_step_hears_start_done_error_and_skip(db):
    heard = []

    def body(run):
        run.step("good", lambda: "value")
        return run.step("bad", lambda: 1 / 0)

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            agent_run("support", body, db=db, on_step=heard.append)
    assert [(event.kind, event.key) for event in heard] == [
        ("start", "good"),
        ("done", "good"),
        ("start", "bad"),
        ("error", "bad"),
        ("skip", "good"),
        ("start", "bad"),
        ("error", "bad"),
    ]
    assert heard[1].result == heard[4].result == "value"
    assert heard[1].duration_ms >= 0
    assert isinstance(heard[3].error, ZeroDivisionError)


def test_a_hook_that_raises_never_reaches_the_agent(db):
    assert agent_run("support", lambda run: run.step("plan", lambda: 1), db=db, on_step=lambda event: 1 / 0) == 1


def test_a_run_tells_its_id_name_input_and_status(db):
    def body(run):
        return [run.id, run.name, run.input, run.status]

    told = agent_run("support", body, run_id="support-7", input={"order": 17}, db=db)
    assert told == ["support-7", "support", {"order": 17}, "running"]


def test_state_has_the_documented_shape(db):
    def body(run):
        run.step("good", lambda: {"n": 1})
        with pytest.raises(ZeroDivisionError):
            run.step("bad", lambda: 1 / 0)
        return run.state().to_dict()

    state = agent_run("support", body, run_id="support-1", db=db)
    assert list(state) == ["id", "name", "createdAt", "updatedAt", "steps"]
    good, bad = state["steps"]
    assert {"name": "good", "status": "completed", "output": {"n": 1}}.items() <= good.items()
    assert set(good) == {"name", "status", "startedAt", "finishedAt", "output"}
    assert {"name": "bad", "status": "failed", "error": "division by zero"}.items() <= bad.items()
    assert load_run("support-1", db=db).to_dict()["result"] == state


def test_the_timeline_of_a_run_is_its_steps_in_order(db):
    def body(run):
        run.step("first", int)
        run.step("second", int)
        return [step.name for step in run.timeline()]

    assert agent_run("support", body, db=db) == ["first", "second"]


def test_format_timeline_prints_one_aligned_line_a_step(db):
    def body(run):
        run.step("create-plan", int)
        run.step("write-response", lambda: (_ for _ in ()).throw(RuntimeError("API timeout")))

    with pytest.raises(RuntimeError):
        agent_run("support", body, run_id="support-1", db=db)
    plan, response = format_timeline(load_run("support-1", db=db)).splitlines()
    assert re.fullmatch(r"create-plan    completed +\d+\.\ds", plan)
    assert re.fullmatch(r"write-response failed +\d+\.\ds  Error: API timeout", response)


def test_list_runs_and_load_run_find_what_was_run(db):
    for name in ("first", "second"):
        agent_run(name, lambda run: run.step("plan", lambda: run.name), run_id=f"{name}-1", db=db)
    assert {run.id for run in list_runs(db=db)} == {"first-1", "second-1"}
    assert load_run("first-1", db=db).result == "first"


def test_a_checkpoint_joins_a_run_by_its_id(db):
    calls = []
    for _ in range(2):
        with Checkpoint("nightly", db=db) as run:
            assert run.step("build", lambda: calls.append("build") or "built") == "built"
            assert calls == ["build"]
    with Checkpoint("nightly", db=db) as run:
        assert (run.id, run.name, run.status) == ("nightly", "nightly", "running")


def test_a_checkpoint_takes_a_state_dir(tmp_path):
    with Checkpoint("nightly", tmp_path / "state") as run:
        run.step("build", int)
    assert (tmp_path / "state" / "runs.db").exists()


def test_meta_is_stored_beside_a_steps_result(db):
    with Checkpoint("nightly", db=db) as run:
        run.step("build", int, meta={"cli": "claude", "model": "m", "inputTokens": 3})
    (step,) = load_run("nightly", db=db).steps
    assert step.meta == {"cli": "claude", "model": "m", "inputTokens": 3}


def test_a_failed_step_is_recorded_raised_again_and_not_completed(db):
    with Checkpoint("nightly", db=db) as run:
        with pytest.raises(ZeroDivisionError):
            run.step("build", lambda: 1 / 0)
        assert not run.has("build")
        assert run.step("build", lambda: "built") == "built"


def test_record_stores_a_value_that_is_there_already(db):
    with Checkpoint("nightly", db=db) as run:
        assert run.record("lint", {"ok": True}, {"cli": "ruff"}) == {"ok": True}
        assert run.step("lint", pytest.fail) == {"ok": True}


def test_has_tells_a_stored_none_from_nothing(db):
    with Checkpoint("nightly", db=db) as run:
        run.record("nothing", None)
        assert run.has("nothing")
        assert not run.has("never")


def test_get_step_result_gives_large_results_and_a_default(db):
    with Checkpoint("nightly", db=db) as run:
        run.record("large", "x" * 100_000)
        assert run.get_step_result("large") == "x" * 100_000
        assert run.get_step_result("missing") is None
        assert run.get_step_result("missing", default=7) == 7


def test_event_appends_and_never_raises(db):
    with Checkpoint("nightly", db=db) as run:
        run.event("gate", {"name": "lint"}, status="pass")
        run.event("gate", name=object(), status="fail")
    gates = [json.loads(event.data) for event in events_of(db, "nightly") if event.type == "gate"]
    assert gates[0] == {"name": "lint", "status": "pass"}


def test_event_types_are_one_dictionary_that_can_be_added_to(db):
    assert {"fallback", "rate-limit", "gate", "group", "loop"} <= set(EVENT_TYPES)
    try:
        registered = register_event_type("hand-off", {"to": "whom"})
        assert EVENT_TYPES["hand-off"] == registered == EventType({"to": "whom"}, registered.writer, registered.reader)
        with warnings.catch_warnings(), Checkpoint("nightly", db=db) as run:
            warnings.simplefilter("error")
            run.event("hand-off", to="night shift")
    finally:
        EVENT_TYPES.pop("hand-off", None)


def test_pause_ends_the_program_with_exit_code_0_and_goes_on_with_the_answer(db, run_python):
    code = f"from agent_resume import Checkpoint\nprint(Checkpoint('n', db={db!r}).pause('ship it?', {{'v': 2}}))"
    paused = run_python(code)
    assert (paused.returncode, paused.stdout) == (0, "")
    assert load_run("n", db=db).status == "paused"
    answer("n", "ship it?", "yes", db=db)
    assert run_python(code).stdout == "yes\n"


def test_get_pause_context_gives_what_the_pause_said(db):
    with Checkpoint("nightly", db=db) as run:
        assert run.get_pause_context() == {}
        with pytest.raises(RunPaused):
            run.pause("ship it?", {"version": 2})
    with Checkpoint("nightly", db=db) as run:
        assert run.get_pause_context() == {"version": 2}


def test_done_completes_the_run_and_the_report_says_so(db):
    with Checkpoint("nightly", db=db) as run:
        run.step("build", int, meta={"cli": "make"})
        run.done({"artifacts": 3})
        assert run.status == "completed"
        report = run.report()
    for text in ("nightly", "completed", "artifacts", "3", "build", "make"):
        assert text in report


def test_status_is_running_paused_or_completed(db):
    with Checkpoint("nightly", db=db) as run:
        run.step("build", int)
        assert run.status == "running"
        with pytest.raises(RunPaused):
            run.pause("ship it?")
        assert run.status == "paused"
    with Checkpoint("other", db=db) as run:
        run.done()
        assert run.status == "completed"


def test_loop_state_is_set_field_by_field_and_none_is_a_value(db):
    with Checkpoint("nightly", db=db) as run:
        run.set_loop_state(verdict="continue", turns=3)
        run.set_loop_state(verdict=None)
    with Checkpoint("nightly", db=db) as run:
        state = run.get_loop_state()
    assert (state["verdict"], state["turns"]) == (None, 3)


def test_set_expect_max_ms_is_stored(db):
    with Checkpoint("nightly", db=db) as run:
        run.set_expect_max_ms(3_600_000)
    with Store(db) as store:
        assert store.find_run("nightly").expect_max_ms == 3_600_000


def test_completed_keys_are_counted_by_their_prefix(db):
    with Checkpoint("nightly", db=db) as run:
        for key in ("turn-1", "turn-2", "turn-x", "build"):
            run.record(key, key)
        assert run.count_completed_keys_with_prefix("turn-") == 3
        assert run.count_completed_keys_with_prefix("turn-", digits_only=True) == 2


def test_count_completed_turns_works_and_names_its_successor(db):
    with Checkpoint("nightly", db=db) as run:
        run.record("turn-1", 1)
        with pytest.warns(DeprecationWarning, match="count_completed_keys_with_prefix"):
            assert run.count_completed_turns() == 1


def test_flush_and_flush_log_return_once_everything_is_stored(db):
    with Checkpoint("nightly", db=db, durability="relaxed") as run:
        run.record("build", 1)
        run.event("gate", name="lint", status="pass")
        run.flush()
        run.flush_log()
        assert [event.type for event in events_of(db, "nightly")][-2:] == ["record", "gate"]


def test_another_process_can_cancel_a_run(db):
    with Checkpoint("nightly", db=db) as run:
        run.step("build", int)
        cancel("nightly", db=db)
        assert run.status == "cancelled"


def test_the_commands_list_show_resume_and_connect_know_the_run(db, cli):
    agent_run("support", lambda run: run.step("plan", lambda: 1), run_id="support-1", db=db)
    assert [run["id"] for run in json.loads(cli("list", "--json", "--db", db).stdout)] == ["support-1"]
    for command in (("show", "support-1"), ("resume", "support-1")):
        done = cli(*command, "--db", db)
        assert done.returncode == 0, done.stderr
        assert "plan" in done.stdout
    connect = cli("connect", "--db", db)
    assert connect.returncode == 0, connect.stderr
    assert db in connect.stdout
