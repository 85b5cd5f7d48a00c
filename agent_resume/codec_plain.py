"""Plain JSON at C speed: is a value plain, and text from and to it, at any depth of the caller's stack."""

from __future__ import annotations

import contextvars
import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, compress, islice, repeat
from math import isfinite
from operator import is_
from typing import Any, TypeVar

from .threads import start_thread

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
# A container with more items, and a text with more characters, is written in pieces; so are short ones around such.
_PIECE = 256
LARGE = 1 << 20
_FEW = 8
_LOOKED_INTO = 3
_NESTED = frozenset({dict, list, tuple, set, frozenset})
# Where parts are held so many times over, it is counted how many they will be.
_SUSPICIOUS = 1000
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_canonical_encoder = json.JSONEncoder(ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":"))
_decoder = json.JSONDecoder()


class TooLarge(Exception):
    """The text of a value would pass the limit."""


def is_plain(value: object, *, levels: int = MAX_DEPTH, limit: int = DEFAULT_MAX_BYTES) -> bool:
    """Whether JSON text gives ``value`` back exactly: exact types, str keys, 64-bit ints, finite floats.

    Lone surrogates are left to the one who encodes the text.

    Args:
        value: what is looked at.
        levels: containers inside one another that there may be.
        limit: bytes that the text may have; only checked where shared parts could make it explode.

    Raises:
        TooLarge: they would.
    """
    level: list[Any] = [value]
    shared = 1
    for _ in range(levels + 1):
        kinds = list(map(type, level))
        present = set(kinds)
        if not present <= _PLAIN or not _numbers_fit(level, kinds, present):
            return False
        dicts = _of(dict, level, kinds, present)
        if dicts and not set(map(type, chain.from_iterable(dicts))) <= _KEYS:
            return False
        lists = _of(list, level, kinds, present)
        if not dicts and not lists:
            if shared > _SUSPICIOUS and expanded(value, limit // 2) * 2 > limit:
                raise TooLarge
            return True
        dicts, most_dicts = _distinct(dicts)
        lists, most_lists = _distinct(lists)
        shared *= max(most_dicts, most_lists)
        level = list(chain(chain.from_iterable(map(dict.values, dicts)), chain.from_iterable(lists)))
    return False


def expanded(value: object, most: int) -> int:
    """How many values there are in nested built-in containers when shared ones count each time; beyond ``most`` any.

    A list that holds one list twice, thirty times over, has a thousand million leaves but thirty-one lists.
    """
    level: dict[int, tuple[Any, int]] = {id(value): (value, 1)} if type(value) in _NESTED else {}
    count = 1
    for _ in range(MAX_DEPTH):
        below: dict[int, tuple[Any, int]] = {}
        for container, times in level.values():
            count += times * len(container)
            for item in container.values() if isinstance(container, dict) else container:
                if type(item) in _NESTED:
                    _, before = below.get(id(item), (item, 0))
                    below[id(item)] = item, before + times
        if not below or count > most:
            break
        level = below
    return count


def _of(kind: type, level: list[Any], kinds: list[type], present: set[type]) -> list[Any]:
    if kind not in present:
        return []
    return level if len(present) == 1 else list(compress(level, map(is_, kinds, repeat(kind))))


def _distinct(containers: list[Any]) -> tuple[list[Any], int]:
    """Each container once, and how often the most frequent one was there."""
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
    """``encode_plain`` at any depth of the caller's stack, and in pieces where the text may be large."""
    if not _is_long(tree, _LOOKED_INTO):
        return on_fresh_stack(_encoder.encode, tree)
    # The encoder holds all parts of a text beside the text itself, and Python keeps a text with a single dash in it
    # at two bytes a character: that would be four times the stored size. A local str grows in place.
    text = ""
    for piece in _pieces(tree, _LOOKED_INTO):
        text += piece
    return text


def _is_long(value: object, levels: int) -> bool:
    kind = type(value)
    if kind is str:
        return len(value) > LARGE  # type: ignore[arg-type]
    if kind is not dict and kind is not list:
        return False
    if len(value) > _PIECE:  # type: ignore[arg-type]
        return True
    if not levels or len(value) > _FEW:  # type: ignore[arg-type]
        return False
    return any(_is_long(item, levels - 1) for item in (value.values() if isinstance(value, dict) else value))  # type: ignore[attr-defined]


def _pieces(value: Any, levels: int) -> Iterator[str]:
    """The JSON of ``value``: long containers some items at a time, short ones that hold such part by part."""
    if not isinstance(value, (dict, list)) or not _is_long(value, levels):
        yield on_fresh_stack(_encoder.encode, value)
        return
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    items: Any = iter(value.items() if isinstance(value, dict) else value)
    few = len(value) <= _FEW
    mark = opening
    while part := list(islice(items, 1 if few else _PIECE)):
        yield mark
        mark = ","
        if not few:
            yield on_fresh_stack(_encoder.encode, dict(part) if isinstance(value, dict) else part)[1:-1]
        elif isinstance(value, dict):
            yield _encoder.encode(part[0][0]) + ":"
            yield from _pieces(part[0][1], levels - 1)
        else:
            yield from _pieces(part[0], levels - 1)
    yield closing


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

    start_thread(work, "agent-resume-deep-value").join()
    result, error = outcome[0]
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def is_encodable(text: str) -> bool:
    """Whether UTF-8 can hold the text; lone surrogates cannot be stored as they are."""
    if text.isascii():
        return True
    try:
        utf8_size(text)
    except UnicodeEncodeError:
        return False
    return True


def utf8_size(text: str) -> int:
    """Bytes of the text in UTF-8.

    Raises:
        UnicodeEncodeError: it has lone surrogates.
    """
    if text.isascii():
        return len(text)
    # In slices: the encoder takes three bytes a character before it knows better.
    return sum(len(text[at : at + LARGE].encode()) for at in range(0, len(text), LARGE))
