"""The protocol of a step: claim, then complete or fail. Each function is one transaction's work."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from . import clock, errors, ownership
from .codec import Encoded
from .database_batch import puts_off
from .database_sql import Statement, Tx
from .sql import bindparam, insert, select, steps, update
from .store_claim import Asking, Claim, ClaimRequest
from .store_index import KEPT_ERROR
from .store_sql import Look, Place, add_event, add_skips, give_seq_back, look, next_seq, owner_row, raise_seq

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

OLD = Statement(
    lambda: select(
        steps.c.id, steps.c.status, steps.c.attempts, steps.c.owner_token, steps.c.effect, steps.c.seq,
        steps.c.fingerprint, steps.c.code_hash, steps.c.output_format, steps.c.error,
    ).where(steps.c.run_id == bindparam("run"), steps.c.key == bindparam("wanted"))
)  # fmt: skip
_START = Statement(
    lambda: insert(steps).values(status="running", attempts=1),
    ("run_id", "key", "seq", "effect", "fingerprint", "code_hash", "meta", "started_at", "owner_token"),
    "ON CONFLICT (run_id, key) DO NOTHING",
)
_RESTART = Statement(
    lambda: (
        update(steps)
        .where(steps.c.id == bindparam("step"), steps.c.attempts == bindparam("old_attempts"))
        .values(
            status="running",
            attempts=bindparam("attempts"),
            effect=bindparam("effect"),
            fingerprint=bindparam("fingerprint"),
            code_hash=bindparam("code_hash"),
            meta=bindparam("meta"),
            started_at=bindparam("now"),
            finished_at=None,
            duration_ms=None,
            error=None,
            owner_token=bindparam("token"),
            output_format=None,
            output_bytes=None,
            output=None,
        )
    )
)


def _held() -> list[ColumnElement[bool]]:
    """The attempt is still its caller's."""
    return [
        steps.c.id == bindparam("step"),
        steps.c.owner_token == bindparam("token"),
        steps.c.attempts == bindparam("attempt"),
        steps.c.status == "running",
    ]


_COMPLETE = Statement(
    lambda: (
        update(steps)
        .where(*_held())
        .values(
            status=bindparam("outcome"),
            finished_at=bindparam("now"),
            duration_ms=bindparam("ms"),
            meta=bindparam("meta"),
            error=bindparam("failure"),
            output_format=bindparam("format"),
            output_bytes=bindparam("bytes"),
            output=bindparam("text"),
        )
    )
)
_LET_GO = Statement(lambda: update(steps).where(*_held()).values(owner_token=None))
_STATE = Statement(
    lambda: select(steps.c.status, steps.c.owner_token, steps.c.attempts).where(steps.c.id == bindparam("step"))
)
_DOUBT = Statement(
    lambda: (
        update(steps).where(steps.c.id == bindparam("step")).values(status="in_doubt", owner_token=None, effect="once")
    )
)
_SETTLE_DOUBT = Statement(
    lambda: (
        update(steps)
        .where(steps.c.id == bindparam("step"), steps.c.status == "in_doubt")
        .values(
            status="completed",
            finished_at=bindparam("now"),
            error=None,
            output_format=bindparam("format"),
            output_bytes=bindparam("bytes"),
            output=bindparam("text"),
        )
    )
)


def refuse_unless_running(found: Look, place: Place, action: str) -> None:
    """Work is only begun in a running run.

    Raises:
        RunCancelled, InvalidTransition: it is not.
    """
    if found.status == "running":
        return
    if found.status == "cancelled":
        raise errors.RunCancelled(place.id)
    hints = {
        "paused": "answer its question, then start it again",
        "completed": "its completed steps can be read; start a new run for new work",
    }
    hint = hints.get(found.status, "start it again to go on")
    raise errors.InvalidTransition(place.id, status=found.status, action=action, hint=hint)


@puts_off
def claim(tx: Tx, place: Place, request: ClaimRequest) -> Claim:
    """Look at the step and, when it is to be run now, mark its attempt as begun.

    Raises:
        RunLost, RunCancelled, InvalidTransition: the run is not this caller's to go on with.
        StepInFlight: a live owner executes it.
    """
    if request.skips is None and not request.again:
        claimed = _start_unseen(tx, place, request)
        if claimed is not None:
            return claimed
    found = look(tx, place)
    row = tx.one(OLD, {"run": place.seq, "wanted": request.key})
    if row is None:
        refuse_unless_running(found, place, f"start step {request.key!r}")
        return _start(tx, place, found, request)
    step, status, attempts, token, effect, seq, fingerprint, code_hash, output_format, error = row
    if (status == "completed" or output_format == KEPT_ERROR) and not request.again:
        return Claim("stored", step, seq, attempts, fingerprint=fingerprint, code_hash=code_hash)
    refuse_unless_running(found, place, f"start step {request.key!r}")
    unknown = status == "running"
    if unknown and (held := held_by_another(tx, place, request, step, token)) is not None:
        return held
    if status == "in_doubt" and attempts != request.retry_doubt:
        return Claim("in_doubt", step, seq, attempts)
    if unknown and "once" in (effect, request.effect):
        _doubt(tx, place, found, request, step, attempts)
        return Claim("in_doubt", step, seq, attempts, unknown=True)
    until = _retry_at(error) if request.patient else None
    if until is not None and until > clock.now_iso():
        return Claim("wait", step, until=until)
    return _restart(tx, place, found, request, step, seq, attempts, unknown=unknown)


def held_by_another(tx: Tx, place: Place, mine: Asking, step: int, token: str | None) -> Claim | None:
    """Whom to watch before a running step can be taken; None when nobody alive holds it.

    Raises:
        StepInFlight: somebody alive does.
    """
    owner = None if token in (None, mine.token) else owner_row(tx, token)
    verdict = "dead" if owner is None else mine.judge(owner)
    if verdict == "alive" and owner is not None:
        raise errors.StepInFlight(place.id, mine.key, host=ownership.host_name(owner.host), pid=owner.pid)
    return Claim("watch", step, owner=owner) if verdict == "unknown" else None


def _retry_at(error: str | None) -> str | None:
    until = json.loads(error).get("retryAt") if error else None
    return until if isinstance(until, str) else None


def _start_unseen(tx: Tx, place: Place, request: ClaimRequest) -> Claim | None:
    """Begin a step that nobody has begun, without looking first; None when a look is needed."""
    now = clock.now_iso()
    seq = next_seq(tx, place, now)
    if seq is None:
        return None
    claimed = _start_at(tx, place, request, seq, now)
    if claimed is None:
        give_seq_back(tx, place, seq, now)
    return claimed


def _start(tx: Tx, place: Place, found: Look, request: ClaimRequest) -> Claim:
    now = clock.now_iso()
    seq = add_skips(tx, place, found.last_seq, now, request.skips) + 1
    claimed = _start_at(tx, place, request, seq, now)
    assert claimed is not None  # the step was looked for in this transaction
    raise_seq(tx, place, found, seq, now)
    return claimed


def _start_at(tx: Tx, place: Place, request: ClaimRequest, seq: int, now: str) -> Claim | None:
    step = tx.insert(
        _START,
        {
            "run_id": place.seq, "key": request.key, "seq": seq, "effect": request.effect,
            "fingerprint": request.fingerprint, "code_hash": request.code_hash, "meta": request.meta,
            "started_at": now, "owner_token": request.token,
        },
    )  # fmt: skip
    if not step:
        return None
    add_event(tx, place.seq, seq, now, "start", request.key, 1)
    return Claim("claimed", step, seq, 1)


def _restart(
    tx: Tx, place: Place, found: Look, request: ClaimRequest, step: int, seq: int, attempts: int, *, unknown: bool
) -> Claim:
    now = clock.now_iso()
    last = add_skips(tx, place, found.last_seq, now, request.skips)
    if unknown:
        last += 1
        add_event(tx, place.seq, last, now, "unknown", request.key, attempts)
    last += 1
    tx.run(
        _RESTART,
        {
            "step": step, "old_attempts": attempts, "attempts": attempts + 1, "effect": request.effect,
            "fingerprint": request.fingerprint, "code_hash": request.code_hash, "meta": request.meta, "now": now,
            "token": request.token,
        },
    )  # fmt: skip
    add_event(tx, place.seq, last, now, "start", request.key, attempts + 1)
    raise_seq(tx, place, found, last, now)
    return Claim("claimed", step, seq, attempts + 1, unknown=unknown)


def _doubt(tx: Tx, place: Place, found: Look, request: ClaimRequest, step: int, attempts: int) -> None:
    now = clock.now_iso()
    last = add_skips(tx, place, found.last_seq, now, request.skips) + 1
    tx.run(_DOUBT, {"step": step})
    add_event(tx, place.seq, last, now, "in_doubt", request.key, attempts)
    raise_seq(tx, place, found, last, now)


@dataclass(slots=True)
class Attempt:
    """The attempt whose outcome is to be stored."""

    key: str
    step: int
    attempt: int
    token: str


@puts_off
def complete(
    tx: Tx, place: Place, attempt: Attempt, encoded: Encoded, ms: int, meta: str | None, data: str | None = None
) -> None:
    """Store a result; a repeat of the same call is a success, since a commit's outcome can be unknown.

    Raises:
        RunLost: the step or the run belongs to somebody else by now; nothing was written.
    """
    size = len(encoded.text.encode()) if not encoded.text.isascii() else len(encoded.text)
    values = {
        "outcome": "completed", "failure": None, "format": encoded.format, "bytes": size, "text": encoded.text,
    }  # fmt: skip
    tx.weight += size
    _finish(tx, place, attempt, values, "done", ms, meta, data)


Outcome = Literal["failed", "interrupted", "in_doubt"]
_OUTCOME_EVENT = {"failed": "error", "interrupted": "interrupted", "in_doubt": "in_doubt"}


def fail(
    tx: Tx,
    place: Place,
    attempt: Attempt,
    outcome: Outcome,
    failure: dict[str, Any] | None,
    ms: int,
    meta: str | None,
    kept: bool = False,
    exception: str | None = None,
) -> None:
    """Store that an attempt failed, was left, or ended nobody knows how.

    Args:
        kept: the failure is the step's outcome (``keep_errors``).
        exception: the exception of such a failure as tagged JSON, where it can be kept whole.

    Raises:
        RunLost: as for ``complete``.
    """
    stored = failure if exception is None or failure is None else failure | {"exception": exception}
    text = None if stored is None else json.dumps(stored)
    values = {
        "outcome": outcome, "failure": text, "format": KEPT_ERROR if kept else None, "bytes": None, "text": None,
    }  # fmt: skip
    data: dict[str, Any] = {"durationMs": ms}
    if failure is not None:
        data["error"] = failure
    _finish(tx, place, attempt, values, _OUTCOME_EVENT[outcome], ms, meta, json.dumps(data))


def _finish(
    tx: Tx,
    place: Place,
    attempt: Attempt,
    values: dict[str, Any],
    event: str,
    ms: int,
    meta: str | None,
    data: str | None,
) -> None:
    tx.may_be_lost()
    now = clock.now_iso()
    seq = next_seq(tx, place, now)
    found = look(tx, place) if seq is None else None
    values |= {
        "step": attempt.step, "token": attempt.token, "attempt": attempt.attempt, "now": now, "ms": ms, "meta": meta,
    }  # fmt: skip
    if tx.run(_COMPLETE, values) != 1:
        if seq is not None:
            give_seq_back(tx, place, seq, now)
        state = tx.one(_STATE, {"step": attempt.step})
        if state == (values["outcome"], attempt.token, attempt.attempt):
            return
        raise errors.RunLost(place.id, key=attempt.key)
    data = data if data is not None else f'{{"durationMs": {ms}}}'
    number = seq if found is None else found.last_seq + 1
    assert number is not None  # either next_seq() or look() gave it
    add_event(tx, place.seq, number, now, event, attempt.key, attempt.attempt, data)
    if found is not None:
        raise_seq(tx, place, found, number, now)


def let_go(tx: Tx, attempt: Attempt) -> None:
    """Its caller lost the run and executes the step no more; nothing is said of how it ended."""
    tx.run(_LET_GO, {"step": attempt.step, "token": attempt.token, "attempt": attempt.attempt})


def is_completed(tx: Tx, attempt: Attempt) -> bool:
    """Whether this very attempt's result is stored: an interrupted commit may have succeeded."""
    return tx.one(_STATE, {"step": attempt.step}) == ("completed", attempt.token, attempt.attempt)


def settle_doubt(tx: Tx, place: Place, key: str, encoded: Encoded, by: str, attempt: int) -> bool:
    """Complete a step whose ``attempt`` is in doubt with a value that somebody vouches for; False when it is not."""
    found = look(tx, place)
    row = tx.one(OLD, {"run": place.seq, "wanted": key})
    if row is None or row[2] != attempt:
        return False
    step = row[0]
    now = clock.now_iso()
    size = len(encoded.text.encode())
    values = {"step": step, "now": now, "format": encoded.format, "bytes": size, "text": encoded.text}
    if tx.run(_SETTLE_DOUBT, values) != 1:
        return False
    add_event(tx, place.seq, found.last_seq + 1, now, "done", key, attempt, json.dumps({"by": by}))
    raise_seq(tx, place, found, found.last_seq + 1, now)
    return True


def give_back(tx: Tx, place: Place, key: str, token: str) -> None:
    """Undo a claim whose caller was interrupted before the function was called; nothing when there is none."""
    row = tx.one(OLD, {"run": place.seq, "wanted": key})
    if row is not None and row[1] == "running" and row[3] == token:
        fail(tx, place, Attempt(key, row[0], row[2], token), "interrupted", None, 0, None)


def mark_code_change(tx: Tx, place: Place, key: str) -> None:
    """Leave a mark for ``show``: a stored result was handed out although the step's code had changed."""
    tx.may_be_lost()
    found = look(tx, place)
    now = clock.now_iso()
    add_event(tx, place.seq, found.last_seq + 1, now, "code_changed", key)
    raise_seq(tx, place, found, found.last_seq + 1, now)
