"""The store that users see: one database with its settings, and every intent on it that needs no running agent.

``direct``, ``queued`` and ``ask`` are the three ways in; the functions they run live in ``store_*.py``, one intent and
one transaction each. What only some commands need is imported there: reading a list should not wait for it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from . import codec as codec_module
from . import (
    database_location,
    databases,
    errors,
    ownership,
    redact,
    store_notify,
    store_owner,
    store_queries,
    store_status,
)
from .codec_plain import is_encodable
from .database_sql import Tx
from .durability import ALWAYS
from .models import AgentRunState, EventRow, ImportOutcome, PauseRow, RunDump, RunRow, RunSummary
from .names import check_name, check_text, shortened
from .store_owner import Owner
from .store_sql import Place

P = ParamSpec("P")
T = TypeVar("T")
Durability = Literal["full", "relaxed"]


class Store:
    """A store with its settings; accepted wherever ``db=`` is.

    Args:
        db: a path, a SQLAlchemy URL, or None for the usual place (``AGENT_RESUME_DB``, ``.agent-resume/runs.db``).
        state_dir: a folder whose ``runs.db`` is used when ``db`` is None.
        codecs: ``ValueCodec`` s for types of your own.
        redact: a function, or patterns of key names, for what is displayed and logged; None means the usual credentials.
        durability: ``"full"`` survives a power cut, ``"relaxed"`` only the end of the process.
        max_output_bytes: largest stored value, in bytes of JSON.

    Nothing is opened before the first use. A context manager; ``close()`` ends its lifetime.

    Raises:
        ValueError: not a place for a store, an unknown durability, or a codec that cannot be used.
        TypeError: something that is no codec, or a size that is no int.
    """

    def __init__(
        self,
        db: str | os.PathLike[str] | None = None,
        *,
        state_dir: str | os.PathLike[str] | None = None,
        codecs: Sequence[Any] = (),
        redact: Any = None,
        durability: Durability = "full",
        max_output_bytes: int = codec_module.DEFAULT_MAX_BYTES,
    ) -> None:
        if durability not in ("full", "relaxed"):
            raise ValueError(f"durability is 'full' or 'relaxed', not {durability!r}")
        self.location = database_location.resolve(db, state_dir)
        self.durability: Durability = durability
        self.codec = codec_module.Codec(codecs, max_bytes=max_output_bytes)
        self.redactor = _redactor(redact)
        self.database = databases.acquire(self.location)
        self._closer = weakref.finalize(self, databases.abandon, self.location)
        # At exit the connections are closed by databases._close_all, not by one finalizer a store.
        self._closer.atexit = False

    @property
    def display(self) -> str:
        """Where it is, for people; never with a password."""
        return self.location.display

    @property
    def full(self) -> bool:
        """Whether outcomes survive a power cut."""
        return self.durability == "full"

    @property
    def owner(self) -> Owner:
        """This process in this store."""
        return store_owner.of(self.database)

    def close(self) -> None:
        """Give the database back; nothing when done before."""
        if self._closer.detach() is not None:
            databases.release(self.location)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- ways in -------------------------------------------------------------------------------------------------

    def direct(self, operation: Callable[..., T], /, *arguments: Any, full: int = ALWAYS) -> T:
        """Run a writing operation now, in this thread; ``full`` as in ``Database.direct``."""
        return self.database.direct(operation, *arguments, full=full)

    def ask(self, operation: Callable[Concatenate[Tx, P], T], /, *arguments: P.args, **named: P.kwargs) -> T:
        """Run a reading operation.

        Raises:
            StoreUnavailable: there is nothing to read.
        """
        if not self.database.exists():
            raise errors.StoreUnavailable(
                self.display, "no such store", "run an agent first, or name another with db= (or --db)"
            )
        return self.database.read(operation, *arguments, **named)

    def exists(self) -> bool:
        """Whether there is anything to read; creates nothing."""
        return self.database.exists()

    # -- intents without a running agent -------------------------------------------------------------------------

    def find_run(self, wanted: str) -> RunRow:
        """A run by id, unique prefix or ``NAME@latest``.

        Raises:
            RunNotFound, AmbiguousRunId: none, or several.
        """
        if not _is_storable(wanted) or not self.exists():
            raise errors.RunNotFound(wanted, where=self.display, at=self.location.option)
        return self.ask(store_queries.find_run, wanted)

    def list_runs(self, wanted: store_queries.RunFilter | None = None) -> Iterator[RunSummary]:
        """Runs as summaries, newest first; outputs are never read and no transaction stays open between pages."""
        wanted = wanted or store_queries.RunFilter()
        given = (*wanted.statuses, wanted.name or "")
        return store_status.list_runs(self, wanted) if all(map(_is_storable, given)) else iter(())

    def load_run(self, run_id: str) -> AgentRunState:
        """A run with its steps.

        Raises:
            RunNotFound: no run has this id.
        """
        row = self.run_row(run_id)
        return store_status.state_of(self, row)

    def run_row(self, run_id: str) -> RunRow:
        """A run's row, by its whole id.

        Raises:
            RunNotFound: no run has this id.
        """
        row = self.ask(store_queries.run_by_id, run_id) if _is_storable(run_id) and self.exists() else None
        if row is None:
            raise errors.RunNotFound(run_id, where=self.display, at=self.location.option)
        return row

    def shown_status(self, row: RunRow) -> str:
        """A run's status as it is shown: ``interrupted``, ``overdue`` or ``idle`` for what only seems to run."""
        return self.ask(store_status.shown_status_of, self.owner.judge, row)

    def events(self, run_id: str, after: int = 0) -> list[EventRow]:
        """A run's events with a number above ``after``."""
        return self.ask(store_queries.events_after, self.run_row(run_id).seq, after)

    def await_news(self, run: int, seen: int = store_notify.NOTHING_SEEN, seconds: float = 5.0) -> int:
        """Wait until something may have happened to the run of that number (``store_notify.ALL``: to any run).

        Look after each return, and give what came back as ``seen`` to the next call; see ``store_notify.wait``.
        """
        return store_notify.wait(self.database, run, seen, seconds)

    def pauses(self, run_id: str) -> list[PauseRow]:
        """A run's pauses, waits and sleeps."""
        from . import store_pauses

        return self.ask(store_pauses.pauses_of, self.run_row(run_id).seq)

    def answer(self, run_id: str, name: str | None, value: Any, *, by: str | None = None) -> tuple[PauseRow, bool]:
        """Deliver an answer; the pause, and whether this answer is the one that counts.

        Raises:
            RunNotFound, InvalidTransition: no such run; it has ended, or asks several things and no name was given.
            InvalidName: no question can have that name, or ``by`` holds what no text can.
        """
        from . import store_pauses

        if name is not None:
            name = check_name("pause name", shortened(check_text("pause name", name)))
        try:
            text = self.codec.encode_tagged(value, key=name)
        except errors.OutputNotStorable as error:
            error.about("the answer" if name is None else f"the answer to {name!r}")
            raise
        self.run_row(run_id)
        who = (
            check_text("answered_by", by)
            if by is not None
            else f"pid {os.getpid()} on {ownership.host_name(ownership.host_identity())}"
        )
        return self.direct(store_pauses.answer, run_id, name, text, who)

    def cancel(self, run_id: str) -> RunRow:
        """Cancel a run at once; its agent gets ``RunCancelled`` at its next step.

        Raises:
            RunNotFound, InvalidTransition: no such run, or it has ended.
        """
        from . import store_settle

        row = self.run_row(run_id)
        return self.direct(store_settle.cancel, Place(row.seq, row.id))

    @contextmanager
    def dump_run(self, run_id: str) -> Iterator[RunDump]:
        """One run's rows on one unchanging state, streamed; for exports.

        Raises:
            RunNotFound: no run has this id.
        """
        from . import store_dump

        row = self.run_row(run_id)
        with store_dump.snapshot(self.database) as tx:
            yield store_dump.dump(tx, row.id)

    def import_run(
        self,
        dump: RunDump,
        *,
        on_conflict: Literal["fail", "skip", "replace", "rename"] = "fail",
        dry_run: bool = False,
    ) -> ImportOutcome:
        """Store one dumped run, whole or not at all.

        Raises:
            ImportConflict: another run has its id (``on_conflict="fail"``), or it is being executed.
        """
        from . import store_dump

        return store_dump.import_run(self.database, self.owner.judge, dump, on_conflict=on_conflict, dry_run=dry_run)


def _is_storable(text: str) -> bool:
    # What nothing can be called, a database may not even take as a question.
    return is_encodable(text) and "\0" not in text


def _redactor(given: Any) -> redact.Redactor:
    if given is None:
        return redact.DEFAULT
    return given if isinstance(given, redact.Redactor) else redact.Redactor(given)
