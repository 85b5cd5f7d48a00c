"""report.md as flowcast's ``done()`` writes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from agent_resume import clock
from agent_resume.layouts import jstext


def report_lines(fields: dict[str, Any], records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The lines of the report, without line ends.

    Args:
        fields: of state.json.
        records: the entries of its ``steps``.
    """
    yield "# Workflow Run Report"
    yield ""
    for label, name in (
        ("Run ID", "runId"),
        ("Status", "status"),
        ("Started", "startedAt"),
        ("Completed", "completedAt"),
    ):
        yield f"**{label}**: {_shown(fields, name)}"
    yield f"**Total time**: {_seconds(_total(fields))}s"
    yield ""
    yield "## Summary"
    summary = [f"- **{name}**: {jstext.string(value)}" for name, value in _entries(fields.get("summary"))]
    yield from summary or [""]
    yield from ("", "## Steps", "")
    yield "| Step | Status | Duration | CLI |"
    yield "|------|--------|----------|-----|"
    empty = True
    for record in records:
        yield _row(record)
        empty = False
    if empty:
        yield ""
    yield from ("", "## Full log")
    yield "See `run.log.jsonl` for complete inputs/outputs per step."


def _shown(fields: dict[str, Any], name: str) -> str:
    return jstext.string(fields[name]) if name in fields else "undefined"


def _entries(summary: Any) -> list[tuple[str, Any]]:
    """``Object.entries``: text and arrays by index, numbers none."""
    if isinstance(summary, dict):
        return [(name, summary[name]) for name in jstext.ordered(list(summary))]
    if isinstance(summary, list):
        return [(str(index), item) for index, item in enumerate(summary)]
    if isinstance(summary, str):
        return [(str(index), chr(unit)) for index, unit in enumerate(jstext.code_units(summary))]
    return []


def _total(fields: dict[str, Any]) -> float:
    try:
        return clock.parse_iso(fields["completedAt"]) - clock.parse_iso(fields["startedAt"])
    except (KeyError, TypeError, ValueError):
        return math.nan


def _seconds(ms: float) -> str:
    return jstext.fixed(ms / 1000)


def _row(record: dict[str, Any]) -> str:
    duration = record.get("durationMs")
    finite = isinstance(duration, (int, float)) and not isinstance(duration, bool) and math.isfinite(duration)
    cli = record.get("cli")
    cells = (
        _shown(record, "key"),
        _shown(record, "status"),
        f"{_seconds(float(duration or 0))}s" if finite else "-",
        "-" if cli is None else jstext.string(cli),
    )
    return f"| {' | '.join(cells)} |"
