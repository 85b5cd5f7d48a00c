"""What readers are shown: derived statuses, run states, summaries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from . import clock, ownership
from .database_sql import Tx
from .models import AgentRunState, OwnerRow, RecordedStep, RunRow, RunSummary, StepRow
from .store_queries import (
    RunFilter,
    StepCounts,
    counts_of,
    owners_by_token,
    runs_matching,
    steps_of,
    steps_with_outputs,
)

if TYPE_CHECKING:
    from .store import Store

#: A run counts as overdue or idle after this many ms, or after its own ``expect_max_ms`` when that is longer.
PATIENCE_MS = 600_000
_PAGE = 500

Judge = Callable[[OwnerRow], ownership.Verdict]


def shown_status(
    row: RunRow, owners: dict[str, OwnerRow], judge: Judge, newest_running_owner: str | None, *, steps_running: bool
) -> str:
    """``interrupted``, ``overdue`` or ``idle`` for a run that is stored as ``running`` and is not really.

    Args:
        newest_running_owner: token of the newest running step, None when there is none or a takeover cleared it.
        steps_running: whether any step is stored as running.
    """
    if row.status != "running":
        return row.status
    patience = max(PATIENCE_MS, row.expect_max_ms or 0)
    quiet = clock.now_ms() - clock.parse_iso(row.updated_at) > patience
    for token in (row.owner_token, newest_running_owner):
        if token is not None:
            owner = owners.get(token)
            if owner is None or judge(owner) == "dead":
                return "interrupted"
            return "overdue" if quiet else "running"
    if steps_running:
        return "interrupted"
    return "idle" if quiet else "running"


def shown_status_of(tx: Tx, judge: Judge, row: RunRow) -> str:
    """The same for one run, looking up what it needs."""
    if row.status != "running":
        return row.status
    running = [step for step in steps_of(tx, row.seq) if step.status == "running"]
    token = running[-1].owner_token if running else None
    return shown_status(row, owners_by_token(tx), judge, token, steps_running=bool(running))


def list_runs(store: Store, wanted: RunFilter) -> Iterator[RunSummary]:
    """Summaries in pages, each page one short read."""
    if not store.exists():
        return
    judge = store.owner.judge
    if wanted.sort != "-created":
        yield from store.ask(_page, judge, wanted)
        return
    left = wanted.limit
    page = replace(wanted, limit=_PAGE if left is None else min(_PAGE, left))
    while page.limit:
        rows = store.ask(_rows, page)
        yield from store.ask(_summaries, judge, rows)
        if len(rows) < page.limit:
            return
        left = None if left is None else left - len(rows)
        page = replace(page, before=rows[-1].seq, limit=_PAGE if left is None else min(_PAGE, left))


def _rows(tx: Tx, wanted: RunFilter) -> list[RunRow]:
    return runs_matching(tx, wanted)


def _page(tx: Tx, judge: Judge, wanted: RunFilter) -> list[RunSummary]:
    return _summaries(tx, judge, runs_matching(tx, wanted))


def _summaries(tx: Tx, judge: Judge, rows: list[RunRow]) -> list[RunSummary]:
    counts = counts_of(tx, [row.seq for row in rows])
    owners = owners_by_token(tx)
    return [_summary(row, counts.get(row.seq, StepCounts()), owners, judge) for row in rows]


def _summary(row: RunRow, counts: StepCounts, owners: dict[str, OwnerRow], judge: Judge) -> RunSummary:
    owner = owners.get(row.owner_token) if row.owner_token is not None else None
    return RunSummary(
        id=row.id,
        name=row.name,
        status=row.status,
        shown_status=shown_status(row, owners, judge, counts.newest_running_owner, steps_running=counts.running > 0),
        created_at=row.created_at,
        updated_at=row.updated_at,
        finished_at=row.finished_at,
        steps_total=counts.total,
        steps_completed=counts.completed,
        duration_ms=duration_ms(row),
        input_tokens=counts.input_tokens,
        output_tokens=counts.output_tokens,
        owner_host=ownership.host_name(owner.host) if owner else None,
        owner_pid=owner.pid if owner else None,
    )


def duration_ms(row: RunRow) -> int:
    """From a run's creation to its end, or to its last change."""
    return max(0, clock.parse_iso(row.finished_at or row.updated_at) - clock.parse_iso(row.created_at))


def recorded_step(store: Store, row: StepRow, text: str | None) -> RecordedStep:
    """A step row as the public record."""
    return RecordedStep(
        name=row.key,
        status=row.status,
        started_at=row.started_at,
        finished_at=row.finished_at,
        error=row.error_dict,
        attempts=row.attempts,
        duration_ms=row.duration_ms,
        meta=row.meta_dict,
        seq=row.seq,
        output_format=row.output_format,
        output_text=text,
        _decode=store.codec.decode,
    )


def state_of(store: Store, row: RunRow) -> AgentRunState:
    """A run with its steps, all read at one moment."""

    def read(tx: Tx) -> tuple[list[tuple[StepRow, str | None]], str]:
        return steps_with_outputs(tx, row.seq), shown_status_of(tx, store.owner.judge, row)

    steps, shown = store.ask(read)
    return AgentRunState(
        id=row.id,
        name=row.name,
        created_at=row.created_at,
        updated_at=row.updated_at,
        steps=tuple(recorded_step(store, step, text) for step, text in steps),
        status=row.status,
        shown_status=shown,
        finished_at=row.finished_at,
        error=_json(row.error),
        meta=row.meta_dict,
        result_format=row.result_format,
        result_text=row.result,
        _decode=store.codec.decode,
    )


def _json(text: str | None) -> dict[str, object] | None:
    return json.loads(text) if text else None
