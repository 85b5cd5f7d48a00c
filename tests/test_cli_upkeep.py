"""prune and doctor: a store is kept in order."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from pathlib import Path

import pytest

from agent_resume import Checkpoint, Store, agent_run, store_admin_doctor

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def store(db):
    agent_run("job", lambda run: run.step("s", lambda: 1), run_id="r", db=db)
    return db


def size_of(db):
    return sum(os.stat(db + suffix).st_size for suffix in ("", "-wal") if os.path.exists(db + suffix))


def test_prune_says_what_goes_and_gives_the_space_back(db, command):
    for number in range(6):
        with Checkpoint(f"old-{number}", db=db) as run:
            run.record("big", "x" * 500_000)
            run.done()
    agent_run("kept", lambda run: None, run_id="kept", db=db)
    agent_run("paused", lambda run: run.pause("?"), run_id="paused", db=db, on_pause="return")
    with sqlite3.connect(db) as plain:
        plain.execute("UPDATE runs SET updated_at = '2026-01-01T00:00:00.000Z' WHERE id LIKE 'old-%' OR id = 'paused'")
        plain.execute("UPDATE runs SET name = 'old' WHERE id LIKE 'old-%'")
    plain.close()
    before = size_of(db)
    code, out, err = command("prune", "--older-than", "30d", "--keep-last", "2", "--dry-run", "--json", "--db", db)
    would = json.loads(out)
    assert [run["id"] for run in would["runs"]] == ["old-0", "old-1", "old-2", "old-3"]
    assert 2_000_000 < would["bytes"] < 2_010_000
    assert "4 runs would go" in err
    assert len(json.loads(command("list", "--json", "--db", db)[1])) == 8
    code, out, err = command("prune", "--older-than", "30d", "--keep-last", "2", "--db", db)
    assert code == 0
    assert "4 runs deleted" in err
    left = [run["id"] for run in json.loads(command("list", "--json", "--db", db)[1])]
    assert left == ["paused", "kept", "old-5", "old-4"]
    assert size_of(db) < before - 1_500_000
    with sqlite3.connect(db) as plain:
        assert plain.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert plain.execute("SELECT count(*) FROM steps WHERE run_id NOT IN (SELECT seq FROM runs)").fetchone() == (0,)
    plain.close()


def test_prune_never_touches_a_live_run(db, command, spawn_agent):
    code = """
import sys, time
from agent_resume import agent_run
agent_run("live", lambda run: (print("living", flush=True), time.sleep(60)), run_id="live", db=sys.argv[1])
"""
    spawn_agent(code, db, marker="living")
    time.sleep(0.01)
    code, out, _ = command("prune", "--older-than", "0s", "--status", "running", "--json", "--db", db)
    assert (code, json.loads(out)["runs"]) == (0, [])
    assert command("rerun", "live", "x", "--db", db)[0] == 4
    with Store(db) as store:
        assert store.load_run("live").shown_status == "running"


def test_prune_forgets_dead_processes_that_nothing_names(db, command, spawn_agent):
    holds = """
import sys, time
from agent_resume import agent_run
def body(run):
    print("living", flush=True)
    time.sleep(60)
agent_run("agent", body, run_id=sys.argv[2], db=sys.argv[1])
"""
    cut, ended, _ = [spawn_agent(holds, db, run_id, marker="living") for run_id in ("cut", "ended", "live")]
    for agent in (cut, ended):
        agent.kill()
    assert command("cancel", "ended", "--db", db)[0] == 0

    def owners():
        with sqlite3.connect(db) as plain:
            found = plain.execute("SELECT id FROM owners JOIN runs ON owner_token = token ORDER BY id").fetchall()
            count = plain.execute("SELECT count(*) FROM owners").fetchone()[0]
        plain.close()
        return [run_id for (run_id,) in found], count

    assert owners()[1] == 3
    prune = ("prune", "--older-than", "0s", "--status", "cancelled", "--json", "--db", db)
    code, out, err = command(*prune, "--dry-run")
    assert json.loads(out)["ownersForgotten"] == 1
    assert "1 row of dead processes would go" in err
    assert owners()[1] == 3
    time.sleep(0.01)
    told = json.loads(command(*prune)[1])
    assert [run["id"] for run in told["runs"]] == ["ended"]
    assert told["ownersForgotten"] == 1
    assert owners() == (["cut", "live"], 2)
    with Store(db) as store:
        assert store.load_run("cut").shown_status == "interrupted"
        assert store.load_run("live").shown_status == "running"


def test_prune_means_the_statuses_that_list_shows(db, command, run_python):
    code = "import os, sys\nfrom agent_resume import agent_run\nagent_run('d', lambda run: os._exit(1), run_id='dead', db=sys.argv[1])"
    run_python(code, db)
    with Checkpoint("joined", db=db) as run:
        run.step("s", lambda: 1)
    with pytest.raises(KeyboardInterrupt):
        agent_run("stopped", interrupted, run_id="stopped", db=db)
    time.sleep(0.01)

    def going(status):
        out = command("prune", "--older-than", "0s", "--status", status, "--dry-run", "--json", "--db", db)[1]
        return [(run["id"], run["status"]) for run in json.loads(out)["runs"]]

    assert going("interrupted") == [("dead", "interrupted"), ("stopped", "interrupted")]
    assert going("running") == []  # its process may live and be between two steps
    dry = ("prune", "--older-than", "0s", "--dry-run", "--json", "--db", db, "--status")
    forgotten = [json.loads(command(*dry, status)[1])["ownersForgotten"] for status in ("running", "interrupted")]
    assert forgotten == [0, 1]
    assert going("idle") == going("completed") == []
    assert command("prune", "--older-than", "0s", "--status", "interrupted", "--db", db)[0] == 0
    assert [run["id"] for run in json.loads(command("list", "--json", "--db", db)[1])] == ["joined"]


def interrupted(run):
    raise KeyboardInterrupt


def test_prune_wants_to_know_which(store, command):
    assert command("prune", "--db", store)[0] == 2
    assert command("prune", "--older-than", "soon", "--db", store)[0] == 2
    assert command("prune", "--older-than", "1d", "--status", "odd", "--db", store)[0] == 2
    assert command("prune", "--older-than", "1d", "--db", f"{store}.missing")[0] == 0


def test_doctor_finds_a_sound_store_sound(store, command):
    code, out, _ = command("doctor", "--full", "--json", "--db", store)
    findings = {finding["topic"]: finding for finding in json.loads(out)}
    assert code == 0
    assert findings["integrity"]["level"] == "ok"
    assert findings["journal"]["level"] == "ok"
    assert {"sqlite", "driver", "file system", "size", "schema", "free space", "runs", "clock"} <= set(findings)
    assert re.search(r"^ok +integrity ", command("doctor", "--full", "--db", store)[1], re.MULTILINE)


def test_doctor_names_what_is_wrong_and_what_mends_it(store, command, run_python):
    run_python(
        "import os, sys\nfrom agent_resume import agent_run\nagent_run('d', lambda run: os._exit(1), run_id='dead', db=sys.argv[1])",
        store,
    )
    os.chmod(store, 0o644)
    with sqlite3.connect(store) as plain:
        plain.execute("UPDATE runs SET updated_at = '2999-01-01T00:00:00.000Z' WHERE id = 'r'")
    plain.close()
    findings = json.loads(command("doctor", "--json", "--db", store)[1])
    found = {finding["topic"]: finding for finding in findings if finding["level"] != "ok"}
    assert f"chmod 600 {store}" in [finding["mend"] for finding in findings]
    assert "dead" in found["runs"]["text"]
    assert found["runs"]["mend"] == f"agent-resume resume --db {store} --all-interrupted --exec"
    assert found["clock"]["level"] == "warning"


@pytest.mark.parametrize(
    ("allowed", "said"),
    [(os.R_OK, "is not writable for you: runs can be read, not resumed"), (0, "is not readable for you")],
)
def test_doctor_says_what_permissions_forbid(store, command, monkeypatch, allowed, said):
    access = os.access

    def seen(path, mode, **named):
        return mode & ~allowed == 0 if str(path) == store else access(path, mode, **named)

    monkeypatch.setattr(store_admin_doctor.os, "access", seen)
    assert f"{store} {said}\n" in command("doctor", "--db", store)[1]


def test_doctor_on_damage_is_a_problem(store, command, tmp_path):
    with Checkpoint("more", db=store) as run:
        for number in range(300):
            run.record(f"k{number}", "x" * 1000)
    with sqlite3.connect(store) as plain:
        plain.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    plain.close()
    damaged = tmp_path / "damaged.db"
    content = bytearray(Path(store).read_bytes())
    content[len(content) // 2 : len(content) // 2 + 40960] = bytes(40960)
    damaged.write_bytes(content)
    code, out, err = command("doctor", "--full", "--db", damaged)
    assert code == 1
    assert "problem" in out
    (tmp_path / "text.db").write_text("only words\n" * 1000, encoding="utf-8")
    code, out, _ = command("doctor", "--db", tmp_path / "text.db")
    assert code == 1
    assert "not a SQLite database" in out


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_doctor_advises_no_mode_for_what_is_no_store(command, tmp_path):
    (tmp_path / "text.db").write_text("only words\n", encoding="utf-8")
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE t (x)")
    other.close()
    folder = tmp_path / "folder"
    folder.mkdir()
    for place in (tmp_path / "text.db", tmp_path / "other.db", folder):
        place.chmod(0o755)
        code, out, _ = command("doctor", "--db", place)
        assert code == 1
        assert "problem" in out
        assert "chmod" not in out


def test_doctor_finds_it_when_nobody_can_look_whether_there_is_a_store(command, tmp_path):
    code, out, err = command("doctor", "--json", "--db", tmp_path / ("x" * 300) / "runs.db")
    assert (code, err) == (1, "")
    assert [one["text"].endswith("mend that, then resume the run") for one in json.loads(out)][-1]


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="reads the kernel's list of locks")
def test_doctor_keeps_the_locks_that_this_process_holds(store):
    from agent_resume import store_admin_doctor

    number = os.stat(store).st_ino

    def locks():
        return [line for line in Path("/proc/locks").read_text().splitlines() if f":{number} " in line]

    with Store(store) as opened:
        seen = [bool(locks()) for finding in store_admin_doctor.examine(opened, full=True) if finding.topic != "sqlite"]
    inside = seen[seen.index(True) :]
    assert len(inside) > 4
    assert all(inside)
