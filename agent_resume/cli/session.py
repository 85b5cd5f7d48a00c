"""Around every command: the store it works on, and what becomes of its errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agent_resume import errors
from agent_resume.errors_base import name_store

from . import exits, screen

if TYPE_CHECKING:
    from agent_resume.models import RunRow
    from agent_resume.store import Store
    from agent_resume.store_queries import RunFilter

# What says on one line what to do next.
_OURS = (errors.AgentResumeError, errors.RunCancelled, errors.RunPaused, exits.Usage, exits.Stop)


@contextmanager
def opened(db: str | None) -> Iterator[Store]:
    """The store that ``--db`` names; nothing is created by opening it. Errors that come by here name it.

    Raises:
        Usage: not a place for a store.
    """
    from agent_resume.store import Store

    try:
        store = Store(db)
    except ValueError as error:
        raise exits.Usage(str(error)) from error
    except FileNotFoundError:
        raise exits.Stop(exits.FAILED, "the working folder was deleted; cd to another one") from None
    with store:
        try:
            yield store
        except _OURS as error:
            name_store(error, store.location.option)
            raise


def find(store: Store, wanted: str) -> RunRow:
    """The run that an argument means.

    Raises:
        RunNotFound, AmbiguousRunId: none, or several.
    """
    try:
        wanted.encode()
    except UnicodeEncodeError:  # bytes that are no text; no id has such
        raise errors.RunNotFound(wanted) from None
    return store.find_run(wanted)


def call(command: Callable[[], int | None], debug: bool) -> int:
    """Call a command; its exit code, or the one of its error, which is one line on stderr."""
    if debug:
        import logging

        logging.basicConfig(stream=sys.stderr, level=logging.DEBUG, format="%(levelname)s %(name)s: %(message)s")
    try:
        code = command() or exits.OK
        screen.flush()
        return code
    except (Exception, KeyboardInterrupt, errors.RunCancelled, errors.RunPaused) as error:  # noqa: BLE001 - told below
        if debug:
            import traceback

            sys.stderr.write(traceback.format_exc())
        return told(error)


def told(error: BaseException) -> int:
    """Say on one line what went wrong; the exit code."""
    from agent_resume import redact

    if isinstance(error, KeyboardInterrupt):
        return exits.INTERRUPTED
    if isinstance(error, exits.Usage):
        code, text = exits.USAGE, str(error)
    elif isinstance(error, exits.Stop):
        code, text = error.code, str(error)
    elif isinstance(error, errors.AgentResumeError | errors.RunCancelled | errors.RunPaused):
        code, text = exits.of_error(error), str(error)
    elif isinstance(error, OSError):
        code, text = exits.FAILED, f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    else:
        code, text = exits.FAILED, f"{type(error).__name__}: {error}; --debug shows where"
    # A store's path is none of the keys that what follows them is masked for, whatever it is called.
    place = error.path if isinstance(error, errors.StoreError) and text.startswith(error.path) else ""
    screen.note(f"agent-resume: {place}{redact.DEFAULT.text(text[len(place) :])}")
    return code


def run_ids(prefix: str) -> list[str]:
    """Ids that begin with ``prefix``, newest first; empty when they cannot be had. For completion.

    bash puts what it gets on the line as it is: there they come quoted, and without those that no line can hold.
    """
    import os

    try:
        # bash; zsh and fish
        words = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
        with opened(_db_on_the_line(words)) as store:
            found = [run.id for run in store.list_runs(_newest()) if run.id.startswith(prefix)][:100]
            in_bash = "COMP_WORDS" in os.environ
            return [_in_bash(run_id) for run_id in found if run_id.isprintable()] if in_bash else found
    except Exception:  # noqa: BLE001 - a shell completes nothing rather than showing a traceback
        return []


def _in_bash(run_id: str) -> str:
    import re

    # By backslashes, not in quotes: ids that begin alike still do then, and it holds behind an open quote too.
    return re.sub(r"([^\w@%+=:,./-])", r"\\\1", run_id)


def _newest() -> RunFilter:
    from agent_resume.store_queries import RunFilter

    return RunFilter(limit=1000)


def _db_on_the_line(words: str) -> str | None:
    import shlex

    try:
        parts = shlex.split(words)
    except ValueError:
        return None
    for place, part in enumerate(parts):
        if part.startswith("--db="):
            return part.removeprefix("--db=")
        if part == "--db" and place + 1 < len(parts):
            return parts[place + 1]
    return None
