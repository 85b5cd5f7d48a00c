"""Looking at a text of SQL: PostgreSQL, unlike SQLite, asks nobody before it does what that says."""

from __future__ import annotations

import re

_END_WORD = re.compile(r"commit|rollback|abort|\bend\b|prepare", re.IGNORECASE)
#: What a statement may hold that only looks like one: comments, strings, quoted names.
_OPAQUE = re.compile(
    r"""--[^\n]* | /\* | \$(?:[^\W\d]\w*)?\$ | (?<!\w)[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" """,
    re.VERBOSE | re.DOTALL,
)
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
    text = bare(sql)
    creates = _CREATE.match(text) is not None
    for statement in text.split(";"):
        found = _ENDING.match(statement)
        if found is not None and not (creates and found[1].lower() == "end"):
            return found[1]
    return None


def bare(sql: str) -> str:
    """The text with a blank for each comment, and without what stands in quotes."""
    parts = []
    at = 0
    while found := _OPAQUE.search(sql, at):
        parts.append(sql[at : found.start()])
        token, at = found[0], found.end()
        if token == "/*":
            at = _after_comment(sql, at)
        elif token[0] == "$":
            end = sql.find(token, at)
            at = len(sql) if end < 0 else end + len(token)
        parts.append(" " if token[0] in "-/" else "''")
    parts.append(sql[at:])
    return "".join(parts)


def _after_comment(sql: str, at: int) -> int:
    depth = 1  # comments nest in PostgreSQL
    while depth and (edge := _COMMENT_EDGE.search(sql, at)):
        depth += 1 if edge[0] == "/*" else -1
        at = edge.end()
    return at if not depth else len(sql)
