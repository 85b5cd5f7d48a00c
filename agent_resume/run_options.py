"""Checking what callers hand in: names, and the options of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from .run_retry import MOST_SECONDS, Retry, check_exception_types

OnChange = Literal["warn", "error", "rerun"]
OnDuplicate = Literal["error", "return", "number"]
Effect = Literal["repeatable", "once"]


def check_seconds(what: str, seconds: float) -> float:
    """``seconds`` when clocks and dates can do that.

    Raises:
        ValueError: more than ``MOST_SECONDS``, or not a number.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds <= MOST_SECONDS:
        raise ValueError(f"{what} is a number of seconds, {MOST_SECONDS} at most, not {seconds!r}")
    return seconds


def unknown_keywords(fn: Any, names: Iterable[str]) -> TypeError:
    """What ``step`` raises for keywords that are none of its options: most were meant for the function."""
    given = ", ".join(f"{name}=…" for name in names)
    called = getattr(fn, "__name__", type(fn).__name__)
    return TypeError(
        f"step() has no option {', '.join(names)}, and passes no keywords to the function: "
        f"functools.partial({called}, {given})"
    )


@dataclass(slots=True, weakref_slot=True)
class StepSpec:
    """One call of ``step``, checked.

    Attributes:
        attempt: number of the attempt that this call made; 0 while it made none.
        failures: how many of its attempts failed.
        how: the flow of one attempt, when it is not simply calling ``fn``.
        over: nobody is at work on it any more (``Presence``).
        fleeting: an item of ``run.map``: it leaves nothing in memory, since there may be a million of them.
    """

    key: str
    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    meta: dict[str, Any] | None = None
    timeout: float | None = None
    retry: Retry | None = None
    returns: Any = None
    on_change: OnChange = "warn"
    effect: Effect = "repeatable"
    verify: Callable[[], Any] | None = None
    keep_errors: tuple[type[BaseException], ...] | type[BaseException] = ()
    isolation: Literal["process"] | None = None
    fingerprint: str | None = None
    code_hash: str | None = None
    attempt: int = 0
    failures: int = 0
    fleeting: bool = False
    how: Callable[..., Any] | None = None
    over: bool = False

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            TypeError, ValueError: an option's type or value.
        """
        if not callable(self.fn):
            raise TypeError(
                f"step {self.key!r} wants a function, got a {type(self.fn).__name__}; to store a value use run.record()"
            )
        plain = (
            self.meta is None
            and self.timeout is None
            and self.retry is None
            and self.on_change == "warn"
            and self.effect == "repeatable"
            and self.verify is None
            and self.isolation is None
            and self.keep_errors == ()
        )
        if not plain:
            self._check_options()

    def _check_options(self) -> None:
        _one_of("on_change", self.on_change, ("warn", "error", "rerun"))
        _one_of("effect", self.effect, ("repeatable", "once"))
        _one_of("isolation", self.isolation, (None, "process"))
        check_exception_types("keep_errors", self.keep_errors)
        if self.timeout is not None and not check_seconds("timeout", self.timeout) > 0:
            raise ValueError(f"timeout is a number of seconds above 0, not {self.timeout!r}")
        check_meta(self.meta)
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise TypeError(f"retry is a Retry, not a {type(self.retry).__name__}")
        if self.verify is not None and not callable(self.verify):
            raise TypeError(f"verify is a function, not a {type(self.verify).__name__}")
        if self.verify is not None and self.effect != "once":
            raise ValueError('verify= decides about a step of effect="once"; give that too')


def check_meta(meta: object) -> None:
    """Refuse a ``meta`` that is none.

    Raises:
        TypeError: it is not a dict.
    """
    if meta is not None and not isinstance(meta, dict):
        raise TypeError(f"meta is a dict, not a {type(meta).__name__}")


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is one of {', '.join(map(repr, allowed))}, not {value!r}")
