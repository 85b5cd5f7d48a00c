"""What can be a name, an id or a key."""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import Final

from . import errors
from .codec_plain import is_encodable

#: Most bytes of UTF-8 in a name, an id or a key: an entry of PostgreSQL's indexes holds about 2,680 beside a number.
LONGEST: Final = 2000


def from_system(text: str) -> str:
    """What an argument or a variable says: ours are UTF-8, also where the locale cannot decode that.

    Args:
        text: as Python decoded it; unchanged when it is text already, or no UTF-8.
    """
    if is_encodable(text):
        return text
    try:
        return os.fsencode(text).decode()
    except UnicodeError:
        return text


def to_system(text: str) -> str:
    """The other way round: what a process that is started gets as an argument or a variable."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return os.fsdecode(text.encode("utf-8", "surrogateescape"))
    return text


def check_name(kind: str, name: object, *, empty: bool = False, longest: int = LONGEST) -> str:
    """``name`` when it can be one.

    Args:
        kind: what it is, for the message.
        empty: whether the empty string is allowed (step keys: flowcast writes such).
        longest: most bytes of UTF-8.

    Raises:
        InvalidName: not a str, empty, too long, or with NUL or a lone surrogate in it.
    """
    text, size = _measured(kind, name)
    if not text and not empty:
        raise errors.InvalidName(kind, text, "empty")
    if size > longest:
        raise errors.InvalidName(kind, text, f"{size:,} bytes of UTF-8, {longest:,} at most")
    return text


def check_text(kind: str, text: object) -> str:
    """``text`` when it can be stored beside names; it may have any length.

    Raises:
        InvalidName: not a str, or with NUL or a lone surrogate in it.
    """
    return _measured(kind, text)[0]


def shortened(text: str, longest: int = LONGEST) -> str:
    """The name made of a text: the text, or its beginning with a digest of it all, in ``longest`` bytes of UTF-8."""
    data = text.encode()
    if len(data) <= longest:
        return text
    ending = f"…{blake2b(data, digest_size=8).hexdigest()}"
    return data[: longest - len(ending.encode())].decode("utf-8", "ignore") + ending


def _measured(kind: str, name: object) -> tuple[str, int]:
    """``name`` as a str, and how many bytes of UTF-8 it has."""
    if not isinstance(name, str):
        raise errors.InvalidName(kind, name, f"a {type(name).__name__}, not a str")
    if type(name) is not str:
        name = str.__str__(name)  # a StrEnum member is its value
    if "\0" in name:
        raise errors.InvalidName(kind, name, "a NUL in it")
    if name.isascii():
        return name, len(name)
    try:
        return name, len(name.encode())
    except UnicodeEncodeError:
        raise errors.InvalidName(kind, name, "a lone surrogate in it") from None
