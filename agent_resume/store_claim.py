"""What asking for a step says and gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from . import ownership
from .models import OwnerRow
from .store_sql import Skips


# Made once or more a step and never handed to users: not frozen, since that costs a quarter of a µs a field.
@dataclass(slots=True)
class Claim:
    """What asking for a step gave.

    Attributes:
        kind: ``claimed`` (call the function), ``stored`` (an outcome is there), ``in_doubt`` (somebody must decide),
            ``watch`` (whether its owner lives can only be told by watching its beats) or ``wait`` (an earlier
            execution was killed in the wait before its next try; the rest of it is due).
        step: the step row's id.
        seq: number of its first event.
        attempt: number of the attempt that was claimed.
        unknown: the attempt before it began and never ended, as has just been stored.
        fingerprint: recorded inputs, for ``stored``.
        code_hash: recorded code, for ``stored``.
        owner: whom to watch.
    """

    kind: Literal["claimed", "stored", "in_doubt", "watch", "wait"]
    step: int = 0
    seq: int = 0
    attempt: int = 0
    unknown: bool = False
    fingerprint: str | None = None
    code_hash: str | None = None
    owner: OwnerRow | None = None
    until: str = ""


@dataclass(slots=True)
class Asking:
    """Who asks for which step; ``judge`` gives the verdict on another owner's row."""

    key: str
    token: str
    judge: Callable[[OwnerRow], ownership.Verdict]


@dataclass(slots=True)
class ClaimRequest(Asking):
    """What a step wants.

    Attributes:
        again: run a completed step again (``on_change="rerun"``).
        retry_doubt: the attempt of an ``in_doubt`` step that was decided not to have happened.
        patient: the rest of an interrupted wait between tries is waited.
        skips: the collected skips, to be stored with this write.
    """

    effect: str
    fingerprint: str | None
    code_hash: str | None
    meta: str | None
    again: bool = False
    retry_doubt: int | None = None
    patient: bool = False
    skips: Skips | None = None
