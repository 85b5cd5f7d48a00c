"""Everything that is shown of one run, read at one moment; outputs only when they are asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import errors, ownership, report
from .database_sql import Statement, Tx
from .models import EventRow, OwnerRow, PauseRow, RunRow, StepRow
from .sql import bindparam, events, func, or_, select
from .store_pauses import pauses_of
from .store_queries import begun_at, owners_by_token, step_with_output, steps_of
from .store_sql import EVENT_COLUMNS, RUN_BY_SEQ, run_row
from .store_status import duration_ms, shown_status

if TYPE_CHECKING:
    from .store import Store

#: Events that mark a step or a run in ``show``, each with what it says there.
MARKS: Mapping[str, str] = {
    "unknown": "an attempt's outcome is not known",
    "code_changed": "its code changed since the result was stored",
    "input_changed": "its inputs changed since the result was stored",
    "duplicate": "its name was used twice in one execution",
    "conflict": "another value was recorded later and not kept",
}

_MARKED = Statement(
    lambda: (
        select(*(events.c[name] for name in EVENT_COLUMNS))
        .where(events.c.run_id == bindparam("run"), or_(*(events.c.type == kind for kind in MARKS)))
        .order_by(events.c.seq)
    )
)
_COUNT = Statement(lambda: select(func.count()).select_from(events).where(events.c.run_id == bindparam("run")))
_OF_STEP = Statement(
    lambda: (
        select(*(events.c[name] for name in EVENT_COLUMNS))
        .where(events.c.run_id == bindparam("run"), events.c.step_key == bindparam("wanted"))
        .order_by(events.c.seq)
    )
)


@dataclass(frozen=True, slots=True)
class RunDetail:
    """One run as it is shown.

    Attributes:
        run: its row.
        status: as shown.
        owner: who has it, or whose step is running in it; None for nobody.
        owner_verdict: whether that owner lives.
        steps: in the order of their first events, without outputs.
        pauses: its pauses, waits and sleeps.
        marks: for each step (None for the run): which marks it has, each with the newest event of it.
        events: how many there are.
        begun_at: when its newest execution began.
        cut_off: keys of the steps that are stored as running and whose process is gone.
    """

    run: RunRow
    status: str
    owner: OwnerRow | None
    owner_verdict: ownership.Verdict | None
    steps: tuple[StepRow, ...]
    pauses: tuple[PauseRow, ...]
    events: int
    marks: Mapping[str | None, Mapping[str, EventRow]] = field(default_factory=dict)
    begun_at: str | None = None
    cut_off: frozenset[str] = frozenset()

    @property
    def duration_ms(self) -> int:
        """From its creation to its end, or to its last change."""
        return duration_ms(self.run)

    @property
    def completed(self) -> tuple[StepRow, ...]:
        """The steps that a resume skips."""
        return tuple(step for step in self.steps if step.status == "completed")

    @property
    def doubtful(self) -> tuple[StepRow, ...]:
        """The ``effect="once"`` steps that were begun and of which nobody knows whether they took effect."""
        return tuple(
            step
            for step in self.steps
            if step.status == "in_doubt" or (step.effect == "once" and step.key in self.cut_off)
        )

    @property
    def saved_ms(self) -> int:
        """How long the steps that a resume skips took."""
        return sum(step.duration_ms or 0 for step in self.completed)

    @property
    def open_pauses(self) -> tuple[PauseRow, ...]:
        """Questions without an answer, whose time is not over."""
        return tuple(pause for pause in self.pauses if pause.is_open and not pause.is_over)

    @property
    def untaken(self) -> tuple[PauseRow, ...]:
        """Answers that no execution has seen: given before the question, or after the newest execution had stopped."""
        if self.status in ("completed", "cancelled") or self.is_held:
            return ()
        return tuple(pause for pause in self.pauses if pause.answered_at is not None and self._is_untaken(pause))

    def _is_untaken(self, pause: PauseRow) -> bool:
        if pause.asked_at is None:
            return True
        since = max(pause.asked_at, self.begun_at or "")
        return pause.kind == "pause" and str(pause.answered_at) > since

    @property
    def tokens(self) -> tuple[int | None, int | None]:
        """Input and output tokens of all steps."""
        return report.token_sums(step.meta for step in self.steps)

    @property
    def events_lost(self) -> int:
        """How many events could not be stored."""
        return int(self.run.meta_dict.get("eventsLost") or 0)

    @property
    def is_unseen(self) -> bool:
        """Whether it is marked as running, and nothing tells whether anybody has it: a ``Checkpoint`` owns no run."""
        return self.status in ("running", "overdue", "idle") and self.owner is None

    @property
    def is_lingering(self) -> bool:
        """Whether it is cancelled, and somebody who is not known to be dead has not left it yet."""
        return self.status == "cancelled" and self.owner is not None and self.owner_verdict != "dead"

    @property
    def is_held(self) -> bool:
        """Whether somebody who is not known to be dead has it."""
        return self.status in ("running", "overdue") and self.owner is not None and self.owner_verdict != "dead"


def detail(store: Store, run: RunRow) -> RunDetail:
    """Read what is shown of a run.

    Raises:
        RunNotFound: it was deleted meanwhile.
    """
    return store.ask(_detail, store.owner.judge, run)


def _detail(tx: Tx, judge: Callable[[OwnerRow], ownership.Verdict], run: RunRow) -> RunDetail:
    # Each statement sees the newest state: an owner that ends between two of them would be taken for a dead one.
    for _ in range(3):
        found = _read(tx, judge, run)
        now = run_row(tx, RUN_BY_SEQ, {"run": run.seq})
        if now is not None and (now.status, now.owner_token) == (found.run.status, found.run.owner_token):
            break
    return found


def _read(tx: Tx, judge: Callable[[OwnerRow], ownership.Verdict], run: RunRow) -> RunDetail:
    row = run_row(tx, RUN_BY_SEQ, {"run": run.seq})
    if row is None:
        raise errors.RunNotFound(run.id)
    steps = tuple(steps_of(tx, row.seq))
    owners = owners_by_token(tx)
    running = [step for step in steps if step.status == "running"]
    newest = running[-1].owner_token if running else None
    token = row.owner_token or newest
    owner = owners.get(token) if token is not None else None
    ((count,),) = tx.all(_COUNT, {"run": row.seq})
    marks: dict[str | None, dict[str, EventRow]] = {}
    for values in tx.all(_MARKED, {"run": row.seq}):
        event = EventRow(*values)
        marks.setdefault(event.step_key, {})[event.type] = event
    return RunDetail(
        run=row,
        status=shown_status(row, owners, judge, newest, steps_running=bool(running)),
        owner=owner,
        owner_verdict=None if owner is None else judge(owner),
        steps=steps,
        pauses=tuple(pauses_of(tx, row.seq)),
        events=int(count),
        marks=marks,
        begun_at=begun_at(tx, row.seq),
        cut_off=frozenset(step.key for step in running if _is_cut_off(step, owners, judge)),
    )


def _is_cut_off(step: StepRow, owners: Mapping[str, OwnerRow], judge: Callable[[OwnerRow], ownership.Verdict]) -> bool:
    owner = None if step.owner_token is None else owners.get(step.owner_token)
    return step.status == "running" and (owner is None or judge(owner) == "dead")


@dataclass(frozen=True, slots=True)
class StepDetail:
    """One step with its output and its attempts.

    Attributes:
        row: the step.
        text: the stored text of its output, or None.
        events: its events, in order.
        cut_off: it is stored as running, and its process is gone.
    """

    row: StepRow
    text: str | None
    events: tuple[EventRow, ...]
    cut_off: bool = False

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """Its attempts: number, start, end, outcome, duration and error."""
        found: dict[int, dict[str, Any]] = {}
        for event in self.events:
            if event.attempt is None:
                continue
            if event.type == "start":
                found[event.attempt] = {
                    "attempt": event.attempt, "startedAt": event.ts, "endedAt": None, "outcome": "running",
                    "durationMs": None, "error": None,
                }  # fmt: skip
            elif event.type in ("done", "error", "interrupted", "in_doubt", "unknown") and event.attempt in found:
                data = event.value if isinstance(event.value, dict) else {}
                found[event.attempt] |= {
                    "endedAt": event.ts, "outcome": event.type, "durationMs": data.get("durationMs"),
                    "error": data.get("error"),
                }  # fmt: skip
        return [found[number] for number in sorted(found)]


def step_detail(store: Store, run: RunRow, key: str) -> StepDetail | None:
    """Read one step; None when there is none of that key."""

    def read(tx: Tx) -> StepDetail | None:
        found = step_with_output(tx, run.seq, key)
        if found is None:
            return None
        rows = tx.all(_OF_STEP, {"run": run.seq, "wanted": key})
        gone = found[0].status == "running" and _is_cut_off(found[0], owners_by_token(tx), store.owner.judge)
        return StepDetail(found[0], found[1], tuple(EventRow(*row) for row in rows), gone)

    return store.ask(read)


def json_or_none(text: str | None) -> Any:
    """A stored JSON text as a value; None for none."""
    return None if text is None else json.loads(text)
