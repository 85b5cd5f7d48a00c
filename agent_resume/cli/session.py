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
    if store.location.kind != "sqlite":
        _quiet_driver()
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
    from agent_resume import redact

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

            for line in traceback.format_exc().splitlines():
                screen.note(redact.DEFAULT.text(line))
        return told(error)


def _quiet_driver() -> None:
    # Where nobody handles its warnings, logging writes them to stderr: of lines that broke, and are made anew by then.
    import logging

    log = logging.getLogger("psycopg")
    if not log.handlers:
        log.addHandler(logging.NullHandler())


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
