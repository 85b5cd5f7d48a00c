"""Names and files of exports: safe everywhere, one for each run, whole or not there; and badgr's layout both ways."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import sqlite3
import stat
import subprocess
import sys
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import flowcast_conformance as conformance
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_resume import Checkpoint, Store, agent_run, cancel
from agent_resume.layouts import export_runs, files, import_paths
from agent_resume.layouts.filenames import Names, could_be, held_in, safe_name
from agent_resume.layouts.outcomes import Refused

HOSTILE = (
    "../../x", "a/b", "C:\\x", "con", "CON.txt", "x" * 300, "-rf", "a\nb", "..", ".", ".hidden", "a.", "a ", " a", "A", "a",
    "nul.tar.gz", "com1", "LPT9", "日本", "é", "e\u0301", "a_b", "a b", "a:b", "a*b", "\u202eevil", "~", "$HOME", "a\tb", "0",
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store(tmp_path / "runs.db", durability="relaxed") as opened:
        yield opened


def snapshot(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


# Names


@given(st.lists(st.one_of(st.text(max_size=20), st.sampled_from(HOSTILE)), max_size=12, unique=True))
def test_names_are_safe_and_no_two_ids_share_one(ids):
    names = Names()
    given_ = {text: names.pick(text) for text in ids}
    assert len({name.lower() for name in given_.values()}) == len(ids)
    for text, name in given_.items():
        assert names.pick(text) == name
        assert could_be(name, text)
        assert conformance.RUN_ID.fullmatch(name)
        assert len(name) <= 140
        assert name.split(".")[0].lower() not in ("con", "prn", "aux", "nul", "com1", "lpt9", "conin$")


def test_an_id_that_is_safe_keeps_its_name():
    for text in ("support-agent-1769850487006", "a", "a..b", "release.review-2", "X_1", "console", "com10"):
        assert safe_name(text) == text


def test_case_064_no_id_leads_out_of_the_folder(store, tmp_path):
    out = tmp_path / "deep" / "down" / "out"
    ids = []
    for name in HOSTILE:
        agent_run(name, lambda run: run.step("s", lambda: 1), run_id=f"id {name}", db=store)
        Checkpoint(name, db=store).step("s", lambda: 2)
        ids += [f"id {name}", name]
    before = snapshot(tmp_path / "deep") if (tmp_path / "deep").exists() else {}
    badgr = export_runs(store, ids, format="badgr", out=out / "badgr")
    flowcast = export_runs(store, ids, format="flowcast", out=out / "flowcast")
    assert not badgr.refused
    assert not flowcast.refused
    assert before == {}
    made = list((out / "badgr").iterdir())
    assert len(made) == len(ids)
    assert sorted(json.loads(path.read_text(encoding="utf-8"))["id"] for path in made) == sorted(ids)
    folders = list((out / "flowcast").iterdir())
    assert len(folders) == len(ids)
    true_ids = []
    for folder in folders:
        state = conformance.read(folder).state
        true_ids.append(state.get("agentResume", {}).get("id", state["runId"]))
    assert sorted(true_ids) == sorted(ids)
    assert {path.name for path in (tmp_path / "deep" / "down").iterdir()} == {"out"}
    assert {path.name for path in out.iterdir()} == {"badgr", "flowcast"}
    for row in flowcast.rows:
        assert (Path(row.target).name == row.run_id) == (not any(bend.path == "run.id" for bend in row.bent))
    with Store(tmp_path / "other.db", durability="relaxed") as other:
        rows = import_paths(other, [out / "flowcast"]).rows
        assert sorted(row.run_id or "" for row in rows) == sorted(ids)
        assert {row.action for row in rows} == {"imported"}


# Whole or not there


def test_files_and_folders_are_for_their_owner_only(store, tmp_path):
    with Checkpoint("job", db=store) as run:
        run.step("big", lambda: "x" * 1000)
        run.done()
    old = os.umask(0)
    try:
        export_runs(store, ["job"], format="flowcast", out=tmp_path / "new" / "flowcast")
        export_runs(store, ["job"], format="badgr", out=tmp_path / "new" / "badgr")
        export_runs(store, ["job"], format="json", out=tmp_path / "new" / "e.json")
    finally:
        os.umask(old)
    for path in (tmp_path / "new", *(tmp_path / "new").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_folder_that_is_there_is_never_written_over_unasked(store, tmp_path):
    with Checkpoint("job", db=store) as run:
        run.step("a", lambda: 1)
    out = tmp_path / "out"
    for form, name in (("flowcast", "job/state.json"), ("badgr", None)):
        (first,) = export_runs(store, ["job"], format=form, out=out).rows
        assert first.action == "exported"
        (again,) = export_runs(store, ["job"], format=form, out=out).rows
        assert again.action == "unchanged"
        path = out / name if name else Path(first.target)
        path.write_text(
            path.read_text(encoding="utf-8").replace(": 1", ": 2").replace(":1,", ":2,") + " ",
            encoding="utf-8",
        )
        before = snapshot(out)
        (refused,) = export_runs(store, ["job"], format=form, out=out).rows
        assert refused.action == "refused"
        assert "perhaps a newer one" in refused.reason
        assert snapshot(out) == before
        (replaced,) = export_runs(store, ["job"], format=form, out=out, replace=True).rows
        assert replaced.action == "replaced"
        assert export_runs(store, ["job"], format=form, out=out).rows[0].action == "unchanged"
        assert not [path for path in out.iterdir() if path.name.startswith(".")]


def test_what_others_put_into_a_runs_folder_stays_there_when_it_is_replaced(store, tmp_path):
    with Checkpoint("job", db=store) as run:
        run.step("a", lambda: 1)
    out = tmp_path / "out"
    export_runs(store, ["job"], format="flowcast", out=out)
    folder = out / "job"
    state = (folder / "state.json").read_text("utf-8")
    (folder / "state.json").write_text("{}", "utf-8")
    (folder / "notes").mkdir()
    for name in ("tasks.json", "notes/by hand.md"):
        (folder / name).write_text("not made by us", "utf-8")
    (folder / "link").symlink_to(tmp_path)
    (row,) = export_runs(store, ["job"], format="flowcast", out=out, replace=True).rows
    assert row.action == "replaced"
    assert (folder / "state.json").read_text("utf-8") == state
    assert [(folder / name).read_text("utf-8") for name in ("tasks.json", "notes/by hand.md")] == ["not made by us"] * 2
    assert (folder / "link").is_symlink()
    assert [path.name for path in out.iterdir()] == ["job"]


def test_no_export_takes_the_folder_of_another_run(store, tmp_path):
    ids = ("a/b", "a_b_c14cddc0", "Foo", "foo")
    for run_id in ids:
        agent_run("job", lambda run: run.step("a", lambda: 1), run_id=run_id, db=store)
    out = tmp_path / "out"
    first = [export_runs(store, [run_id], format="flowcast", out=out, replace=True).rows[0] for run_id in ids]
    assert [row.action for row in first] == ["exported"] * 4
    assert len({row.target.lower() for row in first}) == 4
    for order in (ids, ids[::-1]):
        again = {row.run_id: row for row in export_runs(store, order, format="flowcast", out=out).rows}
        assert [(again[row.run_id].target, again[row.run_id].action) for row in first] == [
            (row.target, "unchanged") for row in first
        ]
    assert len(list(out.iterdir())) == 4


def test_a_file_of_the_same_name_in_other_case_is_never_shared(tmp_path):
    (tmp_path / "Foo.json").write_text("{}", encoding="utf-8")
    names = Names(held_in(tmp_path, ".json", lambda path: None))
    assert names.pick("Foo") == "Foo"
    assert Names(held_in(tmp_path, ".json", lambda path: None)).pick("foo") == "foo_2c26b46b"


def test_two_keys_of_one_side_file_name_get_two_files(store, tmp_path):
    keys = ("\u79bf\u57f0\u773a\u81fd", "\u4f9b\u7054\u95ab\u850e")
    with Checkpoint("job", db=store) as run:
        for key in keys:
            run.step(key, lambda key=key: key + "x" * 600)
    (row,) = export_runs(store, ["job"], format="flowcast", out=tmp_path / "out").rows
    assert row.action == "exported", row.reason
    with Store(tmp_path / "other.db") as other:
        assert import_paths(other, [row.target]).rows[0].action == "imported"
        assert [step.output for step in other.load_run("job").steps] == [key + "x" * 600 for key in keys]


def test_what_flowcast_has_no_place_for_is_named(store, tmp_path):
    with Checkpoint("job", db=store) as run:
        with pytest.raises(KeyboardInterrupt):
            run.step("paid?", lambda: (_ for _ in ()).throw(KeyboardInterrupt), effect="once")
        store.answer("job", "limit?", 5)
        assert run.pause("limit?") == 5
        with pytest.raises(BaseException, match="waits for an answer"):
            run.pause("sure?")
    (row,) = export_runs(store, ["job"], format="flowcast", out=tmp_path / "out").rows
    assert [bend.path for bend in row.bent] == ["steps['paid?'].status", "pauses['limit?'].value"]


def test_a_folder_is_never_seen_half_written(tmp_path):
    target = tmp_path / "run"
    with pytest.raises(ZeroDivisionError), files.NewFolder(target) as new:
        with files.new_file(new.path / "state.json") as file:
            file.write(b"{")
        assert not target.exists()
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with files.NewFolder(target) as new:
        files.new_file(new.path / "state.json").close()
    assert list(tmp_path.iterdir()) == []  # not committed


def test_a_process_killed_while_it_exports_leaves_no_folder_of_the_runs_name(tmp_path, spawn_agent, store):
    with Checkpoint("job", db=store) as run:
        run.step("a", lambda: 1)
    code = (
        "import sys, time\n"
        "from agent_resume import Store\n"
        "from agent_resume.layouts import export_runs, flowcast_export\n"
        "def stop(*given, **named):\n"
        "    print('writing', flush=True)\n"
        "    time.sleep(60)\n"
        "flowcast_export._set_times = stop\n"
        "with Store(sys.argv[1]) as store:\n"
        "    export_runs(store, ['job'], format='flowcast', out=sys.argv[2])\n"
    )
    spawn_agent(code, tmp_path / "runs.db", tmp_path / "out", marker="writing").kill()
    assert not (tmp_path / "out" / "job").exists()
    assert all(path.name.startswith(".") for path in (tmp_path / "out").iterdir())
    assert export_runs(store, ["job"], format="flowcast", out=tmp_path / "out").rows[0].action == "exported"
    with Store(tmp_path / "other.db") as other:
        assert [row.run_id for row in import_paths(other, [tmp_path / "out"]).rows] == ["job"]


def test_a_failed_export_leaves_the_old_file(tmp_path):
    path = tmp_path / "e.json"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(ZeroDivisionError), files.NewFile(path) as new:
        new.file.write(b"half")
        raise ZeroDivisionError
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_device_is_written_to_and_a_link_is_followed(store, tmp_path):
    Checkpoint("job", db=store).step("a", lambda: 1)
    assert export_runs(store, ["job"], format="json", out="/dev/null").rows[0].action == "exported"
    real = tmp_path / "real.json"
    real.write_text("", encoding="utf-8")
    (tmp_path / "link.json").symlink_to(real)
    export_runs(store, ["job"], format="json", out=tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads(real.read_text(encoding="utf-8"))["version"] == 1


@pytest.mark.parametrize("form", ["json", "jsonl"])
@pytest.mark.parametrize(
    "name", ["runs.db", "runs.db-wal", "runs.db-shm", "link.db", "hard.db", "other.db", "other.db-wal"]
)
def test_no_export_is_written_over_the_store_or_any_other_database(store, tmp_path, form, name):
    Checkpoint("job", db=store).step("a", lambda: 1)
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE mine (a)")
    (tmp_path / "link.db").symlink_to(tmp_path / "runs.db")
    os.link(tmp_path / "runs.db", tmp_path / "hard.db")
    # Not read: the store is open here.
    before = [(path.name, path.stat().st_ino, path.stat().st_size) for path in sorted(tmp_path.iterdir())]
    for ids in (["job"], []):
        with pytest.raises(FileExistsError, match="belongs to a SQLite database"):
            export_runs(store, ids, format=form, out=tmp_path / name, replace=True)
    assert before == [(path.name, path.stat().st_ino, path.stat().st_size) for path in sorted(tmp_path.iterdir())]
    assert store.load_run("job").steps[0].output == 1


@pytest.mark.parametrize("form", ["flowcast", "badgr"])
def test_no_export_of_another_layout_takes_the_place_of_a_database(tmp_path, form):
    out = tmp_path / "out"
    with Store(tmp_path / "plain.db") as plain:
        Checkpoint("job", db=plain).step("a", lambda: 1)
        (first,) = export_runs(plain, ["job"], format=form, out=out).rows
        target = Path(first.target)
        inside = target if form == "badgr" else target / "runs.db"
        inside.unlink(missing_ok=True)
        if form == "flowcast":
            (target / "state.json").write_text("{}", encoding="utf-8")
        with Store(inside) as store:
            Checkpoint("precious", db=store).step("a", lambda: 2)
            (row,) = export_runs(plain, ["job"], format=form, out=out, replace=True).rows
            assert row.target != first.target or (row.action, "database" in row.reason) == ("refused", True)
            assert store.load_run("precious").steps[0].output == 2
        with Store(inside) as store:
            assert store.load_run("precious").steps[0].output == 2


def test_a_file_that_is_no_export_gives_way_only_when_that_is_asked_for(store, tmp_path):
    Checkpoint("job", db=store).step("a", lambda: 1)
    path = tmp_path / "notes"
    path.write_text("notes", encoding="utf-8")
    with pytest.raises(FileExistsError, match="no export"):
        export_runs(store, ["job"], format="json", out=path)
    assert path.read_text(encoding="utf-8") == "notes"
    export_runs(store, ["job"], format="json", out=path, replace=True)
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")), indent=4), encoding="utf-8")
    assert export_runs(store, ["job"], format="jsonl", out=path).rows[0].action == "replaced"
    assert export_runs(store, ["job"], format="json", out=path).rows[0].action == "replaced"


def test_a_store_among_the_files_of_a_folder_is_not_opened_as_one_of_them(tmp_path):
    with Store(tmp_path / "in" / "runs.json") as store:
        Checkpoint("job", db=store).step("a", lambda: 1)
        (row,) = import_paths(store, [tmp_path / "in"]).rows
        assert (row.action, "in use here" in row.reason) == ("refused", True)


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="a system without /dev/stdout")
@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_an_export_to_dev_stdout_goes_where_stdout_goes(store, tmp_path, kind):
    Checkpoint("job", db=store).step("a", lambda: 1)
    command = [sys.executable, "-c", "from agent_resume.cli import main; main()"]
    command += ["export", "--all", "--out", "/dev/stdout", "--db", store.display]
    if kind == "pipe":
        written = subprocess.run(command, capture_output=True, check=True).stdout
    else:
        (tmp_path / "out.json").write_bytes(b"first\n")
        with (tmp_path / "out.json").open("ab") as file:
            subprocess.run(command, stdout=file, check=True)
        first, _, written = (tmp_path / "out.json").read_bytes().partition(b"\n")
        assert first == b"first"
    assert [run["id"] for run in json.loads(written)["runs"]] == ["job"]


def test_a_run_that_is_gone_stops_no_other(store, tmp_path):
    Checkpoint("job", db=store).step("a", lambda: 1)
    rows = export_runs(store, ["gone", "job"], format="flowcast", out=tmp_path / "out").rows
    assert [row.action for row in rows] == ["refused", "exported"]


def test_layouts_of_folders_refuse_a_stream(store):
    import io

    for form in ("flowcast", "badgr"):
        with pytest.raises(ValueError, match="folder"):
            export_runs(store, ["job"], format=form, out=io.StringIO())


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_regular_files_are_read(tmp_path, kind):
    path = tmp_path / "file"
    if kind == "link":
        path.symlink_to(tmp_path)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises((Refused, OSError)):
        files.open_regular(path)


def test_file_times_tell_the_dashboard_how_old_the_run_is(store, tmp_path):
    with Checkpoint("job", db=store) as run:
        run.step("a", lambda: 1)
    export_runs(store, ["job"], format="flowcast", out=tmp_path / "out")
    with store.dump_run("job") as dump:
        updated = dt.datetime.fromisoformat(dump.run["updated_at"])
    for name in ("state.json", "run.log.jsonl"):
        assert (tmp_path / "out" / "job" / name).stat().st_mtime_ns == round(updated.timestamp() * 1000) * 1_000_000


# What bends


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (float("nan"), None), (-0.0, 0), (float("-inf"), None), (2**53 + 1, "9007199254740993"), (2**70, str(2**70)),
        ((1, (2,)), [1, [2]]), ({1}, [1]), (frozenset({2}), [2]), (b"\xff", "/w=="), (bytearray(b"a"), "YQ=="),
        (dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), "2026-01-02T03:00:00+00:00"), (dt.date(2026, 1, 2), "2026-01-02"),
        (dt.timedelta(minutes=1, milliseconds=500), 60.5), (Decimal("1.10"), "1.10"), (1 + 2j, "(1+2j)"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"), (Path("/a/b"), "/a/b"),
        ({1: "x", "1": "y"}, [[1, "x"], ["1", "y"]]), ({None: 1, True: 2}, {"null": 1, "true": 2}),
    ],
)  # fmt: skip
def test_what_javascript_cannot_hold_is_flattened_and_told(store, tmp_path, value, written):
    with Checkpoint("job", db=store) as run:
        run.step("a", lambda: {"deep": [value]})
    (row,) = export_runs(store, ["job"], format="flowcast", out=tmp_path / "out").rows
    assert conformance.read(Path(row.target)).results == {"a": {"deep": [written]}}
    assert row.bent[0].path.startswith("steps['a'].output.deep[0]")
    assert export_runs(store, ["job"], format="badgr", out=tmp_path / "b").rows[0].bent_count == row.bent_count


@pytest.mark.parametrize(
    "value", [2**53, 10**20, 1.0, 1e300, "\ud83d", {"k\udc00": ["\ud800"]}, {"$type": "int", "value": "7"}, "\0"]
)
def test_what_javascript_holds_is_not_called_bent(store, tmp_path, value):
    with Checkpoint("job", db=store) as run:
        run.step("a", lambda: value)
    (row,) = export_runs(store, ["job"], format="flowcast", out=tmp_path / "out").rows
    assert row.bent_count == 0
    assert conformance.read(Path(row.target)).results == {"a": value}


def test_metadata_that_would_turn_a_result_into_text_gets_other_names(store, tmp_path):
    with Checkpoint("job", db=store) as run:
        run.step("object", lambda: {"x": 1}, meta={"cli": "claude", "outputTokens": 5, "inputTokens": 0})
        run.step("text", lambda: "x", meta={"cli": "claude"})
    (row,) = export_runs(store, ["job"], format="flowcast", out=tmp_path / "out").rows
    first, second = conformance.read(Path(row.target)).state["steps"]
    assert (first["cli_"], first["outputTokens"], first["inputTokens"]) == ("claude", 5, 0)
    assert second["cli"] == "claude"
    assert [bend.path for bend in row.bent] == ["steps['object'].meta.cli"]


def test_tags_that_nobody_can_read_are_written_as_they_are(store, tmp_path):
    Checkpoint("job", db=store).step("a", lambda: (1,))
    with store.dump_run("job") as dump:
        parts = dump.run, list(dump.steps), list(dump.events), list(dump.pauses)
    from agent_resume.models import RunDump

    odd = '{"$type":"int"}'
    parts[1][0] |= {"output": odd, "output_bytes": len(odd)}
    store.import_run(RunDump(parts[0], *map(iter, parts[1:])), on_conflict="replace")
    (row,) = export_runs(store, ["job"], format="flowcast", out=tmp_path / "out").rows
    assert conformance.read(Path(row.target)).results == {"a": json.loads(odd)}
    assert row.bent_count == 1


def test_whatever_somebody_wrote_into_our_member_of_meta_never_breaks_an_export(store, tmp_path):
    Checkpoint("job", db=store).step("a", lambda: 1)
    from agent_resume.models import RunDump

    for number, odd in enumerate([5, [], {"fields": 5, "given": [], "order": {}, "keys": {"a": 5}, "heads": {"1": 2}}]):
        with store.dump_run("job") as dump:
            parts = dump.run | {"meta": json.dumps({"flowcast": odd})}, list(dump.steps), list(dump.events), []
        for event in parts[2]:
            event["data"] = json.dumps(
                {"durationMs": parts[1][0]["duration_ms"], "flowcast": {"line": 5, "log": "x", "record": [], "meta": 7}}
            )
        store.import_run(RunDump(parts[0], *map(iter, parts[1:])), on_conflict="replace")
        (row,) = export_runs(store, ["job"], format="flowcast", out=tmp_path / str(number)).rows
        assert row.action == "exported", row.reason
        assert conformance.read(Path(row.target)).results == {"a": 1}


# badgr


def test_a_run_is_written_as_badgr_has_it_and_nothing_else(store, tmp_path):
    def body(run: Any) -> dict[str, int]:
        run.step("plan", lambda: {"order": 7})
        return {"total": 3}

    agent_run("support", body, db=store)
    (run_id,) = [run.id for run in store.list_runs()]
    (row,) = export_runs(store, [run_id], format="badgr", out=tmp_path / "out").rows
    assert Path(row.target).name == f"{run_id}.json"
    state = json.loads(Path(row.target).read_text(encoding="utf-8"))
    assert list(state) == ["id", "name", "createdAt", "updatedAt", "steps", "result"]
    assert (state["id"], state["name"], state["result"]) == (run_id, "support", {"total": 3})
    (step,) = state["steps"]
    assert list(step) == ["name", "status", "startedAt", "finishedAt", "output"]
    assert (step["name"], step["status"], step["output"]) == ("plan", "completed", {"order": 7})


def test_steps_that_did_not_end_are_running_to_badgr(store, tmp_path):
    with Checkpoint("job", db=store) as run:
        with pytest.raises(ValueError, match="no luck"):
            run.step("fails", lambda: (_ for _ in ()).throw(ValueError("no luck")))
        with pytest.raises(KeyboardInterrupt):
            run.step("left", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run.step("paid?", lambda: (_ for _ in ()).throw(KeyboardInterrupt), effect="once")
    (row,) = export_runs(store, ["job"], format="badgr", out=tmp_path / "out").rows
    steps = json.loads(Path(row.target).read_text(encoding="utf-8"))["steps"]
    assert [(step["name"], step["status"]) for step in steps] == [
        ("fails", "failed"),
        ("left", "running"),
        ("paid?", "running"),
    ]
    assert steps[0]["error"] == "no luck"
    assert "finishedAt" not in steps[1]
    assert row.bent_count == 2


def test_a_badgr_run_without_a_result_is_completed_all_the_same(store, tmp_path):
    with Checkpoint("job", db=store) as run:
        run.step("a", lambda: 1)
        run.done()
    (row,) = export_runs(store, ["job"], format="badgr", out=tmp_path / "out").rows
    with Store(tmp_path / "other.db") as other:
        import_paths(other, [row.target])
        assert other.load_run("job").status == "completed"


def test_what_badgr_has_no_place_for_is_named(store, tmp_path):
    def body(run: Any) -> None:
        run.event("gate", {"name": "lint", "status": "pass"})
        run.step("a", lambda: 1, meta={"cli": "x"})
        store.answer("job", "go?", True)
        run.pause("go?")
        raise ValueError("outside of any step")

    with pytest.raises(ValueError, match="outside"):
        agent_run("job", body, input=3, run_id="job", db=store)
    with Checkpoint("gone", db=store) as run:
        run.step("a", lambda: 1)
    cancel("gone", db=store)
    failed, cancelled = export_runs(store, ["job", "gone"], format="badgr", out=tmp_path / "out").rows
    assert {bend.path for bend in failed.bent} == {
        "run.status", "run.input", "run.error", "steps['a'].meta", "events", "pauses['go?']",
    }  # fmt: skip
    assert [str(bend) for bend in cancelled.bent] == [
        "run.status: cancelled, which this layout cannot say; it is read back as interrupted"
    ]


def test_a_badgr_run_comes_in_and_goes_on(store, tmp_path):
    state = {
        "id": "support-1769850487006", "name": "support", "createdAt": "2026-01-31T09:08:07.006Z",
        "updatedAt": "2026-01-31T09:08:09.006Z",
        "steps": [
            {"name": "plan", "status": "completed", "startedAt": "2026-01-31T09:08:07.007Z",
             "finishedAt": "2026-01-31T09:08:07.107Z", "output": {"order": 7}},
            {"name": "fetch", "status": "failed", "startedAt": "2026-01-31T09:08:08.000Z",
             "finishedAt": "2026-01-31T09:08:09.006Z", "error": "timeout"},
            {"name": "write", "status": "running", "startedAt": "2026-01-31T09:08:09.006Z"},
        ],
    }  # fmt: skip
    path = tmp_path / "in" / "support-1769850487006.json"
    path.parent.mkdir()
    path.write_text(json.dumps(state, indent=2), encoding="utf-8")
    (row,) = import_paths(store, [path.parent]).rows
    assert (row.action, row.run_id) == ("imported", state["id"])
    (written,) = export_runs(store, [state["id"]], format="badgr", out=tmp_path / "out").rows
    assert json.loads(Path(written.target).read_text(encoding="utf-8")) == state
    called: list[str] = []

    def body(run: Any) -> str:
        assert run.step("plan", lambda: pytest.fail("ran again")) == {"order": 7}
        run.step("fetch", lambda: called.append("fetch"))
        run.step("write", lambda: called.append("write"))
        return "done"

    assert agent_run("support", body, run_id=state["id"], db=store) == "done"
    assert called == ["fetch", "write"]
    assert import_paths(store, [path]).rows[0].action == "refused"


@pytest.mark.parametrize(
    "change",
    [
        {"id": ""}, {"id": None}, {"name": 5}, {"createdAt": "x"}, {"updatedAt": None}, {"steps": [5]}, {"steps": [{}]},
        {"steps": [{"name": "a", "status": "odd", "startedAt": "2026-01-31T09:08:07.006Z"}]},
        {"steps": [{"name": "a", "status": "running", "startedAt": "2026-01-31T09:08:07.006Z"}] * 2},
    ],
)  # fmt: skip
def test_files_that_only_look_like_badgr_runs_are_refused(store, tmp_path, change):
    time = "2026-01-31T09:08:07.006Z"
    state = {"id": "a", "name": "a", "createdAt": time, "updatedAt": time, "steps": []} | change
    (tmp_path / "a.json").write_text(json.dumps(state), encoding="utf-8")
    (row,) = import_paths(store, [tmp_path / "a.json"]).rows
    assert row.action == "refused"
    assert row.reason
    assert not store.exists() or not list(store.list_runs())


def test_two_badgr_runs_of_one_name_and_time_get_two_files(store, tmp_path, clock):
    for run_id in ("one", "two"):
        agent_run("twin", lambda run: 1, run_id=run_id, db=store)
    first = export_runs(store, ["one", "two"], format="badgr", out=tmp_path / "out").rows
    again = [export_runs(store, [run_id], format="badgr", out=tmp_path / "out").rows[0] for run_id in ("two", "one")]
    assert len({row.target for row in first}) == 2
    assert {row.action for row in again} == {"unchanged"}
    ids = {json.loads(path.read_text(encoding="utf-8"))["id"] for path in (tmp_path / "out").iterdir()}
    assert ids == {"one", "two"}


def test_a_store_is_no_export_and_its_own_file_is_never_opened(store, tmp_path, monkeypatch):
    Checkpoint("job", db=store).step("a", lambda: 1)
    copy = tmp_path / "copy.db"
    with contextlib.closing(sqlite3.connect(copy)) as database:
        database.execute("CREATE TABLE t (x)")
    (row,) = import_paths(store, [copy]).rows
    assert "is a database, not an export; agent-resume copy" in row.reason
    monkeypatch.setattr(files, "open_regular", pytest.fail)
    (row,) = import_paths(store, [store.location.target]).rows
    assert "is a database, not an export; agent-resume copy" in row.reason
