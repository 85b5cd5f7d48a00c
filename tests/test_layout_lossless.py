"""Our own form: out, wiped, in, and everything is as it was."""

from __future__ import annotations

import datetime as dt
import io
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agent_resume import Checkpoint, RunNotFound, Store
from agent_resume.layouts import export_runs, import_paths

FORMATS = ["json", "jsonl"]
# Each test has functions of its own for the steps that another one stored.
pytestmark = pytest.mark.filterwarnings("ignore::agent_resume.StepCodeChangedWarning")


@pytest.fixture
def store(db: str) -> Any:
    with Store(db) as opened:
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Any:
    with Store(tmp_path / "other.db") as opened:
        yield opened


def fill(store: Store, run_id: str = "job") -> None:
    """A run with something of everything."""
    with Checkpoint(run_id, db=store) as run:
        run.step("plain", lambda: {"a": [1, 2.5, None, "é\u2028😀"], "b": {}})
        run.step(
            "odd",
            lambda: {1: (2, {3}), "n": float("nan"), "big": 2**70, "d": Decimal("1.10")},
            meta={"cli": "x", "inputTokens": 5},
        )
        run.step("lone", lambda: "ok \udc81")
        run.step("nul", lambda: "a\0b")
        run.step("none", lambda: None)
        with pytest.raises(ValueError, match="boom"):
            run.step("fails", lambda: (_ for _ in ()).throw(ValueError("boom")))
        run.record("noted", dt.datetime(2026, 1, 2, tzinfo=dt.UTC), {"why": "1 < 2"})
        run.event("gate", {"name": "lint", "status": "pass"})
        run.set_loop_state(verdict=None, turns=3)
        run.set_expect_max_ms(90_000)
    store.answer(run_id, "early", {"yes": [1]})
    with Checkpoint(run_id, db=store) as run:
        run.step("plain", lambda: pytest.fail("ran again"))
        run.step("fails", lambda: "now it works")
        with pytest.raises(BaseException, match="waits for an answer"):
            run.pause("why?", {"ticket": (1, 2)})


def content(store: Store, run_id: str) -> list[Any]:
    with store.dump_run(run_id) as dump:
        return [dump.run, list(dump.steps), list(dump.events), list(dump.pauses)]


def save(store: Store, run_ids: list[str], form: str, path: Path) -> Path:
    summary = export_runs(store, run_ids, format=form, out=path)
    assert not summary.refused
    return path


def load(store: Store, path: Path, **options: Any) -> list[tuple[str | None, str]]:
    return [(row.run_id, row.action) for row in import_paths(store, [path], **options).rows]


@pytest.mark.parametrize("form", FORMATS)
def test_an_import_of_an_export_is_the_same_run_in_every_row(store, other, tmp_path, form):
    fill(store)
    path = save(store, ["job"], form, tmp_path / f"e.{form}")
    assert load(other, path) == [("job", "imported")]
    assert content(other, "job") == content(store, "job")
    again = save(other, ["job"], form, tmp_path / f"again.{form}")
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("form", FORMATS)
def test_an_imported_run_behaves_as_at_its_origin(store, other, tmp_path, form):
    fill(store)
    load(other, save(store, ["job"], form, tmp_path / f"e.{form}"))
    other.answer("job", "why?", "because")
    with Checkpoint("job", db=other) as run:
        odd = run.step("odd", lambda: pytest.fail("ran again"))
        assert odd[1] == (2, {3})
        assert odd["n"] != odd["n"]
        assert odd["big"] == 2**70
        assert odd["d"] == Decimal("1.10")
        assert run.step("lone", lambda: pytest.fail("ran again")) == "ok \udc81"
        assert run.step("nul", lambda: pytest.fail("ran again")) == "a\0b"
        assert run.step("none", lambda: pytest.fail("ran again")) is None
        assert run.pause("why?") == "because"


def test_case_035_the_written_file_is_strict_json_and_comes_back_as_it_was(store, other, tmp_path):
    with Checkpoint("job", db=store) as run:
        run.step("a", lambda: {"loss": float("nan"), "max": float("inf"), "min": -float("inf")})
    path = save(store, ["job"], "json", tmp_path / "e.json")

    def refuse(word: str) -> Any:
        raise AssertionError(word)

    json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    load(other, path)
    with Checkpoint("job", db=other) as run:
        value = run.step("a", lambda: pytest.fail("ran again"))
    assert value["loss"] != value["loss"]
    assert (value["max"], value["min"]) == (float("inf"), -float("inf"))


@pytest.mark.parametrize("form", FORMATS)
def test_case_090_importing_ones_own_export_changes_nothing_and_a_changed_one_is_a_conflict(store, tmp_path, form):
    fill(store)
    fill(store, "twin")
    path = save(store, ["job", "twin"], form, tmp_path / f"e.{form}")
    before = content(store, "job")
    assert load(store, path) == [("job", "identical"), ("twin", "identical")]
    path.write_text(path.read_text(encoding="utf-8").replace("now it works", "now it does not", 1), encoding="utf-8")
    summary = import_paths(store, [path])
    assert [(row.run_id, row.action) for row in summary.rows] == [("job", "refused"), ("twin", "identical")]
    assert summary.refused[0].reason
    assert content(store, "job") == before
    assert load(store, path, on_conflict="skip") == [("job", "skipped"), ("twin", "identical")]
    assert load(store, path, on_conflict="replace", dry_run=True)[0] == ("job", "replaced")
    assert content(store, "job") == before
    renamed = load(store, path, on_conflict="rename")[0]
    assert renamed[1] == "renamed"
    assert content(store, "job") == before
    assert load(store, path, on_conflict="replace")[0] == ("job", "replaced")
    assert content(store, "job")[1] != before[1]


@pytest.mark.parametrize("form", FORMATS)
def test_case_091_numbers_go_on_after_the_highest_ever_used(store, other, tmp_path, form):
    with Checkpoint("job", db=store) as run:
        run.step("a", lambda: 1)
        for _ in range(5):
            run.event("gate", {"name": "x", "status": "pass"})
    path = save(store, ["job"], form, tmp_path / f"e.{form}")
    highest = max(event["seq"] for event in content(store, "job")[2])
    # The last event is deleted at the origin: its number must not be given again.
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    last = max(at for at, line in enumerate(lines) if f'"seq":{highest},' in line and '"gate"' in line)
    del lines[last]
    text = "".join(lines).replace('"events":8', '"events":7')
    text = re.sub(r",\n\]", "\n]", text)
    path.write_text(text, encoding="utf-8")
    assert load(other, path) == [("job", "imported")]
    assert save(other, ["job"], form, tmp_path / "second").read_text(encoding="utf-8") == text
    with Checkpoint("job", db=other) as run:
        assert run.step("a", lambda: pytest.fail("ran again")) == 1
        run.event("gate", {"name": "new", "status": "pass"})
    numbers = [event["seq"] for event in content(other, "job")[2]]
    assert min(number for number in numbers if number >= highest) == highest + 1
    assert len(set(numbers)) == len(numbers)


def test_a_document_without_runs_is_still_one(store, other, tmp_path):
    path = save(store, [], "json", tmp_path / "e.json")
    assert json.loads(path.read_text(encoding="utf-8")) == {"version": 1, "runs": []}


@pytest.mark.parametrize("form", FORMATS)
def test_a_missing_run_leaves_no_file_behind(store, tmp_path, form):
    fill(store)
    with pytest.raises(RunNotFound):
        export_runs(store, ["job", "gone"], format=form, out=tmp_path / "out" / "e")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("form", FORMATS)
def test_a_stream_of_a_small_code_page_gets_ascii_of_the_same_content(store, other, tmp_path, form):
    fill(store)
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="cp1252", newline="\n")
    export_runs(store, ["job"], format=form, out=stream)
    stream.flush()
    path = tmp_path / f"e.{form}"
    path.write_bytes(raw.getvalue())
    assert raw.getvalue().isascii()
    assert load(other, path) == [("job", "imported")]
    assert content(other, "job") == content(store, "job")


def test_json_that_is_written_otherwise_is_kept_letter_by_letter(store, other, tmp_path):
    with Checkpoint("job", db=store) as run:
        run.step("a", lambda: 1)
    with store.dump_run("job") as dump:
        run_row, steps, events, pauses = dump.run, list(dump.steps), list(dump.events), list(dump.pauses)
    from agent_resume.models import RunDump

    steps[0] |= {"output": '{ "a": 1.50,\n "b": 1E2 }', "output_bytes": 24}
    other.import_run(RunDump(run_row, iter(steps), iter(events), iter(pauses)))
    for form in FORMATS:
        path = save(other, ["job"], form, tmp_path / f"e.{form}")
        assert load(other, path) == [("job", "identical")]


# Files that are not what they seem


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("exported")
    with Store(folder / "runs.db") as store:
        fill(store)
        return {form: save(store, ["job"], form, folder / form).read_text(encoding="utf-8") for form in FORMATS}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of an export of two runs."""
    folder = tmp_path_factory.mktemp("lines")
    with Store(folder / "runs.db") as store:
        fill(store, "one")
        fill(store, "two")
        text = save(store, ["one", "two"], "jsonl", folder / "e.jsonl").read_text(encoding="utf-8")
    return [f"{line}\n" for line in text.split("\n")[:-1]]


def test_a_file_cut_after_any_line_gives_whole_runs_only(lines, tmp_path):
    first = next(at for at, line in enumerate(lines) if '"end"' in line) + 1
    cut = tmp_path / "cut.jsonl"
    with Store(tmp_path / "cut.db", durability="relaxed") as other:
        for length in range(1, len(lines)):
            cut.write_text("".join(lines[:length]), encoding="utf-8")
            rows = import_paths(other, [cut]).rows
            stored = sorted(run.id for run in other.list_runs()) if other.exists() else []
            assert stored == (["one"] if length >= first else []), length
            if length not in (1, first):
                assert rows[-1].action == "refused"
                assert rows[-1].reason


def test_a_damaged_run_is_refused_and_the_next_one_is_taken(lines, other, tmp_path):
    at = next(at for at, line in enumerate(lines) if '"step"' in line)
    path = tmp_path / "damaged.jsonl"
    for damage in ("{half\n", '{"step":5}\n', '{"step":{"key":"x"}}\n', "[]\n", "{}\n", '{"odd":1}\n', ""):
        path.write_text("".join([*lines[:at], damage, *lines[at + 1 :]]), encoding="utf-8")
        rows = import_paths(other, [path], on_conflict="skip").rows
        assert [row.run_id for row in rows] == ["one", "two"], damage
        assert rows[0].action == "refused", damage
        assert rows[1].action in ("imported", "identical"), damage
        assert [run.id for run in other.list_runs()] == ["two"]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("run", {"id": ""}), ("run", {"id": "a\0b"}), ("run", {"id": "\ud800"}), ("run", {"id": 5}), ("run", {"name": None}),
        ("run", {"status": "lost"}), ("run", {"created_at": "yesterday"}), ("run", {"created_at": "0001-01-01T00:00+14:00"}), ("run", {"last_seq": 2**70}),
        ("run", {"last_seq": True}), ("run", {"owner_token": "x"}), ("run", {"seq": 1}), ("run", {"later": 1}),
        ("run", {"meta_text": "{"}), ("run", {"meta_text": 5}), ("step", {"status": "lost"}), ("step", {"key": "a\0"}),
        ("step", {"effect": "twice"}), ("step", {"id": 7}), ("event", {"type": "a\0"}), ("event", {"seq": "1"}),
        ("event", {"ts": "soon"}), ("pause", {"kind": "x"}), ("pause", {"name": ""}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", FORMATS)
def test_rows_that_no_store_could_hold_are_refused(exported, other, tmp_path, form, kind, change):
    text, path = exported[form], tmp_path / f"e.{form}"
    if form == "json":
        document = json.loads(text)
        row = document["runs"][0] if kind == "run" else document["runs"][0][f"{kind}s"][0]
        row |= change
        path.write_text(json.dumps(document), encoding="utf-8")
    else:
        # Never splitlines(): it cuts at U+2028, which JSON leaves as it is.
        documents = [json.loads(line) for line in text.split("\n")[:-1]]
        next(document for document in documents if kind in document)[kind] |= change
        path.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
    (row,) = import_paths(other, [path]).rows
    assert row.action == "refused"
    assert row.reason
    assert not other.exists() or not list(other.list_runs())


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("2026-11-30T22:00:00+02:00", "2026-11-30T20:00:00.000Z"), ("2026-11-30T22:00:00", "2026-11-30T22:00:00.000Z"),
        ("2026-W49-1", "2026-11-30T00:00:00.000Z"), ("20261130T220000Z", "2026-11-30T22:00:00.000Z"),
        ("0999-05-05T00:00:00.0004Z", "0999-05-05T00:00:00.000Z"),
    ],
)  # fmt: skip
def test_a_time_that_is_written_otherwise_is_stored_as_times_are(exported, other, tmp_path, written, stored):
    document = json.loads(exported["json"])
    run = document["runs"][0]
    run["created_at"] = run["steps"][0]["started_at"] = run["events"][0]["ts"] = run["pauses"][0]["asked_at"] = written
    (tmp_path / "e.json").write_text(json.dumps(document), encoding="utf-8")
    ((run_id, action),) = load(other, tmp_path / "e.json")
    assert action == "imported"
    run, steps, events, pauses = content(other, run_id)
    assert [run["created_at"], steps[0]["started_at"], events[0]["ts"]] == [stored] * 3
    assert stored in [pause["asked_at"] for pause in pauses]


def _double(document: dict[str, Any], part: str) -> None:
    rows = document["runs"][0][part]
    rows.append(rows[0])


def _change(part: str | None, at: int, **values: Any) -> Any:
    def change(document: dict[str, Any]) -> None:
        run = document["runs"][0]
        row = run if part is None else run[part][at]
        row.update(values)
        for name in [name for name, value in row.items() if value is None]:
            del row[name]

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda document: _double(document, "steps"), lambda document: _double(document, "events"),
        lambda document: _double(document, "pauses"), lambda document: document["runs"][0]["events"].reverse(),
        _change(None, 0, last_seq=2), _change(None, 0, last_seq=2**63 - 1), _change(None, 0, last_seq=-5),
        _change(None, 0, epoch=2**63 - 1), _change(None, 0, epoch=-1), _change("steps", 0, attempts=2**63 - 1),
        _change("steps", 0, attempts=-3), _change("steps", 0, seq=0), _change("steps", 0, seq=10_000),
        _change("events", -1, seq=10_000), _change("events", -1, attempt=-1),
        _change("steps", 0, output=None), _change("steps", 0, output_format=None),
        _change("steps", 0, output_format="pickle"), _change(None, 0, result=1, result_format="zz"),
        _change(None, 0, result=1), _change(None, 0, error="x"), _change(None, 0, meta=[]), _change(None, 0, command="x"),
        _change("steps", 0, error="x"), _change("steps", 0, error=[1]), _change("steps", 0, meta="x"),
    ],
)  # fmt: skip
def test_a_run_whose_rows_contradict_each_other_is_refused_and_the_next_one_is_taken(exported, other, tmp_path, change):
    document = json.loads(exported["json"])
    document["runs"] += [json.loads(exported["json"])["runs"][0] | {"id": "sound"}]
    change(document)
    path = tmp_path / "e.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    refused, taken = import_paths(other, [path]).rows
    assert (refused.run_id, refused.action, taken.run_id, taken.action) == ("job", "refused", "sound", "imported")
    assert "runs[0]" in refused.reason
    assert [run.id for run in other.list_runs()] == ["sound"]


def test_a_file_cut_between_two_runs_says_so(lines, other, tmp_path):
    path = tmp_path / "cut.jsonl"
    first = next(at for at, line in enumerate(lines) if '"end"' in line) + 1
    path.write_text("".join(lines[:first]), encoding="utf-8")
    taken, missing = import_paths(other, [path]).rows
    assert (taken.run_id, taken.action, missing.action) == ("one", "imported", "refused")
    assert "1 of its 2 runs" in missing.reason
    path.write_text("".join(lines + lines), encoding="utf-8")
    assert [row.action for row in import_paths(other, [path]).rows] == [
        "identical",
        "imported",
        "identical",
        "identical",
    ]


def test_a_file_of_an_older_version_that_does_not_count_its_runs_is_read(lines, other, tmp_path):
    path = tmp_path / "old.jsonl"
    path.write_text('{"agentResume":"export","version":1}\n' + "".join(lines[1:]), encoding="utf-8")
    assert load(other, path) == [("one", "imported"), ("two", "imported")]


@pytest.mark.parametrize("form", FORMATS)
def test_an_export_of_no_runs_comes_in_as_none(store, other, tmp_path, form):
    assert load(other, save(store, [], form, tmp_path / f"e.{form}")) == []


@pytest.mark.parametrize("form", FORMATS)
def test_a_byte_order_mark_is_no_hindrance(store, other, tmp_path, form):
    fill(store)
    path = save(store, ["job"], form, tmp_path / f"e.{form}")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load(other, path) == [("job", "imported")]


@pytest.mark.parametrize("form", FORMATS)
def test_an_event_without_a_name_of_flowcasts_comes_back(exported, other, tmp_path, form):
    text = exported[form]
    path = tmp_path / f"e.{form}"
    assert '"type":"gate"' in text
    path.write_text(text.replace('"type":"gate"', '"type":""'), encoding="utf-8")
    assert load(other, path) == [("job", "imported")]


@pytest.mark.parametrize("form", FORMATS)
def test_a_dry_run_creates_no_store_and_still_reads_to_the_end(exported, tmp_path, form):
    path, db = tmp_path / f"e.{form}", tmp_path / "new" / "runs.db"
    path.write_text(exported[form], encoding="utf-8")
    with Store(db) as missing:
        assert load(missing, path, dry_run=True) == [("job", "imported")]
        path.write_text(exported[form].replace('"kind":"pause"', '"kind":"x"'), encoding="utf-8")
        assert load(missing, path, dry_run=True) == [("job", "refused")]
    assert not db.parent.exists()


def test_renaming_stores_the_same_run_once(exported, store, tmp_path):
    fill(store)
    path = tmp_path / "e.json"
    path.write_text(exported["json"], encoding="utf-8")
    actions = [load(store, path, on_conflict="rename") for _ in range(2)]
    assert actions == [[("job~2", "renamed")], [("job~2", "identical")]]
    path.write_text(exported["json"].replace('"noted"', '"otherwise"'), encoding="utf-8")
    assert load(store, path, on_conflict="rename") == [("job~3", "renamed")]


def test_a_run_is_not_replaced_while_a_step_of_it_is_executed(exported, store, tmp_path):
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        assert go_on.wait(30)
        return "kept"

    path = tmp_path / "e.json"
    path.write_text(exported["json"], encoding="utf-8")
    with ThreadPoolExecutor() as pool, Checkpoint("job", db=store) as run:
        result = pool.submit(run.step, "slow", slow)
        assert begun.wait(30)
        (row,) = import_paths(store, [path], on_conflict="replace").rows
        go_on.set()
        assert (row.action, result.result()) == ("refused", "kept")
        assert "is being executed" in row.reason
    assert load(store, path, on_conflict="replace") == [("job", "replaced")]


@pytest.mark.parametrize(
    "text",
    [
        '{"version": 2, "runs": []}', '{"version": "1", "runs": []}', '{"runs": []}', '{"version": 1, "runs": {}}',
        '{"agentResume":"export","version":2}\n', '{"agentResume":"export"}\n', '{"version": 1, "runs": [5]}',
        '{"version": 1, "runs": [{"id": "x"}]}', "{}", "[]", "5", "", "not json", '{"version": 1, "runs": [',
    ],
)  # fmt: skip
def test_files_of_other_versions_and_other_things_are_refused(other, tmp_path, text):
    path = tmp_path / "e.json"
    path.write_text(text, encoding="utf-8")
    (row,) = import_paths(other, [path]).rows
    assert row.action == "refused"
    assert row.reason


def test_a_file_that_a_shell_wrote_as_utf_16_is_read(store, other, tmp_path):
    fill(store)
    path = save(store, ["job"], "json", tmp_path / "e.json")
    path.write_text(path.read_text(encoding="utf-8"), encoding="utf-16")
    assert load(other, path) == [("job", "imported")]


def test_progress_is_told_for_long_work(store, other, tmp_path):
    with Checkpoint("job", db=store) as run:
        for number in range(700):
            run.event("gate", {"name": str(number), "status": "pass"})
        for number in range(400):
            run.record(f"k{number}", number)
    told: list[tuple[str, int, int]] = []
    export_runs(store, ["job"], format="jsonl", out=tmp_path / "e.jsonl", progress=lambda *it: told.append(it))
    assert [(label, done) for label, done, _ in told] == [("job", 1000)]
    assert all(total >= done for _, done, total in told)


def test_a_damaged_place_is_named_with_what_to_do(store, tmp_path):
    fill(store)
    path = save(store, ["job"], "json", tmp_path / "e.json")
    path.write_text(path.read_text(encoding="utf-8").replace('"completed"', '"odd"', 1), encoding="utf-8")
    (row,) = import_paths(store, [path]).rows
    assert re.search("status: 'odd' is none of .*; export it again", row.reason)
    (row,) = import_paths(store, [path], format="badgr").rows
    assert row.reason == "not a badgr file; --format auto finds out what it is"
