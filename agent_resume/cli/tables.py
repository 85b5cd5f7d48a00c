"""Tables on the screen, through ``layouts/render.py``, and the small texts that stand in their cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from . import fold, screen
from .exits import Usage

# A first cell is no reason to leave out columns where it is longer; a text that may be cut keeps so many columns.
_LONG = 24
_LEAST = 12
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
    cut: str | None = None,
) -> None:
    """Print rows of cells that went through ``fit``.

    On a narrow terminal a text is cut and columns are left out, which is said. A first cell is copied from there: where
    it is long it stays whole on a line of its own, and takes no room from the other rows. In a pipe all is printed.

    Args:
        headers: the columns' names.
        rows: their cells.
        format: one of tabulate's, or None for ours.
        right: columns aligned on their right.
        expendable: columns that a narrow terminal does without, last first.
        cut: the column whose texts may be cut.
    """
    from agent_resume.layouts import render

    if not rows:
        return
    shown, alone = list(headers), [""] * len(rows)
    left_out: list[str] = []
    if screen.is_terminal() and format is None and headers[0] == "ID":
        shown, rows, alone, left_out = _fitted(shown, rows, expendable, cut)
    head, *lines = render.table(shown, rows, format or render.DEFAULT_FORMAT, right=right).split("\n")
    screen.line(head.rstrip())
    for place, line in enumerate(lines):
        if any(alone) and alone[place]:
            screen.line(alone[place])
        screen.line(line.rstrip())
    if left_out:
        for line in fold.lines(f"no room for {', '.join(left_out)}: a wider terminal shows them, and --json"):
            screen.note(line)


def _fitted(
    headers: list[str], rows: list[list[str]], expendable: Sequence[str], cut: str | None
) -> tuple[list[str], list[list[str]], list[str], list[str]]:
    """What a terminal has room for: headers, rows, each row's first cell where it stands alone, headers left out."""
    sizes = dict(
        zip(headers, (max(map(screen.width, column)) for column in zip(headers, *rows, strict=True)), strict=True)
    )
    texts = sizes.get(cut or "", 0)
    own = sorted(screen.width(text) for text in (headers[0], *(row[0] for row in rows)))
    sizes[headers[0]] = max(size for size in own if size <= max(_LONG, own[0]))
    if cut is not None:
        sizes[cut] = min(texts, _LEAST)
    spare = screen.columns() - sum(sizes.values()) - 2 * (len(sizes) - 1)
    for name in reversed(expendable):
        if spare < 0:
            spare += sizes.pop(name) + 2
    room = sizes[headers[0]] + max(0, spare)
    spare -= max(size for size in own if size <= room) - sizes[headers[0]]
    if cut in sizes:
        sizes[cut] = min(texts, sizes[cut] + max(0, spare))
    shown, alone = [], []
    for row in rows:
        cells = dict(zip(headers, row, strict=True))
        alone.append(row[0] if screen.width(row[0]) > room else "")
        cells[headers[0]] = "" if alone[-1] else row[0]
        if cut in sizes:
            cells[cut] = screen.cut(cells[cut], sizes[cut])
        shown.append([cells[name] for name in sizes])
    return list(sizes), shown, alone, [name for name in headers if name not in sizes]


def records(values: Iterable[dict[str, Any]], format: str | None, keys: Sequence[str]) -> None:
    """Print dicts of these keys in one of ``LINE_FORMATS``; their names also where there is no dict."""
    print_records(keys, ([value[key] for key in keys] for value in values), format)


def print_records(headers: Sequence[str], rows: Iterable[Sequence[Any]], format: str | None) -> None:
    """Print rows of values in one of ``LINE_FORMATS``."""
    from agent_resume.layouts import render

    # In a pipe a value stays as it is; a terminal never gets its control characters.
    show = screen.fit if screen.is_terminal() else str
    if format in (None, "jsonl"):
        for row in rows:
            screen.line(screen.json_text(dict(zip(headers, row, strict=True)), indent=None))
        return
    for line in render.lines(format, list(map(show, headers)), rows, show=show):
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
