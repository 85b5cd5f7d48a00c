"""Events: ordered, registered, never raised into the agent, lost ones counted."""

from __future__ import annotations

import json
import sqlite3
import threading
import warnings
from contextlib import closing

import pytest
import raw

from agent_resume import (
    EVENT_TYPES,
    AgentResumeWarning,
    Checkpoint,
    InvalidName,
    Store,
    agent_run,
    register_event_type,
)


def rows(db, query, *values):
    with closing(raw.connect(db)) as database:
        return database.execute(query, values).fetchall()


@pytest.fixture
def ticks():
    register_event_type("tick", {"i": "its number"})
    yield
    EVENT_TYPES.pop("tick", None)


def test_data_and_fields_are_stored_as_json(db, ticks):
    with Checkpoint("r", db=db) as run:
        run.event("tick")
        run.event("tick", {"i": 1})
        run.event("tick", i=2, type="positional only", data="too")
        run.event("tick", {"i": 3}, more=True)
        run.event("tick", [1, 2])
        run.event("tick", [1, 2], i=4)
        run.event("tick", {"when": (1, b"x")})
    stored = [
        data and json.loads(data) for (data,) in rows(db, "SELECT data FROM events WHERE type = 'tick' ORDER BY seq")
    ]
    assert stored[:6] == [
        None, {"i": 1}, {"i": 2, "type": "positional only", "data": "too"}, {"i": 3, "more": True}, [1, 2],
        {"data": [1, 2], "i": 4},
    ]  # fmt: skip
    assert stored[6] is not None


def test_an_unregistered_type_is_stored_and_warned_about_once(db):
    with Checkpoint("r", db=db) as run:
        with pytest.warns(AgentResumeWarning, match="'mine'") as caught:
            run.event("mine", a=1)
            run.event("mine", a=2)
        assert len(caught) == 1
    assert rows(db, "SELECT count(*) FROM events WHERE type = 'mine'") == [(2,)]


def test_where_warnings_are_errors_an_event_is_stored_all_the_same_and_raises_nothing(db, caplog):
    with warnings.catch_warnings(), Checkpoint("r", db=db) as run:
        warnings.simplefilter("error")
        run.event("mine", a=1)
    assert rows(db, "SELECT count(*) FROM events WHERE type = 'mine'") == [(1,)]
    assert "not registered" in caplog.text


def test_the_warning_points_at_the_agents_own_line(db):
    with Checkpoint("r", db=db) as run, pytest.warns(AgentResumeWarning) as caught:
        run.event("mine")
    assert caught[0].filename == __file__


def test_a_registered_type_says_who_writes_and_who_reads_it(ticks):
    assert EVENT_TYPES["tick"].fields == {"i": "its number"}
    assert all(kind.writer and kind.reader for kind in EVENT_TYPES.values())
    with pytest.raises(InvalidName):
        register_event_type("", {})
    with pytest.raises(ValueError, match="itself"):
        register_event_type("start", {})


def test_every_event_that_is_written_has_a_registered_type(db):
    def body(run):
        run.step("a", lambda: 1)
        with pytest.raises(ZeroDivisionError):
            run.step("b", lambda: 1 / 0)
        with pytest.raises(KeyboardInterrupt):
            run.step("c", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        run.record("d", 1)
        run.set_loop_state(turns=1)
        for turn in run.loop("l", max_turns=1):
            turn.step(int)
        run.wait("w", timeout=0.01, default=None)
        run.sleep("s", 0)
        run.pause("p")

    for _ in range(2):
        agent_run("job", body, run_id="r", db=db, on_pause="return")
    kinds = {kind for (kind,) in rows(db, "SELECT DISTINCT type FROM events")}
    assert kinds <= set(EVENT_TYPES)
    assert len(kinds) >= 12


def test_a_users_event_of_a_type_that_we_write_cannot_be_mistaken_for_ours(db):
    with Checkpoint("r", db=db) as run:
        run.step("a", lambda: 1)
        run.event("done", durationMs=5)
    assert rows(db, "SELECT type FROM events WHERE type LIKE '%done'") == [("done",), ("user:done",)]
    assert rows(db, "SELECT outcome FROM step_attempts") == [("done",)]


class _Odd:
    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    ("type", "data"), [("tick", _Odd()), ("tick", threading.Lock()), (5, None), ("", None), ("a\0b", None), (None, {})]
)
def test_an_event_that_cannot_be_written_is_logged_and_counted_never_raised(db, ticks, caplog, type, data):
    with Checkpoint("r", db=db) as run:
        run.record("k", 1)
        assert run.event(type, data) is None
    assert "was not stored" in caplog.text
    assert rows(db, "SELECT json_extract(meta, '$.eventsLost') FROM runs") == [(1,)]


def test_lost_events_are_counted_by_the_next_write_that_succeeds(db, ticks, monkeypatch, caplog):
    def body(run):
        run.event("tick", i=1)
        monkeypatch.setattr("agent_resume.database_sqlite.BUSY_LIMIT", 0.05)
        with closing(sqlite3.connect(db, isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            run.event("tick", i=2)
            run.event("tick", i=3)
            holder.execute("ROLLBACK")
        run.event("tick", i=4)
        assert rows(db, "SELECT json_extract(meta, '$.eventsLost') FROM runs") == [(2,)]
        run.event("tick", threading.Lock())

    agent_run("job", body, run_id="r", db=db)
    assert rows(db, "SELECT json_extract(meta, '$.eventsLost') FROM runs") == [(3,)]
    stored = [json.loads(data)["i"] for (data,) in rows(db, "SELECT data FROM events WHERE type = 'tick' ORDER BY seq")]
    assert stored == [1, 4]


def test_the_count_of_lost_events_leaves_other_meta_alone(db, caplog):
    Checkpoint("r", db=db).record("k", 1)
    with closing(raw.connect(db)) as database:
        database.execute("""UPDATE runs SET meta = '{"tags": ["a"], "eventsLost": 4}'""")
        database.commit()
    with Checkpoint("r", db=db) as run:
        run.event("", 1)
    assert json.loads(rows(db, "SELECT meta FROM runs")[0][0]) == {"tags": ["a"], "eventsLost": 5}


def test_an_event_inside_a_step_names_the_step_and_the_attempt(db, ticks):
    def body(run):
        def work():
            run.event("tick", i=1)
            if not tries:
                tries.append(1)
                raise TimeoutError
            return 1

        return run.step("s", work)

    tries = []
    with pytest.raises(TimeoutError):
        agent_run("job", body, run_id="r", db=db)
    agent_run("job", body, run_id="r", db=db)
    assert rows(db, "SELECT step_key, attempt FROM events WHERE type = 'tick' ORDER BY seq") == [("s", 1), ("s", 2)]


def test_an_event_of_another_run_inside_a_step_belongs_to_no_step(db, ticks):
    with Store(db) as store, Checkpoint("outer", db=store) as outer, Checkpoint("inner", db=store) as inner:
        outer.step("s", lambda: inner.event("tick", i=1))
    assert rows(db, "SELECT step_key, attempt FROM events WHERE type = 'tick'") == [(None, None)]


def test_events_after_a_pause_are_kept_and_after_the_end_too(db, ticks):
    def body(run):
        try:
            run.pause("p")
        except BaseException:
            run.event("tick", i=1)
            raise

    agent_run("job", body, run_id="r", db=db, on_pause="return")
    assert rows(db, "SELECT count(*) FROM events WHERE type = 'tick'") == [(1,)]
    assert rows(db, "SELECT status FROM runs") == [("paused",)]
