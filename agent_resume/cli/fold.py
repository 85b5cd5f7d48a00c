"""Text in lines that fit the terminal, broken where a reader breaks it. In a pipe every text stays one line."""

from __future__ import annotations

import os
import re

from . import screen

#: What is looked at on a terminal narrower than this has no room for columns of text side by side.
NARROW = 56
_LEAST = 8
# As ``shlex.quote`` writes it: a blank in quotes ends no word.
_SHELL_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")
_BREAKS = "/,;:=&-_."


def is_narrow() -> bool:
    """Whether it is a terminal narrower than ``NARROW`` columns."""
    return screen.is_terminal() and screen.columns() < NARROW


def fits(text: str) -> bool:
    """Whether a line fits the terminal; every line fits a pipe."""
    return not screen.is_terminal() or screen.width(text) <= screen.columns()


def lines(text: str, prefix: str = "", *, indent: int | None = None, style: str = "") -> list[str]:
    """``text`` behind a prefix, in lines that fit.

    Args:
        text: one line, its words between blanks; a colour may stand around a single word.
        prefix: stands before the first line.
        indent: columns before the other lines; None for as many as the prefix has.
        style: of the text.
    """
    before = screen.width(prefix) if indent is None else indent
    if fits(prefix + text):
        return [prefix + screen.paint(text, style)]
    first, *others = _folded(text, screen.columns() - screen.width(prefix), screen.columns() - before)
    return [prefix + screen.paint(first, style), *(f"{'':{before}}{screen.paint(line, style)}" for line in others)]


def _folded(text: str, first: int, others: int) -> list[str]:
    """``text`` in lines of at most so many columns: the first of one width, the others of another."""
    done: list[str] = []
    line: str | None = None
    for word in text.split(" "):
        room = max(_LEAST, others if done else first)
        longer = word if line is None else f"{line} {word}"
        if screen.width(longer) <= room:
            line = longer
            continue
        if line is not None:
            done.append(line)
            room = max(_LEAST, others)
        while screen.width(word) > room:
            head = _head(word, room)
            done.append(head)
            word, room = word[len(head) :], max(_LEAST, others)
        line = word
    return [*done, line or ""]


def _head(word: str, room: int) -> str:
    """As much of a word that fits no line as fits this one, and rather whole parts of a path."""
    end, taken = 0, 0
    while taken <= room:
        end += 1
        taken += screen.width(word[end - 1])
    head = word[: max(1, end - 1)]
    after = max(map(head.rfind, _BREAKS)) + 1
    return head[:after] if after > len(head) // 2 else head


def command(text: str, prefix: str = "", *, remark: str = "") -> list[str]:
    """A command line behind a prefix: where it is too long, in lines that a shell takes as one.

    Args:
        text: words quoted for a shell, a blank between two.
        prefix: stands before its first line.
        remark: said behind it, or below it.
    """
    behind = f"{prefix}{text}    {remark}" if remark else prefix + text
    if fits(behind):
        return [behind]
    indent = screen.width(prefix)
    below = lines(remark, f"{'':{indent + 2}}") if remark else []
    words = _SHELL_WORD.findall(text)
    if fits(prefix + text) or os.name != "posix" or " ".join(words) != text:
        return [prefix + text, *below]
    room = screen.columns() - indent - 2
    parts = [words[0]]
    for word in words[1:]:
        longer = f"{parts[-1]} {word}"
        if screen.width(longer) <= room - (2 if len(parts) > 1 else 0):
            parts[-1] = longer
        else:
            parts.append(word)
    first, *others = [f"{part} \\" for part in parts[:-1]] + parts[-1:]
    return [prefix + first, *(f"{'':{indent + 2}}{part}" for part in others), *below]
