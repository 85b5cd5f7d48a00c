"""Rows of ``steps`` from a flowcast run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agent_resume.codec import Codec
from agent_resume.layouts import jstext
from agent_resume.layouts.flowcast_plan import Found, Plan
from agent_resume.layouts.flowcast_read import LOST, Source, is_time
from agent_resume.layouts.flowcast_results import Step
from agent_resume.layouts.flowcast_shapes import RECORD_NAMES
from agent_resume.layouts.flowcast_values import mark_of, recover
from agent_resume.layouts.outcomes import Bends


class StepRows:
    """Makes the rows, and remembers of each what its events are compared with.

    Args:
        source: the folder.
        plan: its order.
        completed: results by key, as state.json has them.
        codec: how values are stored.
        bends: gets a note for each result that is not what state.json names.
        ended: the run is completed, so nothing of it is under way.
    """

    def __init__(
        self, source: Source, plan: Plan, completed: dict[str, Any], codec: Codec, bends: Bends, *, ended: bool
    ) -> None:
        #: As an export will see them, by the key in flowcast.
        self.steps: dict[str, Step] = {}
        #: Keys whose result is a string.
        self.texts: set[str] = set()
        # Results that state.json does not hold itself are known again by a digest.
        self._marks: dict[str, bytes] = {}
        self._source = source
        self._plan = plan
        self._completed = completed
        self._codec = codec
        self._bends = bends
        self._ended = ended

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row for each key that was begun, recorded or completed, in the order of their first events."""
        for found in sorted(self._plan.steps.values(), key=lambda found: found.seq):
            yield self._row(found)

    def _row(self, found: Found) -> dict[str, Any]:
        name = self._plan.keys.stored(found.key)
        record = found.record or {}
        meta = {field: value for field, value in record.items() if field not in RECORD_NAMES}
        row: dict[str, Any] = {
            "key": name, "seq": found.seq, "status": "completed", "attempts": found.attempts, "effect": "repeatable",
            "fingerprint": None, "code_hash": None, "meta": self._codec.encode_tagged(meta) if meta else None,
            "started_at": found.started_at, "finished_at": None, "duration_ms": None, "error": None,
            "output_format": None, "output_bytes": None, "output": None,
        }  # fmt: skip
        if record:
            row["finished_at"] = record["completedAt"] if is_time(record.get("completedAt")) else None
            row["duration_ms"] = _whole(record.get("durationMs"))
            if "durationMs" not in record and row["started_at"] is None:
                row["started_at"] = row["finished_at"]
        value = LOST
        if self._is_recovered(found) or found.key in self._completed:
            value = self._value(found, name)
        if value is not LOST:
            self._complete(row, found, value)
        else:
            if record and found.key not in self._completed:
                self._bends.add(f"steps[{name!r}].output", "flowcast kept no result; the step runs again")
            self._leave(row, found)
        self.steps[found.key] = Step(
            key=found.key, seq=found.seq, status=row["status"], attempts=row["attempts"],
            finished_at=row["finished_at"], duration_ms=row["duration_ms"], meta=meta,
        )  # fmt: skip
        return row

    def has_result(self, key: str, value: Any) -> bool:
        """Whether ``value`` is the result of a completed step."""
        mark = self._marks.get(key)
        return jstext.same(value, self._completed.get(key)) if mark is None else mark == mark_of(value)

    def _is_recovered(self, found: Found) -> bool:
        """An older state.json.bak may lack what the log proves to be done."""
        return self._source.from_backup and found.record is None and found.last == "done" and found.done_at is not None

    def _value(self, found: Found, name: str) -> Any:
        path = f"steps[{name!r}].output"
        if found.key in self._completed:
            return recover(self._source, found, self._completed[found.key], self._bends, path)
        value = self._source.line_at(found.done_at or 0).get("result", LOST)
        if value is not LOST:
            self._bends.add(path, "not in the older state.json.bak; the result was taken from the log")
        return value

    def _complete(self, row: dict[str, Any], found: Found, value: Any) -> None:
        encoded = self._codec.encode(value, key=row["key"])
        text = encoded.text
        row["output_format"], row["output"] = encoded.format, text
        row["output_bytes"] = len(text) if text.isascii() else len(text.encode())
        if row["finished_at"] is None and found.done_at is not None:
            line = self._source.line_at(found.done_at)
            row["finished_at"] = line["ts"] if is_time(line.get("ts")) else None
            row["duration_ms"] = _whole(line.get("durationMs"))
        if value is not self._completed.get(found.key):
            self._marks[found.key] = mark_of(value)
        if isinstance(value, str):
            self.texts.add(found.key)

    def _leave(self, row: dict[str, Any], found: Found) -> None:
        """A step that has no result: it runs again."""
        if found.last == "error" and found.error_at is not None:
            line = self._source.line_at(found.error_at)
            error = line.get("error")
            row["status"] = "failed"
            row["error"] = self._codec.encode_tagged(error if isinstance(error, dict) else {})
            row["finished_at"] = line["ts"] if is_time(line.get("ts")) else None
            row["duration_ms"] = _whole(line.get("durationMs"))
        elif found.open and not self._ended:
            # Nobody knows how it ended, and nobody has it now: its next attempt will say so.
            row["status"] = "running"
            row["finished_at"] = row["duration_ms"] = None
        else:
            row["status"] = "interrupted"
            text = "it ended in flowcast without a result that was kept, so it runs again"
            row["error"] = self._codec.encode_tagged({"message": text, "reason": "no-result"})


def _whole(duration: Any) -> int | None:
    return duration if type(duration) is int and abs(duration) < 2**53 else None
