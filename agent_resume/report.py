"""Text made from records: timelines and the Markdown report. Pure: no store, no clock, no terminal."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .models import AgentRunState, RecordedStep

#: Steps whose outcome is still to come.
_OPEN = frozenset({"running"})


def printable(text: str) -> str:
    """``text`` on one line: control characters, lone surrogates and line breaks are shown as escapes."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == " " else _escape(character) for character in text
    )


def _escape(character: str) -> str:
    code = ord(character)
    named = {0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}.get(code)
    if named:
        return named
    # Joiners and variation selectors belong to emoji; format characters that turn the writing direction do not.
    if code in (0x200D, 0xFE0F):
        return character
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def width(text: str) -> int:
    """How many columns a terminal gives to ``text``: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    columns = 0
    for character in text:
        if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
            continue
        columns += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return columns


def pad(text: str, columns: int) -> str:
    """``text`` filled with blanks to ``columns`` as a terminal counts them."""
    return text + " " * max(0, columns - width(text))


def seconds_text(ms: float | None) -> str:
    """A duration: ``0.1s``, ``59.9s``, ``2m05s``, ``3h07m``, ``2d04h``; ``-`` where there is none."""
    if ms is None:
        return "-"
    if ms < 59_950:
        return f"{ms / 1000:.1f}s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours:02d}h"


def timeline_line(step: RecordedStep, names: int, statuses: int = 10) -> str:
    """One step of a timeline, its name padded to ``names`` columns and its status to ``statuses``."""
    took = "..." if step.status in _OPEN else seconds_text(step.duration_ms)
    line = f"{pad(printable(step.name), names)} {pad(step.status, statuses)} {took}"
    if step.error is not None and step.status != "completed":
        line += f"  Error: {printable(str(step.error.get('message', '')))}"
    return line


def timeline_lines(steps: Sequence[RecordedStep]) -> list[str]:
    """One line a step, aligned."""
    names = max((width(printable(step.name)) for step in steps), default=0)
    statuses = max((len(step.status) for step in steps), default=0)
    return [timeline_line(step, names, max(10, statuses)) for step in steps]


def format_timeline(state: AgentRunState) -> str:
    """A run's steps as text, one line each: name, status, duration, error.

    Args:
        state: what ``load_run`` or ``run.state()`` returned.
    """
    return "\n".join(timeline_lines(state.steps))


def token_sums(metas: Iterable[str | Mapping[str, Any] | None]) -> tuple[int | None, int | None]:
    """Input and output tokens summed over steps' ``meta`` (JSON text or dicts); None where no step says."""
    sums: list[int | None] = [None, None]
    for meta in metas:
        if not meta:
            continue
        values = json.loads(meta) if isinstance(meta, str) else meta
        if not isinstance(values, dict | Mapping):
            continue
        for index, name in enumerate(("inputTokens", "outputTokens")):
            value = values.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                sums[index] = (sums[index] or 0) + int(value)
    return sums[0], sums[1]


def tokens_by_model(steps: Iterable[RecordedStep]) -> dict[str, tuple[int, int]]:
    """Input and output tokens by ``cli:model`` (or whichever of the two is known)."""
    sums: dict[str, tuple[int, int]] = {}
    for step in steps:
        given, made = token_sums([step.meta])
        if given is None and made is None:
            continue
        parts = [str(step.meta[name]) for name in ("cli", "model") if step.meta.get(name) is not None]
        label = ":".join(parts) or "unknown"
        before = sums.get(label, (0, 0))
        sums[label] = (before[0] + (given or 0), before[1] + (made or 0))
    return sums


def markdown(state: AgentRunState, summary: Any, total_ms: int | None) -> str:
    """The Markdown report of a run.

    Args:
        summary: the JSON value given to ``done()``; a dict is listed entry by entry.
        total_ms: from creation to end; None shows ``-``.
    """
    lines = [
        f"# Run {_cell(state.name)}",
        "",
        f"**Run ID**: {printable(state.id)}",
        f"**Status**: {state.shown_status}",
        f"**Started**: {state.created_at}",
        f"**Completed**: {state.finished_at or '-'}",
        f"**Total time**: {seconds_text(total_ms)}",
    ]
    if state.error is not None:
        lines.append(f"**Error**: {_error(state.error)}")
    entries = summary.items() if isinstance(summary, Mapping) else [("summary", summary)] if summary is not None else ()
    lines += _list("Summary", ((str(name), _text(value)) for name, value in entries))
    lines += ["", "## Steps", ""]
    lines += [
        "| Step | Status | Duration | Attempts | CLI | Model | Tokens in | Tokens out |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(step) for step in state.steps]
    failed = (step for step in state.steps if step.status != "completed")
    lines += _list("Errors", ((step.name, _error(step.error)) for step in failed if step.error is not None))
    return "\n".join(lines) + "\n"


def _list(title: str, entries: Iterable[tuple[str, str]]) -> list[str]:
    lines = [f"- **{_cell(name)}**: {_cell(text)}" for name, text in entries]
    return ["", f"## {title}", *lines] if lines else []


def _error(error: Mapping[str, Any]) -> str:
    return printable(": ".join(str(error[part]) for part in ("type", "message") if error.get(part)))


def _row(step: RecordedStep) -> str:
    meta = step.meta
    cells = [
        step.name,
        step.status,
        seconds_text(step.duration_ms),
        step.attempts,
        *(
            meta.get(name) if meta.get(name) is not None else "-"
            for name in ("cli", "model", "inputTokens", "outputTokens")
        ),
    ]
    return "| " + " | ".join(_cell(str(cell)) for cell in cells) + " |"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cell(text: str) -> str:
    return printable(text).replace("|", "\\|")
