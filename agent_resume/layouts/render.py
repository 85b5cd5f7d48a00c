"""Tables: through tabulate, and csv, tsv and JSON lines beside it. The only module that imports tabulate."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from agent_resume import report

#: Formats that are written line by line, without looking at all rows first.
LINE_FORMATS = ("csv", "tsv", "jsonl")
DEFAULT_FORMAT = "plain"
# Their readers take a bare | in a cell for the cell's end; tabulate leaves it as it is.
_CUT_AT_BARS = ("github", "jira", "pipe")


class UnknownFormat(ValueError):
    """Not a format that tables can have."""


def formats() -> tuple[str, ...]:
    """Every format that ``--format`` takes."""
    import tabulate

    return tuple(sorted({*LINE_FORMATS, *tabulate.tabulate_formats} - {"colon_grid"}))


def check(format: str) -> str:
    """The format when there is one of that name.

    Raises:
        UnknownFormat: there is none; names those that are.
    """
    if format not in LINE_FORMATS and format not in formats():
        raise UnknownFormat(f"no format {format!r}; there are {', '.join(formats())}")
    return format


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], format: str = DEFAULT_FORMAT, *, right: Sequence[str] = ()
) -> str:
    """A table as text.

    Args:
        headers: the columns' names.
        rows: cells, fit to be shown.
        format: one of tabulate's.
        right: names of the columns that are aligned on their right.
    """
    import tabulate

    if not rows:
        return ""
    if format in _CUT_AT_BARS:
        rows = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    with _lent(format):
        return tabulate.tabulate(
            [list(row) for row in rows],
            headers=list(headers),
            tablefmt=format,
            disable_numparse=True,
            colalign=["right" if name in right else "left" for name in headers],
        )


@contextlib.contextmanager
def _lent(format: str) -> Iterator[None]:
    # tabulate counts columns with the optional package wcwidth; our own count is lent to it, so that CJK text is
    # aligned on every installation.
    import tabulate

    module: Any = tabulate
    before = module.wcwidth, module.WIDE_CHARS_MODE, module.MIN_PADDING
    # Ours goes to terminals, where tabulate's two more blanks for each header have no room.
    padding = 0 if format == DEFAULT_FORMAT else module.MIN_PADDING
    module.wcwidth, module.WIDE_CHARS_MODE, module.MIN_PADDING = _Columns, True, padding
    try:
        yield
    finally:
        module.wcwidth, module.WIDE_CHARS_MODE, module.MIN_PADDING = before


class _Columns:
    wcswidth = staticmethod(report.width)
    wcwidth = staticmethod(report.width)


def lines(
    format: str, headers: Sequence[str], records: Iterable[Sequence[Any]], *, show: Callable[[Any], str] = str
) -> Iterator[str]:
    """Records in one of ``LINE_FORMATS``, without line ends.

    Args:
        format: ``csv``, ``tsv`` or ``jsonl``.
        headers: the columns' names.
        records: values, each None, a str, a number or JSON.
        show: makes a text fit for where it goes.
    """
    if format == "jsonl":
        for record in records:
            yield json.dumps(dict(zip(headers, record, strict=True)), default=str)
        return
    write = _csv_line if format == "csv" else _tsv_line
    yield write(list(headers))
    for record in records:
        yield write([show(_cell(value)) for value in record])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping | list):
        return json.dumps(value)
    return str(value)


def _csv_line(cells: list[str]) -> str:
    text = io.StringIO()
    # Before Python 3.13 a line end in a cell is quoted only where it is in this.
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue().removesuffix("\r\n")


def _tsv_line(cells: list[str]) -> str:
    # The format has no quotes: what would break a line is escaped.
    return "\t".join(report.printable(cell) for cell in cells)
