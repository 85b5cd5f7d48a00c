"""A whole store from one database into another and back."""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agent_resume import Checkpoint, RunPaused, Store, agent_run, answer, errors, store_copy, store_dump


def fill(store: Store, count: int) -> None:
    for number in range(count):
        kind = number % 4

        def body(run: Any, number: int = number, kind: int = kind) -> Any:
            value = {
                "n": number,
                "t": (1, Decimal("1.50")),
                "nul": "a\0b",
                "half": "\ud800",
                "at": datetime.date(2026, 1, 31),
            }
            run.step("one", lambda: value, meta={"model": "m", "inputTokens": number})
            run.record("record 😀", [value, float("inf")])
            run.event("log", {"message": "x" * number})
            if kind == 1:
                raise ZeroDivisionError("as planned")
            if kind == 2:
                run.pause("approve", {"n": number})
            return value

        try:
            agent_run("agent", body, db=store, run_id=f"run {number}", input={"n": number}, on_pause="raise")
        except (ZeroDivisionError, RunPaused):
            pass
        if number % 8 == 2:
            answer(f"run {number}", "approve", {"ok": True}, db=store)


def everything(store: Store) -> list[Any]:
    """Every row of every run, in order."""
    found = []
    for summary in reversed(list(store.list_runs())):
        with store.dump_run(summary.id) as dump:
            found.append((dump.run, list(dump.steps), list(dump.events), list(dump.pauses)))
    return found


def test_there_and_back_again_nothing_has_changed(postgres_url: str, tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as first, Store(postgres_url) as middle, Store(tmp_path / "b.db") as last:
        fill(first, 24)
        there = store_copy.copy(first, middle)
        back = store_copy.copy(middle, last)
        assert (there.runs, there.copied, there.present, there.live) == (24, 24, 0, ())
        assert there.steps == 48
        assert there.checksum == back.checksum
        assert everything(first) == everything(middle) == everything(last)


def test_a_copied_run_goes_on_in_the_other_database(postgres_url: str, tmp_path: Path) -> None:
    calls: list[str] = []

    def body(run: Any, *, fail: bool = False) -> Any:
        one = run.step("one", lambda: calls.append("one") or (1, 2))
        if fail:
            raise ZeroDivisionError
        return [one, run.step("two", lambda: calls.append("two") or 2)]

    with Store(tmp_path / "a.db") as source, Store(postgres_url) as target:
        with pytest.raises(ZeroDivisionError):
            agent_run("agent", lambda run: body(run, fail=True), db=source, run_id="r")
        store_copy.copy(source, target)
        assert agent_run("agent", body, db=target) == [(1, 2), 2]
        assert calls == ["one", "two"]
        assert [run.id for run in target.list_runs()] == ["r"]


def test_an_interrupted_copy_goes_on_where_it_stopped(postgres_url: str, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def stop(run_id: str, what: str) -> None:
        if run_id == "run 7":
            raise Enough

    with Store(tmp_path / "a.db") as source, Store(postgres_url) as target:
        fill(source, 12)
        with pytest.raises(Enough):
            store_copy.copy(source, target, tell=stop)
        assert len(list(target.list_runs())) == 8
        report = store_copy.copy(source, target)
        assert (report.copied, report.present) == (4, 8)
        assert everything(source) == everything(target)
        assert store_copy.copy(source, target).copied == 0


def test_a_broken_connection_does_not_end_a_copy(postgres_url: str, tmp_path: Path) -> None:
    def cut(run_id: str, what: str) -> None:
        if run_id in ("run 3", "run 6"):
            with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )

    with Store(tmp_path / "a.db") as source, Store(postgres_url) as target:
        fill(source, 10)
        assert store_copy.copy(source, target, tell=cut).runs == 10
        assert everything(source) == everything(target)


def test_another_run_of_the_same_id_is_kept_unless_told_otherwise(postgres_url: str, tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as source, Store(postgres_url) as target:
        with Checkpoint("r", db=source) as run:
            run.record("a", "theirs")
        with Checkpoint("r", db=target) as run:
            run.record("a", "mine")
        ((run_id, reason),) = store_copy.copy(source, target).refused
        assert run_id == "r"
        assert reason.startswith("run 'r' was not copied: a different run has this id, or each of the two went on")
        assert target.load_run("r").steps[0].output == "mine"
        assert store_copy.copy(source, target, on_conflict="replace").copied == 1
        assert target.load_run("r").steps[0].output == "theirs"


def test_runs_that_are_being_executed_are_named(postgres_url: str, tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as source, Store(postgres_url) as target:

        def body(run: Any) -> tuple[str, ...]:
            run.step("one", lambda: 1)
            return store_copy.copy(source, target).live

        assert agent_run("agent", body, db=source, run_id="r") == ("r",)


def test_a_run_that_was_changed_in_the_target_is_noticed(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path / "a.db") as source, Store(postgres_url) as target:
        fill(source, 4)
        insert = store_dump._insert

        def forgetful(tx: Any, dumped: Any, run_id: str) -> Any:
            made = insert(tx, dumped, run_id)
            tx.dynamic(_shorten())
            return made

        monkeypatch.setattr(store_dump, "_insert", forgetful)
        with pytest.raises(errors.StoreDamaged, match="not what was copied"):
            store_copy.copy(source, target)


def _shorten() -> Any:
    from sqlalchemy import update

    from agent_resume.schema_tables import steps

    return update(steps).where(steps.c.key == "one").values(output="null").returning(steps.c.id)


@pytest.mark.parametrize(
    "change",
    ["UPDATE steps SET key = hex(randomblob(1500)) WHERE run_id = 2", "INSERT INTO pauses (run_id, name, kind, reason) "
     "VALUES (2, 'q', 'pause', 'a' || char(0) || 'b')"],
)  # fmt: skip
def test_a_run_that_the_target_cannot_hold_is_named_and_the_others_are_copied(
    postgres_url: str, tmp_path: Path, change: str
) -> None:
    import sqlite3

    with Store(tmp_path / "a.db") as source:
        for name in ("one", "two", "three"):
            agent_run("agent", lambda run: run.record("a", 1), db=source, run_id=name)
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as plain:
        plain.execute(change)
        plain.commit()
    with Store(tmp_path / "a.db") as source, Store(postgres_url) as target:
        for _ in range(2):
            ((run_id, reason),) = store_copy.copy(source, target).refused
            assert run_id == "two"
            assert "of run 'two'" in reason
        assert {run.id for run in target.list_runs()} == {"one", "three"}


def test_a_run_that_went_on_does_not_keep_the_others_from_being_copied(postgres_url: str, tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as source, Store(postgres_url) as target:
        for name in ("one", "two"):
            with Checkpoint(name, db=source) as run:
                run.record("a", 1)
        store_copy.copy(source, target)
        with Checkpoint("one", db=source) as run:
            run.record("b", 2)
        with Checkpoint("three", db=source) as run:
            run.record("a", 1)
        report = store_copy.copy(source, target)
        assert (report.copied, report.present) == (1, 1)
        ((run_id, reason),) = report.refused
        assert run_id == "one"
        assert "the one that is there is an earlier state of it: it has " in reason
        assert reason.endswith("--on-conflict replace brings it up to date")
        assert {run.id for run in target.list_runs()} == {"one", "two", "three"}
        assert store_copy.copy(source, target, on_conflict="replace").copied == 1


def test_a_run_that_went_on_in_the_target_is_to_be_left_there(postgres_url: str, tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as source, Store(postgres_url) as target:
        for name in ("one", "two"):
            with Checkpoint(name, db=source) as run:
                run.record("a", 1)
        store_copy.copy(source, target)
        for name in ("one", "two"):
            with Checkpoint(name, db=target) as run:
                run.record("b", 2)
        with Checkpoint("two", db=source) as run:
            run.record("c", 3)
        (_, further), (_, apart) = store_copy.copy(source, target).refused
        assert "the one that is there went on further: it has " in further
        assert further.endswith("leave it: --on-conflict replace would throw away what it has done since")
        assert "each of the two went on by itself" in apart
        with source.dump_run("one") as dump, pytest.raises(errors.ImportConflict, match="leave it: --on-conflict"):
            target.import_run(dump)
        with target.dump_run("one") as dump, pytest.raises(errors.ImportConflict, match="brings it up to date"):
            source.import_run(dump)


def test_of_two_copies_at_once_one_says_that_it_copied(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: list[store_copy.CopyReport] = []
    import_run = Store.import_run

    def overtaken(self: Store, *arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(Store, "import_run", import_run)
        with Store(tmp_path / "a.db") as source, Store(postgres_url) as target:
            first.append(store_copy.copy(source, target))
        return import_run(self, *arguments, **named)

    with Store(tmp_path / "a.db") as source, Store(postgres_url) as target:
        fill(source, 3)
        monkeypatch.setattr(Store, "import_run", overtaken)
        second = store_copy.copy(source, target)
        assert [(report.copied, report.present) for report in (*first, second)] == [(3, 0), (0, 3)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("role", ["source", "target", "compared", "read back"])
def test_a_server_that_is_away_for_a_moment_does_not_end_a_copy(
    postgres: Any, tmp_path: Path, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import postgres_server

    def away(*_: Any) -> None:
        server.kill()
        coming = threading.Thread(target=lambda: (time.sleep(1), server.start()))
        coming.start()
        back.append(coming)

    def away_once(run_id: str, what: str) -> None:
        if run_id == "run 2":
            away()

    verify = store_copy._verify

    def away_first(*arguments: Any) -> None:
        away()
        verify(*arguments)

    back: list[threading.Thread] = []
    with postgres_server.Server() as server:
        url = server.create_database("away")
        with Store(tmp_path / "a.db") as file, Store(url) as there, Store(tmp_path / "b.db") as other:
            fill(file, 5)
            if role in ("source", "compared"):
                store_copy.copy(file, there)
            if role == "read back":
                monkeypatch.setattr(store_copy, "_verify", away_first)
            source, target = (there, other) if role == "source" else (file, there)
            report = store_copy.copy(source, target, tell=None if role == "read back" else away_once)
            for coming in back:
                coming.join()
            assert (report.runs, len(back)) == (5, 1)
            assert everything(file) == everything(target)


def test_a_copy_that_ends_without_its_server_says_that_it_can_be_begun_again(
    postgres_url: str, tmp_path: Path, run_python: Any
) -> None:
    agent_run("agent", lambda run: run.record("a", 1), db=tmp_path / "a.db", run_id="r")
    code = """
import logging, sys
from agent_resume import errors, store_copy
from agent_resume.cli import main

def broken(source, target, **named):
    logging.getLogger("psycopg").warning("error ignored")
    raise errors.StoreUnavailable(target.display, "gone", "look there")

store_copy.copy = broken
main()
"""
    done = run_python(code, "copy", "--from", "a.db", "--to", postgres_url, fresh=True)
    assert (done.returncode, done.stdout) == (6, "")
    assert done.stderr == (
        f"agent-resume: {postgres_url}: gone; look there; then the same command goes on where this one stopped\n"
    )


@pytest.mark.timeout(120)
def test_exports_and_imports_wait_for_a_server_between_two_runs(postgres: Any, tmp_path: Path) -> None:
    import postgres_server

    from agent_resume import layouts

    with postgres_server.Server() as server, Store(tmp_path / "a.db") as file:
        fill(file, 2)
        with Store(server.create_database("away")) as there:
            store_copy.copy(file, there)
            with there.dump_run("run 0") as dump:
                assert list(dump.steps)
            server.kill()
            server.start()
            for name in ("there", "file"):
                out = tmp_path / f"{name}.json"
                layouts.export_runs(there if name == "there" else file, ["run 0", "run 1"], format="json", out=out)
            assert (tmp_path / "there.json").read_bytes() == (tmp_path / "file.json").read_bytes()
            server.kill()
            server.start()
            summary = layouts.import_paths(there, [tmp_path / "file.json"])
            assert [row.action for row in summary.rows] == ["identical", "identical"]
