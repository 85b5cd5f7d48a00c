"""Reading a folder of flowcast's, whatever state it is in; nothing in it is changed, and nothing outside it is read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeGuard

from agent_resume import clock
from agent_resume.layouts import files
from agent_resume.layouts.flowcast_names import BACKUP, LOG, SIDE, STATE, is_inside
from agent_resume.layouts.outcomes import Refused

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
#: A result that is named and cannot be had.
LOST: Any = type("Lost", (), {"__repr__": lambda _: "LOST"})()


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_strict = json.JSONDecoder(parse_constant=_no_constant).decode
# An int too long for Python's own parser is infinite to JavaScript.
_huge = json.JSONDecoder(
    parse_constant=_no_constant, parse_int=lambda text: int(text) if len(text) < 400 else float(text)
).decode


def parse(text: str) -> Any:
    """Strict JSON, as JavaScript reads it.

    Raises:
        ValueError: not JSON, or nested too deep.
    """
    try:
        return _strict(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return _huge(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def is_time(text: object) -> TypeGuard[str]:
    """Whether it is a time as we store them."""
    return isinstance(text, str) and _is_time(text)


# A line and the record that it tells of have the same time.
@lru_cache(maxsize=4096)
def _is_time(text: str) -> bool:
    if _TIME.fullmatch(text) is None:
        return False
    try:
        clock.parse_iso(text)
    except ValueError:
        return False
    return True


@dataclass(slots=True)
class Source:
    """An opened folder.

    Attributes:
        state: what state.json holds.
        notes: what was not as it should be: place and what was done.
        from_backup: state.json could not be read, and its older copy was.
        log: run.log.jsonl, or None.
        log_size: how much of it was there when it was opened; flowcast may be appending.
    """

    path: Path
    state: dict[str, Any]
    from_backup: bool
    log: BinaryIO | None = None
    log_size: int = 0
    notes: list[tuple[str, str]] = field(default_factory=list)

    def close(self) -> None:
        """Close the log."""
        if self.log is not None:
            self.log.close()

    def lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Offset and fields of every log line that is a JSON object; others are what a kill leaves."""
        if self.log is None:
            return
        self.log.seek(0)
        offset = 0
        while offset < self.log_size:
            line = self.log.readline(self.log_size - offset)
            if not line:
                return
            fields = _object(line)
            if fields is not None:
                yield offset, fields
            offset += len(line)

    def line_at(self, offset: int) -> dict[str, Any]:
        """The fields of one log line."""
        if self.log is None:
            return {}
        self.log.seek(offset)
        return _object(self.log.readline(self.log_size - offset)) or {}

    def side_file(self, name: str) -> tuple[str, Any]:
        """Type line and result of a side file; the result is LOST when it cannot be had."""
        folder = self.path / SIDE
        if not is_inside(name) or folder.is_symlink():
            return "", LOST
        try:
            with files.open_regular(folder / f"{name}.out") as file:
                data = file.read()
        except (OSError, Refused, ValueError):
            return "", LOST
        head, found, body = data.partition(b"\n")
        if not found:
            return "", data.decode("utf-8", "replace")
        text = body.decode("utf-8", "replace")
        if head != b"json":
            return head.decode("utf-8", "replace"), text
        try:
            return "json", parse(text)
        except ValueError:
            return "json", LOST


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        fields = parse(line.decode("utf-8", "replace"))
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None


def open_source(path: Path) -> Source:
    """Read a folder's state and open its log.

    Raises:
        Refused: there is no state to be had.
        OSError: it cannot be read.
    """
    state, why = _read_state(path / STATE)
    source = Source(path, state or {}, from_backup=state is None)
    if state is None:
        backup, _ = _read_state(path / BACKUP)
        if backup is None:
            raise Refused(why)
        source.state = backup
        source.notes.append((STATE, f"{why}; the older {BACKUP} was read"))
    elif why:
        source.notes.append((STATE, why))
    try:
        source.log = files.open_regular(path / LOG)
        source.log_size = source.log.seek(0, 2)
    except FileNotFoundError:
        pass
    return source


def _read_state(path: Path) -> tuple[dict[str, Any] | None, str]:
    """What the file holds, and what is wrong with it."""
    try:
        with files.open_regular(path) as file:
            data = file.read()
    except FileNotFoundError:
        return None, f"no {path.name}"
    why = ""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
        why = "bytes that are no UTF-8 were replaced"
    try:
        state = parse(text)
    except ValueError as error:
        return None, f"{path.name} cannot be read ({error}); mend it, or put its backup in place"
    if not isinstance(state, dict):
        return None, f"{path.name} holds no object; there is nothing to import"
    return state, why
