"""What a flow asks its driver to do, and what it gives back.

A flow is a generator that holds every decision of one call; it yields effects and ends with a value or ``Raised``.
``Run`` performs them in its own thread, ``AsyncRun`` awaits them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .durability import ALWAYS

if TYPE_CHECKING:
    from .models import OwnerRow
    from .run_context import StepContext
    from .run_options import StepSpec


@dataclass(slots=True)
class Write:
    """A writing operation for one of the two doors; its value comes back, or its error is thrown in.

    Attributes:
        full: how long its commit must last (``durability``).
    """

    operation: Callable[..., Any]
    arguments: tuple[Any, ...]
    full: int = ALWAYS


@dataclass(slots=True)
class Read:
    """A reading operation."""

    operation: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(slots=True)
class Do:
    """A function that may block, not a transaction of the doors; what it returns comes back.

    Attributes:
        long: it may take long, as the user's own code does.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    long: bool = False


@dataclass(slots=True)
class Call:
    """The user's function; an ``Outcome`` comes back, never an exception."""

    spec: StepSpec
    context: StepContext


@dataclass(slots=True)
class Sleep:
    """Let time pass, in s."""

    seconds: float


@dataclass(slots=True)
class News:
    """Wait for news of a run beyond what was ``seen``, in s at most; what is seen now comes back (``store_notify``)."""

    run: int
    seen: int
    seconds: float


@dataclass(slots=True)
class Watch:
    """Watch an owner's beats until it is known to live or not; an ``ownership.Verdict`` comes back."""

    owner: OwnerRow
    what: str


@dataclass(slots=True)
class Outcome:
    """How the user's function ended: with a value, or with ``error``."""

    value: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class Raised:
    """A flow's end by the user's own exception.

    Raised by the driver outside the generator, where a StopIteration stays one and no context is added.
    """

    error: BaseException = field()


Flow = Generator[Any, Any, Any]
