"""What ``resume --exec`` hands on to the program it starts: which run is to be continued, and where it is."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import database_location, errors, names, run_telling, store_lineage

if TYPE_CHECKING:
    from .database_sql import Tx
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

    Raises:
        InvalidTransition: the run to be continued is no longer of that name; another one would do all its work again.
    """
    run_id = _variable(RUN_ID)
    if run_id is None:
        return given
    if _variable(RUN_NAME) not in (None, name):
        if given is None or given in _forked_from(store, run_id):  # the source is not what is to be continued
            _refuse_former_name(run_id, name)
        return given
    if _is_elsewhere(store, run_id, given, name):
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


def joined_run(store: Store, given: str) -> str:
    """The run that a ``Checkpoint`` of this id works on: the one to be continued, where that is a fork of it.

    Nothing is used up: a program joins its run as often as it likes, and so do its children.
    """
    run_id = _variable(RUN_ID)
    if run_id is None or _is_elsewhere(store, run_id, given, given) or given == run_id:
        return given
    return run_id if given in _forked_from(store, run_id) else given


def _is_elsewhere(store: Store, run_id: str, given: str | None, name: str) -> bool:
    """Whether the run to be continued is in another store than the agent's; warns an agent that means it."""
    place = os.environ.get(RUN_DB)
    if place is None or database_location.resolve(place).target == store.location.target:
        return False
    if given in (None, run_id) or given in _ask_there(place, store_lineage.ancestors, run_id):
        _warn(
            f"run {run_id!r} is to be continued, but this agent {name!r} works in another store, {store.display}, "
            "and goes on there; name the same store in the agent and on the command line"
        )
    return True


def _warn(text: str) -> None:
    warnings.warn(text, errors.AgentResumeWarning, stacklevel=run_telling.outside())


def _row(store: Store, run_id: str | None) -> RunRow | None:
    try:
        return None if run_id is None else store.run_row(run_id)
    except errors.RunNotFound:
        return None


def _forked_from(store: Store, run_id: str) -> list[str]:
    return store.ask(store_lineage.ancestors, run_id) if store.exists() else []


def _refuse_former_name(run_id: str, name: str) -> None:
    place = os.environ.get(RUN_DB)
    if place is not None and name in _ask_there(place, store_lineage.former_names, run_id):
        raise errors.InvalidTransition(
            run_id,
            status=f"a run of {_variable(RUN_NAME)!r} now",
            action=f"continue it as {name!r}",
            hint="rename the agent in its program too, or rename the run back",
        )


def _ask_there(place: str, what: Callable[[Tx, str], list[str]], run_id: str) -> list[str]:
    """What is known of the run to be continued, in its own store."""
    from .store import Store

    try:
        with Store(place) as store:
            return store.ask(what, run_id) if store.exists() else []
    except errors.StoreError:  # the agent's own store may still be usable
        return []
