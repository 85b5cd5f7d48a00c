"""The records that cross the library's border, all frozen, and the rows that the store hands to the layers above.

``to_dict()`` gives the documented camelCase shape. Times are ISO UTC text with milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from . import clock, codec

Json = Any


@dataclass(frozen=True, slots=True)
class RunRow:
    """A row of ``runs``; columns as in ``schema_tables.py``."""

    seq: int
    last_seq: int
    id: str
    name: str
    status: str
    input: str | None
    input_digest: str | None
    result: str | None
    result_format: str | None
    error: str | None
    summary: str | None
    loop_verdict: str | None
    loop_status: str | None
    loop_turns: str | None
    loop_reason: str | None
    expect_max_ms: int | None
    meta: str | None
    parent_run_id: str | None
    forked_from: str | None
    command: str | None
    created_at: str
    updated_at: str
    finished_at: str | None
    owner_token: str | None
    epoch: int

    @property
    def meta_dict(self) -> dict[str, Json]:
        """``meta`` as a dict, empty when there is none."""
        value = json.loads(self.meta) if self.meta else {}
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class StepRow:
    """A row of ``steps`` without its output."""

    id: int
    run_id: int
    key: str
    seq: int
    status: str
    attempts: int
    effect: str
    fingerprint: str | None
    code_hash: str | None
    meta: str | None
    started_at: str | None
    finished_at: str | None
    duration_ms: int | None
    error: str | None
    owner_token: str | None
    output_format: str | None
    output_bytes: int | None

    @property
    def meta_dict(self) -> dict[str, Json]:
        """``meta`` as a dict, empty when there is none."""
        value = json.loads(self.meta) if self.meta else {}
        return value if isinstance(value, dict) else {}

    @property
    def error_dict(self) -> dict[str, Json] | None:
        """``error`` as a dict, None when there is none; without what only a resumed run reads, ``exception``."""
        found = json.loads(self.error) if self.error else None
        return None if found is None else {name: item for name, item in found.items() if name != "exception"}


@dataclass(frozen=True, slots=True)
class EventRow:
    """A row of ``events``."""

    id: int
    run_id: int
    seq: int
    ts: str
    type: str
    step_key: str | None
    attempt: int | None
    data: str | None

    @property
    def value(self) -> Json:
        """``data`` as JSON, None when there is none."""
        return json.loads(self.data) if self.data is not None else None

    def to_dict(self) -> dict[str, Json]:
        """The event as the command line prints it."""
        shown: dict[str, Json] = {"seq": self.seq, "ts": self.ts, "type": self.type}
        if self.step_key is not None:
            shown["step"] = self.step_key
        if self.attempt is not None:
            shown["attempt"] = self.attempt
        if self.data is not None:
            shown["data"] = self.value
        return shown


@dataclass(frozen=True, slots=True)
class PauseRow:
    """A row of ``pauses``: a named question or wait."""

    id: int
    run_id: int
    name: str
    kind: str
    reason: str | None
    context: str | None
    asked_at: str | None
    deadline: str | None
    value: str | None
    answered_at: str | None
    answered_by: str | None

    @property
    def is_open(self) -> bool:
        """Asked, and not answered."""
        return self.asked_at is not None and self.answered_at is None

    @property
    def is_over(self) -> bool:
        """Nobody answered in time; an answer by name still counts, when the run asks again."""
        return self.is_open and self.deadline is not None and clock.parse_iso(self.deadline) <= clock.now_ms()

    def to_dict(self) -> dict[str, Json]:
        """The pause as the command line prints it."""
        shown: dict[str, Json] = {"name": self.name, "kind": self.kind, "reason": self.reason}
        if self.context is not None:
            shown["context"] = codec.json_value("tagged", self.context)
        times = {"askedAt": self.asked_at, "deadline": self.deadline}
        shown |= {name: value for name, value in times.items() if value is not None}
        if self.answered_at is not None:
            shown |= {
                "value": codec.json_value("tagged", self.value or "null"),
                "answeredAt": self.answered_at,
                "answeredBy": self.answered_by,
            }
        return shown


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """A row of ``owners``: a process that executes runs or steps."""

    token: str
    host: str
    pid: int
    started: int | None
    beats: int
    beat_at: str

    def to_mapping(self) -> dict[str, Any]:
        """As ``ownership.judge`` wants it."""
        return {name: getattr(self, name) for name in ("token", "host", "pid", "started", "beats", "beat_at")}


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step as it is stored.

    Attributes:
        name: the step's key.
        status: ``running``, ``completed``, ``failed``, ``interrupted`` or ``in_doubt``.
        started_at: start of its newest attempt, ISO UTC; None for a recorded value of an import.
        finished_at: its end, ISO UTC, or None.
        error: the failure as text, ``{"type", "message", …}``, or None.
        attempts: how often its function was called, as far as known.
        duration_ms: of the newest attempt that ended.
        meta: what was stored beside it (``cli``, ``model``, ``inputTokens``, …).
        seq: number of its first event; the order of the timeline.
        output_format: ``json``, ``tagged`` or None (no output).
    """

    name: str
    status: str
    started_at: str | None
    finished_at: str | None = None
    error: dict[str, Json] | None = None
    attempts: int = 1
    duration_ms: int | None = None
    meta: Mapping[str, Json] = field(default_factory=dict)
    seq: int = 0
    output_format: str | None = None
    output_text: str | None = field(default=None, repr=False)
    _decode: Callable[[str, str], Any] | None = field(default=None, repr=False, compare=False)

    @property
    def output(self) -> Any:
        """The stored result, decoded; None where there is none.

        Raises:
            StoredValueUnreadable: its class is not to be had in this program.
        """
        if self.output_text is None or self.output_format is None:
            return None
        decode = self._decode or codec.DEFAULT.decode
        return decode(self.output_format, self.output_text)

    def to_dict(self) -> dict[str, Json]:
        """``{name, status, startedAt, finishedAt?, output?, error?}``; nothing is restored, so nothing can fail."""
        shown: dict[str, Json] = {"name": self.name, "status": self.status, "startedAt": self.started_at}
        if self.finished_at is not None:
            shown["finishedAt"] = self.finished_at
        if self.output_text is not None and self.output_format is not None:
            shown["output"] = codec.json_value(self.output_format, self.output_text)
        if self.error is not None:
            shown["error"] = self.error.get("message", "")
        return shown


@dataclass(frozen=True, slots=True)
class AgentRunState:
    """A run as it is stored, with its steps in the order of their first events.

    Attributes:
        id: the run's id.
        name: the agent's name.
        created_at: ISO UTC.
        updated_at: ISO UTC.
        steps: every step.
        status: as stored (``running``, ``paused``, ``completed``, ``failed``, ``interrupted``, ``cancelled``).
        shown_status: the same, but ``interrupted``, ``overdue`` or ``idle`` for what is stored as ``running`` and is
            not really.
        finished_at: ISO UTC, or None.
        error: why it failed, or None.
    """

    id: str
    name: str
    created_at: str
    updated_at: str
    steps: tuple[RecordedStep, ...]
    status: str
    shown_status: str
    finished_at: str | None = None
    error: dict[str, Json] | None = None
    meta: Mapping[str, Json] = field(default_factory=dict)
    result_format: str | None = None
    result_text: str | None = field(default=None, repr=False)
    _decode: Callable[[str, str], Any] | None = field(default=None, repr=False, compare=False)

    @property
    def result(self) -> Any:
        """What the agent's body returned, decoded; None before it ended.

        Raises:
            StoredValueUnreadable: its class is not to be had in this program.
        """
        if self.result_text is None or self.result_format is None:
            return None
        decode = self._decode or codec.DEFAULT.decode
        return decode(self.result_format, self.result_text)

    def to_dict(self) -> dict[str, Json]:
        """``{id, name, createdAt, updatedAt, steps, result?}``."""
        shown: dict[str, Json] = {
            "id": self.id,
            "name": self.name,
            "createdAt": self.created_at,
            "updatedAt": self.updated_at,
            "steps": [step.to_dict() for step in self.steps],
        }
        if self.result_text is not None and self.result_format is not None:
            shown["result"] = codec.json_value(self.result_format, self.result_text)
        return shown


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line of ``list_runs``; it never holds outputs.

    Attributes:
        steps_total: steps of any status.
        steps_completed: those completed.
        duration_ms: from its creation to its end, or to its last change.
        input_tokens: summed over its steps' ``meta``, None when no step says.
    """

    id: str
    name: str
    status: str
    shown_status: str
    created_at: str
    updated_at: str
    finished_at: str | None
    steps_total: int
    steps_completed: int
    duration_ms: int | None
    input_tokens: int | None
    output_tokens: int | None
    owner_host: str | None = None
    owner_pid: int | None = None

    def to_dict(self) -> dict[str, Json]:
        """The line as ``list --json`` prints it."""
        return {
            "id": self.id,
            "name": self.name,
            "status": self.shown_status,
            "storedStatus": self.status,
            "createdAt": self.created_at,
            "updatedAt": self.updated_at,
            "finishedAt": self.finished_at,
            "stepsTotal": self.steps_total,
            "stepsCompleted": self.steps_completed,
            "durationMs": self.duration_ms,
            "inputTokens": self.input_tokens,
            "outputTokens": self.output_tokens,
        }


@dataclass(frozen=True, slots=True)
class StepEvent:
    """What ``on_step`` gets.

    Attributes:
        kind: ``start``, ``done``, ``skip`` or ``error``.
        run_id: the run.
        key: the step.
        duration_ms: for ``done`` and ``error``.
        result: for ``done`` and ``skip``.
        error: for ``error``: the exception itself.
    """

    kind: Literal["start", "done", "skip", "error"]
    run_id: str
    key: str
    duration_ms: int | None = None
    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """What ``agent_run(on_pause="return")`` gives when the run waits for an answer.

    Attributes:
        run_id: the run.
        name: the pause's name, which an answer must give.
        reason: why it waits.
        context: what the asker said with it.
    """

    run_id: str
    name: str
    reason: str
    context: Any = None


@dataclass(frozen=True, slots=True)
class RunDump:
    """One run's rows, for export and import: dicts with the column names of ``schema_tables.py``, streamed in order."""

    run: dict[str, Any]
    steps: Iterator[dict[str, Any]]
    events: Iterator[dict[str, Any]]
    pauses: Iterator[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ImportOutcome:
    """What became of one imported run.

    Attributes:
        run_id: the id it has in this store.
        action: ``imported``, ``identical``, ``skipped``, ``replaced`` or ``renamed``.
    """

    run_id: str
    action: Literal["imported", "identical", "skipped", "replaced", "renamed"]
