"""The functions that need no run object: look at runs, answer them, cancel them, from any process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import clock
from .models import AgentRunState, RunSummary
from .store import Store
from .store_queries import SORTS, RunFilter

Db = str | os.PathLike[str] | Store | None


@contextmanager
def _store(db: Db, state_dir: str | os.PathLike[str] | None) -> Iterator[Store]:
    if isinstance(db, Store):
        yield db
        return
    with Store(db, state_dir=state_dir) as store:
        yield store


def load_run(run_id: str, *, db: Db = None, state_dir: str | os.PathLike[str] | None = None) -> AgentRunState:
    """A run with its steps, as stored.

    Raises:
        RunNotFound: no run has this id.
        StoreError: the store cannot be read.
    """
    with _store(db, state_dir) as store:
        return store.load_run(run_id)


def list_runs(
    *,
    db: Db = None,
    state_dir: str | os.PathLike[str] | None = None,
    name: str | None = None,
    status: str | None = None,
    since: str | None = None,
    until: str | None = None,
    limit: int | None = None,
    sort: str = "-created",
) -> Iterator[RunSummary]:
    """Runs as summaries, newest first; a missing store has none.

    No transaction stays open while the caller holds the iterator.

    Args:
        status: stored or shown (``interrupted``, ``overdue``, ``idle``).
        since: created at or after this ISO time.
        until: created before this ISO time.
        sort: ``created``, ``updated``, ``name`` or ``status``; a leading ``-`` turns it round.

    Raises:
        ValueError: an unknown sort, no ISO time, or a negative limit.
        StoreError: the store cannot be read.
    """
    if sort.lstrip("-") not in SORTS:
        raise ValueError(f"sort is one of {', '.join(SORTS)}, with a leading - for newest or last first; not {sort!r}")
    if limit is not None and limit < 0:
        raise ValueError(f"limit is how many runs there are at most, or None for all; not {limit!r}")
    stored = {"interrupted": ("running", "interrupted"), "overdue": ("running",), "idle": ("running",)}
    wanted = RunFilter(
        statuses=() if status is None else stored.get(status, (status,)),
        name=name,
        since=None if since is None else clock.iso(clock.parse_iso(since)),
        until=None if until is None else clock.iso(clock.parse_iso(until)),
        limit=limit if status is None else None,
        sort=sort,
    )
    left = limit
    with _store(db, state_dir) as store:
        for summary in store.list_runs(wanted):
            if status is not None and summary.shown_status != status:
                continue
            if left is not None:
                if left <= 0:
                    return
                left -= 1
            yield summary


def answer(
    run_id: str, name: str | None, value: Any, *, db: Db = None, state_dir: str | os.PathLike[str] | None = None
) -> bool:
    """Answer a run's question, from any process; True when this answer is the one that counts.

    Args:
        name: what the answer goes by; None means the only open question. A name that was not asked yet is kept.

    Raises:
        RunNotFound, InvalidTransition, StoreError: see their texts.
    """
    with _store(db, state_dir) as store:
        return store.answer(run_id, name, value)[1]


def cancel(run_id: str, *, db: Db = None, state_dir: str | os.PathLike[str] | None = None) -> None:
    """Cancel a run, from any process; its agent gets ``RunCancelled`` at its next step.

    Raises:
        RunNotFound, InvalidTransition, StoreError: see their texts.
    """
    with _store(db, state_dir) as store:
        store.cancel(run_id)
