"""Plain JSON at C speed: is a value plain, and text from and to it, at any depth of the caller's stack."""

from __future__ import annotations

import contextvars
import json
import threading
from collections import Counter
from collections.abc import Callable
from itertools import chain, compress, repeat
from math import isfinite
from operator import is_
from typing import Any, TypeVar

_T = TypeVar("_T")

#: Containers inside one another that a value may have. In its longest tagged form (three JSON levels each) that
#: stays below what ``json`` does on a fresh stack of the default recursion limit, so what can be written can be read.
MAX_DEPTH = 200
#: Bytes of one stored value, unless the store says otherwise.
DEFAULT_MAX_BYTES = 100 * 1024 * 1024
#: Integers that SQLite, PostgreSQL and other languages' JSON parsers keep exactly.
INT_MIN, INT_MAX = -(2**63), 2**63 - 1

SCALARS = frozenset({type(None), bool, int, float, str})
_PLAIN = frozenset({*SCALARS, dict, list})
_KEYS = frozenset({str})
# Parts that one value holds many times over are counted with their copies, and walked with care beyond this.
_MOST_SHARED = 10_000_000
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_canonical_encoder = json.JSONEncoder(ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":"))
_decoder = json.JSONDecoder()


def is_plain(value: object) -> bool:
    """Whether JSON text gives ``value`` back exactly: exact types, str keys, 64-bit ints, finite floats.

    Lone surrogates and the size are left to the one who encodes the text. False is also the answer for values whose
    shared parts would make the text explode: what writes them step by step notices in time.
    """
    level: list[Any] = [value]
    shared = 1
    for _ in range(MAX_DEPTH + 1):
        kinds = list(map(type, level))
        present = set(kinds)
        if not present <= _PLAIN or not _numbers_fit(level, kinds, present):
            return False
        dicts = _of(dict, level, kinds, present)
        if dicts and not set(map(type, chain.from_iterable(dicts))) <= _KEYS:
            return False
        lists = _of(list, level, kinds, present)
        if not dicts and not lists:
            return True
        dicts, most_dicts = _distinct(dicts)
        lists, most_lists = _distinct(lists)
        shared *= max(most_dicts, most_lists)
        level = list(chain(chain.from_iterable(map(dict.values, dicts)), chain.from_iterable(lists)))
        if shared > 1 and shared * len(level) > _MOST_SHARED:
            return False
    return False


def _of(kind: type, level: list[Any], kinds: list[type], present: set[type]) -> list[Any]:
    if kind not in present:
        return []
    return level if len(present) == 1 else list(compress(level, map(is_, kinds, repeat(kind))))


def _distinct(containers: list[Any]) -> tuple[list[Any], int]:
    """Each container once, and how often the most frequent one was there.

    A list that holds one list twice, thirty times over, has a thousand million leaves but thirty-one lists.
    """
    if len(containers) < 2:
        return containers, 1
    distinct = dict(zip(map(id, containers), containers, strict=True))
    if len(distinct) == len(containers):
        return containers, 1
    return list(distinct.values()), max(Counter(map(id, containers)).values())


def _numbers_fit(level: list[Any], kinds: list[type], present: set[type]) -> bool:
    ints = _of(int, level, kinds, present)
    if ints and (min(ints) < INT_MIN or max(ints) > INT_MAX):
        return False
    return all(map(isfinite, _of(float, level, kinds, present)))


#: Compact strict JSON of what ``is_plain`` accepts.
encode_plain = _encoder.encode


def dumps(tree: object) -> str:
    """``encode_plain`` at any depth of the caller's stack."""
    return on_fresh_stack(_encoder.encode, tree)


def dumps_canonical(tree: object) -> str:
    """ASCII JSON with sorted keys: equal trees give equal text in every process."""
    return on_fresh_stack(_canonical_encoder.encode, tree)


def loads(text: str, hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Parse JSON; ``hook`` sees every object, innermost first.

    Raises:
        ValueError: not JSON.
    """
    decoder = _decoder if hook is None else json.JSONDecoder(object_hook=hook)
    return on_fresh_stack(decoder.decode, text)


def on_fresh_stack(function: Callable[[Any], _T], argument: object) -> _T:
    """Call ``function``; when the caller's stack is too deep for it, again on the empty stack of a new thread.

    What could be written by a shallow caller must be readable by a deep one.
    """
    try:
        return function(argument)
    except RecursionError:
        pass
    outcome: list[tuple[_T | None, BaseException | None]] = []
    context = contextvars.copy_context()

    def work() -> None:
        try:
            outcome.append((context.run(function, argument), None))
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            outcome.append((None, error))

    thread = threading.Thread(target=work, name="agent-resume-deep-value", daemon=True)
    thread.start()
    thread.join()
    result, error = outcome[0]
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def is_encodable(text: str) -> bool:
    """Whether UTF-8 can hold the text; lone surrogates cannot be stored as they are."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
