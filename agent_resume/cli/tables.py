"""Tables on the screen, through ``layouts/render.py``, and the small texts that stand in their cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from . import screen
from .exits import Usage

LINE_FORMATS = ("csv", "tsv", "jsonl")


def check(format: str | None, *, json: bool) -> None:
    """Refuse a format that there is not, and one beside ``--json``.

    Raises:
        Usage: says which there are, or which option to leave out.
    """
    if json and format is not None:
        raise Usage("--json and --format are two forms of the same; choose one")
    if format is None or format in LINE_FORMATS:
        return
    from agent_resume.layouts import render

    try:
        render.check(format)
    except render.UnknownFormat as error:
        raise Usage(f"--format: {error}") from None


def print_table(
    headers: Sequence[str],
    rows: list[list[str]],
    format: str | None,
    *,
    right: Sequence[str] = (),
    expendable: Sequence[str] = (),
) -> None:
    """Print rows of cells that went through ``fit``.

    Args:
        headers: the columns' names.
        rows: their cells.
        format: one of tabulate's, or None for ours.
        right: columns aligned on their right.
        expendable: columns that a narrow terminal does without, last first. Nothing is left out in a pipe.
    """
    from agent_resume.layouts import render

    if not rows:
        return
    shown = list(headers)
    text = render.table(shown, rows, format or render.DEFAULT_FORMAT, right=right)
    if screen.is_terminal() and format is None:
        for name in reversed(expendable):
            if _widest(text) <= screen.columns():
                break
            place = shown.index(name)
            shown.pop(place)
            rows = [[*row[:place], *row[place + 1 :]] for row in rows]
            text = render.table(shown, rows, render.DEFAULT_FORMAT, right=right)
    for line in text.split("\n"):
        screen.line(line.rstrip())


def _widest(text: str) -> int:
    return max(map(screen.width, text.split("\n")))


def records(values: Iterable[dict[str, Any]], format: str | None, keys: Sequence[str]) -> None:
    """Print dicts of these keys in one of ``LINE_FORMATS``; their names also where there is no dict."""
    print_records(keys, ([value[key] for key in keys] for value in values), format)


def print_records(headers: Sequence[str], rows: Iterable[Sequence[Any]], format: str | None) -> None:
    """Print rows of values in one of ``LINE_FORMATS``."""
    from agent_resume.layouts import render

    # In a pipe a value stays as it is; a terminal never gets its control characters.
    show = screen.fit if screen.is_terminal() else str
    if format in (None, "jsonl"):
        rows = map(screen.finite, rows)
    else:
        headers = list(map(show, headers))
    for line in render.lines(format or "jsonl", headers, rows, show=show):
        screen.line(line)


def age(since: str) -> str:
    """How long ago an ISO time is: ``5s``, ``3m``, ``2h``, ``4d``."""
    from agent_resume import clock

    seconds = max(0, (clock.now_ms() - clock.parse_iso(since)) // 1000)
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size or (unit == "m" and seconds >= size):
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def number(value: float) -> str:
    """A count in few characters: ``950``, ``12.3k``, ``4.5M``."""
    if value < 1000:
        return f"{value:.0f}"
    for unit, size in (("k", 1e3), ("M", 1e6), ("G", 1e9)):
        if value < size * 1000:
            return f"{value / size:.1f}{unit}"
    return f"{value / 1e12:.1f}T"


def size(count: float) -> str:
    """Bytes for people: ``12 B``, ``3.4 kB``, ``5.6 MB``."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"


def plural(count: int, what: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
