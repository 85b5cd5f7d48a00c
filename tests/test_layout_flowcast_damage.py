"""Folders of flowcast's that were cut short, damaged, or made to do harm: recovered or refused, never invented."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import flowcast_conformance as conformance
import pytest
from flowcast_conformance import MARKER, js_json, side_name
from flowcast_writer import UNDEFINED, Flow

from agent_resume import Checkpoint, Store
from agent_resume.layouts import export_runs, import_paths

BIG = "lorem ipsum " * 60


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store(tmp_path / "runs.db") as opened:
        yield opened


@pytest.fixture
def flow(tmp_path: Path) -> Flow:
    return Flow(tmp_path / "runs" / "job")


def take(store: Store, path: Path, **options: Any) -> Any:
    (row,) = import_paths(store, [path], **options).rows
    return row


def steps_of(store: Store, run_id: str = "job") -> dict[str, dict[str, Any]]:
    with store.dump_run(run_id) as dump:
        return {step["key"]: step for step in dump.steps}


def results_of(store: Store, run_id: str = "job") -> dict[str, Any]:
    found = steps_of(store, run_id)
    return {
        key: store.codec.decode(step["output_format"], step["output"])
        for key, step in found.items()
        if step["status"] == "completed"
    }


def notes(row: Any) -> str:
    return "\n".join(map(str, row.bent))


# Cut short


def test_a_state_cut_at_any_byte_is_refused_with_a_reason_and_stores_nothing(store, flow):
    flow.step("é", {"a": [1, "x"]}, {})
    flow.flush()
    path = flow.folder / "state.json"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        row = take(store, flow.folder)
        assert row.action == "refused", length
        assert "state.json" in row.reason
    assert not store.exists() or not list(store.list_runs())
    path.write_bytes(whole)
    assert take(store, flow.folder).action == "imported"


def test_a_log_cut_at_any_byte_loses_no_result(tmp_path):
    flow = Flow(tmp_path / "runs" / "job")
    flow.step("é", {"a": 1}, {"cli": "x"})
    flow.event("note", {"text": "ü"})
    flow.fail("b", "no")
    flow.record("c", [2], {})
    flow.flush()
    path = flow.folder / "run.log.jsonl"
    whole = path.read_bytes()
    assert len(whole) < 1500
    starts = [0, *(at + 1 for at, byte in enumerate(whole) if byte == 10)]
    with Store(tmp_path / "runs.db", durability="relaxed") as store:
        for length in range(len(whole) + 1):
            path.write_bytes(whole[:length])
            row = take(store, flow.folder, on_conflict="replace")
            assert row.action in ("imported", "replaced", "identical"), row.reason
            assert results_of(store) == {"é": {"a": 1}, "c": [2]}
            # A whole line without its line end counts, half of one does not.
            lines = sum(length >= end - 1 for end in starts[1:])
            with store.dump_run("job") as dump:
                list(dump.steps)
                logged = [event for event in dump.events if not _is_silent(event)]
            assert len(logged) == lines, length


def _is_silent(event: dict[str, Any]) -> bool:
    return event["type"] == "record" or '"log":false' in (event["data"] or "")


def test_the_older_copy_is_read_where_the_state_cannot_be(store, flow):
    flow.step("a", 1, {})
    shutil.copy(flow.folder / "state.json", flow.folder / "state.json.bak")
    flow.step("b", 2, {})
    flow.flush()
    (flow.folder / "state.json").write_text('{"runId": "job", "stat', encoding="utf-8")
    row = take(store, flow.folder)
    assert row.action == "imported"
    assert "state.json.bak" in notes(row)
    # The log proves that b was done; running it again would break what was promised to its caller.
    assert results_of(store) == {"a": 1, "b": 2}


def test_a_folder_with_only_the_older_copy_is_a_run(store, flow):
    flow.step("a", 1, {})
    flow.flush()
    (flow.folder / "state.json").rename(flow.folder / "state.json.bak")
    assert take(store, flow.folder).action == "imported"
    assert results_of(store) == {"a": 1}


def test_lines_that_a_kill_left_are_skipped_and_the_others_count(store, flow, tmp_path):
    flow.step("a", "x\u2028y\x85z", {})
    flow.flush()
    path = flow.folder / "run.log.jsonl"
    whole = path.read_bytes()
    path.write_bytes(
        b'\n\nnull\n{"event":"sta\n[1]\n"x"\n5\n{"event":NaN}\n\xff\xfe\n' + whole + b"   \n" + b"[" * 100_000 + b"\n"
    )
    assert take(store, flow.folder).action == "imported"
    with store.dump_run("job") as dump:
        list(dump.steps)
        assert [event["type"] for event in dump.events] == ["start", "done"]
    (written,) = export_runs(store, ["job"], format="flowcast", out=tmp_path / "out").rows
    assert (Path(written.target) / "run.log.jsonl").read_bytes() == whole


def test_a_log_with_windows_line_ends_is_read(store, flow):
    flow.step("a", "x", {})
    flow.flush()
    path = flow.folder / "run.log.jsonl"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert take(store, flow.folder).bent_count == 0
    assert steps_of(store)["a"]["started_at"] is not None


def test_a_log_that_lost_its_last_lines_still_tells_that_the_step_was_under_way(store, flow):
    flow.step("a", 1, {})
    flow.start("deploy")
    flow.kill(lost=3)
    assert take(store, flow.folder).action == "imported"
    found = steps_of(store)
    assert (found["a"]["status"], found["deploy"]["status"], found["deploy"]["attempts"]) == ("completed", "running", 1)
    with Checkpoint("job", db=store) as run:
        assert run.step("a", lambda: pytest.fail("ran again")) == 1
        assert run.step("deploy", lambda: 2) == 2
    events = [(event.type, event.attempt) for event in store.events("job") if event.step_key == "deploy"]
    assert events == [("start", 1), ("unknown", 1), ("start", 2), ("done", 2)]


def test_a_done_line_that_the_state_knows_nothing_of_does_not_make_a_step_done(store, flow, tmp_path):
    before = json.loads(json.dumps(flow.state))
    flow.step("a", 1, {})
    flow.flush()
    flow.state = before
    flow.save()
    assert take(store, flow.folder).action == "imported"
    assert steps_of(store)["a"]["status"] == "interrupted"
    (written,) = export_runs(store, ["job"], format="flowcast", out=tmp_path / "out").rows
    for name in ("state.json", "run.log.jsonl"):
        assert (Path(written.target) / name).read_bytes() == (flow.folder / name).read_bytes()


def test_a_step_that_began_and_ended_in_one_millisecond_has_begun_before_it_ended(store, flow):
    flow.start("quick")
    ts = flow.pending[-1]["ts"]
    flow.state["completed"]["quick"] = 1
    flow.state["steps"].append({"key": "quick", "status": "done", "durationMs": 0, "completedAt": ts})
    flow.set("currentStep", None)
    flow.event("note", {})
    flow.flush()  # without the done line, which was lost
    assert take(store, flow.folder).bent_count == 0
    events = [(event.type, event.step_key) for event in store.events("job")]
    assert events == [("start", "quick"), ("done", "quick"), ("note", None)]
    assert steps_of(store)["quick"]["seq"] == 1


# Results that state.json does not hold


def test_a_lost_side_file_is_made_good_from_the_log(store, flow):
    flow.step("page", BIG, {})
    flow.flush()
    (flow.folder / "steps" / f"{side_name('page')}.out").unlink()
    row = take(store, flow.folder)
    assert results_of(store) == {"page": BIG}
    assert "taken from the log" in notes(row)


def test_a_side_file_that_is_lost_everywhere_makes_the_step_run_again(store, flow):
    flow.step("page", BIG, {})
    flow.step("next", 1, {})
    flow.flush()
    (flow.folder / "steps" / f"{side_name('page')}.out").unlink()
    (flow.folder / "run.log.jsonl").unlink()
    row = take(store, flow.folder)
    assert row.action == "imported"
    assert "runs again" in notes(row)
    assert results_of(store) == {"next": 1}
    with Checkpoint("job", db=store) as run:
        assert run.step("page", lambda: "new") == "new"


@pytest.mark.parametrize("damage", [b"json\n[1,", b"json\n", b"json\nNaN"])
def test_a_side_file_that_does_not_parse_counts_as_lost(store, flow, damage):
    flow.step("page", ["x"] * 200, {})
    flow.flush()
    (flow.folder / "steps" / f"{side_name('page')}.out").write_bytes(damage)
    row = take(store, flow.folder)
    assert results_of(store) == {"page": ["x"] * 200}
    assert row.bent_count == 1


def test_a_text_cut_short_in_its_side_file_is_made_whole_from_the_log(store, flow):
    flow.step("page", BIG, {})
    flow.flush()
    path = flow.folder / "steps" / f"{side_name('page')}.out"
    path.write_bytes(path.read_bytes()[:100])
    row = take(store, flow.folder)
    assert results_of(store) == {"page": BIG}
    assert "cut short" in notes(row)


def test_lone_surrogates_of_a_large_text_come_back_from_the_log(store, flow, tmp_path):
    flow.step("page", BIG, {})
    flow.flush()
    text = BIG + "\ud83d|\ude00 \ufffd"
    (flow.folder / "steps" / f"{side_name('page')}.out").write_bytes(
        b"string\n" + text.encode("utf-8", "replace").replace(b"?", "\ufffd".encode())
    )
    path = flow.folder / "run.log.jsonl"
    path.write_bytes(path.read_bytes().replace(js_json(BIG).encode(), js_json(text).encode()))
    assert take(store, flow.folder).bent_count == 0
    assert results_of(store) == {"page": text}
    (written,) = export_runs(store, ["job"], format="flowcast", out=tmp_path / "out").rows
    assert conformance.read(Path(written.target)).results == {"page": text}


@pytest.mark.parametrize(
    ("content", "result"),
    [
        (b"string\nbare\r\n", "bare\r\n"),
        (b"json\r\n[1]", "[1]"),
        (b"\xef\xbb\xbfjson\n[1]", "[1]"),
        (b"no line end", "no line end"),
        (b"", ""),
        (b"string\n\xff\xfe", "\ufffd\ufffd"),
        (b'json\n"a string"', "a string"),
        (b"string\n\0flowcast:sidecar\0x", "\0flowcast:sidecar\0x"),
    ],
)
def test_the_type_line_decides_as_it_does_there(store, flow, content, result):
    flow.state["completed"]["k"] = f"{MARKER}anything"
    flow.state["steps"].append({"key": "k", "status": "done", "completedAt": flow.now()})
    flow.save()
    (flow.folder / "steps").mkdir()
    (flow.folder / "steps" / "anything.out").write_bytes(content)
    assert take(store, flow.folder).action == "imported"
    assert results_of(store) == {"k": result}


def test_a_step_without_a_result_runs_again_as_it_does_there(store, flow):
    flow.step("silent", UNDEFINED, {})
    flow.flush()
    row = take(store, flow.folder)
    assert "silent" in notes(row)
    assert steps_of(store)["silent"]["status"] == "interrupted"
    with Checkpoint("job", db=store) as run:
        assert run.step("silent", lambda: 5) == 5


def test_a_failed_step_keeps_its_error_and_runs_again(store, flow):
    flow.fail("build", "exit 2")
    flow.flush()
    take(store, flow.folder)
    step = steps_of(store)["build"]
    assert step["status"] == "failed"
    assert json.loads(step["error"]) == {"message": "exit 2", "code": "E", "timedOut": False}
    with Checkpoint("job", db=store) as run:
        assert run.step("build", lambda: "ok") == "ok"
    assert steps_of(store)["build"]["attempts"] == 2


# Files that hold something else


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "5", '"x"', "NaN", '{"a": NaN}', "\ufeff{}", "[" * 5000, '{"runId": "job"} x', "{'a': 1}"],
)
def test_a_state_that_is_no_object_is_refused(store, flow, text):
    (flow.folder / "state.json").write_text(text, encoding="utf-8")
    row = take(store, flow.folder)
    assert row.action == "refused"
    assert "state.json" in row.reason


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("status", "weird"), ("status", 5), ("completed", []), ("completed", None), ("steps", {}), ("steps", "x"),
        ("startedAt", 5), ("startedAt", "yesterday"), ("runId", 7), ("runId", "other"), ("currentStep", 5),
        ("pauseReason", {"a": 1}), ("pauseContext", None), ("pauseContext", 3), ("expectMaxMs", "soon"),
        ("expectMaxMs", 0.25), ("expectMaxMs", -1), ("loopTurns", "three"), ("loopVerdict", None), ("summary", [1]),
        ("completedAt", "x"), ("flowPath", 5), ("parentRunId", ["p"]), ("agentResume", {"id": "../../x", "name": 5}),
    ],
)  # fmt: skip
def test_a_field_of_the_wrong_kind_never_stops_an_import(store, flow, tmp_path, field, value):
    flow.step("a", 1, {})
    flow.set(field, value)
    flow.flush()
    row = take(store, flow.folder)
    assert row.action == "imported", row.reason
    assert row.run_id == "job"
    (written,) = export_runs(store, ["job"], format="flowcast", out=tmp_path / "out").rows
    state = json.loads((Path(written.target) / "state.json").read_text(encoding="utf-8"))
    if field in ("status", "completed", "steps", "runId"):
        assert row.bent_count  # mended as flowcast mends it, and told
    else:
        assert state[field] == value
        assert list(state) == list(flow.state)


@pytest.mark.parametrize("record", [None, 5, "x", [], {}, {"key": None}, {"key": {"a": 1}}])
def test_a_step_record_that_is_none_is_left_out_and_told(store, flow, record):
    flow.step("a", 1, {})
    flow.state["steps"].append(record)
    flow.save()
    row = take(store, flow.folder)
    assert row.action == "imported"
    assert "steps[1]" in notes(row)
    assert results_of(store) == {"a": 1}


def test_numbers_as_keys_are_the_same_as_their_text(store, flow, tmp_path):
    flow.state["completed"]["7"] = "seven"
    flow.state["steps"].append({"key": 7, "status": "done", "durationMs": 1, "completedAt": flow.now()})
    flow.log("start", {"status": "start", "key": 7})
    flow.log("done", {"status": "done", "key": 7, "durationMs": 1, "result": "seven", "meta": {}})
    flow.save()
    flow.flush()
    take(store, flow.folder)
    assert results_of(store) == {"7": "seven"}
    (written,) = export_runs(store, ["job"], format="flowcast", out=tmp_path / "out").rows
    for name in ("state.json", "run.log.jsonl"):
        assert (Path(written.target) / name).read_bytes() == (flow.folder / name).read_bytes()


def test_unknown_fields_go_back_to_where_they_were(store, flow, tmp_path):
    flow.state = {
        "zeta": [1.5],
        **flow.state,
        "parentRunId": "mother",
        "x": {"$type": "int", "value": "7"},
        "é": "\ud83d",
    }
    flow.step("a", 1, {"extra": {"deep": None}})
    flow.flush()
    take(store, flow.folder)
    with store.dump_run("job") as dump:
        kept = store.codec.decode_tagged(dump.run["meta"])["flowcast"]["fields"]
        assert dump.run["parent_run_id"] == "mother"
    assert kept == {"zeta": [1.5], "x": {"$type": "int", "value": "7"}, "é": "\ud83d"}
    (written,) = export_runs(store, ["job"], format="flowcast", out=tmp_path / "out").rows
    assert (Path(written.target) / "state.json").read_bytes() == (flow.folder / "state.json").read_bytes()


def test_integers_that_javascript_rounds_are_kept_and_told_when_they_go_back(store, flow, tmp_path):
    text = (flow.folder / "state.json").read_text(encoding="utf-8")
    numbers = '{"big": 9007199254740993, "round": 100000000000000000000, "one": 1.0, "huge": 1e999}'
    (flow.folder / "state.json").write_text(
        text.replace('"completed": {}', f'"completed": {{"n": {numbers}}}'), encoding="utf-8"
    )
    take(store, flow.folder)
    assert results_of(store)["n"] == {"big": 2**53 + 1, "round": 10**20, "one": 1.0, "huge": float("inf")}
    (written,) = export_runs(store, ["job"], format="flowcast", out=tmp_path / "out").rows
    assert written.bent_count == 2
    state = (Path(written.target) / "state.json").read_text(encoding="utf-8")
    for line in ('"big": "9007199254740993"', '"round": 100000000000000000000', '"one": 1', '"huge": null'):
        assert line in state


# Made to do harm


@pytest.mark.parametrize(
    "name", ["../../secret", "/etc/passwd", "..\\..\\secret", "a/../../secret", "", "x\0y", "C:secret", "n" * 5000]
)
def test_a_marker_never_leads_out_of_the_folder(store, flow, tmp_path, name):
    (tmp_path / "secret.out").write_text("string\nsecret", encoding="utf-8")
    (tmp_path / "runs" / "secret.out").write_text("string\nsecret", encoding="utf-8")
    (flow.folder / "steps").mkdir()
    flow.state["completed"]["k"] = MARKER + name
    flow.save()
    row = take(store, flow.folder)
    assert row.action == "imported"
    assert "runs again" in notes(row)
    assert results_of(store) == {}


@pytest.mark.parametrize("link", ["file", "folder", "pipe", "directory"])
def test_nothing_but_a_file_of_the_folder_is_a_side_file(store, flow, tmp_path, link):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    name = side_name("k")
    (elsewhere / f"{name}.out").write_text("string\nsecret", encoding="utf-8")
    flow.state["completed"]["k"] = MARKER + name
    flow.save()
    steps = flow.folder / "steps"
    if link == "folder":
        steps.symlink_to(elsewhere)
    else:
        steps.mkdir()
        path = steps / f"{name}.out"
        {
            "file": lambda: path.symlink_to(elsewhere / path.name),
            "pipe": lambda: os.mkfifo(path),
            "directory": path.mkdir,
        }[link]()
    assert take(store, flow.folder).action == "imported"
    assert results_of(store) == {}


@pytest.mark.parametrize("name", ["state.json", "run.log.jsonl"])
def test_links_in_place_of_the_run_s_own_files_are_not_followed(store, flow, tmp_path, name):
    flow.step("a", 1, {})
    flow.flush()
    (flow.folder / name).rename(tmp_path / "real")
    (flow.folder / name).symlink_to(tmp_path / "real")
    row = take(store, flow.folder)
    assert row.action == "refused"
    assert "symbolic link" in row.reason


def test_values_that_cannot_be_stored_refuse_the_run_and_leave_nothing(store, flow):
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    flow.state["completed"] = {"fine": 1}
    text = js_json(flow.state, 0)
    (flow.folder / "state.json").write_text(
        text.replace('"fine":1', f'"fine":1,"deep":{"[" * 300}{"]" * 300}'), encoding="utf-8"
    )
    row = take(store, flow.folder)
    assert row.action == "refused"
    assert "deep" in row.reason
    assert not list(store.list_runs())


def test_a_folder_whose_name_cannot_be_a_run_id_is_refused(store, flow):
    odd = flow.folder.with_name(os.fsdecode(b"job-\xff"))
    flow.folder.rename(odd)
    row = take(store, odd)
    assert row.action == "refused"


def test_paths_that_hold_nothing_are_refused_with_a_reason(store, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello", encoding="utf-8")
    rows = import_paths(store, [tmp_path / "empty", tmp_path / "gone", tmp_path / "notes.txt"]).rows
    assert [row.action for row in rows] == ["refused"] * 3
    for row, advice in zip(rows, ("what agent-resume export wrote", "check the path", "export it again"), strict=True):
        assert advice in row.reason.partition("; ")[2]
