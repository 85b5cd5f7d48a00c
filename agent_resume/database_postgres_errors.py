"""What PostgreSQL's errors mean, and which of them pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from . import errors
from .schema import PG_SCHEMA

try:
    from psycopg import Connection, __version__
    from psycopg import errors as pg
    from psycopg.conninfo import make_conninfo
    from psycopg.pq import TransactionStatus
    from psycopg.pq import __impl__ as pq_implementation
    from psycopg.pq import version as libpq_version
except ImportError as error:
    raise ImportError("a PostgreSQL store needs psycopg 3: pip install 'agent-resume[postgres]'") from error

__all__ = [
    "RACES",
    "Connection",
    "TransactionStatus",
    "is_refusal",
    "library",
    "make_conninfo",
    "passes",
    "pg",
    "translate",
]

library: Final = f"psycopg {__version__} ({pq_implementation}, libpq {libpq_version() // 10000})"

#: Errors of an operation that met another one: executed again, it sees what that one did.
RACES: Final = (pg.UniqueViolation, pg.SerializationFailure, pg.DeadlockDetected)
# The server is going, coming back, or full of others: as errors, and as what it says to one who connects.
_PASSING: Final = (
    pg.AdminShutdown,
    pg.CrashShutdown,
    pg.CannotConnectNow,
    pg.TooManyConnections,
    pg.IdleSessionTimeout,
)
#: Classes of codes that tell of the line or the server, whatever the statement was; no code: it came from this side.
_OF_THE_SERVER: Final = ("", "08", "53", "55", "57", "58", "XX")
_PASSING_WORDS: Final = ("starting up", "shutting down", "recovery", "too many", "connection slots")
#: What a user needs there.
_GRANTS: Final = (
    f"GRANT it CREATE on the database once, or USAGE on the schema {PG_SCHEMA} and on ALL SEQUENCES IN SCHEMA {PG_SCHEMA}, "
    f"and SELECT, INSERT, UPDATE, DELETE on ALL TABLES IN SCHEMA {PG_SCHEMA}"
)


def passes(error: pg.Error, *, reached: bool) -> bool:
    """Whether the error is of a connection, or a server, that may soon be back.

    Args:
        reached: this process has been connected before; a server that was never reached is waited for only when it
            says itself that it is on its way.
    """
    if isinstance(error, _PASSING) or (error.sqlstate or "").startswith("08"):
        return True
    if error.sqlstate is not None or not isinstance(error, pg.OperationalError):
        return False
    # Without a code the message came from this side of the line: refused, timed out, closed unexpectedly.
    return reached or any(words in str(error) for words in _PASSING_WORDS)


def is_refusal(error: BaseException) -> bool:
    """Whether a COMMIT failed by what the database's user put up: a constraint or a trigger that waited for it.

    A trigger may raise anything, so what counts is what else there is: a line or a server in trouble. No constraint of
    ours waits.
    """
    return isinstance(error, pg.Error) and (error.sqlstate or "")[:2] not in _OF_THE_SERVER


def _turned_away(error: pg.Error) -> bool:
    """Whether a server answered, and let nobody in: psycopg has no codes for that."""
    text = str(error)
    # A server's message begins with its severity, a colon and two spaces, in whatever language.
    return (":  " in text or "password" in text) and not any(words in text for words in _PASSING_WORDS)


def translate(error: BaseException, display: str) -> BaseException:
    """Our typed error for one of psycopg's; anything else unchanged.

    Only the server's primary message is quoted: its details may hold values.
    """
    if not isinstance(error, pg.Error) or (isinstance(error, pg.ProgrammingError) and not error.sqlstate):
        return error
    for kinds, make in _MEANINGS:
        if isinstance(error, kinds):
            return make(display)
    code = error.sqlstate or ""
    if not code and isinstance(error, pg.DataError):
        return errors.StoreUnavailable(display, "a text with a NUL character cannot be stored there", "leave it out")
    if not code and _turned_away(error):
        return errors.StoreUnavailable(display, _first_line(error), "look at the URL's user, password and database")
    if not code or code.startswith("08") or isinstance(error, _PASSING):
        return errors.StoreUnavailable(display, _first_line(error), "look whether the server runs and can be reached")
    return errors.StoreUnavailable(display, _first_line(error), "nothing was written; report this")


def _first_line(error: pg.Error) -> str:
    text = error.diag.message_primary or str(error)
    return text.strip().split("\n", 1)[0] or type(error).__name__


_MEANINGS: Final[tuple[tuple[Any, Callable[[str], errors.StoreError]], ...]] = (
    (
        (pg.LockNotAvailable, pg.QueryCanceled),
        lambda where: errors.StoreBusy(where, seconds=30.0, why="another transaction holds a lock"),
    ),
    (RACES, lambda where: errors.StoreBusy(where, seconds=1.0, why="other writers were faster again and again")),
    (pg.DiskFull, errors.StoreFull),
    (
        pg.ReadOnlySqlTransaction,
        lambda where: errors.StoreReadOnly(where, "this server may only be read", "name the one that may be written"),
    ),
    (
        pg.InsufficientPrivilege,
        lambda where: errors.StoreReadOnly(where, "this user may not do that there", _GRANTS),
    ),
    (
        (pg.DataCorrupted, pg.IndexCorrupted),
        lambda where: errors.StoreDamaged(
            where, "the server found damaged data", "restore the database from a back-up"
        ),
    ),
    (
        (pg.UndefinedTable, pg.InvalidSchemaName),
        lambda where: errors.StoreMoved(
            where,
            f"a table of its schema {PG_SCHEMA} is missing; nothing was written. "
            "Restore it from a back-up (agent-resume doctor names what is missing)",
        ),
    ),
)
