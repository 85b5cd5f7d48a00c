"""Which step is being executed in this thread or task."""

from __future__ import annotations

import contextlib
import hashlib
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any

from . import errors


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a step's function can learn about itself, through ``current_step()``.

    Attributes:
        run_id: the run.
        key: the step.
        attempt: number of this attempt, from 1; it goes on after a resume.
        idempotency_key: the same for every attempt of this step of this run, and for no other; hand it to services
            that accept one.
    """

    run_id: str
    key: str
    attempt: int

    @property
    def idempotency_key(self) -> str:
        """32 hexadecimal digits."""
        text = f"{self.run_id}\0{self.key}".encode("utf-8", "surrogatepass")
        return hashlib.blake2s(text, digest_size=16, person=b"agntrsum").hexdigest()


active: ContextVar[StepContext | None] = ContextVar("agent_resume_step", default=None)


def current_step() -> StepContext:
    """The step whose function is running here; also in tasks that it started and in workers of ``run.map``.

    Raises:
        NoActiveStep: none is (a thread of your own does not inherit it).
    """
    context = active.get()
    if context is None:
        raise errors.NoActiveStep
    return context


#: The run whose body is executed here, for decorated functions: a ``Run`` or an ``AsyncRun``.
current_run: ContextVar[Any] = ContextVar("agent_resume_run", default=None)


def leave_run(token: Token[Any]) -> None:
    """End what ``current_run.set`` began; in another context (a generator that is thrown away) it has ended already."""
    with contextlib.suppress(ValueError):
        current_run.reset(token)


#: The database whose write connection is lent to ``run.transaction``'s function, which is executed here.
lent: ContextVar[object | None] = ContextVar("agent_resume_lent", default=None)


def refuse_inside_transaction(database: object, run_id: str) -> None:
    """Refuse a call on the store from inside ``run.transaction``: it would wait for the very transaction it is in.

    Raises:
        InvalidTransition: it is made there.
    """
    if lent.get() is database:
        raise errors.InvalidTransition(
            run_id,
            status="inside run.transaction",
            action="call its store",
            hint="do that before or after; use the connection for what belongs to the transaction",
        )
