"""Digests that tell whether a step is called with the inputs, and runs the code, that it was recorded with."""

from __future__ import annotations

import functools
import hashlib
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

from agent_resume.codec import DEFAULT, Codec
from agent_resume.codec_refusals import type_name

# Wrappers around wrappers; more is a cycle.
_MOST_WRAPPERS = 100


def fingerprint(fn: Callable[..., Any], args: tuple[Any, ...], *, codec: Codec = DEFAULT) -> str | None:
    """Digest of the arguments ``fn`` is called with, those of a ``functools.partial`` included.

    Equal arguments of equal types have equal fingerprints in every process. What cannot be stored (a client, a
    function) counts by the name of its type only. ``self`` of a bound method does not count.

    Returns:
        32 hexadecimal digits, or None when there are no arguments.
    """
    if not args and not isinstance(fn, functools.partial):
        return None
    positional, keywords = _arguments(fn, args)
    if not positional and not keywords:
        return None
    return codec.digest([list(positional), keywords] if keywords else list(positional))


def describe_inputs(fn: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """``(str, dict, limit=int)``: the types of the arguments, for messages, which never show values."""
    positional, keywords = _arguments(fn, args)
    shown = [type_name(type(item)) for item in positional]
    shown.extend(f"{name}={type_name(type(item))}" for name, item in keywords.items())
    return f"({', '.join(shown)})"


def _arguments(fn: Any, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    keywords: dict[str, Any] = {}
    for _ in range(_MOST_WRAPPERS):
        if not isinstance(fn, functools.partial):
            break
        args = (*fn.args, *args)
        keywords = {**fn.keywords, **keywords}
        fn = fn.func
    return args, keywords


def code_hash(fn: Callable[..., Any]) -> str | None:
    """Digest of the code of ``fn``: bytecode, constants and names, no line numbers, file names or default values.

    Partials, bound methods, callable objects and ``functools.wraps`` decorators are looked through. Two hashes can be
    compared only when they begin with the same Python tag.

    Returns:
        ``cpython-311:`` and 32 hexadecimal digits; None for code that is not written in Python.
    """
    function = _function(fn)
    if function is None:
        return None
    code = function.__code__
    known = _hashes.get(id(code))
    if known is not None and known[0]() is code:
        return known[1]
    digest = hashlib.sha256(repr(_shape(code, function.__doc__)).encode("utf-8", "backslashreplace")).hexdigest()
    text = f"{sys.implementation.cache_tag}:{digest[:32]}"
    identity = id(code)
    # Compared by identity: the hash of a code object is as slow as this, and equal code has equal text anyway.
    _hashes[identity] = (weakref.ref(code, lambda _: _hashes.pop(identity, None)), text)
    return text


_hashes: dict[int, tuple[weakref.ref[types.CodeType], str]] = {}


def _function(fn: Any) -> types.FunctionType | None:
    for _ in range(_MOST_WRAPPERS):
        kind = type(fn)
        if kind is types.FunctionType:
            wrapped = getattr(fn, "__wrapped__", None)  # asking for its __dict__ would make one
            if not callable(wrapped):
                return fn  # type: ignore[no-any-return]
            fn = wrapped
        elif kind is types.MethodType:
            fn = fn.__func__
        elif issubclass(kind, (functools.partial, functools.partialmethod)):
            fn = fn.func
        elif isinstance(fn, type):
            fn = _static(fn, "__init__")
        elif isinstance(wrapped := _own(fn, "__wrapped__"), (types.FunctionType, types.MethodType)):
            fn = wrapped
        elif issubclass(kind, (staticmethod, classmethod)):
            fn = fn.__func__
        else:
            fn = _static(kind, "__call__")
    return None


def _static(cls: type, name: str) -> Any:
    return next((vars(step)[name] for step in cls.__mro__ if name in vars(step)), None)


def _own(value: Any, name: str) -> Any:
    try:
        return object.__getattribute__(value, "__dict__").get(name)
    except AttributeError:
        return None


def _shape(code: types.CodeType, doc: str | None) -> tuple[Any, ...]:
    constants = code.co_consts
    if doc is not None and constants and constants[0] == doc and type(constants[0]) is str:
        # Rewording a docstring changes nothing that runs.
        constants = (None, *constants[1:])
    return (
        code.co_code,
        code.co_names,
        code.co_freevars,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags),
        getattr(code, "co_exceptiontable", b""),
        tuple(_constant(item) for item in constants),
    )


def _constant(item: Any) -> Any:
    if isinstance(item, types.CodeType):
        return _shape(item, None)
    if isinstance(item, frozenset):
        # Its order depends on the hash seed.
        return ("frozenset", sorted(repr(_constant(member)) for member in item))
    if isinstance(item, tuple):
        return ("tuple", tuple(_constant(member) for member in item))
    return (type(item).__name__, repr(item))
