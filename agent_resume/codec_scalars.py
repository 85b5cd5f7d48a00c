"""Tagged JSON of the standard library's values: each kind's two halves side by side."""

from __future__ import annotations

import base64
import datetime as dt
import functools
import ipaddress
import math
import pathlib
import re
import uuid
import zoneinfo
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from agent_resume.codec_refusals import Refusal, Refused, type_name

#: The key that makes an object of tagged JSON a tag; a dict of the user's that has it is written as pairs.
TAG = "$type"

# Decimal text of ints longer than this is slow and refused by Python's own limit; hex is neither.
_LONGEST_DECIMAL_BITS = 2048
_SURROGATES = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile(r"\\(\\|u[0-9a-f]{4})")


def tag(kind: str, value: object, **more: object) -> dict[str, Any]:
    """A tag object."""
    return {TAG: kind, "value": value, **more}


def int_text(value: int) -> str:
    """Text of an int that other JSON readers would round."""
    return str(value) if value.bit_length() <= _LONGEST_DECIMAL_BITS else hex(value)


def _decode_int(stored: dict[str, Any]) -> int:
    text = stored["value"]
    return int(text, 16) if "0x" in text[:3] else int(text)


def float_text(value: float) -> str:
    """A word for NaN or an infinity, for which JSON has none."""
    if math.isnan(value):
        return "-nan" if math.copysign(1.0, value) < 0 else "nan"
    return "inf" if value > 0 else "-inf"


def surrogate_text(value: str) -> str:
    """Text whose lone surrogates, which no UTF-8 can hold, are spelled as escapes; backslashes are doubled."""
    doubled = value.replace("\\", "\\\\")
    return _SURROGATES.sub(lambda found: f"\\u{ord(found[0]):04x}", doubled)


def _decode_text(stored: dict[str, Any]) -> str:
    return _ESCAPED.sub(lambda found: "\\" if found[1] == "\\" else chr(int(found[1][1:], 16)), stored["value"])


def encode_zone(zone: dt.tzinfo | None) -> dict[str, Any]:
    """The members of a datetime's or time's tag that tell its time zone apart.

    Raises:
        Refused: a zone that only its own package knows.
    """
    if zone is None or zone is dt.UTC:
        return {}
    kind = type(zone)
    if kind is dt.timezone:
        given = zone.__getinitargs__()  # type: ignore[attr-defined]
        return {"name": given[1]} if len(given) > 1 else {}
    if kind is zoneinfo.ZoneInfo and _is_by_key(zone):
        return {"zone": zone.key}  # type: ignore[attr-defined]
    if kind.__name__ == "TzInfo" and kind.__module__.startswith("pydantic_core"):
        return {"by": "pydantic"}
    hint = "use zoneinfo.ZoneInfo or datetime.UTC: moment.astimezone(datetime.UTC)"
    raise Refused(type_name(kind), Refusal("a time zone that cannot be found again by its name", hint))


@functools.lru_cache(maxsize=64)
def _is_by_key(zone: dt.tzinfo) -> bool:
    """Whether the zone was looked up by its key: one that was read from a file may have any key."""
    try:
        zone.__reduce__()
    except Exception:  # noqa: BLE001 - pickle's own, which is not worth its import
        return False
    return True


def _zone(stored: dict[str, Any], parsed: dt.tzinfo | None) -> dt.tzinfo | None:
    if "zone" in stored:
        return zoneinfo.ZoneInfo(stored["zone"])
    if "by" in stored:
        from pydantic_core import TzInfo

        offset = parsed.utcoffset(None) if parsed is not None else None
        return TzInfo(int((offset or dt.timedelta()).total_seconds()))
    if "name" in stored and parsed is not None:
        return dt.timezone(parsed.utcoffset(None) or dt.timedelta(), stored["name"])
    return parsed


def _encode_moment(kind: str) -> Callable[[Any], dict[str, Any]]:
    def encode(value: Any) -> dict[str, Any]:
        zone = encode_zone(value.tzinfo)
        fold = {"fold": 1} if value.fold else {}
        if kind == "time" and "zone" in zone:
            # Such a time has no offset without a date, so its text has none either.
            return tag(kind, value.replace(tzinfo=None).isoformat(), **zone, **fold)
        return tag(kind, value.isoformat(), **zone, **fold)

    return encode


def _decode_moment(kind: type[dt.datetime] | type[dt.time]) -> Callable[[dict[str, Any]], Any]:
    def decode(stored: dict[str, Any]) -> Any:
        moment = kind.fromisoformat(stored["value"])
        return moment.replace(tzinfo=_zone(stored, moment.tzinfo), fold=stored.get("fold", 0))

    return decode


def _encode_timezone(value: dt.tzinfo) -> dict[str, Any]:
    offset = value.utcoffset(None)
    more = encode_zone(value)
    return tag("timezone", more.get("zone") if offset is None else offset.total_seconds(), **more)


def _decode_timezone(stored: dict[str, Any]) -> dt.tzinfo | None:
    if "zone" in stored:
        return _zone(stored, None)
    offset = dt.timedelta(seconds=stored["value"])
    return _zone(stored, dt.timezone(offset) if offset else dt.UTC)


def _encode_uuid(value: uuid.UUID) -> dict[str, Any]:
    known = value.is_safe is not uuid.SafeUUID.unknown
    return tag("uuid", str(value), **({"safe": value.is_safe.value} if known else {}))


def _decode_uuid(stored: dict[str, Any]) -> uuid.UUID:
    safe = uuid.SafeUUID(stored["safe"]) if "safe" in stored else uuid.SafeUUID.unknown
    return uuid.UUID(stored["value"], is_safe=safe)


def _encode_bytes(kind: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: tag(kind, base64.b64encode(value).decode("ascii"))


def _encode_duration(value: dt.timedelta) -> dict[str, Any]:
    return tag("timedelta", [value.days, value.seconds, value.microseconds])


def _by_text(*kinds: type) -> dict[type, Callable[[Any], dict[str, Any]]]:
    return {kind: lambda value, name=kind.__name__: tag(name, str(value)) for kind in kinds}  # type: ignore[misc]


_PATHS = (pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath)
_ADDRESSES = (
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    ipaddress.IPv4Network,
    ipaddress.IPv6Network,
    ipaddress.IPv4Interface,
    ipaddress.IPv6Interface,
)

#: Exact type -> its tag. None of these holds other values.
ENCODE: dict[type, Callable[[Any], dict[str, Any]]] = {
    bytes: _encode_bytes("bytes"),
    bytearray: _encode_bytes("bytearray"),
    dt.datetime: _encode_moment("datetime"),
    dt.time: _encode_moment("time"),
    dt.date: lambda value: tag("date", value.isoformat()),
    dt.timedelta: _encode_duration,
    dt.timezone: _encode_timezone,
    zoneinfo.ZoneInfo: _encode_timezone,
    Decimal: lambda value: tag("decimal", str(value)),
    uuid.UUID: _encode_uuid,
    **_by_text(*_ADDRESSES),
}

#: Tag -> the value of it.
DECODE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "int": _decode_int,
    "float": lambda stored: float(stored["value"]),
    "str": _decode_text,
    "bytes": lambda stored: base64.b64decode(stored["value"], validate=True),
    "bytearray": lambda stored: bytearray(base64.b64decode(stored["value"], validate=True)),
    "datetime": _decode_moment(dt.datetime),
    "time": _decode_moment(dt.time),
    "date": lambda stored: dt.date.fromisoformat(stored["value"]),
    "timedelta": lambda stored: dt.timedelta(*stored["value"]),
    "timezone": _decode_timezone,
    "decimal": lambda stored: Decimal(stored["value"]),
    "uuid": _decode_uuid,
    "complex": lambda stored: complex(*stored["value"]),
    "range": lambda stored: range(*stored["value"]),
    "slice": lambda stored: slice(*stored["value"]),
    "fraction": lambda stored: Fraction(*stored["value"]),
    **{kind.__name__: lambda stored, kind=kind: kind(*stored["value"]) for kind in _PATHS},  # type: ignore[misc]
    **{kind.__name__: lambda stored, kind=kind: kind(stored["value"]) for kind in _ADDRESSES},  # type: ignore[misc]
}

#: Exact type -> (tag, the values inside it that are encoded in turn).
PARTS: dict[type, tuple[str, Callable[[Any], list[Any]]]] = {
    complex: ("complex", lambda value: [value.real, value.imag]),
    range: ("range", lambda value: [value.start, value.stop, value.step]),
    slice: ("slice", lambda value: [value.start, value.stop, value.step]),
    # The text inside may hold surrogates: file names are bytes.
    **{kind: (kind.__name__, lambda value: [str(value)]) for kind in _PATHS},
    Fraction: ("fraction", lambda value: [value.numerator, value.denominator]),
}
