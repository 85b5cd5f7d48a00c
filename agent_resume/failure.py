"""Failures as text: what can be said about an exception without trusting any of its methods."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Mapping
from typing import Any

from agent_resume.codec_classes import attributes, from_loaded

#: Characters of a stored traceback; the middle of a longer one is left out.
TRACEBACK_LIMIT = 8 * 1024
#: Characters of a stored message.
MESSAGE_LIMIT = 64 * 1024
_ATTRIBUTE_LIMIT = 512
_MOST_ATTRIBUTES = 20
_MOST_FAILURES = 50

_BUILT_IN: dict[type[BaseException], tuple[str, ...]] = {
    OSError: ("filename", "filename2"),
    ImportError: ("name", "path"),
    NameError: ("name",),
    AttributeError: ("name",),
}

# Attributes that say what kind of failure it was: stored name -> the names it has in Python programs.
_CODES = {
    "code": ("code",),
    "gate": ("gate",),
    "timedOut": ("timedOut", "timed_out"),
    "exitCode": ("exitCode", "exit_code", "returncode"),
    "schemaError": ("schemaError", "schema_error"),
    "configError": ("configError", "config_error"),
    "status": ("status",),
    "statusCode": ("status_code", "http_status"),
    "errno": ("errno",),
    "requestId": ("request_id",),
}


def describe(exc: BaseException) -> dict[str, Any]:
    """A JSON-safe record of ``exc``. Never raises, whatever its class does.

    Returns:
        ``type``, ``module`` and ``message``; where they exist the code-like attributes (``code``, ``gate``,
        ``timedOut``, ``exitCode``, ``schemaError``, ``configError``, ``spawnError``, ``failures``, ``voterErrors``,
        ``status``, ``statusCode``, ``errno``, ``requestId``); ``args`` and ``attributes`` as far as they are short
        and plain; ``traceback``, at most ``TRACEBACK_LIMIT`` characters.
    """
    kind = type(exc)
    described: dict[str, Any] = {
        "type": _clean(safely(lambda: type.__getattribute__(kind, "__qualname__"), "Exception")),
        "module": _clean(safely(lambda: str(type.__getattribute__(kind, "__module__")), "builtins")),
        "message": _bounded(message(exc), MESSAGE_LIMIT),
    }
    for name, spellings in _CODES.items():
        for spelling in spellings:
            found = _scalar(_attribute(exc, spelling))
            if found is not None:
                described[name] = found
                break
    # By type: isinstance asks the object for its __class__, and that may raise too.
    if issubclass(kind, TimeoutError):
        described.setdefault("code", "TIMEOUT")
        described.setdefault("timedOut", True)
    described.update(_nested(exc))
    arguments = safely(lambda: [_scalar(item) for item in exc.args], [])
    if arguments and arguments != [described["message"]] and len(arguments) <= 8:
        given = safely(lambda: list(exc.args), [])
        if all(item is not None or given[place] is None for place, item in enumerate(arguments)):
            described["args"] = arguments
    attributes = safely(lambda: _attributes(exc), {})
    if attributes:
        described["attributes"] = attributes
    trace = safely(lambda: _traceback(exc), "")
    if trace:
        described["traceback"] = _bounded(_clean(trace), TRACEBACK_LIMIT)
    return described


def message(exc: BaseException) -> str:
    """``str(exc)`` as text that can be stored; a class whose ``__str__`` fails is said to."""
    return _clean(safely(lambda: str.__str__(str(exc)), "<its message could not be read>"))


def safely(function: Callable[[], Any], otherwise: Any) -> Any:
    """What a function says that calls methods of an exception's class, or ``otherwise`` when it raises."""
    try:
        return function()
    except BaseException:  # noqa: BLE001 - its methods may raise anything, SystemExit too; recording must go on
        return otherwise


def _clean(text: Any) -> str:
    """Text without NULs and lone surrogates, which databases and JSON readers refuse."""
    if not isinstance(text, str):
        return "?"
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")


def _bounded(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head, tail = limit // 4, limit - limit // 4 - 48
    return f"{text[:head]}\n… {len(text) - head - tail} characters left out …\n{text[-tail:]}"


def _attribute(exc: BaseException, name: str) -> Any:
    return safely(lambda: getattr(exc, name, None), None)


def _scalar(value: Any) -> Any:
    """A short plain scalar as JSON can keep it, else None. Enum-like codes count by their value."""
    kind = type(value)
    if kind is bool:
        return value
    if issubclass(kind, int):
        number = int.__pos__(value)
        return number if abs(number) < 2**53 else None
    if issubclass(kind, str):
        text = value if kind is str else "".join(str.__iter__(value))
        return _clean(text) if len(text) <= _ATTRIBUTE_LIMIT else None
    if issubclass(kind, float):
        real = float.__pos__(value)
        return real if abs(real) < float("inf") else None
    return None


def _attributes(exc: BaseException) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in (*built_in_state(exc).items(), *attributes(exc, type(exc)).items()):
        plain = _scalar(value)
        if plain is not None and type(plain) is type(value) and isinstance(name, str) and name[:2] != "__":
            found[_clean(name)] = plain
            if len(found) == _MOST_ATTRIBUTES:
                break
    return found


def built_in_state(exc: BaseException) -> dict[str, Any]:
    """What built-in exceptions know besides ``args`` and ``__dict__``: the name of a file, of a module."""
    names = (name for base, names in _BUILT_IN.items() if issubclass(type(exc), base) for name in names)
    return {name: value for name in names if (value := _attribute(exc, name)) is not None}


def _nested(exc: BaseException) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    spawn = _attribute(exc, "spawn_error") or _attribute(exc, "spawnError")
    if spawn is not None:
        nested["spawnError"] = _bounded(message(spawn), _ATTRIBUTE_LIMIT)
    name = "exceptions" if issubclass(type(exc), BaseExceptionGroup) else "failures"
    failures = _attribute(exc, name)
    listed = safely(lambda: _listed(failures, "index", "message"), None)
    if listed:
        nested["failures"] = listed
    votes = _attribute(exc, "voter_errors") or _attribute(exc, "voterErrors")
    listed = safely(lambda: _listed(votes, "lens", "error"), None)
    if listed:
        nested["voterErrors"] = listed
    return nested


def _listed(items: Any, place: str, text: str) -> list[dict[str, Any]]:
    """A list of exceptions, or of records with these two members, as such records."""
    listed: list[dict[str, Any]] = []
    for index, item in enumerate(items if isinstance(items, (list, tuple)) else ()):
        if isinstance(item, BaseException):
            listed.append({place: index, text: _bounded(message(item), _ATTRIBUTE_LIMIT)})
        elif isinstance(item, Mapping):
            where, what = _scalar(item.get(place)), item.get(text)
            said = message(what) if isinstance(what, BaseException) else _scalar(what)
            listed.append({place: index if where is None else where, text: said})
        if len(listed) == _MOST_FAILURES:
            break
    return listed


def _traceback(exc: BaseException) -> str:
    import traceback

    trace = exc.__traceback__
    if trace is None and exc.__cause__ is None and exc.__context__ is None:
        # Never raised: all there is to say is the message.
        return ""
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).startswith("agent_resume."):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(exc), exc, trace or exc.__traceback__))


def rebuild(described: Mapping[str, Any]) -> BaseException | None:
    """An exception of the same class and text, or None when that cannot be had.

    The class comes from a module that the program has imported already; its own constructor is not run.
    """
    kind = from_loaded(f"{described.get('module')}:{described.get('type')}")
    text = described.get("message")
    if kind is None or not issubclass(kind, BaseException) or not isinstance(text, str):
        return None
    for args in (described.get("args"), [text] if text else [], []):
        if not isinstance(args, list):
            continue
        error = safely(functools.partial(instance, kind, args, described.get("attributes") or {}), None)
        if error is not None and message(error) == text:
            return error  # type: ignore[no-any-return]
    return None


def instance(kind: type[BaseException], args: Any, attributes: Mapping[str, Any]) -> BaseException:
    """An exception of ``kind`` whose own constructor is not run, only the built-in one beneath it.

    Raises:
        TypeError: the built-in constructor wants other arguments.
    """
    base: Any = next(step for step in kind.__mro__ if step.__module__ == builtins.__name__)
    error: BaseException = base.__new__(kind, *args)
    base.__init__(error, *args)
    error.args = tuple(args)
    for name, item in attributes.items():
        object.__setattr__(error, name, item)
    return error
