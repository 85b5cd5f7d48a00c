"""The results of a run on their way out: in state.json, or in a side file beside it."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_resume.codec_plain import loads
from agent_resume.layouts import files, jstext
from agent_resume.layouts.flatten import flatten, flatten_column
from agent_resume.layouts.flowcast_names import INLINE_UNITS, MARKER, SIDE, Keys, fits, shortened, side_name
from agent_resume.layouts.outcomes import Bends

_NO_META: dict[str, Any] = {}


@dataclass(slots=True)
class Step:
    """What the log and state.json need to know of a step; of its result only what is small.

    Attributes:
        key: as flowcast has it.
        seq: number of its first event.
        text: compact JSON of its result, None when there is none or it is in a side file.
        side: name of that side file.
        raw: the side file holds the bare string.
        is_text: the result is a string.
    """

    key: str
    seq: int
    status: str
    attempts: int
    finished_at: str | None
    duration_ms: int | None
    meta: dict[str, Any]
    text: str | None = None
    side: str | None = None
    raw: bool = False
    is_text: bool = False

    @property
    def has_result(self) -> bool:
        """Whether flowcast would count it as done."""
        return self.text is not None or self.side is not None


class Results:
    """Takes step rows one by one, writes side files, and remembers the rest."""

    def __init__(self, folder: Path, keys: Keys, bends: Bends) -> None:
        self.steps: dict[str, Step] = {}
        self.by_seq: list[str] = []
        self._seqs: list[int] = []
        self._folder = folder / SIDE
        self._keys = keys
        self._bends = bends
        self._has_folder = False
        self._sides: set[str] = set()

    def take(self, row: dict[str, Any]) -> None:
        """One row of ``steps``."""
        name = row["key"]
        path = f"steps[{name!r}]"
        meta = flatten_column(row["meta"], self._bends, f"{path}.meta") if row["meta"] else _NO_META
        step = Step(
            key=self._keys.original(name),
            seq=row["seq"],
            status=row["status"],
            attempts=row["attempts"],
            finished_at=row["finished_at"],
            duration_ms=row["duration_ms"],
            meta=meta if isinstance(meta, dict) else {"meta": meta},
        )
        if row["status"] == "completed":
            value = None
            if row["output"] is not None:
                value = flatten(row["output_format"], row["output"], self._bends, f"{path}.output")
            self._place(step, value)
        elif row["status"] == "in_doubt" or (row["status"] == "running" and row["effect"] == "once"):
            self._bends.add(f"{path}.status", f"{row['status']}: it may have happened, and flowcast runs it again")
        self.steps[name] = step
        self.by_seq.append(name)
        self._seqs.append(row["seq"])

    def between(self, low: int, high: int) -> list[str]:
        """Stored keys of the steps whose numbers are in a range, in order."""
        first = bisect.bisect_left(self._seqs, low)
        return self.by_seq[first : bisect.bisect_right(self._seqs, high)]

    def _place(self, step: Step, value: Any) -> None:
        step.is_text = isinstance(value, str)
        text = jstext.compact(value)
        looks_marked = isinstance(value, str) and value.startswith(MARKER)
        size = jstext.units(value if isinstance(value, str) else text)
        name = side_name(step.key) if looks_marked or size > INLINE_UNITS else ""
        if not name or (not looks_marked and not fits(name)):
            # flowcast reads a long inline result as it is; a key too long for a file name leaves no other place.
            step.text = text
            return
        step.side = self._free_side(shortened(name))
        step.raw = isinstance(value, str) and not looks_marked and not jstext.has_lone_surrogate(value)
        body = jstext.joined(value) if step.raw else text
        if not self._has_folder:
            self._folder.mkdir(mode=0o700)
            self._has_folder = True
        with files.new_file(self._folder / f"{step.side}.out") as file:
            file.write(b"string\n" if step.raw else b"json\n")
            file.write(body.encode())

    def _free_side(self, name: str) -> str:
        """The marker carries the name, so it need not be flowcast's where two keys have the same."""
        free, number = name, 1
        while free.lower() in self._sides:
            number += 1
            free = f"{name[:100]}_{number}"
        self._sides.add(free.lower())
        return free

    def compact(self, step: Step) -> str:
        """Compact JSON of a step's result, read back where it is large."""
        if step.text is not None:
            return step.text
        with files.open_regular(self._folder / f"{step.side}.out") as file:
            _, _, body = file.read().partition(b"\n")
        return jstext.quoted(body.decode()) if step.raw else body.decode()

    def stored(self, step: Step) -> str:
        """What state.json holds for a step, indented for its place there."""
        if step.text is None:
            return jstext.quoted(f"{MARKER}{step.side}")
        return jstext.pretty(loads(step.text), 2) if step.text[:1] in "[{" else step.text


def is_current(step: Step, attempt: int | None, ts: str, duration: Any) -> bool:
    """Whether an outcome event tells of the result that the step has now: it has not been run or recorded again."""
    if step.status != "completed" or attempt != step.attempts or ts != step.finished_at:
        return False
    return not isinstance(duration, int) or duration == step.duration_ms
