"""A whole store from one database into another and back."""

from __future__ import annotations

import contextlib
import datetime
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
        with pytest.raises(errors.ImportConflict):
            store_copy.copy(source, target)
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
            with pytest.raises(errors.InvalidName, match="of run 'two'"):
                store_copy.copy(source, target)
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
        with pytest.raises(errors.ImportConflict, match=r"'one'.*--on-conflict replace"):
            store_copy.copy(source, target)
        assert {run.id for run in target.list_runs()} == {"one", "two", "three"}
        assert store_copy.copy(source, target, on_conflict="replace").copied == 1
