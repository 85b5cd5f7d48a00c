"""Pauses: stored before they stop anything, impossible to swallow, answered by name, from anywhere."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shlex
import threading
from contextlib import closing

import pytest
import raw

from agent_resume import (
    Checkpoint,
    InvalidName,
    InvalidTransition,
    OutputNotStorable,
    Paused,
    RunCancelled,
    RunNotFound,
    RunPaused,
    Store,
    StoredValueUnreadable,
    WaitTimeout,
    agent_run,
    answer,
    cancel,
    load_run,
)
from agent_resume.database_location import resolve


def rows(db, query, *values):
    with closing(raw.connect(db)) as database:
        return database.execute(query, values).fetchall()


@dataclasses.dataclass
class Choice:
    n: int


def start(body, db, **options):
    return agent_run("job", body, run_id="r", db=db, on_pause="return", **options)


def test_reason_and_context_are_stored_before_the_pause_is_raised(db):
    def body(run):
        try:
            run.pause("send it?", {"to": ("a", "b")}, name="approval")
        except RunPaused as paused:
            assert rows(db, "SELECT status FROM runs") == [("paused",)]
            assert rows(db, "SELECT name, reason FROM pauses") == [("approval", "send it?")]
            assert (paused.name, paused.reason, paused.context) == ("approval", "send it?", {"to": ("a", "b")})
            raise

    assert start(body, db) == Paused("r", "approval", "send it?", {"to": ("a", "b")})


def test_case_047_a_pause_cannot_be_swallowed(db):
    calls = []

    def body(run):
        try:
            run.pause("approve?")
        except Exception:
            calls.append("swallowed")
        run.step("delete_all", lambda: calls.append("deleted"))

    assert isinstance(start(body, db), Paused)
    assert calls == []
    assert not issubclass(RunPaused, Exception)


def test_case_047_even_a_bare_except_does_not_let_the_execution_go_on(db):
    calls = []

    def body(run):
        try:
            run.pause("approve?")
        except BaseException:
            pass
        for work in (lambda: run.step("s", lambda: calls.append(1)), lambda: run.record("k", 1), run.done):
            with pytest.raises(InvalidTransition, match="paused"):
                work()
        return "as if nothing had happened"

    assert isinstance(start(body, db), Paused)
    assert calls == []
    assert rows(db, "SELECT status, result FROM runs") == [("paused", None)]


def test_a_finally_that_returns_swallows_nothing_either(db):
    def body(run):
        try:
            run.pause("approve?")
        finally:
            return "mine"  # noqa: B012 - that is the point

    assert isinstance(start(body, db), Paused)


def test_an_answered_pause_returns_the_answer_in_a_new_execution(db):
    calls = []

    def body(run):
        run.step("before", lambda: calls.append("before"))
        context = run.get_pause_context()
        return context, run.pause("go on?", {"n": 1})

    assert isinstance(start(body, db), Paused)
    assert isinstance(start(body, db), Paused), "unanswered: it pauses again"
    assert answer("r", "go on?", {"yes": True}, db=db) is True
    assert start(body, db) == ({"n": 1}, {"yes": True})
    assert calls == ["before"]
    assert rows(db, "SELECT count(*) FROM pauses") == [(1,)]


def test_the_answer_is_of_the_class_that_was_asked_for(db):
    def body(run):
        return run.pause("which?", returns=Choice)

    start(body, db)
    answer("r", "which?", Choice(3), db=db)
    assert start(body, db) == Choice(3)


def test_an_answer_before_the_pause_is_reached_is_kept(db):
    def first(run):
        run.step("a", lambda: 1)
        raise TimeoutError

    with pytest.raises(TimeoutError):
        start(first, db)
    assert answer("r", "go on?", "early", db=db) is True
    assert start(lambda run: run.pause("go on?"), db) == "early"
    assert rows(db, "SELECT asked_at IS NOT NULL FROM pauses") == [(1,)]


def test_the_first_answer_wins(db):
    start(lambda run: run.pause("go on?"), db)
    assert answer("r", "go on?", 1, db=db) is True
    assert answer("r", "go on?", 2, db=db) is False
    assert start(lambda run: run.pause("go on?"), db) == 1


def test_of_many_answers_at_once_exactly_one_wins(db):
    start(lambda run: run.pause("go on?"), db)
    store = Store(db)
    barrier, won = threading.Barrier(8), []

    def give(number):
        barrier.wait(30)
        if answer("r", "go on?", number, db=store):
            won.append(number)

    threads = [threading.Thread(target=give, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert start(lambda run: run.pause("go on?"), db) == won[0]


@pytest.mark.parametrize("value", [None, False, 0, "", {}, (1,)])
def test_falsy_answers_are_answers(db, value):
    start(lambda run: run.pause("go on?"), db)
    answer("r", "go on?", value, db=db)
    assert start(lambda run: run.pause("go on?"), db) == value


@pytest.mark.parametrize("at_once", [True, False])
def test_two_pauses_from_two_threads_answered_in_the_other_order(db, at_once):
    got = {}

    def body(run):
        barrier = threading.Barrier(2)
        paused = []

        def ask(name):
            if at_once:
                barrier.wait(30)
            try:
                got[name] = run.pause(f"{name}?", {"from": name}, name=name)
            except RunPaused as error:
                paused.append(error)

        threads = [threading.Thread(target=ask, args=(name,)) for name in ("first", "second")]
        for thread in threads:
            thread.start()
            if not at_once:
                thread.join()
        for thread in threads:
            thread.join()
        if paused:
            raise paused[0]
        return got

    assert isinstance(start(body, db), Paused)
    assert sorted(name for (name,) in rows(db, "SELECT name FROM pauses WHERE answered_at IS NULL")) == [
        "first",
        "second",
    ]
    with pytest.raises(InvalidTransition) as caught:
        answer("r", None, "which one?", db=db)
    assert "'first'" in str(caught.value)
    assert "'second'" in str(caught.value)
    answer("r", "second", 2, db=db)
    assert isinstance(start(body, db), Paused)
    answer("r", None, 1, db=db)
    assert start(body, db) == {"first": 1, "second": 2}


def test_a_bare_answer_with_nothing_open_is_refused(db):
    start(lambda run: 1, db)
    Checkpoint("other", db=db).record("k", 1)
    with pytest.raises(InvalidTransition, match="run 'other' is waiting for nothing"):
        answer("other", None, 1, db=db)
    with pytest.raises(InvalidTransition, match="completed"):
        answer("r", "x", 1, db=db)
    with pytest.raises(RunNotFound):
        answer("nobody", "x", 1, db=db)


def test_a_second_bare_answer_is_told_that_the_first_one_counts(db):
    start(lambda run: run.pause("go on?"), db)
    answer("r", None, 1, db=db)
    with pytest.raises(InvalidTransition, match=r"the first answer counts: 'go on\?'; agent-resume resume"):
        answer("r", None, 2, db=db)


def test_a_wait_whose_time_is_over_is_no_open_question_and_is_answered_by_name(db):
    def body(run):
        with pytest.raises(TimeoutError):
            run.wait("late", timeout=0.01)
        return run.pause("go on?")

    start(body, db)
    pause, counts = Store(db).answer("r", None, "yes")
    assert (pause.name, counts) == ("go on?", True)
    with pytest.raises(InvalidTransition, match="its time is over, .* must name it .*'late'"):
        answer("r", None, 1, db=db)
    assert Store(db).answer("r", "late", 2)[1]


def test_a_second_unnamed_pause_of_one_reason_needs_a_name(db):
    def body(run):
        return [run.pause("again?"), run.pause("again?")]

    start(body, db)
    answer("r", "again?", 1, db=db)
    with pytest.raises(InvalidTransition, match="name="):
        start(body, db)
    named = lambda run: [run.pause("again?", name=f"q{i}") for i in range(2)]  # noqa: E731 - a body
    assert start(named, db) == Paused("r", "q0", "again?", None)
    answer("r", "q0", "a", db=db)
    answer("r", "q1", "b", db=db)
    assert start(named, db) == ["a", "b"]


def test_a_pause_inside_a_step_stops_the_step_and_runs_it_again_with_the_answer(db):
    calls = []

    def body(run):
        def work():
            calls.append(1)
            return run.pause("inside?")

        return run.step("s", work)

    assert isinstance(start(body, db), Paused)
    assert rows(db, "SELECT status FROM steps") == [("interrupted",)]
    answer("r", "inside?", "yes", db=db)
    assert start(body, db) == "yes"
    assert len(calls) == 2


def test_a_step_that_ends_after_another_threads_pause_is_still_stored(db):
    def body(run):
        paused, release = threading.Event(), threading.Event()
        thread = threading.Thread(target=lambda: run.step("slow", lambda: paused.set() or release.wait(30) and "kept"))
        thread.start()
        paused.wait(30)
        try:
            run.pause("now?")
        finally:
            release.set()
            thread.join()

    assert isinstance(start(body, db), Paused)
    assert load_run("r", db=db).steps[0].output == "kept"


def test_the_command_in_the_text_of_an_error_means_the_runs_store(tmp_path, monkeypatch, run_python, cli):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunPaused) as theirs:
        agent_run("job", lambda run: run.pause("ok?"), run_id="r", db="my store.db", on_pause="raise")
    with pytest.raises(RunPaused) as ours:
        agent_run("job", lambda run: run.pause("ok?"), run_id="r", on_pause="raise")
    assert "agent-resume resume --answer JSON" in str(ours.value)
    typed = shlex.split(str(theirs.value).split("; agent-resume ")[1].replace("JSON", "1"))
    assert typed[1:3] == ["--db", os.path.realpath("my store.db")]
    assert cli(*typed).returncode == 0
    cancel("r", db="my store.db")
    with pytest.raises(RunCancelled, match="resume --db '.*my store.db' --force"):
        agent_run("job", lambda run: 1, run_id="r", db="my store.db")


def test_uncaught_a_pause_is_a_clean_exit(db, run_python):
    said = run_python(
        f"from agent_resume import agent_run\n"
        f"agent_run('job', lambda run: run.pause('go on?'), run_id='r', db={db!r})\nprint('never')"
    )
    at = resolve(db).option
    assert at.startswith(" --db ")
    told = f"run 'r' waits for an answer to 'go on?': go on?; agent-resume resume{at} --answer JSON -- 'r'\n"
    assert (said.returncode, said.stdout, said.stderr) == (0, "", told)
    assert load_run("r", db=db).status == "paused"


def test_a_bare_checkpoints_pause_is_a_clean_exit_too(db, run_python):
    said = run_python(
        f"from agent_resume import Checkpoint\nrun = Checkpoint('r', db={db!r})\n"
        f"try: run.pause('go on?', {{'a': 1}})\nexcept Exception: print('swallowed')\nprint('never')"
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
    with Checkpoint("r", db=db) as run:
        assert (run.status, run.get_pause_context()) == ("paused", {"a": 1})
        answer("r", "go on?", 5, db=db)
        assert run.status == "paused", "reading changes nothing"
        assert run.pause("go on?") == 5
        assert run.status == "running"


def test_in_a_running_loop_a_bare_checkpoints_pause_is_no_systemexit(db):
    async def main():
        with Checkpoint("r", db=db) as run, pytest.raises(RunPaused) as caught:
            run.pause("p")
        return caught.value

    # It would stop the whole loop, with a traceback.
    assert not isinstance(asyncio.run(main()), SystemExit)
    with Checkpoint("r", db=db) as run, pytest.raises(SystemExit):
        run.pause("p")


@pytest.mark.parametrize(("on_pause", "error"), [("exit", SystemExit), ("raise", RunPaused)])
def test_on_pause_chooses_how_it_stops(db, on_pause, error):
    with pytest.raises(error) as caught:
        agent_run("job", lambda run: run.pause("p"), db=db, on_pause=on_pause)
    if error is SystemExit:
        assert caught.value.code == 0


def test_a_pause_inside_an_exception_group_is_found(db):
    def body(run):
        try:
            run.pause("p")
        except RunPaused as paused:
            raise BaseExceptionGroup("tasks", [ValueError("other"), BaseExceptionGroup("inner", [paused])]) from None

    assert start(body, db) == Paused("r", "p", "p", None)


_KILLED = """
import os, sys
from agent_resume import agent_run
db, ledger = sys.argv[1:]
def note(word):
    with open(ledger, "a") as file: file.write(word + "\\n")
    return word
def body(run):
    run.step("before", note, "before")
    got = run.pause("go on?")
    note(f"got {got}")
    if len(open(ledger).read().split("got")) == 2: os.kill(os.getpid(), 9)
    return run.step("after", note, "after")
print(agent_run("job", body, run_id="r", db=db))
"""


def test_killed_between_answer_and_resume_the_answer_is_still_there(db, ledger, run_python):
    assert run_python(_KILLED, db, ledger.path).returncode == 0
    answer("r", "go on?", "yes", db=db)
    assert run_python(_KILLED, db, ledger.path).returncode == -9
    said = run_python(_KILLED, db, ledger.path)
    assert (said.returncode, said.stdout) == (0, "after\n")
    assert ledger.words() == ["before", "got yes", "got yes", "after"]


_KILLED_IN_PAUSE = """
import os, sys
from agent_resume import agent_run, RunPaused
def body(run):
    try: run.pause("go on?", {"n": 1})
    except RunPaused: os.kill(os.getpid(), 9)
agent_run("job", body, run_id="r", db=sys.argv[1])
"""


def test_killed_right_after_the_pause_was_stored_it_is_a_paused_run(db, run_python):
    assert run_python(_KILLED_IN_PAUSE, db).returncode == -9
    assert load_run("r", db=db).shown_status == "paused"
    answer("r", None, "yes", db=db)
    assert start(lambda run: (run.get_pause_context(), run.pause("go on?")), db) == ({"n": 1}, "yes")


def test_answer_and_cancel_work_from_other_processes_while_the_run_is_executed(db, spawn_agent):
    code = (
        "import sys\nfrom agent_resume import agent_run\n"
        "def body(run):\n"
        "    run.event('loop', phase='start'); print('waiting', flush=True)\n"
        "    print('answer', run.wait('q', timeout=30), flush=True)\n"
        "    run.wait('never', timeout=30)\n"
        "try: agent_run('job', body, run_id='r', db=sys.argv[1])\n"
        "except BaseException as error: print(type(error).__name__)"
    )
    agent = spawn_agent(code, db, marker="waiting")
    answer("r", "q", 42, db=db)
    agent.wait_for("answer 42")
    cancel("r", db=db)
    assert agent.finish() == 0
    assert agent.lines[-1] == "RunCancelled"
    assert load_run("r", db=db).status == "cancelled"
    with pytest.raises(RunCancelled):
        start(pytest.fail, db)


def test_cancel_meets_a_run_in_every_status(db):
    with pytest.raises(RunNotFound):
        cancel("nobody", db=db)
    start(lambda run: run.pause("p"), db)
    cancel("r", db=db)
    cancel("r", db=db)
    with pytest.raises(InvalidTransition, match="cancelled"):
        answer("r", "p", 1, db=db)
    agent_run("job", lambda run: 1, run_id="done", db=db)
    with pytest.raises(InvalidTransition, match="completed"):
        cancel("done", db=db)


def test_a_wait_gives_its_default_at_the_deadline_that_was_stored_first(db, clock):
    def body(run):
        return run.wait("w", timeout=3600, default="nobody")

    def stopping(run):
        threading.Timer(0.1, lambda: cancel("r", db=db)).start()
        return body(run)

    with pytest.raises(RunCancelled):
        start(stopping, db)
    first = rows(db, "SELECT deadline FROM pauses")
    with closing(raw.connect(db)) as database:
        database.execute("UPDATE runs SET status = 'interrupted'")
        database.commit()
    clock.advance(3_600_001)
    assert start(body, db) == "nobody"
    assert rows(db, "SELECT deadline FROM pauses") == first


def test_a_wait_without_default_times_out(db):
    with pytest.raises(WaitTimeout) as caught:
        start(lambda run: run.wait("w", timeout=0.01), db)
    assert isinstance(caught.value, TimeoutError)
    answer("r", "w", "late but kept", db=db)
    assert start(lambda run: run.wait("w", timeout=0.01), db) == "late but kept"


def test_get_pause_context_is_empty_when_there_was_no_pause(db):
    assert start(lambda run: run.get_pause_context(), db) == {}


def test_the_process_that_paused_is_let_go(db):
    start(lambda run: run.pause("p"), db)
    assert rows(db, "SELECT owner_token FROM runs") == [(None,)]
    assert rows(db, "SELECT count(*) FROM owners") == [(0,)]


@pytest.mark.parametrize("before", ["sleep", "wait"])
def test_time_that_ran_out_is_nobodys_answer_to_a_pause_of_that_name(db, before):
    def body(run):
        if before == "sleep":
            run.sleep("approval", 0.01)
        else:
            run.wait("approval", timeout=0.01, default="yes")
        with pytest.raises(InvalidTransition, match="share their names"):
            run.pause("delete everything?", name="approval")
        return "asked nobody, and says so"

    assert start(body, db) == "asked nobody, and says so"


def test_a_pause_whose_context_was_refused_can_be_asked_again(db):
    with Checkpoint("r", db=db) as run:
        with pytest.raises(OutputNotStorable):
            run.pause("ok?", {"x": threading.Lock()})
        with pytest.raises(RunPaused):
            run.pause("ok?", {"x": "a lock"})


@pytest.mark.parametrize("more", ["step", "record", "done"])
def test_a_finally_that_wants_more_of_a_paused_run_does_not_hide_the_pause(db, more):
    def body(run):
        try:
            run.pause("ok?")
        finally:
            {"step": lambda: run.step("late", int), "record": lambda: run.record("late", 1), "done": run.done}[more]()

    assert isinstance(start(body, db), Paused)
    assert load_run("r", db=db).status == "paused"


def test_an_early_answer_does_not_lead_past_a_cancellation(db):
    def body(run):
        run.step("a", int)
        cancel("r", db=db)
        run.pause("go on?", name="q")

    with Checkpoint("r", db=db) as run:
        run.event("begun")
    answer("r", "q", "yes", db=db)
    with pytest.raises(RunCancelled):
        agent_run("r", body, run_id="r", db=db)


@pytest.mark.parametrize("name", ["", 5, "a\0b", "\udc81"])
def test_an_answer_to_what_nobody_can_ask_is_refused(db, name):
    with Checkpoint("r", db=db) as run:
        run.record("a", 1)
    with pytest.raises(InvalidName):
        answer("r", name, 1, db=db)


def test_two_questions_of_one_name_in_one_execution_are_not_taken_for_one(db):
    def body(run):
        return [run.pause(f"delete {what}?", name="approve") for what in ("the draft", "the customer database")]

    with Checkpoint("r", db=db) as run:
        run.event("begun")
    answer("r", "approve", "yes", db=db)
    with pytest.raises(InvalidTransition, match="name each its own way"):
        agent_run("r", body, run_id="r", db=db)


@pytest.mark.parametrize("text", ["says \udc81", "says \0"])
def test_a_question_that_no_database_can_hold_is_refused_and_nothing_is_stored(db, text):
    with Checkpoint("r", db=db) as run:
        for ask in (lambda: run.pause(text, name="q"), lambda: run.wait("q", prompt=text, timeout=0.1, default=1)):
            with pytest.raises(InvalidName):
                ask()
        assert run.status in ("running", None)


def test_the_newest_pause_is_the_one_asked_last_whatever_the_clock_says(db, clock):
    def body(run):
        run.pause("a", {"which": "first"})
        run.pause("b", {"which": "second"})

    start(body, db)
    answer("r", "a", 1, db=db)
    clock.advance(-60_000)
    start(body, db)
    with Checkpoint("r", db=db) as run:
        assert run.get_pause_context() == {"which": "second"}


def test_an_answer_from_the_command_line_becomes_what_returns_says(db, cli):
    def body(run):
        return run.pause("which?", name="q", returns=Choice)

    start(body, db)
    assert cli("resume", "r", "--answer", '{"n": 3}', "--db", db).returncode == 0
    assert start(body, db) == Choice(3)


def test_an_answer_that_fits_not_says_that_it_is_the_answer(db):
    def body(run):
        return run.pause("which?", name="q", returns=Choice)

    start(body, db)
    answer("r", "q", ["no", "choice"], db=db)
    with pytest.raises(StoredValueUnreadable, match="the answer to 'q'"):
        start(body, db)


def test_what_went_wrong_beside_a_pause_is_in_the_log(db, caplog):
    def body(run):
        try:
            run.pause("ok?")
        except BaseException as pause:
            raise BaseExceptionGroup("both", [pause, KeyError("lost")]) from None

    assert isinstance(start(body, db), Paused)
    assert "beside the pause of run 'r': KeyError" in caplog.text


def test_a_question_of_any_length_can_be_asked_and_answered(db):
    question = "ж" * 3000

    def body(run):
        return run.pause(question)

    with pytest.raises(RunPaused) as paused:
        agent_run("r", body, run_id="r", db=db, on_pause="raise")
    assert paused.value.reason == question
    assert len(paused.value.name.encode()) <= 2000
    answer("r", question, "yes", db=db)
    assert agent_run("r", body, run_id="r", db=db) == "yes"


def test_who_answered_is_a_text_that_every_database_can_hold(db):
    from agent_resume import Store

    with Checkpoint("r", db=db) as run:
        run.record("a", 1)
    with Store(db) as store:
        for who in ("a\0b", "\udc81"):
            with pytest.raises(InvalidName):
                store.answer("r", "q", 1, by=who)
