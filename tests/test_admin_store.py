"""What people decide about a run from outside: each decision is one transaction, and numbers its event."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading

import pytest

from agent_resume import (
    InvalidTransition,
    RunInUse,
    Store,
    agent_run,
    ownership,
    store_admin,
    store_admin_detail,
    store_admin_edit,
    store_admin_fork,
)
from agent_resume.store_sql import Place


def job(run):
    run.step("a", lambda: {"x": (1, 2)})
    return run.step("b", lambda: 2)


@pytest.fixture
def store(db):
    with Store(db) as opened:
        agent_run("job", job, run_id="r", db=opened)
        yield opened


def place(store, run_id="r"):
    row = store.find_run(run_id)
    return Place(row.seq, row.id)


def numbers(store, run_id="r"):
    return [event.seq for event in store.events(run_id)]


def claim(store, pid=None):
    seed = store.owner.seed
    if pid is not None:
        seed = dataclasses.replace(seed, pid=pid, started=ownership.process_start(pid))
    return store_admin.ExecClaim(seed, store.owner.judge)


def test_every_decision_numbers_its_event(store):
    store.direct(store_admin_edit.rename, place(store), "work")
    store.direct(store_admin_edit.tag, place(store), {"k": True}, ())
    store.direct(store_admin_edit.rerun, store.owner.judge, place(store), "a", True)
    store.direct(store_admin.claim_exec, place(store), claim(store))
    store.direct(store_admin.mark_done, store.owner.judge, place(store), "a", store.codec.encode(1), "me")
    store.direct(store_admin.retry, store.owner.judge, place(store), "b", "me")
    store.cancel("r")
    store.direct(store_admin.reopen, place(store))
    assert numbers(store) == list(range(1, len(numbers(store)) + 1))
    assert store.find_run("r").last_seq == numbers(store)[-1]


def test_nobody_can_be_thrown_out_of_a_run_that_nobody_has(store):
    for decision in (store_admin.take_over, store_admin.reopen):
        with pytest.raises(InvalidTransition):
            store.direct(decision, place(store))
    assert store.find_run("r").status == "completed"


def test_a_decision_that_is_refused_changes_nothing(store):
    before = store.find_run("r"), numbers(store)
    for decision in (
        lambda: store.direct(store_admin_edit.rerun, store.owner.judge, place(store), "nope", True),
        lambda: store.direct(store_admin.retry, store.owner.judge, place(store), "a", "me"),
        lambda: store.direct(store_admin_fork.fork, place(store), store_admin_fork.ForkRequest("nope", {}, False)),
    ):
        with pytest.raises(InvalidTransition):
            decision()
    assert (store.find_run("r"), numbers(store)) == before
    assert len(list(store.list_runs())) == 1


def test_a_forked_value_comes_back_as_the_same_type(store):
    forked = store.direct(store_admin_fork.fork, place(store), store_admin_fork.ForkRequest("b", {}, False))
    assert forked.shared == ("a",)
    assert store.load_run(forked.run.id).steps[0].output == {"x": (1, 2)}
    assert numbers(store, forked.run.id) == list(range(1, forked.run.last_seq + 1))


def test_a_command_that_a_live_process_has_just_started_is_not_started_again(store):
    store.direct(store_admin.claim_exec, place(store), claim(store, os.getppid()))
    with pytest.raises(RunInUse) as refused:
        store.direct(store_admin.claim_exec, place(store), claim(store))
    assert refused.value.pid == os.getppid()
    assert refused.value.since


def test_two_claims_at_once_leave_one(store):
    others = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)]
    outcomes = []

    def try_it(pid):
        try:
            store.direct(store_admin.claim_exec, place(store), claim(store, pid))
            outcomes.append("got")
        except RunInUse:
            outcomes.append("refused")

    threads = [threading.Thread(target=try_it, args=(other.pid,)) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for other in others:
        other.communicate(b"\n")
    assert sorted(outcomes) == ["got", "refused"]


def test_a_run_that_ends_while_it_is_read_is_not_shown_as_cut_off(db, tmp_path, spawn_agent, monkeypatch):
    code = """
import os, sys, time
from agent_resume import agent_run
def body(run):
    run.step("s", lambda: print("begun", flush=True) or wait())
def wait():
    while not os.path.exists("go"):
        time.sleep(0.01)
agent_run("live", body, run_id="live", db=sys.argv[1])
"""
    agent = spawn_agent(code, db, marker="begun")
    read = store_admin_detail.owners_by_token

    def read_late(tx):
        (tmp_path / "go").touch()
        assert agent.finish() == 0
        return read(tx)

    with Store(db) as store:
        monkeypatch.setattr(store_admin_detail, "owners_by_token", read_late)
        found = store_admin_detail.detail(store, store.find_run("live"))
    assert (found.status, found.cut_off, found.owner) == ("completed", frozenset(), None)
