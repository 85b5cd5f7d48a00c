"""What a narrow terminal shows: text that is folded where a reader would fold it, and commands that can be copied."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys

import pytest

from agent_resume import Checkpoint, Store, agent_run, report
from agent_resume.cli import fold, screen, watch

WIDE = "研究エージェント"
LONG_ID = "a-run-whose-id-is-longer-than-any-of-the-terminals-that-are-tried-here-0123456789-0123456789-0123456789"


@pytest.fixture
def terminal(monkeypatch):
    def of(columns):
        monkeypatch.setattr(screen, "is_terminal", lambda path=None: True)
        monkeypatch.setattr(screen, "columns", lambda: columns)
        monkeypatch.setenv("NO_COLOR", "1")

    return of


@pytest.fixture
def store(db):
    def body(run):
        run.step(f"{WIDE} plan", lambda: 1)
        run.sleep("nap", 0.001)
        question = "May I delete the twenty-three records of this customer in the production database?"
        return run.pause(question, name="approval", context={"records": list(range(40)), "who": WIDE})

    def fails(run):
        words = "three is not wanted, says https://example.com/api/v1/things/with/a/long/path?and=parameters of it"
        run.step("fetch", lambda: (_ for _ in ()).throw(ValueError(words)))

    agent_run(WIDE * 8, body, run_id=f"{WIDE}-1", db=db, on_pause="return")
    with pytest.raises(ValueError, match="three"):
        agent_run("worker", fails, run_id="order:17", db=db)
    agent_run("short", lambda run: run.step("k", lambda: 1), run_id=LONG_ID, db=db)
    return db


@pytest.mark.parametrize("columns", [100, 60, 40])
@pytest.mark.parametrize(
    "line",
    [
        f"show {WIDE}-1", f"resume {WIDE}-1", "show order:17", "show order:17 --step fetch", "resume order:17", "doctor",
        "list",
    ],
)  # fmt: skip
def test_no_line_is_left_for_the_terminal_to_break(store, command, terminal, columns, line):
    terminal(columns)
    _, out, _ = command(*line.split(), "--db", store)
    too_wide = [line for line in out.splitlines() if report.width(line) > columns and line != LONG_ID]
    # A single word of a command, here the store's path, is never broken.
    assert all(len(shlex.split(line.removesuffix("\\"))) == 1 for line in too_wide), too_wide
    assert out.count("\n") > 3
    assert line != "doctor" or columns == 100 or "\n  -> agent-resume doctor --db" in out


@pytest.mark.parametrize("columns", [100, 60, 40])
def test_a_long_id_and_a_long_name_hide_no_column_of_the_other_runs(store, command, terminal, columns):
    terminal(columns)
    _, out, err = command("list", "--db", store)
    header, *rows = out.splitlines()
    assert LONG_ID in rows
    assert (columns == 40) == ("NAME" not in header)
    assert all(name in header or name in err for name in ("NAME", "STATUS", "STEPS", "DURATION", "AGE", "TOKENS"))
    if columns == 100:
        assert f"{WIDE}…"[-3:] in out or WIDE in out
        assert "DURATION  AGE  TOKENS" in header
        assert err == ""


@pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX")
@pytest.mark.parametrize("columns", [100, 40, 20])
def test_a_folded_command_is_the_same_command_to_a_shell(terminal, columns):
    terminal(columns)
    words = ["printf", "%s\n", "--db", "/a/rather long/path/of a store", "it's", '"', "--exec", WIDE, "a" * 60]
    lines = fold.command(shlex.join(words), "  ", remark="(it happened)")
    assert lines[-1].endswith("(it happened)")
    typed = "\n".join(lines).removesuffix("(it happened)")
    done = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == [*words[2:], ""]


def test_a_text_is_folded_between_words_and_parts_of_paths(terminal):
    terminal(30)
    assert fold.lines("a red fox jumps over a lazy dog", "  x  ") == ["  x  a red fox jumps over a", "     lazy dog"]
    assert fold.lines("see /usr/share/doc/agent-resume/README", "  ")[1] == "  /usr/share/doc/agent-resume/"
    assert fold.lines("調" * 20, "  ") == ["  " + "調" * 14, "  " + "調" * 6]
    assert fold.lines("", "  ") == ["  "]


def test_in_a_pipe_every_text_stays_one_line(store, command):
    _, out, _ = command("show", "order:17", "--db", store)
    assert any("failed" in line and line.endswith("parameters of it") for line in out.splitlines())


@pytest.mark.parametrize("height", [5, 8, 11, 13, 30])
def test_watch_shows_the_newest_step_however_small_the_terminal(db, height):
    with Checkpoint("w", db=db) as run:
        for number in range(20):
            run.step(f"step-{number}", lambda: 1, meta={"model": "m", "inputTokens": 1})
        with Store(db) as store:
            picture = watch._picture(store, watch._detail(store, store.find_run("w")), height).plain.splitlines()
    assert len(picture) <= height
    assert "step-19" in picture[-1]
    assert picture[0].startswith("w ")
    assert any("earlier step" in line for line in picture) == (height < 30)


def test_watch_draws_on_a_screen_of_its_own_and_ends_with_how_to_go_on(db, tmp_path):
    agent = tmp_path / "agent.py"
    agent.write_text(
        f"""
import time
from agent_resume import agent_run
def body(run):
    run.step("first", time.sleep, 3)
    run.sleep("nap", 0.01)
    run.pause("Go on?", name="q")
agent_run("live", body, run_id="w", db={db!r}, on_pause="return")
""",
        encoding="utf-8",
    )
    process = subprocess.Popen([sys.executable, agent], cwd=tmp_path)
    try:
        seen = _watched(db, tmp_path)
    finally:
        process.wait(30)
    begun, drawn, left = seen.partition("\x1b[?1049h")[0], *seen.partition("\x1b[?1049h")[2].split("\x1b[?1049l")
    assert "w  running" in drawn
    assert "running" not in begun + left
    assert all(text in left for text in ("w  paused", "sleep nap", "pause q: Go on?", "how to go on:"))


def _watched(db, tmp_path):
    """What `watch` writes to a terminal, once there is something to watch."""
    command = [sys.executable, "-m", "agent_resume"]
    for _ in range(100):
        if b"running" in subprocess.run([*command, "list", "--db", db], capture_output=True).stdout:
            break
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": "1"}
    process = subprocess.Popen(
        [*command, "watch", "w", "--db", db], stdin=slave, stdout=slave, stderr=slave, cwd=tmp_path, env=environment
    )
    os.close(slave)
    seen = b""
    while True:
        try:
            seen += os.read(master, 65536)
        except OSError:  # its end, on Linux
            break
    os.close(master)
    assert process.wait(30) == 5
    return seen.decode()
