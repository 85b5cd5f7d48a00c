"""Reading: lists, one run, its steps and events. Each statement sees the newest committed state."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import errors, report
from .database_sql import Row, Statement, Tx
from .models import EventRow, OwnerRow, RunRow, StepRow
from .sql import bindparam, events, func, one_of, or_, owners, runs, select, steps, text
from .store_sql import columns_of

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, ScalarSelect, Select

STEP_COLUMNS = columns_of(StepRow)


def _of_steps(*more: ColumnElement[Any]) -> Select[Any]:
    # An output is read only when it is asked for.
    return select(*(steps.c[name] for name in STEP_COLUMNS), *more).where(steps.c.run_id == bindparam("run"))


def _newest() -> ScalarSelect[int]:
    # The number first, from the index alone: sorting whole rows of a name that has thousands takes long.
    return select(func.max(runs.c.seq)).where(runs.c.name == bindparam("wanted")).scalar_subquery()


_RUN = Statement(lambda: select(runs).where(runs.c.id == bindparam("wanted")))
# A range, which the index on id answers; nothing in a prefix is a pattern.
_BY_PREFIX = Statement(
    lambda: (
        select(runs)
        .where(runs.c.id >= bindparam("first"), runs.c.id < bindparam("behind"))
        .order_by(runs.c.seq.desc())
        .limit(11)
    )
)
_LATEST = Statement(lambda: select(runs).where(runs.c.seq == _newest()))
_STEPS = Statement(lambda: _of_steps().order_by(steps.c.seq))
_STEPS_FULL = Statement(lambda: _of_steps(steps.c.output).order_by(steps.c.seq))
_STEP = Statement(lambda: _of_steps(steps.c.output).where(steps.c.key == bindparam("wanted")))
_EVENTS = Statement(
    lambda: (
        select(events)
        .where(events.c.run_id == bindparam("run"), events.c.seq > bindparam("after"))
        .order_by(events.c.seq)
    )
)
_OWNERS = Statement(lambda: select(owners))
_HAS = Statement(
    lambda: select(steps.c.id).where(
        steps.c.run_id == bindparam("run"), steps.c.key == bindparam("wanted"), steps.c.status == "completed"
    )
)
_KEYS = Statement(
    lambda: select(steps.c.key).where(
        steps.c.run_id == bindparam("run"),
        steps.c.status == "completed",
        steps.c.key >= bindparam("first"),
    )
)
_TURNS = Statement(
    lambda: select(steps.c.key, steps.c.duration_ms).where(
        steps.c.run_id == bindparam("run"),
        steps.c.status == "completed",
        steps.c.key >= bindparam("first"),
        steps.c.key < bindparam("behind"),
    )
)
_LOOP_NOTES = Statement(
    lambda: (
        select(events.c.data)
        .where(events.c.run_id == bindparam("run"), events.c.type == "loop", events.c.data.is_not(None))
        .order_by(events.c.seq)
    )
)
_PAUSED = Statement(
    lambda: (
        select(events.c.data)
        .where(events.c.run_id == bindparam("run"), events.c.type == "paused", events.c.data.is_not(None))
        .order_by(events.c.seq.desc())
        .limit(1)
    )
)
_STATUS = Statement(lambda: select(runs.c.status).where(runs.c.seq == bindparam("run")))

_BEGUN = Statement(
    lambda: (
        select(events.c.ts)
        .where(events.c.run_id == bindparam("run"), or_(events.c.type == "created", events.c.type == "resumed"))
        .order_by(events.c.seq.desc())
        .limit(1)
    )
)


def run_by_id(tx: Tx, run_id: str) -> RunRow | None:
    """A run by its whole id."""
    row = tx.one(_RUN, {"wanted": run_id})
    return None if row is None else RunRow(*row)


def find_run(tx: Tx, wanted: str) -> RunRow:
    """A run by id, by a prefix that fits one, or by ``NAME@latest``.

    Raises:
        RunNotFound: none fits.
        AmbiguousRunId: several do.
    """
    exact = run_by_id(tx, wanted)
    if exact is not None:
        return exact
    if wanted.endswith("@latest"):
        row = tx.one(_LATEST, {"wanted": wanted.removesuffix("@latest")})
        if row is not None:
            return RunRow(*row)
    if not wanted:
        raise errors.RunNotFound(wanted)
    fits = tx.all(_BY_PREFIX, {"first": wanted, "behind": wanted + "\U0010ffff"})
    if len(fits) > 1:
        raise errors.AmbiguousRunId(wanted, tuple(RunRow(*row).id for row in fits[:10]))
    if not fits:
        raise errors.RunNotFound(wanted)
    return RunRow(*fits[0])


def status_of(tx: Tx, run: int) -> str | None:
    """A run's stored status."""
    row = tx.one(_STATUS, {"run": run})
    return None if row is None else str(row[0])


def begun_at(tx: Tx, run: int) -> str | None:
    """When a run's newest execution began: its own creation, or the newest time that it was resumed."""
    row = tx.one(_BEGUN, {"run": run})
    return None if row is None else str(row[0])


def steps_of(tx: Tx, run: int) -> list[StepRow]:
    """A run's steps in the order of their first events, without outputs."""
    return [StepRow(*row) for row in tx.all(_STEPS, {"run": run})]


def steps_with_outputs(tx: Tx, run: int) -> list[tuple[StepRow, str | None]]:
    """The same, with the stored text of each output."""
    return [(StepRow(*row[:-1]), row[-1]) for row in tx.all(_STEPS_FULL, {"run": run})]


def step_with_output(tx: Tx, run: int, key: str) -> tuple[StepRow, str | None] | None:
    """One step and the stored text of its output."""
    row = tx.one(_STEP, {"run": run, "wanted": key})
    return None if row is None else (StepRow(*row[:-1]), row[-1])


def events_after(tx: Tx, run: int, after: int = 0) -> list[EventRow]:
    """A run's events with a number above ``after``, in order."""
    return [EventRow(*row) for row in tx.all(_EVENTS, {"run": run, "after": after})]


def owners_by_token(tx: Tx) -> dict[str, OwnerRow]:
    """Every owner."""
    return {row[0]: OwnerRow(*row) for row in tx.all(_OWNERS, {})}


def has_completed(tx: Tx, run: int, key: str) -> bool:
    """Whether a step is completed."""
    return tx.one(_HAS, {"run": run, "wanted": key}) is not None


def completed_keys_from(tx: Tx, run: int, prefix: str) -> list[str]:
    """Keys of completed steps that start with ``prefix``; compared code point by code point, nothing is a pattern."""
    return [key for (key,) in tx.all(_KEYS, {"run": run, "first": prefix}) if key.startswith(prefix)]


def turns_of(tx: Tx, run: int, loop: str) -> list[Row]:
    """Key and duration of the completed steps whose keys are ``loop``, a hyphen, and anything."""
    # "." is the code point behind "-", so this range is the prefix.
    return tx.all(_TURNS, {"run": run, "first": f"{loop}-", "behind": f"{loop}."})


def loop_notes(tx: Tx, run: int) -> list[str]:
    """Data of a run's ``loop`` events, in order."""
    return [data for (data,) in tx.all(_LOOP_NOTES, {"run": run})]


def last_paused(tx: Tx, run: int) -> str | None:
    """Name of the pause that was asked last."""
    row = tx.one(_PAUSED, {"run": run})
    said = json.loads(row[0]) if row is not None else None
    return said.get("name") if isinstance(said, dict) else None


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list; all conditions are data, never SQL.

    Attributes:
        statuses: stored statuses, or empty for all.
        name: the agent's name, exactly.
        since: created at or after, ISO UTC.
        until: created before, ISO UTC.
        limit: most rows, newest first; None for all.
        before: only runs with a smaller number, for reading in pages.
        sort: ``created``, ``updated``, ``name`` or ``status``; a leading ``-`` turns it round.
    """

    statuses: tuple[str, ...] = ()
    name: str | None = None
    since: str | None = None
    until: str | None = None
    limit: int | None = None
    before: int | None = None
    sort: str = "-created"


SORTS = ("created", "updated", "name", "status")


def _listed(name: str) -> ColumnElement[Any]:
    # Large columns are not read: a list of runs stays small however large their inputs and results are.
    return func.nullif("", "").label(name) if name in ("input", "result", "summary") else runs.c[name]


# A list is put together from these: what the database is asked has only the conditions that are wanted.
_LISTED = Statement(lambda: select(*map(_listed, columns_of(RunRow))))
_WANTED = {
    "status": Statement(lambda: runs.c.status == bindparam("status")),
    "statuses": Statement(lambda: one_of(runs.c.status, bindparam("statuses"))),
    "name": Statement(lambda: runs.c.name == bindparam("name")),
    "since": Statement(lambda: runs.c.created_at >= bindparam("since")),
    "until": Statement(lambda: runs.c.created_at < bindparam("until")),
    "before": Statement(lambda: runs.c.seq < bindparam("before")),
}
_UP = {
    "created": Statement(lambda: runs.c.seq.asc()),
    "updated": Statement(lambda: runs.c.updated_at.asc()),
    "name": Statement(lambda: runs.c.name.asc()),
    "status": Statement(lambda: runs.c.status.asc()),
}
_DOWN = {
    "created": Statement(lambda: runs.c.seq.desc()),
    "updated": Statement(lambda: runs.c.updated_at.desc()),
    "name": Statement(lambda: runs.c.name.desc()),
    "status": Statement(lambda: runs.c.status.desc()),
}
_LIMIT = Statement(lambda: text("LIMIT :limit"))


def runs_matching(tx: Tx, wanted: RunFilter) -> list[RunRow]:
    """Runs by filter, newest first unless ``sort`` says otherwise; ``seq`` decides ties, so the order is stable."""
    values: dict[str, Any] = {
        name: value
        for name in ("name", "since", "until", "before", "limit")
        if (value := getattr(wanted, name)) is not None
    }
    if len(wanted.statuses) == 1:  # by itself, since the index gives one status in the order of the runs
        values["status"] = wanted.statuses[0]
    elif wanted.statuses:
        values["statuses"] = json.dumps(wanted.statuses)
    terms = _DOWN if wanted.sort.startswith("-") else _UP
    rows = tx.listed(
        _LISTED,
        where=[condition for name, condition in _WANTED.items() if name in values],
        order=[terms[wanted.sort.lstrip("-")], terms["created"]],
        end=[_LIMIT] if wanted.limit is not None else [],
        values=values,
    )
    return [RunRow(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Sums over a run's steps."""

    total: int = 0
    completed: int = 0
    running: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    newest_running_owner: str | None = None


_COUNTED = Statement(
    lambda: (
        select(steps.c.run_id, steps.c.status, steps.c.meta, steps.c.owner_token)
        .where(one_of(steps.c.run_id, bindparam("runs")))
        .order_by(steps.c.run_id, steps.c.seq)
    )
)


def counts_of(tx: Tx, seqs: list[int]) -> dict[int, StepCounts]:
    """Step counts and tokens of the given runs, in one query; no output is read."""
    found: dict[int, list[_Counted]] = {}
    for start in range(0, len(seqs), 500):
        for row in tx.all(_COUNTED, {"runs": json.dumps(seqs[start : start + 500])}):
            found.setdefault(row[0], []).append((row[1], row[2], row[3]))
    return {seq: _count(rows) for seq, rows in found.items()}


_Counted = tuple[str, str | None, str | None]


def _count(rows: list[_Counted]) -> StepCounts:
    completed = sum(1 for status, _, _ in rows if status == "completed")
    given, made = report.token_sums(meta for _, meta, _ in rows)
    running = [owner for status, _, owner in rows if status == "running"]
    return StepCounts(len(rows), completed, len(running), given, made, running[-1] if running else None)
