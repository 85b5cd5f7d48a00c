"""Stored values as plain data that any JSON reader holds, with a note of each place that had to give way.

| stored | written as |
|---|---|
| NaN and the infinities | null |
| ints whose digits JavaScript would not give back | text of their digits |
| tuple, set, frozenset, deque | array |
| bytes, bytearray | base64 text |
| datetime, date, time | ISO text |
| timedelta | seconds, a number |
| Decimal, UUID, paths, addresses, URLs, fractions, complex | text |
| Enum | its name; a combination of flags: its value |
| dict with keys that are no text | their text; an array of pairs where two would be the same |
| dataclass, pydantic model, namedtuple, attrs, msgspec | an object of its fields |
| lone surrogates, dicts that look like tags | themselves |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from agent_resume import codec_plain
from agent_resume.codec_scalars import DECODE, TAG
from agent_resume.layouts import jstext
from agent_resume.layouts.outcomes import Bends

_SEQUENCES = {"tuple", "set", "frozenset", "deque"}
_PAIRS = {"dict", "OrderedDict", "Counter", "defaultdict"}
_FIELDS = {"dataclass", "attrs", "struct", "namedtuple", "pydantic", "namespace"}
_BASE64 = {"bytes", "bytearray"}


def flatten(form: str, text: str, bends: Bends, path: str) -> Any:
    """Plain data of a stored value.

    Args:
        form: ``json`` or ``tagged``.
        text: what is stored.
        bends: gets a note for each place that is not kept as it was.
        path: what to call the value in those notes.
    """
    value = codec_plain.loads(text)
    walk = _tagged if form == "tagged" and f'"{TAG}"' in text else _plain
    if walk is _plain and jstext.is_easy(value):
        return value
    try:
        return codec_plain.on_fresh_stack(lambda item: walk(item, bends, path), value)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        # Not by our hand: an imported file may hold anything that is JSON.
        bends.add(path, "tags that cannot be read, written as they are stored")
        return _plain(value, bends, path)


def flatten_column(text: str | None, bends: Bends, path: str) -> Any:
    """Plain data of a column that has no format beside it; None for NULL."""
    return None if text is None else flatten("tagged", text, bends, path)


def _plain(value: Any, bends: Bends, path: str) -> Any:
    kind = type(value)
    if kind is dict:
        return {name: _plain(item, bends, _member(path, name)) for name, item in value.items()}
    if kind is list:
        return [_plain(item, bends, f"{path}[{index}]") for index, item in enumerate(value)]
    return _scalar(value, kind, bends, path)


def _scalar(value: Any, kind: type, bends: Bends, path: str) -> Any:
    if kind is int and not jstext.holds_int(value):
        bends.add(path, "an int that JavaScript would round, written as text")
        return str(value)
    if kind is float and value == 0 and math.copysign(1, value) < 0:
        bends.add(path, "negative zero, written as 0")
    return value


def _member(path: str, name: str) -> str:
    return f"{path}.{name}" if name.isidentifier() else f"{path}[{name!r}]"


def _tagged(value: Any, bends: Bends, path: str) -> Any:
    kind = type(value)
    if kind is dict:
        name = value.get(TAG)
        if type(name) is str:
            return _untag(name, value, bends, path)
        return {key: _tagged(item, bends, _member(path, key)) for key, item in value.items()}
    if kind is list:
        return [_tagged(item, bends, f"{path}[{index}]") for index, item in enumerate(value)]
    return _scalar(value, kind, bends, path)


def _untag(name: str, stored: dict[str, Any], bends: Bends, path: str) -> Any:
    inner = stored.get("value")
    special = _SPECIAL.get(name)
    if special is not None:
        return special(stored, bends, path)
    if name in _PAIRS and isinstance(inner, list):
        return _pairs(name, inner, bends, path)
    if name in _BASE64:
        bends.add(path, f"{name}, written as base64 text")
    elif name in _SEQUENCES:
        bends.add(path, f"{name}, written as an array")
    elif name in _FIELDS:
        bends.add(path, f"{_class(stored, name)}, written as an object of its fields")
    else:
        bends.add(path, f"{_class(stored, name)}, written as plain data")
    flat = _tagged(inner, bends, path)
    extra = stored.get("extra")
    if name == "pydantic" and isinstance(extra, dict) and isinstance(flat, dict):
        flat |= _tagged(extra, bends, path)
    return flat


def _class(stored: dict[str, Any], name: str) -> str:
    given = stored.get("class") or stored.get("name")
    return given.rpartition(":")[2] if isinstance(given, str) else name


def _int(stored: dict[str, Any], bends: Bends, path: str) -> Any:
    value = DECODE["int"](stored)
    if jstext.holds_int(value):
        return value
    bends.add(path, "an int that JavaScript would round, written as text")
    return stored["value"]


def _float(stored: dict[str, Any], bends: Bends, path: str) -> Any:
    bends.add(path, f"{stored.get('value')}, written as null")


def _text(stored: dict[str, Any], bends: Bends, path: str) -> Any:
    text: str = DECODE["str"](stored)
    if not jstext.has_lone_surrogate(text) or jstext.joined(text) != text:
        bends.add(path, "halves of surrogate pairs side by side, written as the characters they make")
    return jstext.joined(text)


def _duration(stored: dict[str, Any], bends: Bends, path: str) -> Any:
    bends.add(path, "timedelta, written as seconds")
    return DECODE["timedelta"](stored).total_seconds()


def _as_text(stored: dict[str, Any], bends: Bends, path: str) -> Any:
    bends.add(path, f"{stored[TAG]}, written as text")
    parts = [DECODE[part[TAG]](part) if isinstance(part, dict) else part for part in stored["value"]]
    return str(DECODE[stored[TAG]]({"value": parts}))


def _path(stored: dict[str, Any], bends: Bends, path: str) -> Any:
    bends.add(path, f"{stored[TAG]}, written as text")
    text = _tagged(stored["value"], Bends(0), path)
    return text[0] if isinstance(text, list) else text


def _enum(stored: dict[str, Any], bends: Bends, path: str) -> Any:
    bends.add(path, f"{_class(stored, 'enum')}, written as the member's name")
    return _tagged(stored["of"] if stored.get("value") is None else stored["value"], bends, path)


_SPECIAL: dict[str, Callable[[dict[str, Any], Bends, str], Any]] = {
    "int": _int,
    "float": _float,
    "str": _text,
    "timedelta": _duration,
    "fraction": _as_text,
    "complex": _as_text,
    "enum": _enum,
    **dict.fromkeys(("PurePosixPath", "PureWindowsPath", "PosixPath", "WindowsPath"), _path),
}


def _pairs(name: str, inner: list[Any], bends: Bends, path: str) -> Any:
    quiet = Bends(0)
    keys = [_tagged(pair[0], quiet, path) for pair in inner]
    is_text = all(type(key) is str for key in keys) and not quiet.count
    if name != "dict":
        bends.add(path, f"{name}, written as an object")
    elif not is_text:
        bends.add(path, "a dict with keys that are no text, written with their text")
    names = [key if type(key) is str else _key_text(key) for key in keys]
    if len(set(names)) < len(names):
        bends.add(path, "keys whose text is the same, written as an array of pairs")
        values = [_tagged(pair[1], bends, f"{path}[{name!r}]") for pair, name in zip(inner, names, strict=True)]
        return [[key, value] for key, value in zip(keys, values, strict=True)]
    return {name: _tagged(pair[1], bends, _member(path, name)) for pair, name in zip(inner, names, strict=True)}


def _key_text(key: Any) -> str:
    return jstext.string(key) if not isinstance(key, (dict, list)) else jstext.compact(key)
