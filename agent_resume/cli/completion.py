"""What a shell completes. A shell completes nothing rather than showing a traceback. Only runs are looked up in the store.

bash cuts a word at each ``:``, ``@`` and ``=``, calls us for the last piece, and puts what it gets on the line as it is.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from agent_resume.store import Store

_PIECES = frozenset(":@=")
# Where bash may offer files: behind these options, which it cuts at "=", and to these commands.
_FILES = """    local before="${COMP_WORDS[COMP_CWORD-1]}"
    [ "$before" = "=" ] && before="${COMP_WORDS[COMP_CWORD-2]}"
    case "$before ${COMP_WORDS[1]}" in
        --db\\ *|--out\\ *|--to\\ *|--from\\ copy|*\\ import|*\\ run) ;;
        *) compopt +o default ;;
    esac
    return 0
"""
_MOST = 1000
_EVALUATED = frozenset("\\$`\"'")
_cut = ""
_behind: list[str] = []


def prepare() -> bool:
    """Whether bash asks; the words that it cut are joined again then."""
    global _cut, _behind
    if os.environ.get("_AGENT_RESUME_COMPLETE") != "complete_bash":
        return False
    pieces, at = os.environ.get("COMP_WORDS", "").split("\n"), os.environ.get("COMP_CWORD", "")
    if len(pieces) > 1 and at.isascii() and at.isdigit():
        _behind = pieces[int(at) + 1 :]
        words: list[str] = []
        for before, piece in zip(["", *pieces], pieces[: int(at) + 1], strict=False):
            _cut = ""
            if words and (piece[:1] == "@" or (piece and set(piece) <= _PIECES) or (before and set(before) <= _PIECES)):
                # What follows an @ is given back to bash with it.
                _cut = words.pop()
                piece = _cut + piece
                _cut = piece if piece[-1] in ":=" else _cut.removesuffix("@")
            words.append(piece)
        os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "\n".join(words), str(len(words) - 1)
    return True


def script() -> None:
    """Let bash offer no files where none fits."""
    try:
        from typer import _completion_shared as shared

        known: dict[str, str] = shared._completion_scripts  # typer has no other way to change a script
    except (ImportError, AttributeError):
        return
    known["bash"] = known["bash"].replace("    return 0\n", _FILES)


def answer(complete: Callable[[], object]) -> NoReturn:
    """Complete, and give bash words that it can put on the line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            complete()
    except (Exception, SystemExit):  # noqa: BLE001 - Typer's, of an environment in which nothing is completed
        # By backslashes, not in quotes: ids that begin alike still do then, and it holds behind an open quote too.
        for text in said.getvalue().split("\n")[:-1]:
            sys.stdout.write(re.sub(r"([^\w@%+=:,./-])", r"\\\1", text.removeprefix(_cut)) + "\n")
    sys.stdout.flush()
    sys.exit(0)


def values(*known: str) -> Callable[[str], list[str]]:
    """Completes one of these."""

    def complete(incomplete: str) -> list[str]:
        return _offered(known, incomplete)

    return complete


def formats(incomplete: str) -> list[str]:
    """Formats of tables."""
    from agent_resume.layouts import render

    return _offered(render.formats(), incomplete)


def run_ids(incomplete: str) -> list[str]:
    """Run ids, newest first, and NAME@latest once there is an ``@``; only behind ``--`` what looks like an option."""
    found = _stored(incomplete, lambda store: _ids_and_names(store, "@" in incomplete))
    return found if "--" in _line() else [text for text in found if not text.startswith("-")]


def _ids_and_names(store: Store, with_names: bool) -> Iterator[str]:
    found = _newest(store)
    yield from (run.id for run in found)
    if with_names:
        yield from (f"{run.name}@latest" for run in found)


def _newest(store: Store) -> list[Any]:
    from agent_resume.store_queries import RunFilter

    return list(store.list_runs(RunFilter(limit=_MOST)))


def _stored(incomplete: str, found: Callable[[Store], Iterable[str]]) -> list[str]:
    from .session import opened

    try:
        with opened(_db_on_the_line()) as store:
            return _offered(dict.fromkeys(found(store)), incomplete)
    except Exception:  # noqa: BLE001 - see the module
        return []


def _offered(known: Iterable[str], incomplete: str) -> list[str]:
    # A shell takes what it is offered apart at line ends, and zsh also evaluates it, twice.
    left_out = _EVALUATED if os.environ.get("_AGENT_RESUME_COMPLETE") == "complete_zsh" else frozenset()
    return [text for text in known if text.startswith(incomplete) and text.isprintable() and left_out.isdisjoint(text)][
        :100
    ]


def command() -> str | None:
    """The first word on the line that is completed, if one is."""
    return next(iter(_line()[1:]), None) if "_AGENT_RESUME_COMPLETE" in os.environ else None


def _line() -> list[str]:
    import shlex

    # bash; zsh and fish
    words = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    try:
        return shlex.split(words)
    except ValueError:  # a quote is open
        return words.split()


def _db_on_the_line() -> str | None:
    parts = [*_line(), *_behind]
    for place, part in enumerate(parts):
        if part.startswith("--db="):
            return part.removeprefix("--db=")
        if part == "--db":
            return next((text for text in parts[place + 1 :] if text != "="), None)  # which bash cuts off
    return None
