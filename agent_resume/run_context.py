"""Which step is being executed in this thread or task."""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from dataclasses import dataclass

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
