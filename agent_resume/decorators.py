"""``@step`` and ``@agent``: the same as ``run.step`` and ``agent_run``, said once beside the function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar, overload

from . import agent_body, run_context
from .agent import agent_run
from .aio import AsyncRun
from .run import Run
from .run_options import Effect, OnChange
from .run_retry import Retry

P = ParamSpec("P")
T = TypeVar("T")


@overload
def step(fn: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def step(
    *,
    name: str | None = ...,
    repeat: bool = ...,
    meta: dict[str, Any] | None = ...,
    timeout: float | None = ...,
    retry: Retry | None = ...,
    returns: Any = ...,
    on_change: OnChange = ...,
    effect: Effect = ...,
    verify: Callable[[], Any] | None = ...,
    keep_errors: tuple[type[BaseException], ...] | type[BaseException] = ...,
    isolation: Literal["process"] | None = ...,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def step(
    fn: Callable[..., Any] | None = None, /, *, name: str | None = None, repeat: bool = True, **options: Any
) -> Any:
    """Make a function a step of whichever run is active where it is called; outside a run it is what it was.

    A run is active in the body of ``agent_run`` and inside ``with Checkpoint(…)``, in tasks that these start and in
    the workers of ``run.map``. A thread of your own inherits no context: hand it the run, or a copy of the context.

    Args:
        name: the step's name; the function's own when not given.
        repeat: its calls are numbered in the order they are made: ``fetch``, ``fetch#2``, …, and inside a step
            ``outer/fetch``, ``outer/fetch#2``, … ``False`` makes a second call of one execution a duplicate.
        **options: as for ``run.step``.

    Raises:
        TypeError: an unknown option, or no function.
    """
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise TypeError(
            f"step() has no option {', '.join(sorted(unknown))}; keyword arguments are for the function's call"
        )
    if fn is not None:
        return _decorated(fn, name, {"repeat": repeat, **options})
    return lambda function: _decorated(function, name, {"repeat": repeat, **options})


_OPTIONS = {"meta", "timeout", "retry", "returns", "on_change", "effect", "verify", "keep_errors", "isolation"}


def _decorated(fn: Callable[..., Any], name: str | None, options: dict[str, Any]) -> Callable[..., Any]:
    if not callable(fn):
        raise TypeError(f"@step decorates a function, not a {type(fn).__name__}")
    key = name if name is not None else getattr(fn, "__name__", type(fn).__name__)
    kind: Any = AsyncRun if agent_body.is_async(fn) else Run

    @functools.wraps(fn)
    def called(*args: Any, **named: Any) -> Any:
        run = run_context.current_run.get()
        if run is None:
            return fn(*args, **named)
        if not isinstance(run, kind):
            # A plain function in an asynchronous body, or the other way round: the same run, the driver that fits.
            run = kind(run._core)
        # A child process finds the decorated function by its name; no run is active there.
        target = called if "isolation" in options else fn
        return run.step(key, functools.partial(target, **named) if named else target, *args, **options)

    return called


def agent(name: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function of a run an agent: calling it is ``agent_run(name, function, …)``.

    Args:
        name: the agent's name.
        **options: as for ``agent_run``; a call may give others, which win.
    """

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def called(**named: Any) -> Any:
            return agent_run(name, fn, **{**options, **named})

        return called

    return decorate
