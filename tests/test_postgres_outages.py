"""A server that is killed under load. ``scripts/pg-kill-test`` does this 20 times with 8 agents; here is its share."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_proxy import Proxy

from agent_resume import Checkpoint, Store, agent_run, errors

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.fixture
def kill_test(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("pg_kill_test", SCRIPTS / "pg_kill_test.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "pg_kill_test", module)
    spec.loader.exec_module(module)
    return module.kill_test


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_server_killed_three_times_under_load_loses_nothing_acknowledged(postgres: Any, kill_test: Any) -> None:
    outcome = kill_test(kills=3, processes=4, seed=7, up=0.6)
    assert outcome.well, f"{outcome}\n" + "\n".join(outcome.outputs)
    assert outcome.kills == 3
    assert outcome.acknowledged > 100


def test_a_server_that_stays_away_is_unavailable_and_the_result_is_handed_back(
    postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import postgres_server

    from agent_resume import database_postgres

    monkeypatch.setattr(database_postgres, "OUTAGE_LIMIT", 0.5)
    with postgres_server.Server() as server:
        url = server.create_database("away")

        def body(run: Any) -> Any:
            def work() -> str:
                server.kill()
                return "expensive"

            return run.step("work", work)

        with Store(url) as store:
            with pytest.raises(errors.StoreUnavailable) as caught:
                agent_run("agent", body, db=store, run_id="r")
            assert caught.value.result == "expensive"
            assert any("was not saved" in note for note in caught.value.__notes__)
            server.start()
            assert agent_run("agent", lambda run: run.step("work", lambda: "again"), db=store, run_id="r") == "again"
            (step,) = store.load_run("r").steps
            assert step.attempts == 2


@pytest.mark.parametrize("when", ["BEGIN", "COMMIT"])
def test_a_line_that_stays_open_and_says_nothing_is_given_up(
    postgres: Any, postgres_url: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    from agent_resume import database_postgres_line as line

    with Proxy(postgres.port) as proxy, Store(postgres_url.replace(str(postgres.port), str(proxy.port))) as store:
        calls = []

        def work() -> str:
            calls.append("work")
            monkeypatch.setattr(line, "ANSWER_LIMIT", 1.0)
            return "expensive"

        send = psycopg.Cursor._execute_send

        def watched(cursor: Any, query: Any, **options: Any) -> None:
            if query.query.startswith(when.encode()) and calls == ["work"]:
                calls.append("hush")
                proxy.hush()
            send(cursor, query, **options)

        monkeypatch.setattr(psycopg.Cursor, "_execute_send", watched)
        with Checkpoint("r", db=store) as run:
            run.record("a", 1)
            assert run.step("work", work) == "expensive"
            proxy.hush()
            assert run.has("work")
        assert calls == ["work", "hush"]
        assert [(step.name, step.attempts) for step in store.load_run("r").steps] == [("a", 1), ("work", 1)]
