"""Rows of one run against each other: each may be sound by itself and contradict its siblings."""

from __future__ import annotations

from typing import Any

from agent_resume.layouts.outcomes import Refused

# Far beyond what any run reaches, and far enough below 64 bits for counting on.
_MOST = 2**53
_FORMATS = ("json", "tagged")
_OBJECTS = {"run": ("error", "meta", "command"), "step": ("error", "meta")}
_COUNTS = {"run": ("last_seq", "epoch"), "step": ("seq", "attempts"), "event": ("seq", "attempt")}


class Siblings:
    """Compares the rows of one run while they stream by; each kind in its own order.

    Args:
        run: its row of ``runs``, as ``read_row`` gives it.
        place: where it stands, for the text of a refusal.

    Raises:
        Refused: the row contradicts itself.
    """

    def __init__(self, run: dict[str, Any], place: str) -> None:
        self._last = run["last_seq"]
        self._event = 0
        self._names: dict[str, set[str]] = {"step": set(), "pause": set()}
        _check_shape("run", run, place)
        _check_value(run, "result", place)

    def check(self, kind: str, row: dict[str, Any], place: str) -> None:
        """Compare the next row.

        Raises:
            Refused: it contradicts itself, the run, or a row before it.
        """
        _check_shape(kind, row, place)
        if "seq" in row and not 0 < row["seq"] <= self._last:
            raise Refused(f"{place}.seq: {row['seq']} is not between 1 and the run's last_seq, {self._last}")
        if kind == "event":
            if row["seq"] <= self._event:
                raise Refused(f"{place}.seq: {row['seq']} after {self._event}; events have ascending numbers")
            self._event = row["seq"]
            return
        name = row["key" if kind == "step" else "name"]
        if name in self._names[kind]:
            raise Refused(f"{place}: a second {kind} {name[:40]!r}")
        self._names[kind].add(name)
        if kind == "step":
            _check_value(row, "output", place)
            if row["status"] == "completed" and row["output"] is None:
                raise Refused(f"{place}.output: missing, though the step is completed")


def _check_shape(kind: str, row: dict[str, Any], place: str) -> None:
    for name in _OBJECTS.get(kind, ()):
        if row[name] is not None and not row[name].lstrip().startswith("{"):
            raise Refused(f"{place}.{name}: not an object")
    for name in _COUNTS.get(kind, ()):
        if row[name] is not None and not 0 <= row[name] <= _MOST:
            raise Refused(f"{place}.{name}: {row[name]} is no number that a run reaches")


def _check_value(row: dict[str, Any], name: str, place: str) -> None:
    format = row[f"{name}_format"]
    if row[name] is not None and format not in _FORMATS:
        raise Refused(f"{place}.{name}_format: {str(format)[:40]!r} is none of {', '.join(_FORMATS)}")
