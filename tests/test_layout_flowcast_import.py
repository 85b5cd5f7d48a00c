"""Imports of flowcast's folders: real ones, killed and damaged ones, and ones made to do harm."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import flowcast_conformance as conformance
import pytest
from flowcast_writer import UNDEFINED, Flow
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_resume import Checkpoint, Store
from agent_resume.layouts import export_runs, import_paths

FIXTURES = Path(__file__).parent / "fixtures" / "flowcast"
NAMES = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())
STEP_TYPES = {"start", "done", "error", "record", "skip", "rerun"}


def expected_of(name: str) -> dict[str, Any]:
    return json.loads((FIXTURES / name / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture
def store(db: str) -> Any:
    with Store(db) as opened:
        yield opened


def take(store: Store, path: Path, **options: Any) -> Any:
    (row,) = import_paths(store, [path], **options).rows
    return row


def put(store: Store, run_id: str, out: Path) -> Path:
    (row,) = export_runs(store, [run_id], format="flowcast", out=out).rows
    assert row.action == "exported", row.reason
    return Path(row.target)


def rows_of(store: Store, run_id: str) -> tuple[dict[str, Any], list[Any], list[Any], list[Any]]:
    with store.dump_run(run_id) as dump:
        return dump.run, list(dump.steps), list(dump.events), list(dump.pauses)


def tagged(text: str | None) -> Any:
    from agent_resume.codec import DEFAULT

    return None if text is None else DEFAULT.decode_tagged(text)


def results_of(store: Store, run_id: str) -> dict[str, Any]:
    steps = rows_of(store, run_id)[1]
    return {
        step["key"]: store.codec.decode(step["output_format"], step["output"])
        for step in steps
        if step["status"] == "completed"
    }


def same(one: Any, other: Any) -> bool:
    return conformance.js_json(one) == conformance.js_json(other)


def assert_same_folder(original: Path, written: Path, *, ignored: tuple[str, ...] = ()) -> None:
    for path in original.rglob("*"):
        name = str(path.relative_to(original))
        if path.is_file() and name not in ignored:
            assert (written / name).read_bytes() == path.read_bytes(), name
    there = {str(path.relative_to(written)) for path in written.rglob("*") if path.is_file()}
    assert there <= {str(path.relative_to(original)) for path in original.rglob("*")}


# The seven real folders


@pytest.mark.parametrize("name", NAMES)
def test_everything_that_a_real_folder_holds_is_recovered(store, name):
    expected = expected_of(name)
    row = take(store, FIXTURES / name / expected["runId"])
    assert (row.action, row.bent_count) == ("imported", 0)
    run, steps, events, pauses = rows_of(store, expected["runId"])
    by_key = {step["key"]: step for step in steps}
    status = {"running": "interrupted"}.get(expected["status"], expected["status"])
    assert run["status"] == status
    assert run["created_at"] == expected["startedAt"]
    assert run["finished_at"] == expected["completedAt"]
    assert run["expect_max_ms"] == expected["expectMaxMs"]
    assert tagged(run["summary"]) == expected["summary"]
    kept = tagged(run["meta"])["flowcast"]["fields"]
    assert kept == {name: expected[name] for name in ("flowPath", "flowName")} | expected["unknownFields"]
    assert same(results_of(store, run["id"]), {key: expected["results"][key] for key in results_of(store, run["id"])})
    assert set(results_of(store, run["id"])) == set(expected["completedKeys"]) == set(expected["results"])
    ended = [event for event in events if event["type"] in ("done", "record") and event["step_key"] is not None]
    assert [event["step_key"] for event in ended] == expected["stepOrder"]
    for wanted in expected["steps"]:
        step = by_key[wanted["key"]]
        assert (step["finished_at"], step["duration_ms"]) == (wanted["completedAt"], wanted["durationMs"])
        assert (tagged(step["meta"]) or {}) == wanted["meta"]
    _assert_loop(run, expected)
    _assert_pauses(pauses, expected)
    _assert_log(events, by_key, expected)


def _assert_loop(run: dict[str, Any], expected: dict[str, Any]) -> None:
    columns = {"verdict": "loop_verdict", "status": "loop_status", "turns": "loop_turns", "reason": "loop_reason"}
    stored = {name: tagged(run[column]) for name, column in columns.items() if run[column] is not None}
    assert stored == (expected["loop"] or {})


def _assert_pauses(pauses: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    stored = [{"reason": pause["reason"], "context": tagged(pause["context"])} for pause in pauses]
    assert stored == ([] if expected["pause"] is None else [expected["pause"]])
    assert all(pause["answered_at"] is None and pause["kind"] == "pause" for pause in pauses)


def _assert_log(events: list[dict[str, Any]], by_key: dict[str, Any], expected: dict[str, Any]) -> None:
    key_of = {step["seq"]: key for key, step in by_key.items()}
    steps: list[dict[str, Any]] = []
    own: list[dict[str, Any]] = []
    for event in events:
        data = tagged(event["data"]) or {}
        if event["type"] == "skips":
            steps += [{"status": "skip", "key": key_of[first]} for first, _ in data["ranges"]]
        elif event["type"] == "paused":
            steps.append({"status": "paused", "key": "__pause__", "reason": data["reason"]})
        elif event["step_key"] is None:
            own.append({"type": event["type"], "ts": event["ts"], "data": data})
        elif event["type"] != "record":
            steps.append({"status": event["type"], "key": event["step_key"]})
    assert steps == expected["stepLog"]
    assert own == expected["events"]
    errors = [(event, tagged(event["data"])) for event in events if event["type"] == "error"]
    assert [
        {"key": event["step_key"], "error": data["error"], "durationMs": data["durationMs"]} for event, data in errors
    ] == expected["errors"]


@pytest.mark.parametrize("name", NAMES)
def test_a_real_folder_is_written_back_byte_by_byte(store, tmp_path, name):
    original = FIXTURES / name / expected_of(name)["runId"]
    take(store, original)
    written = put(store, original.name, tmp_path / "out")
    assert_same_folder(original, written, ignored=("alpha.log",))


@pytest.mark.parametrize("name", NAMES)
def test_the_source_of_an_import_is_left_as_it_was(store, tmp_path, name):
    source = tmp_path / "runs" / expected_of(name)["runId"]
    shutil.copytree(FIXTURES / name / source.name, source)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in source.rglob("*") if path.is_file()}
    take(store, source)
    assert {
        path: (path.stat().st_mtime_ns, path.read_bytes()) for path in source.rglob("*") if path.is_file()
    } == before


def test_a_state_folder_gives_each_of_its_runs_and_nothing_else(store, tmp_path):
    for name in NAMES:
        shutil.copytree(FIXTURES / name, tmp_path / "runs", dirs_exist_ok=True)
    (tmp_path / "runs" / "not-a-run").mkdir()
    (tmp_path / "runs" / ".lock").mkdir()
    rows = import_paths(store, [tmp_path / "runs"]).rows
    assert {row.action for row in rows} == {"imported"}
    assert {row.run_id for row in rows} == {expected_of(name)["runId"] for name in NAMES}
    assert {row.action for row in import_paths(store, [tmp_path / "runs"]).rows} == {"identical"}


# Going on with it


def test_a_killed_run_goes_on_here_and_then_there(store, tmp_path):
    original = FIXTURES / "killed-in-step" / "nightly-build-17"
    take(store, original)
    called: list[str] = []
    with Checkpoint(original.name, db=store) as run:
        for key in ("checkout", "compile", "test"):
            run.step(key, lambda: pytest.fail("ran again"))
        assert run.step("deploy", lambda: called.append("deploy") or {"url": "x"}) == {"url": "x"}
        run.done({"ok": True})
    assert called == ["deploy"]
    deploy = next(step for step in rows_of(store, original.name)[1] if step["key"] == "deploy")
    assert deploy["attempts"] == 2
    written = put(store, original.name, tmp_path / "out")
    reading = conformance.read(written)
    before = (original / "run.log.jsonl").read_bytes()
    log = (written / "run.log.jsonl").read_bytes()
    assert log.startswith(before)
    assert reading.step_log[-5:] == [
        ("skip", "checkout"), ("skip", "compile"), ("skip", "test"), ("start", "deploy"), ("done", "deploy")
    ]  # fmt: skip
    state = json.loads((original / "state.json").read_text(encoding="utf-8"))
    assert reading.state["steps"][:3] == state["steps"]
    assert reading.results == state["completed"] | {"deploy": {"url": "x"}}
    assert (reading.state["status"], reading.state["currentStep"]) == ("completed", None)
    assert reading.state["flowPath"] == state["flowPath"]


def test_what_went_on_there_is_a_conflict_here_and_can_take_the_old_ones_place(store, tmp_path):
    flow = Flow(tmp_path / "runs" / "job")
    flow.step("a", 1, {})
    flow.flush()
    take(store, flow.folder)
    flow.step("b", 2, {})
    flow.flush()
    refused = take(store, flow.folder)
    assert refused.action == "refused"
    assert "job" in refused.reason
    assert results_of(store, "job") == {"a": 1}
    assert take(store, flow.folder, on_conflict="skip").action == "skipped"
    assert take(store, flow.folder, on_conflict="replace", dry_run=True).action == "replaced"
    assert results_of(store, "job") == {"a": 1}
    assert take(store, flow.folder, on_conflict="replace").action == "replaced"
    assert results_of(store, "job") == {"a": 1, "b": 2}
    flow.step("c", 3, {})
    flow.flush()
    renamed = take(store, flow.folder, on_conflict="rename")
    assert renamed.action == "renamed"
    assert results_of(store, renamed.run_id) == {"a": 1, "b": 2, "c": 3}


def test_an_imported_pause_is_answered_and_goes_on(store, tmp_path):
    original = FIXTURES / "paused-with-context" / "release.review-2"
    take(store, original)
    reason = expected_of("paused-with-context")["pause"]["reason"]
    store.answer(original.name, reason, "ship")
    with Checkpoint(original.name, db=store) as run:
        assert run.get_pause_context()["ticket"] == "T-42"
        assert run.pause(reason) == "ship"
        run.done()
    reading = conformance.read(put(store, original.name, tmp_path / "out"))
    assert reading.state["status"] == "completed"
    assert reading.state["pauseReason"] == reason


# Runs as flowcast would write them, with kills at any time

values = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8), st.sampled_from(["x" * 500, "y" * 501, "漢" * 501, ["z" * 500], {"2": 1, "1": [2]}, "\ud83d", {}, []]),
)  # fmt: skip
keys = st.sampled_from(
    ["a", "b", "turn-1", "2", "10", "", "a/b", "é", "\ud83d", "k\0", "__proto__", "__pause__", "\\ud83d"]
)
metas = st.dictionaries(
    st.sampled_from(["cli", "model", "inputTokens", "note", "key", "status", "completedAt"]),
    st.text(max_size=3),
    max_size=2,
)
acts = st.one_of(
    st.tuples(st.just("step"), keys, st.one_of(values, st.just(UNDEFINED)), metas),
    st.tuples(st.just("fail"), keys, st.text(max_size=4)),
    st.tuples(st.just("record"), keys, values, metas),
    st.tuples(st.just("start"), keys),
    st.tuples(st.just("finish"), keys, values, metas),
    st.tuples(st.just("swap")),
    st.tuples(st.just("lose"), keys),
    st.tuples(
        st.just("event"),
        st.sampled_from(["gate", "start", "done", "paused", "completed", "user:done", "created", "\ud83d", ""]),
        st.dictionaries(
            st.sampled_from(["status", "type", "ts", "runId", "x", "1", "agentResume"]), values, max_size=3
        ),
    ),
    st.tuples(st.just("kill"), st.integers(0, 3)),
    st.tuples(st.just("flush")),
    st.tuples(
        st.just("set"),
        st.sampled_from(
            ["loopVerdict", "loopTurns", "expectMaxMs", "parentRunId", "custom", "status", "agentResume", "flowPath"]
        ),
        values,
    ),
    st.tuples(st.just("pause"), st.one_of(st.none(), st.text(max_size=5)), values),
    st.tuples(st.just("done"), values),
)
EXAMPLES = 400 if settings.default is not None and settings.default.max_examples >= 400 else 80
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("shared")
    with Store(folder / "runs.db", durability="relaxed") as opened:
        yield opened, folder


@pytest.mark.timeout(600)
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(acts=st.lists(acts, max_size=12))
def test_any_run_of_flowcasts_comes_in_whole_and_goes_out_as_it_was(shared, acts):
    store, folder = shared
    flow = Flow(folder / "runs" / f"job-{next(_numbers)}")
    for name, *arguments in acts:
        getattr(flow, name)(*arguments)
    flow.flush()
    run_id = flow.folder.name
    row = take(store, flow.folder)
    assert row.action == "imported", row.reason
    kept = (tagged(rows_of(store, run_id)[0]["meta"]) or {}).get("flowcast", {})
    originals = kept.get("keys") or {}
    stored = {originals.get(name, name): value for name, value in results_of(store, run_id).items()}
    assert stored.keys() == flow.results.keys()
    assert all(same(stored[key], value) for key, value in flow.results.items())
    assert take(store, flow.folder).action == "identical"
    written = put(store, run_id, folder / "out")
    assert (written / "state.json").read_bytes() == (flow.folder / "state.json").read_bytes()
    if flow.lines:
        assert (written / "run.log.jsonl").read_bytes() == (flow.folder / "run.log.jsonl").read_bytes()
    else:
        assert not (written / "run.log.jsonl").exists()


def test_keys_that_are_too_long_here_are_kept_under_shorter_ones_and_go_back_as_they_were(store, tmp_path):
    keys = ["ж" * 3000, "ж" * 3001, "a"]
    flow = Flow(tmp_path / "runs" / "job")
    for number, key in enumerate(keys):
        flow.step(key, number, {})
    flow.flush()
    row = take(store, flow.folder)
    assert (row.action, row.bent_count) == ("imported", 2)
    stored = results_of(store, "job")
    assert list(stored.values()) == [0, 1, 2]
    assert max(len(key.encode()) for key in stored) <= 2000
    assert conformance.read(put(store, "job", tmp_path / "out")).results == dict(zip(keys, range(3), strict=True))
