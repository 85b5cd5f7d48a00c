"""Results of a flowcast run on their way in: from state.json, its side files, or what the log still has of them."""

from __future__ import annotations

import hashlib
from typing import Any

from agent_resume.layouts import jstext
from agent_resume.layouts.flowcast_names import side_file_of
from agent_resume.layouts.flowcast_plan import Found
from agent_resume.layouts.flowcast_read import LOST, Source
from agent_resume.layouts.outcomes import Bends

_REPLACED = "\ufffd"


def mark_of(value: Any) -> bytes:
    """Digest of a result as JavaScript would write it."""
    return hashlib.blake2b(jstext.compact(value).encode(), digest_size=16).digest()


def recover(source: Source, found: Found, given: Any, bends: Bends, path: str) -> Any:
    """The result that ``completed`` gives for a key; LOST when it is nowhere."""
    name = side_file_of(given)
    if name is None:
        return given
    kind, value = source.side_file(name)
    logged = _logged(source, found)
    if value is LOST:
        if logged is LOST:
            bends.add(path, f"its side file {name!r} is lost or damaged and the log has no result; the step runs again")
        else:
            bends.add(path, f"its side file {name!r} is lost or damaged; the result was taken from the log")
        return logged
    if kind == "json" or not isinstance(logged, str) or logged == value:
        return value
    if _REPLACED in value and _as_written(logged) == value:
        # The side file cannot hold lone surrogates, the log can.
        return logged
    if logged.startswith(value):
        bends.add(path, f"its side file {name!r} was cut short; the result was taken from the log")
        return logged
    return value


def _as_written(text: str) -> str:
    return jstext.joined(text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _logged(source: Source, found: Found) -> Any:
    """The result in the last done line of a key, where that line tells of its last record."""
    if found.done_at is None or found.last not in ("done", "start", "bare"):
        return LOST
    return source.line_at(found.done_at).get("result", LOST)
