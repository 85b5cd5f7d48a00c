"""When a failed step is tried again, and what ``verify`` may say of one in doubt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .clock import jitter

#: Longest time that can be asked for, in s (31 years): a date that can be written, and what every clock can wait.
MOST_SECONDS = 1_000_000_000


def check_exception_types(name: str, given: object) -> None:
    """Refuse what ``isinstance`` would refuse only once there is an exception.

    Raises:
        TypeError: neither an exception type nor a tuple of such.
    """
    kinds = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise TypeError(f"{name} is an exception type or a tuple of such, not {given!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Try a failed step again within one execution.

    KeyboardInterrupt, SystemExit, cancellation and pauses are never retried. The budget is per execution; attempt
    numbers go on after a resume. A wait between attempts is durable: killed in it, only the rest is waited.

    Args:
        max_attempts: calls of the function in one execution, the first one included.
        wait: s before the second attempt.
        backoff: factor from one wait to the next.
        max_wait: longest wait, in s.
        jitter: share of the wait that is random, 0 to 1.
        on: exception types that are tried again.
        give_up_on: exception types that are not, though ``on`` names them or a base of them.

    Raises:
        ValueError, TypeError: a number out of its range; something that is no exception type.
    """

    max_attempts: int = 3
    wait: float = 1.0
    backoff: float = 2.0
    max_wait: float = 60.0
    jitter: float = 0.1
    on: tuple[type[Exception], ...] | type[Exception] = Exception
    give_up_on: tuple[type[Exception], ...] | type[Exception] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.max_attempts, int) or self.max_attempts < 1:
            raise ValueError(f"max_attempts is a whole number from 1, not {self.max_attempts!r}")
        for name in ("wait", "max_wait"):
            if not 0 <= getattr(self, name) <= MOST_SECONDS:
                raise ValueError(f"{name} is a number of seconds, {MOST_SECONDS} at most, not {getattr(self, name)!r}")
        if not 1 <= self.backoff < math.inf or not 0 <= self.jitter <= 1:
            raise ValueError("backoff is at least 1, jitter between 0 and 1")
        for name in ("on", "give_up_on"):
            check_exception_types(name, getattr(self, name))

    def wants(self, error: BaseException) -> bool:
        """Whether this failure is tried again."""
        return isinstance(error, Exception) and isinstance(error, self.on) and not isinstance(error, self.give_up_on)

    def delay(self, failures: int) -> float:
        """Seconds to wait after so many failures in this execution."""
        try:
            full = min(self.max_wait, self.wait * self.backoff ** (failures - 1))
        except OverflowError:
            full = self.max_wait
        return full * (1 - self.jitter * jitter.random())


@dataclass(frozen=True, slots=True)
class Verified:
    """Said by ``verify``: the step did take effect, and this is its result."""

    value: Any = None


class _Verdict:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


#: Said by ``verify``: the step did not take effect; it is run again.
NOT_DONE = _Verdict("NOT_DONE")
#: Said by ``verify``: nobody knows; ``StepInDoubt`` is raised.
UNKNOWN = _Verdict("UNKNOWN")
