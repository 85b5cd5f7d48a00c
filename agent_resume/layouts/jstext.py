"""JSON exactly as JavaScript writes it: number text, escapes, the order of names, lengths in UTF-16 units."""

from __future__ import annotations

import json
import re
from decimal import ROUND_HALF_UP, Decimal
from json.encoder import encode_basestring
from math import isfinite, isnan
from typing import Any

from agent_resume.codec_plain import on_fresh_stack

#: The largest integer below which no two have the same double.
MAX_SAFE = 2**53 - 1
_MAX_INDEX = 2**32 - 2
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_LONE = re.compile("[\ud800-\udfff]")
_compact = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def units(text: str) -> int:
    """Length in UTF-16 code units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def code_units(text: str) -> list[int]:
    """The UTF-16 code units themselves."""
    data = text.encode("utf-16-le", "surrogatepass")
    return (
        list(memoryview(data).cast("H"))
        if _NATIVE_LITTLE
        else [data[at] | data[at + 1] << 8 for at in range(0, len(data), 2)]
    )


_NATIVE_LITTLE = memoryview(b"\x01\x00").cast("H")[0] == 1


def has_lone_surrogate(text: str) -> bool:
    """Whether some half of a surrogate pair stands alone."""
    return not text.isascii() and _LONE.search(_PAIR.sub("", text)) is not None


def joined(text: str) -> str:
    """Halves of surrogate pairs that stand side by side are one character to JavaScript."""
    if text.isascii() or _LONE.search(text) is None:
        return text
    return _PAIR.sub(lambda found: found[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text)


def is_index(name: str) -> bool:
    """Whether JavaScript orders this property name by its number."""
    return "0" <= name[:1] <= "9" and _INDEX.fullmatch(name) is not None and int(name) <= _MAX_INDEX


def ordered(names: list[str]) -> list[str]:
    """Property names in JavaScript's order: indexes first, by number; the others as they are."""
    indexes = [name for name in names if is_index(name)]
    if not indexes:
        return names
    others = [name for name in names if not is_index(name)]
    return sorted(indexes, key=int) + others


def number(value: float) -> str:
    """Text of a number, an int or a finite float, as JavaScript writes it."""
    if type(value) is int and -MAX_SAFE <= value <= MAX_SAFE:
        return int.__repr__(value)
    value = float(value)
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # Where the point stands, counted from the first digit.
    point = int(exponent or 0) + (len(whole) if whole != "0" else len(digits) - len(fraction))
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        return f"{sign}{digits}{'0' * (point - len(digits))}"
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    power = point - 1
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{'+' if power > 0 else '-'}{abs(power)}"


def holds_int(value: int) -> bool:
    """Whether JavaScript gives exactly these digits back."""
    if -MAX_SAFE <= value <= MAX_SAFE:
        return True
    return abs(value) < 10**21 and number(float(value)) == int.__repr__(value)


def quoted(text: str) -> str:
    """A string as JSON; lone surrogates are escaped, everything else that may be raw is."""
    written = encode_basestring(text)
    return written if written.isascii() else _escaped(written)


def _escaped(text: str) -> str:
    if text.isascii() or _LONE.search(text) is None:
        return text
    return _LONE.sub(lambda found: f"\\u{ord(found[0]):04x}", joined(text))


def compact(value: Any) -> str:
    """Compact JSON of plain data, as ``JSON.stringify(value)`` writes it."""
    kind = type(value)
    if kind is str:
        return quoted(value)
    if kind is int or kind is float:
        return number(value)
    return on_fresh_stack(_compact_container, value)


def _compact_container(value: Any) -> str:
    if is_easy(value):
        return _escaped(_compact(value))
    out: list[str] = []
    _write(value, out, None)
    return "".join(out)


def pretty(value: Any, depth: int = 0) -> str:
    """JSON indented by two spaces, as ``JSON.stringify(value, null, 2)`` writes it at this depth."""

    def write(item: Any) -> str:
        out: list[str] = []
        _write(item, out, "\n" + "  " * depth)
        return "".join(out)

    return on_fresh_stack(write, value)


def is_easy(value: Any) -> bool:
    """Whether Python's own encoder writes the same as JavaScript: no floats, no large ints, no index names."""
    pending = [value]
    while pending:
        item = pending.pop()
        kind = type(item)
        if kind is dict:
            for name in item:
                if "0" <= name[:1] <= "9":
                    return False
            pending.extend(item.values())
        elif kind is list:
            pending.extend(item)
        elif kind is float or (kind is int and not -MAX_SAFE <= item <= MAX_SAFE):
            return False
    return True


_WORDS = {None: "null", True: "true", False: "false"}


def _scalar(value: Any, kind: type) -> str | None:
    if kind is str:
        return quoted(value)
    if kind is int or kind is float:
        return number(value)
    return None if kind is dict or kind is list else _WORDS[value]


def _write(value: Any, out: list[str], line: str | None) -> None:
    """Append the text of ``value``; ``line`` is the line break of this depth, None for the compact form."""
    kind = type(value)
    text = _scalar(value, kind)
    if text is not None:
        out.append(text)
        return
    is_dict = kind is dict
    brackets = "{}" if is_dict else "[]"
    if not value:
        out.append(brackets)
        return
    inner = None if line is None else line + "  "
    first, between, colon = (brackets[0], ",", ":") if inner is None else (brackets[0] + inner, "," + inner, ": ")
    out.append(first)
    following = False
    for item in ordered(list(value)) if is_dict else value:
        if following:
            out.append(between)
        following = True
        if is_dict:
            out.append(quoted(item) + colon)
            item = value[item]
        text = _scalar(item, type(item))
        if text is None:
            _write(item, out, inner)
        else:
            out.append(text)
    out.append(brackets[1] if line is None else line + brackets[1])


def same(one: Any, other: Any) -> bool:
    """Whether JavaScript sees the same value: 1 and 1.0 are, 1 and true are not; the order of names does not matter."""
    kind, other_kind = type(one), type(other)
    if kind is not other_kind:
        numbers = kind in (int, float) and other_kind in (int, float)
        return numbers and isfinite(one) and isfinite(other) and number(one) == number(other)
    if kind is dict:
        if one.keys() != other.keys():
            return False
        return all([same(item, other[name]) for name, item in one.items()])  # noqa: C419 - a generator costs more
    if kind is list:
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (kind is float and one != one and other != other)


def string(value: Any) -> str:
    """``String(value)``: how a template shows it."""
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is int or kind is float:
        return number(value) if isfinite(value) else ("NaN" if isnan(value) else f"{'-' * (value < 0)}Infinity")
    if kind is dict:
        return "[object Object]"
    if kind is list:
        return ",".join("" if item is None else string(item) for item in value)
    return _WORDS[value]


def fixed(value: float) -> str:
    """``value.toFixed(1)``: exact ties go away from zero."""
    if isnan(value) or abs(value) >= 1e21:
        return string(value)
    shown = Decimal(abs(value)).quantize(Decimal("0.1"), ROUND_HALF_UP)
    return f"-{shown}" if value < 0 else str(shown)
