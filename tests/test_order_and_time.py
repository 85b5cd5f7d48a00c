"""Order is an integer, times are UTC with their zone written out."""

from __future__ import annotations

import datetime
import json
import re
import time
from contextlib import closing

import pytest
import raw

from agent_resume import Checkpoint, agent_run, list_runs, load_run
from agent_resume import clock as our_clock

ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def rows(db, query, *values):
    with closing(raw.connect(db)) as database:
        return database.execute(query, values).fetchall()


_ZONED = """
import sys, time
from agent_resume import agent_run, load_run
time.tzset()
db, run_id = sys.argv[1:]
before = time.time()
agent_run("job", lambda run: run.step("a", lambda: 1), run_id=run_id, db=db)
print(before, load_run(run_id, db=db).created_at)
"""


def test_case_055_times_are_right_in_every_zone(db, run_python, cli):
    for zone in ("America/New_York", "Asia/Kolkata", "UTC", "Pacific/Apia"):
        run_id = zone.replace("/", "-")
        said = run_python(_ZONED, db, run_id, TZ=zone)
        assert said.returncode == 0, said.stderr
        before, created = said.stdout.split()
        moment = datetime.datetime.fromisoformat(created)
        assert moment.utcoffset() == datetime.timedelta(0)
        assert abs(moment.timestamp() - float(before)) < 30
        shown = json.loads(cli("show", run_id, "--json", "--db", db, TZ=zone).stdout)
        assert shown["createdAt"] == created
    assert [run.id for run in list_runs(db=db)] == ["Pacific-Apia", "UTC", "Asia-Kolkata", "America-New_York"]


def test_case_055_every_time_in_the_store_has_its_zone(db):
    def body(run):
        run.step("a", lambda: 1)
        run.wait("w", timeout=0.01, default=None)
        run.pause("p")

    agent_run("job", body, db=db, on_pause="return")
    agent_run("other", lambda run: 1, db=db)
    times = [
        *rows(db, "SELECT created_at, updated_at FROM runs"), *rows(db, "SELECT started_at, finished_at FROM steps"),
        *rows(db, "SELECT ts, ts FROM events"), *rows(db, "SELECT asked_at, asked_at FROM pauses"),
        *rows(db, "SELECT deadline, answered_at FROM pauses WHERE kind = 'wait'"),
        *rows(db, "SELECT finished_at, finished_at FROM runs WHERE status = 'completed'"),
    ]  # fmt: skip
    assert len(times) > 8
    for row in times:
        for text in row:
            assert ISO.fullmatch(text), text


def test_case_055_the_repeated_hour_and_a_clock_that_goes_back_change_no_order(db, clock):
    with Checkpoint("r", db=db) as run:
        for number in range(10):
            run.record(f"k{number}", number)
            run.event("loop", turn=number)
            clock.advance(-3_600_000)
    assert [step.name for step in load_run("r", db=db).steps] == [f"k{number}" for number in range(10)]
    events = [
        json.loads(data)["turn"] for (data,) in rows(db, "SELECT data FROM events WHERE type = 'loop' ORDER BY seq")
    ]
    assert events == list(range(10))
    (summary,) = list_runs(db=db)
    assert summary.duration_ms >= 0


def test_case_056_events_of_one_frozen_millisecond_keep_their_order(db, clock):
    with Checkpoint("r", db=db, durability="relaxed") as run:
        for number in range(1000):
            run.event("loop", turn=number)
    stored = rows(db, "SELECT json_extract(data, '$.turn'), ts FROM events WHERE type = 'loop' ORDER BY seq")
    assert [turn for turn, _ in stored] == list(range(1000))
    assert len({ts for _, ts in stored}) == 1


_MANY_RUNS = """
import sys
from agent_resume import Store, agent_run
import agent_resume.clock as clock
clock.now_ms = lambda: 1_769_850_487_006
store = Store(sys.argv[1])
import warnings; warnings.simplefilter("ignore")
print(*[agent_run("job", lambda run: run.id, db=store, durability="relaxed") for _ in range(int(sys.argv[2]))])
"""


def test_case_056_processes_that_create_runs_at_once_get_distinct_ids(db, spawn_agent):
    count = 100
    agents = [spawn_agent(_MANY_RUNS, db, count) for _ in range(4)]
    ids = []
    for agent in agents:
        assert agent.finish() == 0, agent.output
        ids += agent.output.split()
    assert len(ids) == len(set(ids)) == 4 * count
    first, second = ([run.id for run in list_runs(db=db)] for _ in range(2))
    assert first == second
    assert len(first) == 4 * count
    assert [run.id for run in list_runs(db=db, sort="updated")] == first[::-1]


def test_attempts_are_ordered_by_number_and_steps_by_their_first_event(db):
    def body(run):
        run.step("b", lambda: 1)
        run.step("a", lambda: 1 // len(again))

    again = []
    with pytest.raises(ZeroDivisionError):
        agent_run("job", body, run_id="r", db=db)
    again.append(1)
    agent_run("job", body, run_id="r", db=db)
    assert [step.name for step in load_run("r", db=db).steps] == ["b", "a"]
    assert [seq for (seq,) in rows(db, "SELECT seq FROM events ORDER BY id")] == list(
        range(1, rows(db, "SELECT last_seq FROM runs")[0][0] + 1)
    )


def test_durations_come_from_a_clock_that_never_goes_back(db, clock):
    def work():
        time.sleep(0.02)
        clock.advance(-3_600_000)

    with Checkpoint("r", db=db) as run:
        run.step("a", work)
    (step,) = load_run("r", db=db).steps
    assert 0 <= step.duration_ms < 60_000


@pytest.mark.parametrize("ms", [0, 999, 1000, 951_782_399_999, 951_782_400_000, 1_769_850_487_006, 253_402_300_799_999])
def test_times_survive_being_written_and_read(ms):
    text = our_clock.iso(ms)
    assert ISO.fullmatch(text)
    assert our_clock.parse_iso(text) == ms
    assert (
        text
        == datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"
    )


def test_a_long_quiet_run_is_overdue_or_idle_only_after_what_it_expects(db, clock):
    run = Checkpoint("quiet", db=db)
    run.set_expect_max_ms(7_200_000)
    shown = lambda: [run.shown_status for run in list_runs(db=db)]  # noqa: E731 - short
    clock.advance(601_000)
    assert shown() == ["running"]
    clock.advance(7_200_000)
    assert shown() == ["idle"]

    def body(run):
        run.set_expect_max_ms(1)
        assert shown()[0] == "running"
        clock.advance(599_000)
        assert shown()[0] == "running"
        clock.advance(2_000)
        assert shown()[0] == "overdue"
        run.event("loop", phase="start")
        assert shown()[0] == "running"

    agent_run("job", body, db=db)
    run.close()
