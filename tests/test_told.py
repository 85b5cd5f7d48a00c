"""What a newcomer is told: by the library's errors and warnings, and where a command says what comes next."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import pickle
import shutil
import sqlite3
import sys
import warnings
from types import SimpleNamespace

import pytest

import agent_resume
from agent_resume import (
    AgentResumeWarning,
    OutputNotStorable,
    RunInUse,
    Store,
    agent_run,
    answer,
    errors,
)
from agent_resume.cli import screen

pytestmark = pytest.mark.timeout(240)


# -- the library -----------------------------------------------------------------------------------------------------


def test_a_pause_that_ends_the_program_says_so_and_no_other_does(tmp_path, capsys):
    db = tmp_path / "runs.db"
    with pytest.raises(SystemExit) as ended:
        agent_run("job", lambda run: run.pause("password=hunter2secret", name="q"), db=db, run_id="r")
    assert ended.value.code == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "run 'r' waits for an answer to 'q'" in said
    assert f"agent-resume resume --db {db} --answer JSON -- 'r'" in said  # not the store that a command finds by itself
    assert "hunter2secret" not in said
    agent_run("job", lambda run: run.pause("q"), db=db, run_id="r2", on_pause="return")
    with pytest.raises(agent_resume.RunPaused):
        agent_run("job", lambda run: run.pause("q"), db=db, run_id="r3", on_pause="raise")
    assert agent_run("job", lambda run: run.step("a", int), db=db, run_id="r4") == 0
    assert capsys.readouterr().err == ""


async def test_a_pause_of_an_asynchronous_body_is_told_by_what_ends_the_program(run_python, tmp_path):
    said = run_python(
        "import asyncio\nfrom agent_resume import agent_run\n"
        "async def body(run): await run.pause('go on?')\n"
        "asyncio.run(agent_run('job', body, run_id='r', db='runs.db'))"
    )
    assert (said.returncode, said.stdout, said.stderr.count("waits for an answer")) == (0, "", 1)


def test_what_cannot_be_stored_is_named(tmp_path):
    db = tmp_path / "runs.db"
    odd = object()

    def refusal(body, **options):
        with pytest.raises(OutputNotStorable) as caught:
            agent_run("job", body, db=db, on_pause="return", **options)
        return str(caught.value)

    assert refusal(lambda run: 1, input=odd).startswith("the input: cannot store the value itself: object (")
    asked = refusal(lambda run: run.pause("?", {"f": odd}, name="q"))
    assert asked.startswith("the context of pause 'q': cannot store $.f: object (")
    assert refusal(lambda run: run.step("s", int, meta={"f": odd})).startswith("the meta of step 's': cannot store $.f")
    assert refusal(lambda run: run.step("s", lambda: odd)).startswith("step 's': cannot store the value itself: object")
    with pytest.raises(OutputNotStorable, match=r"^the answer to 'q': cannot store") as caught:
        answer(agent_run("job", lambda run: run.pause("q"), db=db, on_pause="return").run_id, "q", odd, db=db)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.path) == (str(caught.value), "$")


def test_errors_and_warnings_come_from_the_package_and_are_found_there_when_they_are_stored(tmp_path):
    kinds = [
        kind
        for name in agent_resume.__all__
        if isinstance(kind := getattr(agent_resume, name), type) and issubclass(kind, BaseException)
    ]
    assert len(kinds) > 25
    assert {kind.__module__ for kind in kinds} == {"agent_resume"}
    assert all(getattr(errors, kind.__name__) is kind for kind in kinds)
    error = errors.DuplicateStep("r", "k")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.key) == (errors.DuplicateStep, str(error), "k")

    def body(run):
        def fail():
            raise errors.RunNotFound("x")

        with pytest.raises(errors.RunNotFound):
            run.step("s", fail, keep_errors=errors.RunNotFound)

    for _ in range(2):
        agent_run("job", body, db=tmp_path / "runs.db", run_id="r")
        with Store(tmp_path / "runs.db") as store:
            store.direct(lambda tx: tx.connection.execute("UPDATE runs SET status = 'interrupted'"))


def test_a_stored_error_of_ours_is_rebuilt_by_a_program_that_has_not_named_it(run_python):
    said = run_python(
        "from agent_resume import agent_run\nfrom agent_resume.failure import rebuild\n"
        "e = rebuild({'module': 'agent_resume', 'type': 'RunNotFound', 'message': 'm', 'args': ['m']})\nprint(repr(e))",
        fresh=True,
    )
    assert said.stdout == "RunNotFound('m')\n"


def test_the_commands_in_an_error_name_a_store_that_is_not_the_usual_one(tmp_path, monkeypatch, command):
    db = tmp_path / "my store.db"
    told = f" --db '{db}' "

    def loses(run):
        assert command("resume", "r", "--take-over", "--db", db)[0] == 0
        run.step("s", lambda: 1)

    with pytest.raises(errors.RunLost) as lost:
        agent_run("job", loses, run_id="r", db=db)
    assert f"agent-resume show{told}-- 'r'" in str(lost.value)
    with pytest.raises(errors.RunNotFound) as missing:
        agent_resume.load_run("nope", db=db)
    assert f"`agent-resume list{told[:-1]}`" in str(missing.value)
    # In the environment it is named for both.
    monkeypatch.setenv("AGENT_RESUME_DB", str(db))
    with pytest.raises(errors.RunNotFound, match="`agent-resume list` shows"):
        agent_resume.load_run("nope")


def test_one_line_errors_of_the_command_line_name_the_store_that_was_given(db, command):
    agent_run("job", lambda run: run.step("s", lambda: 1), run_id="r", db=db)
    for line, wanted in (
        (("show", "nope"), "`agent-resume list --db"),
        (("rerun", "r", "nope"), "agent-resume show --db"),
        (("show", "r", "--step", "nope"), "agent-resume show --db"),
        (("sql", "SELECT nope FROM runs"), "agent-resume sql --db"),
        (("resume",), "agent-resume list --db"),
        (("resume", "r", "--step", "s", "--retry"), "only an unfinished run"),
    ):
        assert wanted in command(*line, "--db", db)[2]


async def test_errors_of_a_batch_name_the_store_too(tmp_path, command):
    db = tmp_path / "runs.db"

    async def body(run):
        assert command("resume", "r", "--take-over", "--db", db)[0] == 0
        return await asyncio.gather(*(run.record(f"k{n}", n) for n in range(5)), return_exceptions=True)

    with pytest.raises(errors.RunLost):
        await agent_run("job", body, run_id="r", db=db)
    found = []

    async def keeps(run):
        found.extend(await body(run))

    with contextlib.suppress(errors.RunLost):
        await agent_run("job", keeps, run_id="r", db=db)
    assert len(found) == 5
    for error in found:
        assert f"agent-resume show --db {db} -- 'r'" in str(error)


def test_messages_of_the_library_name_its_own_argument(tmp_path):
    with pytest.raises(errors.RunNotFound, match=r"db= \(or --db\)"):
        agent_resume.load_run("r", db=tmp_path / "runs.db")
    (tmp_path / "odd.db").write_text("no database, whatever its name says" * 50, encoding="utf-8")
    with pytest.raises(errors.StoreDamaged, match=r"db= \(or --db\)"):
        agent_run("job", lambda run: 1, db=tmp_path / "odd.db")


@pytest.mark.parametrize(
    "body",
    [lambda: 1, lambda run, more: 1, functools.partial(lambda run: 1, 2)],
    ids=["none", "two", "partial"],
)
def test_a_body_that_does_not_take_the_run_is_refused_before_there_is_one(body, tmp_path):
    with pytest.raises(TypeError, match="with one argument, the run"):
        agent_run("job", body, db=tmp_path / "runs.db")
    assert not (tmp_path / "runs.db").exists()


def test_a_type_error_from_inside_the_body_is_its_own(tmp_path):
    def needs_one(value):
        return value

    with pytest.raises(TypeError, match=r"needs_one\(\) missing 1 required"):
        agent_run("job", lambda run: needs_one(), db=tmp_path / "runs.db")

    @functools.wraps(needs_one)
    def wrapped(*args):
        return len(args)

    assert agent_run("job", wrapped, db=tmp_path / "runs.db") == 1
    assert agent_run("kind", SimpleNamespace(go=lambda run, more=1: more).go, db=tmp_path / "runs.db") == 1
    assert agent_run("builtin", id, db=tmp_path / "runs.db") > 0


def test_keywords_for_the_function_go_through_partial(tmp_path):
    def ask(question, model):
        return f"{question} {model}"

    def body(run):
        with pytest.raises(TypeError, match=r"passes no keywords to the function: functools.partial\(ask, model=…\)"):
            run.step("ask", ask, "hi", model="x")
        return run.step("ask", functools.partial(ask, model="x"), "hi")

    async def awaited(run):
        with pytest.raises(TypeError, match="has no option model, n, and passes no keywords"):
            await run.step("ask", ask, "hi", model="x", n=1)

    assert agent_run("job", body, db=tmp_path / "runs.db") == "hi x"
    asyncio.run(agent_run("job", awaited, db=tmp_path / "runs.db"))


def test_a_turn_in_a_name_is_its_number(tmp_path):
    def body(run):
        for turn in run.loop("refine", max_turns=2):
            run.step(f"draft-{turn}", lambda: 1)
            run.step(f"look-{turn:03}", lambda: 1)
            turn.step(lambda n: n, int(turn))
        return ["a", "b", "c"][turn]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert agent_run("job", body, db=tmp_path / "runs.db", run_id="r") == "c"
    names = {step.name for step in agent_resume.load_run("r", db=tmp_path / "runs.db").steps}
    assert names == {"draft-1", "draft-2", "look-001", "look-002", "refine-1", "refine-2"}


async def test_an_awaited_turn_in_a_name_is_its_number_too(tmp_path):
    async def body(run):
        return [f"{turn}" async for turn in run.loop("refine", max_turns=2)]

    assert await agent_run("job", body, db=tmp_path / "runs.db") == ["1", "2"]


def test_a_memory_address_in_a_name_is_warned_of_once(tmp_path):
    def body(run):
        for thing in (object(), object()):
            run.step(f"do {thing}", lambda: 1)

    with pytest.warns(AgentResumeWarning, match="memory address in its name") as told:
        agent_run("job", body, db=tmp_path / "runs.db")
    assert len(told) == 1
    assert told[0].filename == __file__


# -- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def paused(db):
    def body(run):
        run.step("first", lambda: 1)
        return run.pause("go on?", name="approval")

    agent_run("job", body, run_id="r", db=db, on_pause="return")
    return db


def test_an_answer_without_exec_says_what_comes_next(paused, command, tmp_path):
    code, _, err = command("resume", "r", "--answer", "5", "--name", "aproval", "--db", paused)
    assert (code, err) == (
        0, "'aproval' has not been asked yet; the answer is kept for when it is. Open now: approval\n",
    )  # fmt: skip
    code, _, err = command("resume", "r", "--answer", '{"ok": true}', "--db", paused)
    assert code == 0
    # Started by pytest, whose command may be had or not.
    assert err.startswith("'approval' of run r is answered; ")
    assert "--exec" in err or "start the agent again" in err
    _, out, _ = command("resume", "r", "--db", paused)
    assert 'answered, not yet taken: approval = {"ok": true}' in out
    assert "answered, not yet taken: aproval = 5" in out
    _, out, _ = command("list", "--db", paused)
    assert "paused (answered)" in out
    _, out, _ = command("list", "--json", "--db", paused)
    assert json.loads(out)[0]["status"] == "paused"

    def body(run):
        assert run.pause("go on?", name="approval") == {"ok": True}
        return run.pause("and now?", name="second")

    agent_run("job", body, run_id="r", db=paused, on_pause="return")
    _, out, _ = command("resume", "r", "--db", paused)
    assert "not yet taken: approval" not in out
    assert "(answered)" not in command("list", "--db", paused)[1]


_WAITING = """
import sys
from agent_resume import agent_run
def body(run):
    print("waiting", flush=True)
    return run.wait("color", prompt="which?")
agent_run("job", body, run_id="r", db="runs.db")
"""


def test_a_live_run_that_waits_is_answered_before_it_is_taken_over(spawn_agent, cli, tmp_path):
    agent = spawn_agent(_WAITING, marker="waiting")
    while agent_resume.load_run("r", db=tmp_path / "runs.db").status != "running":
        pass
    with Store(tmp_path / "runs.db") as store:
        while not store.pauses("r"):
            pass
        began = next(event.ts for event in store.events("r") if event.type == "created")
    plan = cli("resume", "r", "--db", "runs.db")
    assert plan.returncode == 4
    assert "To answer:\n  agent-resume resume --db" in plan.stdout or "To answer:\n  agent-resume resume" in plan.stdout
    assert plan.stdout.index("--answer JSON") < plan.stdout.index("--take-over")
    assert "--answer JSON --exec" not in plan.stdout
    assert f"it began at {began}" in plan.stdout
    with pytest.raises(RunInUse) as refused:
        agent_run("job", lambda run: 1, run_id="r", db=tmp_path / "runs.db")
    assert refused.value.since == began
    assert f"since {began}" in str(refused.value)
    said = cli("resume", "r", "--answer", '"red"', "--db", "runs.db")
    # Its process may be at its end before the command looks what became of the run.
    ends = ("its process goes on with it", "it is completed by now")
    assert said.stderr in [f"'color' of run r is answered; {end}\n" for end in ends]
    assert agent.finish() == 0


def test_options_stand_before_an_id_that_begins_with_a_dash(db, command):
    agent_run("job", lambda run: run.pause("q"), run_id="-rf", db=db, on_pause="return")
    _, out, _ = command("resume", "--db", db, "--", "-rf")
    assert "--answer JSON -- -rf" in out


def test_a_command_that_never_reaches_a_run_is_not_started_again(cli, tmp_path):
    done = cli("run", "--db", "runs.db", "--", sys.executable, "-c", "print('once'); raise SystemExit(7)")
    assert (done.returncode, done.stdout) == (1, "once\n")
    assert "exit code 7" in done.stderr
    assert "not started again" in done.stderr
    assert "restart 1" not in done.stderr


def test_a_crash_before_the_run_after_one_that_had_reached_it_is_started_again(cli, tmp_path):
    (tmp_path / "agent.py").write_text(
        "import os\nfrom agent_resume import agent_run\n"
        "number = len(os.listdir('tries')); open(f'tries/{number}', 'w').close()\n"
        "if number == 1: os._exit(9)\n"
        "def body(run):\n    if number == 0: os._exit(9)\n    return number\n"
        "agent_run('job', body, db='runs.db')\n",
        encoding="utf-8",
    )
    (tmp_path / "tries").mkdir()
    done = cli("run", "--db", "runs.db", "--backoff", "0.01", "--", sys.executable, "agent.py")
    assert done.returncode == 0, done.stderr
    assert len(os.listdir(tmp_path / "tries")) == 3


def test_run_tells_what_a_paused_run_asks(cli, tmp_path):
    (tmp_path / "agent.py").write_text(
        "from agent_resume import agent_run\n"
        "agent_run('job', lambda run: run.pause('really?', name='q'), db='runs.db', run_id='r', on_pause='return')\n",
        encoding="utf-8",
    )
    done = cli("run", "--db", "runs.db", "--", sys.executable, "agent.py")
    assert done.returncode == 5
    assert "pause q: really?" in done.stderr
    assert "--answer JSON --exec" in done.stderr


def test_a_folder_is_no_store(tmp_path, command):
    code, _, err = command("list", "--db", tmp_path)
    assert (code, err) == (6, f"agent-resume: {tmp_path}: this is a folder; name a file in it\n")
    assert command("show", "r", "--db", tmp_path)[0] == 6


def test_steps_that_a_dead_process_left_are_cut_off(spawn_agent, command, tmp_path):
    agent = spawn_agent(
        "import time\nfrom agent_resume import agent_run\n"
        "def work(item):\n    print(f'at {item}\\n', end='', flush=True)\n    time.sleep(0 if item == 0 else 60)\n"
        "def body(run):\n    return list(run.map('m', work, range(3), concurrency=3))\n"
        "agent_run('job', body, run_id='r', db='runs.db')\n",
    )
    agent.wait_for("at", count=3)
    db = tmp_path / "runs.db"
    assert "2 running" in command("show", "r", "--db", db)[1]
    agent.signal(2)
    agent.finish()
    _, out, _ = command("show", "r", "--db", db)
    assert "interrupted" in out.split("\n")[0]
    assert "1 of 3 completed, 2 cut off" in out
    assert " running" not in out
    assert out.count(" cut off ") == 2
    shown = json.loads(command("show", "r", "--json", "--db", db)[1])
    found = [(step["status"], step.get("cutOff", False)) for step in shown["steps"]]
    assert sorted(found) == [("completed", False), ("running", True), ("running", True)]
    _, out, _ = command("show", "r", "--step", "m[1]", "--db", db)
    assert "cut off" in out
    assert "running" not in out


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_doctor_reads_the_journal_from_the_file_and_knows_where_no_store_can_be(command, tmp_path, monkeypatch):
    db = str(tmp_path / "runs.db")
    agent_run("job", lambda run: 1, db=db)
    from agent_resume import databases

    databases._close_all()
    immutable = sqlite3.connect(f"file:{db}?immutable=1", uri=True)
    assert immutable.execute("PRAGMA journal_mode").fetchone()[0] == "delete", "the lie that this is about"
    immutable.close()
    sealed = shutil.copy(db, tmp_path / "sealed.db")  # never opened: without a log beside it
    assert "switched it off" not in command("doctor", "--db", db)[1]
    switched = tmp_path / "switched.db"
    shutil.copy(db, switched)
    plain = sqlite3.connect(switched)
    plain.execute("PRAGMA journal_mode=DELETE")
    plain.close()
    assert "switched it off" in command("doctor", "--db", switched)[1]
    # Root may write anywhere, so that the system's answer is given for it.
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert "switched it off" not in command("doctor", "--db", sealed)[1]
    assert "switched it off" in command("doctor", "--db", switched)[1]
    nowhere = tmp_path / "not" / "there.db"
    assert "none can be made there" in command("doctor", "--db", nowhere)[1]
    assert "none can be made there" in command("list", "--db", nowhere)[2]


def test_a_long_name_is_cut_on_a_terminal_and_an_id_never(db, command, monkeypatch):
    agent_run("n" * 500, lambda run: 1, run_id="i" * 60, db=db)
    assert "n" * 500 in command("list", "--db", db)[1]
    monkeypatch.setattr(screen, "is_terminal", lambda: True)
    monkeypatch.setattr(screen, "columns", lambda: 200)
    _, out, _ = command("list", "--db", db)
    assert max(map(screen.width, out.splitlines())) <= 200
    assert "n" * 30 in out
    assert "i" * 60 in out
    assert screen.cut("調" * 30, 21).startswith("調" * 9)
    assert screen.cut("short", 5) == "short"


def test_the_help_of_resume_says_which_form_gives_which_code(cli):
    said = " ".join(cli("resume", "--help").stdout.split())
    assert "without --exec are 0 once they are stored" in said
