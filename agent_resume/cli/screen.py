"""Where text leaves the program: data on stdout, messages on stderr, each in a form that its reader can take.

Stored values may hold anything; every text is shown through ``fit``, so that no control character of theirs reaches a
terminal and what the stream's encoding lacks is escaped. A closed pipe ends the program quietly.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import sys
from collections.abc import Iterable
from typing import Any, NoReturn, TextIO, cast

from agent_resume import report

# What ``json.dumps`` leaves as it is and a terminal may obey: C1 controls, and marks that turn the writing direction.
_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_COLOUR = re.compile(r"\033\[[0-9;]*m")
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_OF_STATUS = {
    "completed": "green",
    "failed": "red",
    "running": "cyan",
    "paused": "blue",
    "cancelled": "dim",
    "interrupted": "yellow",
    "overdue": "yellow",
    "interrupted (new fork)": "yellow",
    "idle": "yellow",
    "in_doubt": "red",
    "in doubt": "red",
    "cut off": "yellow",
    "paused (answered)": "blue",
}


class _Quiet:
    """A stream that ends the program with exit code 0 when its reader is gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._end()

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._end()

    def _end(self) -> NoReturn:
        self._to_nowhere()
        raise SystemExit(0)

    def _to_nowhere(self) -> None:
        # The interpreter flushes once more at its end; what is left goes nowhere then.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


class _Messages(_Quiet):
    """Stderr: what cannot be written there, on a full disk, is left out and changes no exit code."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            self._to_nowhere()
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            self._to_nowhere()


class _SafeJson:
    """Stdout for JSON that is written piece by piece: what a terminal may obey is escaped, which is the same JSON."""

    def __init__(self) -> None:
        self.encoding = sys.stdout.encoding

    def write(self, text: str) -> int:
        """As a stream's."""
        return sys.stdout.write(_escape_unsafe(text))


def prepare() -> None:
    """Make both streams take any text, and survive a reader that goes away."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - lives as long as the process
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, cast(TextIO, (_Quiet if name == "stdout" else _Messages)(stream)))


def fit(text: object) -> str:
    """``text`` on one line, with only characters that are safe and that stdout can show."""
    shown = report.printable(str(text))
    if shown.isascii():
        return shown
    encoding = sys.stdout.encoding or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding, "replace")


def line(text: str = "") -> None:
    """Print one line of data; what it shows of stored values went through ``fit``."""
    sys.stdout.write(f"{text}\n")


def forget() -> None:
    """Leave out what was printed and cannot be written; nothing more is."""
    cast(_Quiet, sys.stdout)._to_nowhere()


def flush() -> None:
    """Hand what was printed to its reader now."""
    sys.stdout.flush()


def note(text: str) -> None:
    """Print one line of message on stderr."""
    sys.stdout.flush()
    sys.stderr.write(f"{report.printable(text)}\n")
    sys.stderr.flush()


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """``value`` as JSON that any reader can take: ASCII unless stdout is UTF-8, and safe on a terminal."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=not utf8, allow_nan=False)
    except ValueError:  # JSON has no infinities
        text = json.dumps(finite(value), indent=indent, ensure_ascii=not utf8, allow_nan=False)
    return _escape_unsafe(text)


def _escape_unsafe(text: str) -> str:
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def finite(value: Any) -> Any:
    """A copy of a JSON value with NaN and the infinities as texts."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def document(value: Any) -> None:
    """Print one JSON document."""
    line(json_text(value))


def array(values: Iterable[Any]) -> None:
    """Print one JSON array, an element a line, while its elements come."""
    between = "[\n"
    for value in values:
        sys.stdout.write(between + json_text(value, indent=None))
        between = ",\n"
    line("[]" if between == "[\n" else "\n]")


def json_stream() -> TextIO:
    """Stdout for JSON that others write."""
    return cast(TextIO, _SafeJson()) if is_terminal() else sys.stdout


def is_terminal(path: str | None = None) -> bool:
    """Whether a person looks at stdout, or at what is written to a path."""
    if path is None:
        return sys.stdout.isatty()
    try:
        if not stat.S_ISCHR(os.stat(path).st_mode):
            return False
        device = os.open(path, os.O_WRONLY | getattr(os, "O_NOCTTY", 0))
    except (OSError, ValueError):  # what writes there will say so
        return False
    try:
        return os.isatty(device)
    finally:
        os.close(device)


def can_redraw() -> bool:
    """Whether the terminal can do more than go on to the next line."""
    return os.environ.get("TERM") not in ("dumb", None)


def colours() -> bool:
    """Whether stdout wants colours."""
    return is_terminal() and not os.environ.get("NO_COLOR") and can_redraw()


def paint(text: str, style: str) -> str:
    """``text`` in a style, where there are colours."""
    return f"\033[{_STYLES[style]}m{text}\033[0m" if style in _STYLES and colours() else text


def paint_status(text: str) -> str:
    """A status in its colour; blanks around it are allowed."""
    return paint(text, _OF_STATUS.get(text.strip(), ""))


def columns() -> int:
    """How wide the terminal is."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns


def width(text: str) -> int:
    """How many columns ``text`` takes, colours not counted."""
    return report.width(_COLOUR.sub("", text))


def cut(text: str, most: int) -> str:
    """``text`` in at most so many columns, the cut marked."""
    if report.width(text) <= most:
        return text
    mark = "…" if draws() else "..."
    while text and report.width(text) + len(mark) > most:
        text = text[:-1]
    return text + mark


def draws() -> bool:
    """Whether stdout can show characters beyond ASCII."""
    try:
        "█…·".encode(sys.stdout.encoding or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True
