"""Options and arguments that several commands share, and how their texts are understood."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from . import completion
from .exits import TooDeep, Usage

Db = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="STORE",
        help="Store: a file or a SQLAlchemy URL. Default: AGENT_RESUME_DB, or .agent-resume/runs.db.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Run = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Run id, a prefix of one, or NAME@latest.", autocompletion=completion.run_ids),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show log lines, and the traceback of an error.")]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        autocompletion=completion.formats,
        help="csv, tsv, jsonl, or any format of tabulate (github, html, …).",
    ),
]

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d|w)")
_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def span_ms(text: str) -> int | None:
    """``2h``, ``3d``, ``90s`` in milliseconds; None when it is no such thing."""
    found = _SPAN.fullmatch(text.strip())
    return round(float(found[1]) * _MS[found[2]]) if found else None


def moment(text: str | None, option: str) -> str | None:
    """An ISO time, or how long ago, as ISO UTC.

    Raises:
        Usage: neither.
    """
    from agent_resume import clock

    if text is None:
        return None
    ago = span_ms(text)
    if ago is not None:
        return clock.iso(max(0, clock.now_ms() - ago))
    try:
        return clock.iso(clock.parse_iso(text))
    except (ValueError, OverflowError):
        raise Usage(f"{option}: {text!r} is neither an ISO time (2026-01-31T09:00Z) nor a span (90s, 2h, 3d)") from None


def span(text: str, option: str) -> int:
    """A span in milliseconds.

    Raises:
        Usage: it is none.
    """
    ms = span_ms(text)
    if ms is None:
        raise Usage(f"{option}: {text!r} is no span; write 90s, 2h, 30d or 6w")
    return ms


def json_value(text: str, option: str) -> object:
    """A value given as JSON.

    Raises:
        Usage: it is no JSON, or (``TooDeep``) more of it than can be read.
    """
    import json

    try:
        return json.loads(text)
    except RecursionError:
        raise TooDeep(f"{option}: nested too deep; give a flatter value") from None
    except ValueError as error:
        quoted = json.dumps(text)
        raise Usage(f"{option}: not JSON ({error}); a text needs its own quotes: '{quoted}'") from None
