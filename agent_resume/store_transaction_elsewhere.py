"""``run.transaction`` in a database of the user's own: a small table there says which steps are complete."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, Engine, Integer, MetaData, String, Table, Text, event
from sqlalchemy import delete as sql_delete
from sqlalchemy import insert as sql_insert
from sqlalchemy import inspect as sql_inspect
from sqlalchemy import select as sql_select
from sqlalchemy import update as sql_update
from sqlalchemy.exc import DBAPIError

from . import clock
from .codec import Encoded
from .store_transaction_text import ending_in

_completions = Table(
    "agent_resume_completions",
    MetaData(),
    Column("id", String(64), primary_key=True),  # digest of the run, its creation and the key: keys may be long
    Column("run_id", Text, nullable=False),
    Column("step_key", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("completed_at", String(24), nullable=False),
    Column("output_format", String(8)),
    Column("output", Text),
)


@dataclass(frozen=True, slots=True)
class Completion:
    """Which step of which run is completed by a transaction elsewhere.

    Attributes:
        created_at: when the run was created: two stores may have a run of the same id.
    """

    run_id: str
    created_at: str
    key: str
    attempt: int

    @property
    def id(self) -> str:
        """Its row's primary key."""
        text = "\0".join((self.run_id, self.created_at, self.key))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def complete_elsewhere(
    engine: Engine,
    completion: Completion,
    call: Callable[[Connection], tuple[Encoded, Any]],
    acknowledged: Callable[[int], bool],
    refusal: Callable[[str], BaseException],
) -> tuple[Encoded, Any] | Encoded:
    """Call the function in a transaction of ``engine`` that also stores its completion.

    Args:
        call: calls the user's function; its encoded and its fresh result.
        acknowledged: whether an attempt's result had reached the run's own store. Then the step is run again on
            purpose (``rerun``), and the old completion is no longer true.
        refusal: makes the error for a function that ends the transaction.

    Raises:
        ValueError: the engine's connections commit each statement by itself.

    Returns:
        What ``call`` gave; or only the encoded result of an earlier attempt that was committed here and not yet there.
    """
    _ensure_table(engine)
    with engine.begin() as connection:
        _refuse_autocommit(connection)
        row = connection.execute(
            sql_select(_completions.c.attempt, _completions.c.output_format, _completions.c.output).where(
                _completions.c.id == completion.id
            )
        ).first()
        if row is not None:
            if row.output_format is None:
                raise ValueError(
                    f"{_completions.name} has a row of step {completion.key!r} of run {completion.run_id!r} that an "
                    "attempt left behind half-way: that database did not undo it, so nobody knows what was done; look, "
                    "then delete the row"
                )
            if not acknowledged(row.attempt):
                return Encoded(row.output_format, row.output)
            connection.execute(sql_delete(_completions).where(_completions.c.id == completion.id))
        # First the row, then the work: of two attempts at once, the second one finds it and waits, or fails.
        connection.execute(
            sql_insert(_completions).values(
                id=completion.id, run_id=completion.run_id, step_key=completion.key, attempt=completion.attempt,
                completed_at=clock.now_iso(),
            )
        )  # fmt: skip
        with _guarded(connection, refusal):
            encoded, fresh = call(connection)
        connection.execute(
            sql_update(_completions)
            .where(_completions.c.id == completion.id)
            .values(output_format=encoded.format, output=encoded.text)
        )
    return encoded, fresh


def _ensure_table(engine: Engine) -> None:
    try:
        _completions.create(engine, checkfirst=True)
    except DBAPIError:
        # Another process made it between the look and the CREATE.
        if not sql_inspect(engine).has_table(_completions.name):
            raise


def _refuse_autocommit(connection: Connection) -> None:
    """Refuse a connection that has no transaction: the work could be there without its completion, and half of it."""
    option = connection.get_execution_options().get("isolation_level")
    driver: Any = connection.connection.dbapi_connection
    autocommit = getattr(driver, "autocommit", None) is True
    if hasattr(driver, "in_transaction"):  # sqlite3: who begins by hand has a transaction now, the others at a write
        autocommit = not driver.in_transaction and (autocommit or driver.isolation_level is None)
    if option == "AUTOCOMMIT" or autocommit:
        raise ValueError("engine= commits each statement by itself (AUTOCOMMIT), so nothing in it is exactly once")


@contextlib.contextmanager
def _guarded(connection: Connection, refusal: Callable[[str], BaseException]) -> Iterator[None]:
    """Refuse a commit or rollback of the function's own: the completion would be there without its work, or not at all."""

    def commit(_: Connection) -> None:
        raise refusal("commit")

    rolled_back: list[bool] = []

    def rollback(_: Connection) -> None:
        rolled_back.append(True)

    def statement(_: Connection, __: Any, text: str, *___: Any) -> None:
        if found := ending_in(text):
            raise refusal(found)

    event.listen(connection, "commit", commit)
    event.listen(connection, "rollback", rollback)
    event.listen(connection, "before_cursor_execute", statement)
    try:
        yield
    finally:
        event.remove(connection, "commit", commit)
        event.remove(connection, "rollback", rollback)
        event.remove(connection, "before_cursor_execute", statement)
    if rolled_back:
        raise refusal("roll back")
