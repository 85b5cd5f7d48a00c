"""What a shell completes: stored names as words that are no commands, known values, and no files where none fits."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from agent_resume import Checkpoint, agent_run

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def store(db):
    with Checkpoint("r", db=db) as run:
        run.record("k", 1)
    return db


@pytest.fixture
def bash(cli, db):
    def complete(*pieces):
        """The words for the last piece."""
        words = ["agent-resume", *pieces]
        env = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1), "AGENT_RESUME_DB": db}
        done = cli(_AGENT_RESUME_COMPLETE="complete_bash", **env)
        assert (done.stderr, done.returncode) == ("", 0)
        return done.stdout.split()

    return complete


def test_run_ids_complete_and_nothing_else_opens_the_store(store, cli, tmp_path):
    env = {
        "_AGENT_RESUME_COMPLETE": "complete_bash",
        "COMP_WORDS": f"agent-resume show --db {store} ",
        "COMP_CWORD": "4",
    }
    assert cli(**env).stdout.split() == ["r"]
    env |= {"COMP_WORDS": f"agent-resume show --db={store} ", "COMP_CWORD": "3"}
    assert cli(**env).stdout.split() == ["r"]
    line = f"agent-resume show --db {store} "
    assert '"r"' in cli(_AGENT_RESUME_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=line).stdout
    fish = {"_AGENT_RESUME_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert cli(**fish, _TYPER_COMPLETE_ARGS=line).stdout.split() == ["r"]
    env = {"_AGENT_RESUME_COMPLETE": "complete_bash", "COMP_WORDS": "agent-resume sh", "COMP_CWORD": "1"}
    assert cli(**env).stdout.split() == ["show"]
    env = {"_AGENT_RESUME_COMPLETE": "complete_bash", "COMP_WORDS": "agent-resume show ", "COMP_CWORD": "2"}
    done = cli(cwd=tmp_path, **env)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_an_id_that_looks_like_an_option_is_offered_behind_a_double_dash(store, bash, db):
    agent_run("-dash", lambda run: None, run_id="-dash", db=db)
    assert "-dash" not in bash("show", "")
    assert bash("show", "--", "-d") == ["-dash"]


def test_a_store_that_is_named_behind_the_cursor_counts(store, cli, tmp_path):
    for behind in (("--db", store), ("--db", "=", store)):
        env = {"COMP_WORDS": "\n".join(("agent-resume", "show", "", *behind)), "COMP_CWORD": "2"}
        done = cli(_AGENT_RESUME_COMPLETE="complete_bash", **env, cwd=tmp_path)
        assert (done.stdout.split(), done.stderr) == (["r"], "")


def test_where_nothing_can_be_completed_nothing_is_said(cli):
    for env in (
        {},
        {"COMP_WORDS": "agent-resume\nli"},
        {"COMP_WORDS": "agent-resume\nli", "COMP_CWORD": ""},
        {"COMP_WORDS": "agent-resume\nshow\n", "COMP_CWORD": "²"},
        {"COMP_WORDS": "agent-resume\n--version\n", "COMP_CWORD": "2"},
    ):
        done = cli(_AGENT_RESUME_COMPLETE="complete_bash", **env)
        assert (done.returncode, done.stderr) == (0, ""), env
        assert "0.1.0" not in done.stdout
    done = cli(_AGENT_RESUME_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="agent-resume --version ")
    assert "0.1.0" not in done.stdout + done.stderr


def test_the_first_word_completes_alike_with_typer_and_without(cli):
    for begun in ("", "r", "sh", "nothing", "--h", "s-"):
        env = {"_AGENT_RESUME_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
        quick = cli(**env, COMP_WORDS=f"agent-resume\n{begun}")
        by_typer = cli(**env, COMP_WORDS=f"agent-resume {begun}")
        assert (quick.stdout, quick.returncode) == (by_typer.stdout, 0), begun


@pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX")
def test_ids_complete_in_bash_as_words_that_are_no_commands(db, cli, tmp_path):
    odd = ["a$(touch pwned)", "it's", "once 1", "`touch pwned`", 'x";touch pwned;"', "order:17", "é ✓", "~", "a*"]
    for run_id in [*odd, "tab\there"]:
        with Checkpoint(run_id, db=db) as run:
            run.record("k", 1)
    env = {
        "_AGENT_RESUME_COMPLETE": "complete_bash", "COMP_WORDS": f"agent-resume show --db {db} ", "COMP_CWORD": "4",
    }  # fmt: skip
    words = cli(**env).stdout.splitlines()
    assert len(words) == len(odd)
    for quote in ("", "'", '"'):
        for word in words:  # what stands on the line behind an open quote, too
            line = f"printf '%s' {quote}{word}{quote}"
            done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True)
            assert quote or done.stdout in odd
    assert not (tmp_path / "pwned").exists()


def test_zsh_is_offered_nothing_that_it_would_evaluate(db, cli):
    """It evaluates what Typer's script gives it, and what is in that once more."""
    odd = [r"\$(touch pwned)", "a$(touch pwned)", "`touch pwned`", r"\`x\`", "it's", 'x"y', "two\nlines"]
    for run_id in [*odd, "order:17"]:
        with Checkpoint(run_id, db=db) as run:
            run.record("k", 1)
    line = f"agent-resume show --db {db} "
    said = cli(_AGENT_RESUME_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=line).stdout
    assert "order" in said
    assert not any(mark in said for mark in ("touch", "it", "lines", "$", "`"))


def test_known_values_complete_where_files_were_offered(bash):
    for pieces, found in (
        (("list", "--status", "pa"), ["paused"]),
        (("list", "--status", "=", "pa"), ["paused"]),
        (("list", "--sort", "u"), ["updated"]),
        (("list", "--format", "cs"), ["csv"]),
        (("sql", "--format", "js"), ["jsonl"]),
        (("prune", "--status", "c"), ["completed", "cancelled"]),
    ):
        assert bash(*pieces) == found
    assert "-updated" in bash("list", "--sort", "")


def test_ids_and_latest_complete_although_bash_cuts_words(db, bash):
    agent_run("worker", lambda run: None, run_id="order:17", db=db)
    for pieces, found in (
        (("show", "or"), ["order:17"]),
        (("show", "order", ":"), ["17"]),
        (("show", "order", ":", "1"), ["17"]),
        (("show", "worker", "@"), ["@latest"]),
        (("show", "worker", "@", "la"), ["@latest"]),
        (("show", "worker", "@la"), ["@latest"]),
    ):
        assert bash(*pieces) == found, pieces


@pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX")
def test_files_are_offered_where_one_fits_and_nowhere_else(store, tmp_path):
    # Typer asks its parent which shell it is.
    line = f"{shlex.quote(sys.executable)} -m agent_resume --show-completion; true"
    script = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout
    assert "complete -o default" in script
    name = next(line.split("()")[0] for line in script.splitlines() if line.endswith("() {"))
    for pieces, files in (
        (("show", "r", ""), False),
        (("show", ""), False),
        (("import", ""), True),
        (("show", "--db", ""), True),
        (("list", "--db", "=", "x"), True),
        (("export", "--out", ""), True),
        (("copy", "--to", "x"), True),
        (("copy", "--from", "x"), True),
        (("fork", "r", "--from", "x"), False),
        (("run", "--", "py"), True),
        (("tag", "r", "x"), False),
        (("rerun", "r", ""), False),
        (("show", "r", "--step", "x"), False),
        (("list", "--name", ""), False),
    ):
        words = " ".join(map(shlex.quote, ("agent-resume", *pieces)))
        # Outside of a completion there is nothing that bash could set.
        asked = f"compopt() {{ echo no files; }}\nCOMP_WORDS=({words}); COMP_CWORD={len(pieces)}; {name} true"
        done = subprocess.run(["bash"], input=f"{script}\n{asked}\n", cwd=tmp_path, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("" if files else "no files\n", ""), pieces
