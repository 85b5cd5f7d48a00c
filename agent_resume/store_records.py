"""What is written beside steps: recorded values, events, loop state, expectations. One transaction each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from . import clock, errors
from .codec import Encoded
from .database_sql import Statement, Tx
from .sql import bindparam, insert, runs, steps, update
from .store_claim import Asking, Claim
from .store_index import KEPT_ERROR, OUTPUT
from .store_records_once import record_at_once
from .store_sql import (
    RUN_BY_SEQ,
    Look,
    Place,
    Skips,
    add_event,
    add_skips,
    give_seq_back,
    look,
    next_seq,
    note,
    raise_seq,
    run_row,
)
from .store_steps import OLD, held_by_another, refuse_unless_running

_RECORD = Statement(
    lambda: insert(steps).values(status="completed", attempts=1),
    (
        "run_id", "key", "seq", "meta", "started_at", "finished_at", "output_format", "output_bytes", "output",
    ),
    "ON CONFLICT (run_id, key) DO NOTHING",
)  # fmt: skip
_OVERWRITE = Statement(
    lambda: (
        update(steps)
        .where(steps.c.id == bindparam("step"))
        .values(
            status="completed",
            meta=bindparam("meta"),
            finished_at=bindparam("now"),
            duration_ms=None,
            error=None,
            owner_token=None,
            fingerprint=None,
            code_hash=None,
            output_format=bindparam("format"),
            output_bytes=bindparam("bytes"),
            output=bindparam("text"),
        )
    )
)
_LOOP_COLUMNS = ("loop_verdict", "loop_status", "loop_turns", "loop_reason", "expect_max_ms", "meta")


def _setting(name: str) -> Statement:
    return Statement(lambda: update(runs).where(runs.c.seq == bindparam("run")).values({name: bindparam("value")}))


_SET = {name: _setting(name) for name in _LOOP_COLUMNS}


@dataclass(frozen=True, slots=True)
class Recorded:
    """What ``record`` found.

    Attributes:
        stored: the value that counts now.
        conflict: an earlier, different value was kept.
        written: a row was written.
        step, seq: the step row's id, and number of its first event.
    """

    stored: Encoded
    conflict: bool
    written: bool
    step: int
    seq: int


@dataclass(slots=True)
class RecordRequest(Asking):
    """What is to be recorded.

    Attributes:
        replace: overwrite what is there.
        skips: the collected skips, to be stored with this write.
    """

    encoded: Encoded
    meta: str | None
    replace: bool = False
    skips: Skips | None = None


def record(tx: Tx, place: Place, request: RecordRequest) -> Recorded | Claim:
    """Store an already computed value; the first one wins unless ``replace``.

    Returns:
        What counts now; a ``Claim`` of kind ``watch`` when it must first be seen whether a running step's owner lives.

    Raises:
        StepInFlight: a step of that key is being executed.
        InvalidTransition: the run does not run, or a kept failure is the outcome.
    """
    key, encoded, meta, skips = request.key, request.encoded, request.meta, request.skips
    if skips is None:
        unseen = _record_unseen(tx, place, key, encoded, meta)
        if unseen is not None:
            return unseen
    found = look(tx, place)
    refuse_unless_running(found, place, f"record {key!r}")
    row = tx.one(OLD, {"run": place.seq, "wanted": key})
    if row is None:
        return record_new(tx, place, found, key, encoded, meta, skips)
    step, status, attempts, token, _, seq, _, _, output_format, _ = row
    unknown = status == "running"
    if unknown and (held := held_by_another(tx, place, request, step, token)) is not None:
        return held
    if not request.replace:
        if output_format == KEPT_ERROR:
            raise errors.InvalidTransition(
                place.id, status=f"holding a failure that keep_errors made the outcome of {key!r}",
                action=f"record {key!r}", hint="replace=True overwrites it",
            )  # fmt: skip
        if status == "completed":
            stored = tx.one(OUTPUT, {"step": step})
            assert stored is not None  # the row was read in this transaction
            kept = Encoded(stored[0], stored[1])
            return Recorded(kept, kept != encoded, False, step, seq)
    now = clock.now_iso()
    last = add_skips(tx, place, found.last_seq, now, skips)
    if unknown:
        last += 1
        add_event(tx, place.seq, last, now, "unknown", key, attempts)
    last += 1
    values = {"step": step, "now": now, "meta": meta} | _output(tx, encoded)
    tx.run(_OVERWRITE, values)
    add_event(tx, place.seq, last, now, "record", key, data=json.dumps({"replaced": output_format is not None}))
    raise_seq(tx, place, found, last, now)
    return Recorded(encoded, False, True, step, seq)


def _record_unseen(tx: Tx, place: Place, key: str, encoded: Encoded, meta: str | None) -> Recorded | None:
    """Store a value under a key that nobody used, without looking first; None when a look is needed."""
    now = clock.now_iso()
    if tx.may_be_alone:
        size = _output(tx, encoded)["bytes"]
        found = record_at_once(tx, place, key, encoded, size, meta, now)
        return None if found is None else Recorded(encoded, False, True, *found)
    seq = next_seq(tx, place, now)
    if seq is None:
        return None
    recorded = _record_at(tx, place, key, encoded, meta, seq, now)
    if recorded is None:
        give_seq_back(tx, place, seq, now)
    return recorded


def record_new(
    tx: Tx, place: Place, found: Look, key: str, encoded: Encoded, meta: str | None, skips: Skips | None
) -> Recorded:
    """Store a value under a key that nobody used."""
    now = clock.now_iso()
    seq = add_skips(tx, place, found.last_seq, now, skips) + 1
    recorded = _record_at(tx, place, key, encoded, meta, seq, now)
    assert recorded is not None  # the key was looked for in this transaction
    raise_seq(tx, place, found, seq, now)
    return recorded


def _record_at(
    tx: Tx, place: Place, key: str, encoded: Encoded, meta: str | None, seq: int, now: str
) -> Recorded | None:
    output = _output(tx, encoded)
    step = tx.insert(
        _RECORD,
        {
            "run_id": place.seq, "key": key, "seq": seq, "meta": meta, "started_at": now, "finished_at": now,
            "output_format": output["format"], "output_bytes": output["bytes"], "output": output["text"],
        },
    )  # fmt: skip
    if not step:
        return None
    add_event(tx, place.seq, seq, now, "record", key)
    return Recorded(encoded, False, True, step, seq)


def _output(tx: Tx, encoded: Encoded) -> dict[str, Any]:
    size = len(encoded.text) if encoded.text.isascii() else len(encoded.text.encode())
    tx.weight += size
    return {"format": encoded.format, "bytes": size, "text": encoded.text}


def event(
    tx: Tx,
    place: Place,
    type: str,
    data: str | None,
    step_key: str | None = None,
    attempt: int | None = None,
    skips: Skips | None = None,
) -> int:
    """Append an event of the user's; its number."""
    tx.may_be_lost()
    now = clock.now_iso()
    seq = next_seq(tx, place, now) if skips is None else None
    if seq is not None:
        add_event(tx, place.seq, seq, now, type, step_key, attempt, data)
        return seq
    found = look(tx, place)
    last = add_skips(tx, place, found.last_seq, now, skips) + 1
    add_event(tx, place.seq, last, now, type, step_key, attempt, data)
    raise_seq(tx, place, found, last, now)
    return last


def store_skips(tx: Tx, place: Place, skips: Skips) -> None:
    """Store the collected skips alone."""
    tx.may_be_lost()
    found = look(tx, place)
    now = clock.now_iso()
    last = add_skips(tx, place, found.last_seq, now, skips)
    raise_seq(tx, place, found, last, now)


def set_fields(tx: Tx, place: Place, values: dict[str, str | int | None], skips: Skips | None = None) -> None:
    """Set loop state, ``expect_max_ms`` or ``meta`` of a run, with a ``state`` event that says which.

    Raises:
        RunCancelled, InvalidTransition: the run has ended.
    """
    data = json.dumps({"fields": sorted(values)})
    _set_and_note(tx, place, values, "state", data, skips, f"set {', '.join(values)}")


def loop_note(tx: Tx, place: Place, values: dict[str, str | int | None], data: str, skips: Skips | None = None) -> None:
    """Set loop state and append the ``loop`` event that explains it.

    Raises:
        RunCancelled, InvalidTransition: the run has ended.
    """
    _set_and_note(tx, place, values, "loop", data, skips, "begin a turn of a loop")


def _set_and_note(
    tx: Tx,
    place: Place,
    values: dict[str, str | int | None],
    type: str,
    data: str,
    skips: Skips | None,
    action: str,
) -> None:
    found = look(tx, place)
    if found.status in ("completed", "cancelled"):
        refuse_unless_running(found, place, action)
    for name, value in values.items():
        tx.execute(_SET[name], {"run": place.seq, "value": value})
    note(tx, place, found, type, data, skips)


def add_losses(tx: Tx, place: Place, count: int) -> None:
    """Count events that could not be written, in ``runs.meta`` as ``eventsLost``."""
    look(tx, place)
    row = run_row(tx, RUN_BY_SEQ, {"run": place.seq})
    assert row is not None  # look() found it in this transaction
    meta = row.meta_dict
    meta["eventsLost"] = int(meta.get("eventsLost") or 0) + count
    tx.execute(_SET["meta"], {"run": place.seq, "value": json.dumps(meta)})


def touch(tx: Tx, place: Place) -> None:
    """Write something small: a full commit syncs the whole log, and with it everything committed before.

    SQLite leaves a row alone that would stay the same, down to the millisecond, and a commit without a page syncs
    nothing. So a number is given and taken back.
    """
    found, now = look(tx, place), clock.now_iso()
    raise_seq(tx, place, found, found.last_seq + 1, now)
    raise_seq(tx, place, found, found.last_seq, now)
