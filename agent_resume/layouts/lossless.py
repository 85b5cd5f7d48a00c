"""Our own form of a run, with everything in it: JSON lines, or one JSON document of the same content.

JSON lines, one document each::

    {"agentResume": "export", "version": 1, "runs": N}
    {"run": {…}}            columns of ``runs``
    {"step": {…}}           … of ``steps``, in order
    {"event": {…}}
    {"pause": {…}}
    {"end": {"run": ID, "steps": N, "events": N, "pauses": N}}

One document: ``{"version": 1, "runs": [{…columns…, "steps": […], "events": […], "pauses": […]}]}``.

Columns that hold JSON are written as the JSON they hold. Where parsing and writing that again would not give the same
text, the text itself stands under the column's name with ``_text``. Nothing in a file says when or where it was
written, so the export of an untouched import is the same file.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from agent_resume import codec_plain
from agent_resume.models import RunDump

VERSION = 1
HEADER = {"agentResume": "export", "version": VERSION}
PARTS = ("steps", "events", "pauses")
#: Columns of each kind of row that hold JSON.
JSON_COLUMNS = {
    "run": frozenset(
        {
            "input", "result", "error", "summary", "loop_verdict", "loop_status", "loop_turns", "loop_reason", "meta",
            "command",
        }
    ),
    "step": frozenset({"meta", "error", "output"}),
    "event": frozenset({"data"}),
    "pause": frozenset({"context", "value"}),
}  # fmt: skip
#: So much of a file's beginning tells whether it is an export.
HEAD = 256
_BEGINNING = re.compile(rb'\{"agentResume":|\{"version":\d+,"runs":\[')
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_BEYOND_ASCII = re.compile(r"[^\x00-\x7e]")


def write_jsonl(
    dumps: Iterable[AbstractContextManager[RunDump]],
    count: int,
    write: Callable[[str], object],
    tick: Callable[[], None],
) -> None:
    """Write runs as JSON lines.

    Args:
        dumps: one snapshot each, opened one after the other.
        count: how many; the header tells, so that a file cut between two runs is known for it.
        write: takes text.
        tick: called for every row.
    """
    write(_encode(HEADER | {"runs": count}) + "\n")
    for opened in dumps:
        with opened as dump:
            write(f'{{"run":{row_text("run", dump.run)}}}\n')
            counts = {}
            for part in PARTS:
                kind = part.removesuffix("s")
                count = 0
                for row in getattr(dump, part):
                    write(f'{{"{kind}":{row_text(kind, row)}}}\n')
                    count += 1
                    tick()
                counts[part] = count
            # Tells a whole run from one that a full disk or a broken pipe cut short.
            write(_encode({"end": {"run": dump.run["id"], **counts}}) + "\n")


def write_json(
    dumps: Iterable[AbstractContextManager[RunDump]], write: Callable[[str], object], tick: Callable[[], None]
) -> None:
    """Write runs as one document; one row a line, so that two exports can be compared by lines."""
    write(f'{{"version":{VERSION},"runs":[')
    mark = "\n"
    for opened in dumps:
        with opened as dump:
            write(f"{mark}{row_text('run', dump.run)[:-1]}")
            for part in PARTS:
                write(f',\n"{part}":[')
                kind, between = part.removesuffix("s"), "\n"
                for row in getattr(dump, part):
                    write(between + row_text(kind, row))
                    between = ",\n"
                    tick()
                write("]" if between == "\n" else "\n]")
            write("}")
        mark = ",\n"
    write("]}\n" if mark == "\n" else "\n]}\n")


def is_export(head: bytes) -> bool:
    """Whether a file that begins so is an export, perhaps written again by another tool."""
    return _BEGINNING.match(b"".join(head.removeprefix(codecs.BOM_UTF8).split())) is not None


def row_text(kind: str, row: dict[str, Any]) -> str:
    """A row as a JSON object; columns that are NULL are left out."""
    parts = []
    for name, value in row.items():
        if value is None:
            continue
        if name not in JSON_COLUMNS[kind]:
            parts.append(f'"{name}":{_encode(value)}')
        elif is_canonical(value):
            parts.append(f'"{name}":{value}')
        else:
            parts.append(f'"{name}_text":{_encode(value)}')
    return f"{{{','.join(parts)}}}"


def is_canonical(text: str) -> bool:
    """Whether reading this JSON and writing it again gives the same text."""
    try:
        return canonical(codec_plain.loads(text)) == text
    except (ValueError, RecursionError):
        return False


def canonical(value: Any) -> str:
    """JSON as the codec writes it.

    Raises:
        ValueError: NaN or an infinity in it.
    """
    return codec_plain.on_fresh_stack(_encode, value)


def ascii_only(text: str) -> str:
    """JSON text with everything beyond ASCII escaped, for streams that cannot take it."""
    if text.isascii():
        return text
    return _BEYOND_ASCII.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


def run_rows(dump: RunDump) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every row of a dump with its kind; for tests and tools that want one stream."""
    yield "run", dump.run
    for part in PARTS:
        for row in getattr(dump, part):
            yield part.removesuffix("s"), row
