"""One line to a PostgreSQL server: what it is opened with, and how long an answer is waited for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy.engine import make_url

from .database_postgres_errors import Connection, make_conninfo, pg
from .database_sql import Dialect

#: Longest time one statement of ours may take, in s; then ``StoreBusy``.
STATEMENT_LIMIT: Final = 120
#: A server that says nothing for this long, in s, does not keep to that limit itself: the line leads nowhere any more.
ANSWER_LIMIT: Final = STATEMENT_LIMIT + 30.0

_MEANT: Final[dict[str, Any]] = {
    "connect_timeout": 10,
    "application_name": "agent-resume",
    # A host that vanished without a word is noticed within half a minute.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
#: Whatever the URL says.
_NEEDED: Final[dict[str, Any]] = {"client_encoding": "utf8"}

_wait: Callable[..., Any] = Connection.wait
if "timeout" not in inspect.signature(_wait).parameters:  # psycopg 3.2 waits without a limit

    def _wait(line: Connection[Any], gen: Any, interval: float, _: float | None) -> Any:
        return Connection.wait(line, gen, interval)


class _Line(Connection[Any]):
    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Where psycopg waits for every answer.

        Raises:
            OperationalError: it did not come within ``ANSWER_LIMIT``; the line is closed.
        """
        # In a pipeline there are many answers, each with the server's limit of its own.
        if timeout is not None or self.pgconn.pipeline_status:
            return _wait(self, gen, interval, timeout)
        try:
            return _wait(self, gen, interval, ANSWER_LIMIT)
        except pg.OperationalError as error:
            if error.sqlstate is not None or self.closed:
                raise
            self.close()
            raise pg.OperationalError(f"no answer for {ANSWER_LIMIT:g} s") from error

    def __del__(self, *_: Any) -> None:
        """Silent where psycopg warns: one of ours can be dropped open, by an interrupt or a read that comes after close.

        libpq's own object ends the line, in the process that made it.
        """


connect = _Line.connect


def connect_arguments(target: str, dialect: Dialect) -> dict[str, Any]:
    """What psycopg connects with, from a URL as SQLAlchemy writes it.

    Raises:
        ValueError: no such URL, or one of another driver.
    """
    scheme, rest = target.split("://", 1)
    if scheme.split("+")[1:] not in ([], ["psycopg"]):
        raise ValueError(f"{scheme}:// is not supported; write postgresql+psycopg://USER@HOST/DATABASE")
    _, arguments = dialect.core.create_connect_args(make_url(f"postgresql+psycopg://{rest}"))
    found = dict(arguments)
    try:
        make_conninfo(**found)
    except pg.ProgrammingError as error:
        raise ValueError(f"not a database URL: {str(error).strip()}") from None
    return _MEANT | found | _NEEDED
