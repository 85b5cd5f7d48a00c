"""What leaves the program, and how: closed pipes, code pages, colours, one JSON document and nothing else."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import pytest

from agent_resume import Checkpoint, agent_run

pytestmark = pytest.mark.timeout(240)
COMMAND = f"{shlex.quote(sys.executable)} -c 'from agent_resume.cli import main; main()'"
ODD = "調査 → 🦊"


@pytest.fixture
def store(db):
    def body(run):
        run.step(ODD, lambda: ODD)
        run.step("late", lambda: "x" * 10)
        return run.pause(ODD, name="p")

    agent_run(ODD, body, run_id="odd-1", db=db, on_pause="return")
    return db


@pytest.fixture
def shell(tmp_path):
    def run(line, **env):
        return subprocess.run(
            ["bash", "-c", "set -o pipefail; " + line.replace("agent-resume", COMMAND)],
            cwd=tmp_path, env={**os.environ, **env}, capture_output=True, timeout=50, check=False,
        )  # fmt: skip

    return run


@pytest.mark.parametrize(
    "command",
    ["list --limit 0", "list --json", "list --format csv", "show many", "export many", "events many", "--help"],
)
def test_case_081_a_closed_pipe_ends_quietly(db, shell, command):
    with Checkpoint("many", db=db) as run:
        for number in range(3000):
            run.event("e", number=number, text="x" * 200)
    tail = "" if command == "--help" else f"--db {db}"
    for buffering in ({}, {"PYTHONUNBUFFERED": "1"}):
        done = shell(f"agent-resume {command} {tail} | head -c 1", **buffering)
        assert (done.returncode, len(done.stdout), done.stderr) == (0, 1, b"")


def test_case_081_two_thousand_runs(db, shell):
    with Checkpoint("run-0", db=db) as first:
        first.record("k", 1)
    import sqlite3

    plain = sqlite3.connect(db)
    plain.executemany(
        "INSERT INTO runs (id, name, status, created_at, updated_at) VALUES (?, 'n', 'completed', ?, ?)",
        [(f"run-{n}", "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:00.000Z") for n in range(1, 2000)],
    )
    plain.commit()
    plain.close()
    done = shell(f"agent-resume list --limit 0 --db {db} | head -1")
    assert done.stdout.startswith(b"ID ")
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(json.loads(shell(f"agent-resume list --json --db {db}").stdout)) == 2000


def test_a_reader_that_is_gone_from_the_start_and_a_closed_stdout(store, shell):
    assert shell(f"agent-resume list --db {store} | true").stderr == b""
    for redirection in (">&-", ">&- 2>&-", "</dev/null 2>&-"):
        assert shell(f"agent-resume list --db {store} {redirection}").returncode == 0


def test_a_full_disk_is_an_error_and_no_traceback(store, shell):
    done = shell(f"agent-resume list --db {store} > /dev/full")
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["--help", "list --help", "--version", "--show-completion bash"])
def test_a_full_disk_under_what_no_command_prints_is_one_line_too(shell, command):
    for buffering in ({}, {"PYTHONUNBUFFERED": "1"}):
        done = shell(f"agent-resume {command} > /dev/full", **buffering)
        assert (done.returncode, done.stderr) == (1, b"agent-resume: No space left on device\n")


@pytest.mark.parametrize("name", ["my-secret", "api_key", "password"])
def test_a_store_may_be_called_like_a_credential(command, tmp_path, name):
    (tmp_path / name).write_text("junk", encoding="utf-8")
    code, _, err = command("list", "--db", tmp_path / name)
    assert (code, f"{name}: not a SQLite database" in err) == (6, True), err


def test_messages_that_cannot_be_written_change_no_exit_code(store, shell):
    for line, code in ((f"show nosuch --db {store}", 3), ("list --db /nosuch.db", 0), ("nonsense", 2)):
        assert shell(f"agent-resume {line} 2> /dev/full").returncode == code


@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONIOENCODING": "cp1252"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1:strict"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "utf-16"},
        {"PYTHONIOENCODING": "shift_jis"},
    ],
    ids=lambda env: " ".join(f"{k}={v}" for k, v in env.items()),
)
def test_case_082_a_small_code_page_escapes_what_does_not_fit(store, cli, env):
    for command in ("list", "show odd-1", "events odd-1", "resume odd-1", "list --format csv", "show odd-1 --report"):
        done = cli(*shlex.split(command), "--db", store, text=False, **env)
        assert done.returncode in (0, 5), done.stderr
        assert done.stdout
        assert b"Error" not in done.stderr
    for command in (
        "list --json",
        "show odd-1 --json",
        "events odd-1 --json",
        "export odd-1",
        "sql 'SELECT name FROM runs' --json",
    ):
        done = cli(*shlex.split(command), "--db", store, text=False, **env)
        assert done.returncode == 0, done.stderr
        encoding = "utf-16" if env.get("PYTHONIOENCODING") == "utf-16" else "utf-8"
        assert ODD in json.dumps(json.loads(done.stdout.decode(encoding)), ensure_ascii=False)


SMALL = {"LC_ALL": "C", "PYTHONUTF8": "0"}


def test_case_082_a_run_is_named_in_any_locale(db, cli, tmp_path):
    agent_run(ODD, lambda run: run.step(ODD, lambda: ODD), run_id=ODD, db=db)
    for command in (["show", ODD], ["show", ODD, "--step", ODD], ["export", ODD], ["tag", ODD, f"{ODD}={ODD}"]):
        done = cli(*command, "--db", db, fresh=True, **SMALL)
        assert done.returncode == 0, done.stderr
    found = json.loads(cli("list", "--name", ODD, "--json", "--db", db, fresh=True, **SMALL).stdout)
    assert [run["id"] for run in found] == [ODD]
    asked = cli("sql", "SELECT :n AS n, '調' AS o", "-p", f"n={ODD}", "--json", "--db", db, fresh=True, **SMALL)
    assert json.loads(asked.stdout) == [{"n": ODD, "o": "調"}]
    cli("tag", ODD, "--remove", ODD, "--db", db, fresh=True, **SMALL)
    assert json.loads(cli("tag", ODD, "--json", "--db", db).stdout) == {}


def test_case_082_files_keep_their_names_in_any_locale(cli, tmp_path):
    agent_run("job", lambda run: 1, run_id="r", db=tmp_path / "調.db")
    assert cli("export", "r", "--out", "査.json", "--db", "調.db", fresh=True, **SMALL).returncode == 0
    assert cli("import", "査.json", "--db", "🦊.db", fresh=True, **SMALL).returncode == 0
    assert cli("copy", "--from", "🦊.db", "--to", "→.db", fresh=True, **SMALL).returncode == 0
    assert {"査.json", "🦊.db", "→.db"} <= {path.name for path in tmp_path.iterdir()}
    done = cli("run", "--db", "→.db", "--", "touch", "走", fresh=True, **SMALL)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "走").exists()


def test_case_082_a_run_goes_on_in_any_locale(db, cli, run_python, tmp_path):
    program = tmp_path / "プログラム.py"
    program.write_text(
        "import os, sys\nfrom agent_resume import agent_run\n"
        f"agent_run({ODD!r}, lambda run: os.path.exists('go') or os._exit(9), run_id={ODD!r}, db=sys.argv[1])\n",
        encoding="utf-8",
    )
    assert run_python(program, db, fresh=True).returncode == 9
    (tmp_path / "go").touch()
    done = cli("resume", ODD, "--exec", "--db", db, fresh=True, **SMALL)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("env", [{}, SMALL], ids=["UTF-8", "C"])
def test_bytes_that_are_no_text_are_a_usage_error_and_name_no_run(store, shell, env):
    for command in (
        "list --name $'\\xff'",
        "sql 'SELECT :n' -p n=$'\\xff'",
        "tag odd-1 $'\\xff'",
        "rename odd-1 $'\\xff'",
    ):
        done = shell(f"agent-resume {command} --db {store}", **env)
        assert (done.returncode, done.stdout) == (2, b""), done.stderr
        assert b"no UTF-8 text" in done.stderr
    assert shell(f"agent-resume show $'\\xff' --db {store}", **env).returncode == 3


def test_a_utf8_reader_gets_the_characters_themselves(store, shell):
    assert ODD.encode() in shell(f"agent-resume list --db {store}", PYTHONIOENCODING="utf-8").stdout
    assert ODD.encode() in shell(f"agent-resume list --json --db {store}", PYTHONIOENCODING="utf-8").stdout


def test_case_083_stdout_is_one_json_document(store, cli, tmp_path):
    missing = tmp_path / "new.db"
    for command, code in (
        (f"list --json --db {missing}", 0),
        (f"list --json --debug --db {store}", 0),
        (f"show odd-1 --json --debug --db {store}", 0),
        (f"resume odd-1 --json --db {store}", 5),
        (f"events odd-1 --json --db {store}", 0),
        (f"export odd-1 --db {store}", 0),
        (f"doctor --json --db {store}", 0),
        (f"doctor --json --db {missing}", 0),
        (f"connect --json --db {store}", 0),
        (f"prune --older-than 1d --json --db {store}", 0),
        (f"prune --older-than 1d --json --db {missing}", 0),
        (f"tag odd-1 x=1 --json --db {store}", 0),
        (f"sql --schema --json --db {store}", 0),
        (f"resume --all-interrupted --exec --json --db {store}", 0),
    ):
        done = cli(*shlex.split(command), PYTHONWARNINGS="default")
        assert done.returncode == code, (command, done.stderr)
        json.loads(done.stdout)
    assert not missing.exists()


def test_case_084_no_escape_codes_off_a_terminal(store, cli):
    wide = cli("list", "--db", store, text=False).stdout
    assert b"\x1b" not in wide
    for env in (
        {"COLUMNS": "20"},
        {"TERM": "dumb"},
        {"NO_COLOR": "1"},
        {"FORCE_COLOR": "1"},
        {"TERM": "xterm-256color"},
    ):
        narrow = cli("list", "--db", store, text=False, **env).stdout
        assert [line.split()[:4] for line in narrow.splitlines()] == [line.split()[:4] for line in wide.splitlines()]
        for command in ("show odd-1", "doctor", "resume odd-1", "--help"):
            at = () if command == "--help" else ("--db", store)
            done = cli(*command.split(), *at, text=False, **env)
            assert b"\x1b" not in done.stdout + done.stderr


def on_a_terminal(args, tmp_path, **env):
    """What the command writes to a pseudo-terminal."""
    import pty

    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", "from agent_resume.cli import main; main()", *args],
        stdin=slave, stdout=slave, stderr=slave, cwd=tmp_path, env={**os.environ, "TERM": "xterm-256color", **env},
    )  # fmt: skip
    os.close(slave)
    seen = b""
    while True:
        try:
            got = os.read(master, 65536)
        except OSError:  # its end, on Linux
            break
        if not got:
            break
        seen += got
    os.close(master)
    process.wait(40)
    return seen.replace(b"\r\n", b"\n")


def test_a_terminal_gets_colours_unless_it_says_no(store, tmp_path):
    assert b"\x1b[34mpaused" in on_a_terminal(["list", "--db", store], tmp_path)
    assert b"\x1b" not in on_a_terminal(["list", "--db", store], tmp_path, NO_COLOR="1")
    assert b"\x1b" not in on_a_terminal(["list", "--db", store], tmp_path, TERM="dumb")
    assert b"\x1b" not in on_a_terminal(["list", "--json", "--db", store], tmp_path)


def test_without_colours_a_terminal_is_still_redrawn_and_a_dumb_one_gets_lines(store, tmp_path):
    plain = on_a_terminal(["watch", "odd-1", "--db", store], tmp_path, NO_COLOR="1")
    assert b"created" not in plain
    assert b"\x1b[3" not in plain
    assert b"created" in on_a_terminal(["watch", "odd-1", "--db", store], tmp_path, TERM="dumb")


def test_a_long_export_and_import_show_a_bar_on_a_terminal_only(db, tmp_path, cli):
    with Checkpoint("long", db=db) as run:
        for number in range(1200):
            run.event("gate", {"name": str(number), "status": "pass"})
    assert b"export long" in on_a_terminal(["export", "--all", "--out", "e.json", "--db", db], tmp_path)
    assert b"import long" in on_a_terminal(["import", "e.json", "--db", "other.db"], tmp_path)
    assert b"import long" not in on_a_terminal(["import", "e.json", "--db", "third.db"], tmp_path, TERM="dumb")
    # The data itself goes to this terminal; nothing may be drawn into it.
    for more in ([], ["--out", "/dev/stdout"]):
        assert b"\x1b" not in on_a_terminal(["export", "--all", *more, "--db", db], tmp_path)
    assert "export long" not in cli("export", "--all", "--out", "e.json", "--db", db).stderr


def test_a_terminal_gets_no_control_characters_of_stored_values(db, tmp_path):
    odd = "\x9b31m\u202e\x1b[31m\x7f"
    agent_run("job", lambda run: run.step("s", lambda: odd), run_id="r", db=db)
    header = 'SELECT 1 AS "h\x1b[31m\u202e"'
    for command in (
        ["export", "--all"], ["export", "--all", "--out", "/dev/stdout"], ["export", "r", "--format", "jsonl"], ["export", "r", "--out", "-"], ["show", "r", "--json"],
        *(["sql", header, *form] for form in (["--json"], *(["--format", name] for name in ("csv", "tsv", "jsonl")), [])),
    ):  # fmt: skip
        seen = on_a_terminal([*command, "--db", db], tmp_path, PYTHONUTF8="1").decode()
        assert seen
        assert not set(seen) & set("\x9b\u202e\x1b\x7f"), command
    exported = json.loads(on_a_terminal(["export", "--all", "--db", db], tmp_path, PYTHONUTF8="1"))
    assert exported["runs"][0]["steps"][0]["output"] == odd
    # In a pipe the file is the same as with --out, byte for byte.
    piped = subprocess.run(
        [sys.executable, "-m", "agent_resume", "export", "--all", "--db", db], capture_output=True, check=True
    ).stdout
    assert "\x9b31m\u202e".encode() in piped


def test_a_narrow_terminal_loses_columns_and_never_an_id(db, tmp_path):
    run_id = "a-rather-long-id-of-a-run-0123456789"
    agent_run("n", lambda run: None, run_id=run_id, db=db)
    shown = on_a_terminal(["list", "--db", db], tmp_path, COLUMNS="40", NO_COLOR="1").decode()
    assert run_id in shown
    table, _, said = shown.partition("no room for ")
    assert ("TOKENS" in table, "TOKENS" in said) == (False, True)
    assert "TOKENS" in on_a_terminal(["list", "--db", db], tmp_path, COLUMNS="120", NO_COLOR="1").decode()


def test_a_timeline_fits_a_narrow_terminal_and_says_how_to_go_on(db, tmp_path):
    def body(run):
        run.step("short", lambda: 1)
        run.step("a-name-that-is-as-long-as-this-terminal-is-wide-0123456789", lambda: 2)
        run.pause("Shall the offer go out now, or only after the holidays are over?", name="approve")

    agent_run("n", body, run_id="r", db=db, on_pause="return")
    shown = on_a_terminal(["show", "r", "--db", db], tmp_path, COLUMNS="60", NO_COLOR="1", AGENT_RESUME_DB=db).decode()
    lines = shown.splitlines()
    assert "  a-name-that-is-as-long-as-this-terminal-is-wide-0123456789" in lines
    assert max(map(len, lines)) <= 60
    assert "  how to go on: agent-resume resume r" in lines
    piped = subprocess.run(
        [sys.executable, "-m", "agent_resume", "show", "r", "--db", db], capture_output=True, text=True, check=True
    ).stdout
    assert "or only after the holidays are over?  open" in piped
    assert "how to go on" not in piped


def test_case_087_help_and_version_load_nothing_heavy(cli, run_python):
    code = """
import sys
from agent_resume.cli import main
sys.argv = ["agent-resume", *sys.argv[1:]]
try:
    main()
finally:
    print(sorted({"sqlalchemy", "alembic", "rich", "tabulate", "sqlite3", "psutil"} & set(sys.modules)), file=sys.stderr)
"""
    for args in (["--help"], ["--version"], ["list", "--help"], ["resume", "--help"], ["watch", "--help"]):
        done = run_python(code, *args, fresh=True)
        assert done.returncode == 0
        assert done.stderr.strip() == "[]"
    assert "agent-resume 0." in cli("--version").stdout
    # On a terminal of a usual width not even Typer, which takes longer to load than all that is printed.
    code = code.replace('"sqlite3"', '"typer"')
    for args in (["--help"], ["--version"], ["list", "-h"]):
        for columns, loaded in (("80", "[]"), ("100", "[]"), ("140", "[]"), ("70", "['typer']")):
            done = run_python(code, *args, fresh=True, COLUMNS=columns)
            assert done.returncode == 0
            assert done.stderr.strip() == ("[]" if args == ["--version"] else loaded)
    done = run_python(
        "import sys, agent_resume; print(sorted({'sqlalchemy', 'alembic', 'typer', 'tabulate', 'rich'} & set(sys.modules)))",
        fresh=True,
    )
    assert done.stdout.strip() == "[]"


def test_plain_arguments_are_read_without_pydantic(db, run_python):
    agent_run("job", lambda run: run.step("s", lambda: 1), run_id="r", db=db)
    code = """
import sys
from agent_resume.cli import main
sys.argv = ["agent-resume", *sys.argv[1:]]
try:
    main()
finally:
    print("pydantic" in sys.modules, file=sys.stderr)
"""
    for args in (
        ["list", "--limit", "5", "--name", "job"],
        ["show", "r"],
        ["tag", "r", "x=1", "y"],
        ["run", "--", "true"],
    ):
        done = run_python(code, *args, AGENT_RESUME_DB=db)
        assert done.stderr.splitlines()[-1] == "False", args
    completing = {
        "_AGENT_RESUME_COMPLETE": "complete_bash",
        "COMP_WORDS": "agent-resume\nshow\n--st",
        "COMP_CWORD": "2",
    }
    done = run_python(code, **completing)
    assert (done.stdout.split(), done.stderr.splitlines()[-1]) == (["--step"], "False")


def test_what_is_not_plain_is_refused_as_typer_does(command):
    for args in (["list", "--limit", "-1"], ["list", "--limit", "x"], ["resume", "--at-once", "65"], ["show"], ["tag"]):
        code, out, err = command(*args)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.endswith(f"; agent-resume {args[0]} -h says more\n")
    assert command("list", "--limit", "9" * 20, "--db", "none.db")[0] == 0


def test_every_command_has_help_with_an_example(command):
    out = command("--help")[1]
    commands = [line.split()[0] for line in out.partition("Commands:\n")[2].split("\n\n")[0].splitlines()]
    assert {
        "list", "show", "resume", "run", "watch", "events", "export", "import", "copy", "cancel", "rename", "tag", "fork",
        "rerun", "prune", "doctor", "sql", "connect",
    } <= set(commands)  # fmt: skip
    for name in commands:
        code, text, _ = command(name, "--help")
        assert code == 0
        assert f"Example: agent-resume {name}" in " ".join(text.split())
