"""What ``resume --exec`` hands on to the program it starts: which run is to be continued, and where it is."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from . import database_location, errors, names, run_telling

if TYPE_CHECKING:
    from .models import RunRow
    from .store import Store

RUN_ID, RUN_NAME, RUN_DB = "AGENT_RESUME_RUN_ID", "AGENT_RESUME_RUN_NAME", "AGENT_RESUME_RUN_DB"


def _variable(name: str) -> str | None:
    value = os.environ.get(name)
    return None if value is None else names.from_system(value)


def place_for(name: str) -> str | None:
    """The store of the run to be continued, for an ``agent_run`` of that name which names no store itself.

    The run is where it is, whatever ``AGENT_RESUME_DB`` and the working folder say by now.
    """
    return os.environ.get(RUN_DB) if _variable(RUN_NAME) == name else None


def run_for(name: str, store: Store, given: str | None) -> str | None:
    """The run to be continued, else ``given``; used once, and not inherited by children.

    A program that names its own run means, when it is started for a fork of that one, the fork.
    """
    run_id = _variable(RUN_ID)
    if run_id is None or _variable(RUN_NAME) not in (None, name):
        return given
    place = os.environ.get(RUN_DB)
    if place is not None and database_location.resolve(place).target != store.location.target:
        if given in (None, run_id):
            _warn(
                f"run {run_id!r} is to be continued, but this agent {name!r} works in another store, {store.display}, "
                "and goes on there; name the same store in the agent and on the command line"
            )
        return given
    if given not in (None, run_id, *_forked_from(store, run_id)):
        found = _row(store, given)
        if found is None or found.status != "completed":  # of a completed one nothing is executed
            _warn(
                f"run {run_id!r} is to be continued, but this agent {name!r} names run {given!r} and goes on with that "
                f"one; let the agent take its run_id from {RUN_ID}, or give none"
            )
        return given
    for variable in (RUN_ID, RUN_NAME, RUN_DB):
        os.environ.pop(variable, None)
    return run_id


def _warn(text: str) -> None:
    warnings.warn(text, errors.AgentResumeWarning, stacklevel=run_telling.outside())


def _row(store: Store, run_id: str | None) -> RunRow | None:
    try:
        return None if run_id is None else store.run_row(run_id)
    except errors.RunNotFound:
        return None


def _forked_from(store: Store, run_id: str) -> list[str]:
    """The runs that a run was forked from, the nearest first; some may have been deleted since."""
    found: list[str] = []
    row = _row(store, run_id)
    while row is not None and row.forked_from is not None and row.forked_from not in found:
        found.append(row.forked_from)
        row = _row(store, row.forked_from)
    return found
