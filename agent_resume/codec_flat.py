"""The quick way for what most steps return: one small dict or list of scalars.

A step's result is encoded and decoded again before ``step`` returns; for a dict of 220 bytes that costs no more here
than ``json.dumps`` and ``json.loads`` alone.
"""

from __future__ import annotations

import json
from json import encoder as _json_encoder
from math import isfinite
from typing import Any

from .codec_plain import INT_MAX, INT_MIN

#: Most items of a container that goes this way, and most characters of a text in it.
FEW = 64
SHORT = 4096

_KEYS = frozenset({str})
_plain = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_scan: Any = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # not in typeshed


def _refuse(value: object) -> Any:
    raise TypeError(f"not a scalar: {type(value).__name__}")


# JSONEncoder.encode makes one of these a call, with a dict of markers against the cycles that cannot be here.
_make_encoder: Any = getattr(_json_encoder, "c_make_encoder", None)  # CPython has it, typeshed and PyPy do not
_encode: Any = _plain.iterencode
if _make_encoder is not None:
    _encode = _make_encoder(None, _refuse, _json_encoder.encode_basestring, None, ":", ",", False, False, False)


def _is_small(value: Any) -> bool:
    kind = type(value)
    if kind is str:
        return len(value) <= SHORT
    if kind is int:
        return bool(INT_MIN <= value <= INT_MAX)
    if kind is float:
        return isfinite(value)
    return value is None or kind is bool


def flat_text(value: Any) -> str | None:
    """Compact JSON of a small flat dict or list; None for anything else, which goes the usual way."""
    if len(value) > FEW:
        return None
    try:
        if type(value) is dict:
            if not (set(map(type, value)) <= _KEYS and all(map(_is_small, value.values()))):
                return None
        elif not all(map(_is_small, value)):
            return None
        text = "".join(_encode(value, 0))
    except (RuntimeError, TypeError):  # another thread is changing it
        return None
    return text if text.isascii() else None


def quick_loads(text: str) -> Any:
    """Parse JSON that is compact, as ours is.

    Raises:
        ValueError: it is not, or not JSON at all; the usual way knows which.
    """
    try:
        value, end = _scan(text, 0)
    except (StopIteration, RecursionError) as error:
        raise ValueError("not compact JSON") from error
    if end != len(text):
        raise ValueError("something follows")
    return value
