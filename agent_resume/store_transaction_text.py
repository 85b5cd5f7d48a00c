"""Looking at a text of SQL: PostgreSQL, unlike SQLite, asks nobody before it does what that says."""

from __future__ import annotations

import re

_END_WORD = re.compile(r"commit|rollback|abort|\bend\b|prepare", re.IGNORECASE)
# PostgreSQL's own rules (src/backend/parser/scan.l): any character beyond ASCII may be in a name, and so may a $ after
# the first; a string with a backslash goes on behind a line break with one again.
_LETTER = r"A-Za-z_\x80-\U0010ffff"
_ESCAPED = r"'(?:[^'\\]|\\.|'')*'"
_BREAK = r"[ \t\f\v]*(?:--[^\n\r]*)?[\n\r](?:[ \t\n\r\f\v]|--[^\n\r]*[\n\r])*"
_PIECES = f"{_ESCAPED}(?:{_BREAK}{_ESCAPED})*"


def _opaque(plain: str) -> re.Pattern[str]:
    """What a statement may hold that only looks like one: comments, strings, quoted names; and other names."""
    return re.compile(
        rf"""--[^\n\r]*|/\*|\$(?:[{_LETTER}][{_LETTER}0-9]*)?\$|[eE]{_PIECES}|{plain}|"(?:[^"]|"")*"|"""
        rf"[{_LETTER}][{_LETTER}0-9$]*",
        re.DOTALL,
    )


#: With and without standard_conforming_strings: a text may itself follow one that changed the setting.
_READINGS = (_opaque("'(?:[^']|'')*'"), _opaque(_PIECES))
_COMMENT_EDGE = re.compile(r"/\*|\*/")
#: Going back to a savepoint ends nothing.
_ENDING = re.compile(
    r"\s*(commit|end|abort|rollback|prepare\s+transaction)\b(?!\s+((work|transaction)\s+)?to\b)", re.IGNORECASE
)
#: Routines and triggers have statements of their own, which end with this word.
_CREATE = re.compile(r"\s*create\b", re.IGNORECASE)


def ending_in(sql: str) -> str | None:
    """The first command in a text of statements that ends a transaction; None where there is none."""
    if _END_WORD.search(sql) is None:
        return None
    readings = _READINGS if "\\" in sql else _READINGS[:1]
    return next((found for opaque in readings if (found := _ending_in(bare(sql, opaque)))), None)


def _ending_in(text: str) -> str | None:
    creates = _CREATE.match(text) is not None
    for statement in text.split(";"):
        found = _ENDING.match(statement)
        if found is not None and not (creates and found[1].lower() == "end"):
            return found[1]
    return None


def bare(sql: str, opaque: re.Pattern[str] = _READINGS[0]) -> str:
    """The text with a blank for each comment, and without what stands in quotes."""
    parts = []
    at = 0
    while found := opaque.search(sql, at):
        parts.append(sql[at : found.start()])
        token, at = found[0], found.end()
        if token == "/*":
            at = _after_comment(sql, at)
        elif token[0] == "$":
            end = sql.find(token, at)
            at = len(sql) if end < 0 else end + len(token)
        parts.append(_left_of(token))
    parts.append(sql[at:])
    return "".join(parts)


def _left_of(token: str) -> str:
    if token[0] in "-/":
        return " "
    return "''" if token[0] in "$'\"" or token[-1] == "'" else token


def _after_comment(sql: str, at: int) -> int:
    depth = 1  # comments nest in PostgreSQL
    while depth and (edge := _COMMENT_EDGE.search(sql, at)):
        depth += 1 if edge[0] == "/*" else -1
        at = edge.end()
    return at if not depth else len(sql)
