"""Several hosts on one PostgreSQL store: processes with identities of their own, which cannot see each other's pids."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import psycopg

from agent_resume import Store, agent_run, load_run

HOLD = """
import sys, time
from agent_resume import agent_run
def body(run):
    run.step("first", lambda: 1)
    def long():
        print("in-step", flush=True)
        while True:
            time.sleep(0.05)
    run.step("long", long)
agent_run("agent", body, run_id="r", db=sys.argv[1])
"""

RESUME = """
import sys
from agent_resume import agent_run, errors
try:
    print("result", agent_run("agent", lambda run: [run.step("first", lambda: 0), run.step("long", lambda: 2)],
                              run_id="r", db=sys.argv[1]), flush=True)
except errors.RunInUse as error:
    print("in use by", error.host, error.pid, flush=True)
"""

#: Short times for what is half a minute in earnest: the beat, and the lease.
QUICK = """
import agent_resume.ownership as o
o.BEAT_INTERVAL, o.LEASE = 0.2, {lease}
o.Heart.__init__.__kwdefaults__.update(interval=0.2, lease={lease})
o.BeatWatch.__init__.__kwdefaults__["lease"] = {lease}
o.wait_until_decided.__kwdefaults__.update(lease={lease}, poll=0.1)
"""


def quick(code: str, lease: float) -> str:
    return QUICK.format(lease=lease) + code


def test_an_owner_of_another_host_is_watched_and_lives(
    postgres_url: str, spawn_agent: Callable[..., Any], run_python: Callable[..., Any]
) -> None:
    holder = spawn_agent(quick(HOLD, 30), postgres_url, marker="in-step", AGENT_RESUME_HOST="host-a")
    said = run_python(quick(RESUME, 30), postgres_url, AGENT_RESUME_HOST="host-b")
    assert said.stdout.strip() == f"in use by host-a {holder.pid}", said.stderr


def test_a_dead_owner_of_another_host_is_found_by_its_beats(
    postgres_url: str, spawn_agent: Callable[..., Any], run_python: Callable[..., Any]
) -> None:
    spawn_agent(quick(HOLD, 2), postgres_url, marker="in-step", AGENT_RESUME_HOST="host-a").kill()
    said = run_python(quick(RESUME, 2), postgres_url, AGENT_RESUME_HOST="host-b")
    assert said.stdout.strip() == "result [1, 2]", said.stderr
    assert "watching its beats" in said.stderr
    state = load_run("r", db=postgres_url)
    assert [(step.name, step.attempts) for step in state.steps] == [("first", 1), ("long", 2)]


def test_a_host_cut_off_that_comes_back_cannot_write(
    postgres_url: str, spawn_agent: Callable[..., Any], run_python: Callable[..., Any]
) -> None:
    held = HOLD.replace("while True:", "for _ in range(1):").replace('print("in-step", flush=True)', (
        'print("in-step", flush=True); import os, signal; os.kill(os.getpid(), signal.SIGSTOP)'
    ))  # fmt: skip
    caught = "\nexcept errors.AgentResumeError as error:\n    print('refused', type(error).__name__, flush=True)\n"
    code = held.replace('agent_run("agent"', 'from agent_resume import errors\ntry:\n    agent_run("agent"')
    holder = spawn_agent(quick(code.rstrip() + caught, 2), postgres_url, marker="in-step", AGENT_RESUME_HOST="host-a")
    said = run_python(quick(RESUME, 2), postgres_url, AGENT_RESUME_HOST="host-b")
    assert said.stdout.strip() == "result [1, 2]", said.stderr
    holder.signal(signal.SIGCONT)
    holder.wait_for("refused RunLost")
    assert load_run("r", db=postgres_url).to_dict()["result"] == [1, 2]


def test_a_silent_network_is_noticed_and_the_run_goes_on(postgres: Any, postgres_url: str) -> None:
    """The line between an agent and its server stops to carry anything; then there is another one."""
    from postgres_proxy import Proxy

    with Proxy(postgres.port) as proxy:
        url = postgres_url.replace(postgres.address, f"127.0.0.1:{proxy.port}")

        def body(run: Any) -> Any:
            run.step("first", lambda: 1)
            return run.step("second", proxy.cut)

        with Store(url) as store:
            assert agent_run("agent", body, db=store, run_id="r") is None
    assert [step.attempts for step in load_run("r", db=postgres_url).steps] == [1, 1]
    assert proxy.accepted >= 2


def test_beats_show_the_time_of_the_server(postgres_url: str, clock: Any) -> None:
    seen: list[Any] = []

    def body(run: Any) -> None:
        with psycopg.connect(postgres_url.replace("+psycopg", "")) as connection:
            seen.extend(
                connection.execute(
                    "SELECT beat_at, abs(extract(epoch FROM now() - beat_at::timestamptz)) FROM agent_resume.owners"
                )
            )

    agent_run("agent", body, db=postgres_url)
    ((beat_at, seconds),) = seen
    assert seconds < 60
    assert beat_at.endswith("Z")
    assert not beat_at.startswith("2026-01-31T09:08:07")


def test_no_two_hosts_take_one_run(postgres_url: str, spawn_agent: Callable[..., Any]) -> None:
    take = """
import sys, time
from agent_resume import agent_run, errors
def body(run):
    print("took", flush=True)
    run.step("only", lambda: time.sleep(1.0))
try:
    agent_run("agent", body, run_id="r", db=sys.argv[1])
    print("ended", flush=True)
except errors.RunInUse:
    print("in use", flush=True)
"""
    agents = [spawn_agent(quick(take, 30), postgres_url, AGENT_RESUME_HOST=f"host-{n}") for n in range(4)]
    for agent in agents:
        assert agent.finish() == 0, agent.output
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as connection:
        starts = connection.execute("SELECT count(*) FROM agent_resume.events WHERE type = 'start'").fetchone()
    assert starts == (1,)
