"""Writing tagged JSON piece by piece, so that no second copy of a large value stands in memory as a tree."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from json.encoder import encode_basestring, encode_basestring_ascii
from math import isfinite
from typing import Any

from agent_resume import codec_scalars
from agent_resume.codec_classes import Known
from agent_resume.codec_plain import INT_MAX, INT_MIN, encode_plain, is_encodable
from agent_resume.codec_refusals import Refused, type_name
from agent_resume.codec_scalars import TAG


class Writer(ABC):
    """The text so far, and how scalars, tags and containers are written into it.

    Args:
        known: classes that can be found again although no module has them.
        lenient: for digests: what cannot be kept counts by the name of its type, and order where it means nothing
            is made the same.
    """

    def __init__(self, known: Known, *, lenient: bool) -> None:
        self.known = known
        self.lenient = lenient
        #: Whether any tag was written; else the text is plain JSON.
        self.tagged = False
        #: Where in the value the walk is; after ``Refused`` it is the offending place.
        self.path: list[Any] = []
        #: Characters written.
        self.size = 0
        self._quote = encode_basestring_ascii if lenient else encode_basestring
        self._out = io.StringIO()

    def text(self, value: Any) -> str:
        """JSON text of ``value``.

        Raises:
            Refused: something in it cannot be kept.
        """
        self.walk(value, None)
        return self._out.getvalue()

    @abstractmethod
    def walk(self, value: Any, part: Any) -> None:
        """Write ``value``; ``part`` is its place in the value around it."""

    def write(self, piece: str) -> None:
        """Append a piece of JSON."""
        self._out.write(piece)
        self.size += len(piece)

    def write_scalar(self, value: Any, kind: type) -> bool:
        """Write ``value`` when it is a scalar of JSON; whether it was."""
        if kind is str:
            self.write_text(value)
        elif value is None:
            self.write("null")
        elif kind is bool:
            self.write("true" if value else "false")
        elif kind is int:
            if INT_MIN <= value <= INT_MAX:
                self.write(int.__repr__(value))
            else:
                self.write_tag("int", codec_scalars.int_text(value))
        elif kind is float:
            if isfinite(value):
                self.write(float.__repr__(value))
            else:
                self.write_tag("float", codec_scalars.float_text(value))
        else:
            return False
        return True

    def write_text(self, value: str) -> None:
        """Write a str."""
        if is_encodable(value):
            self.write(self._quote(value))
        else:
            self.write_tag("str", codec_scalars.surrogate_text(value))

    def write_tag(self, kind: str, value: Any, **more: Any) -> None:
        """Write a whole tag whose members are plain JSON."""
        self.tagged = True
        self.write(encode_plain({TAG: kind, "value": value, **more}))

    def open_tag(self, kind: str, **more: Any) -> None:
        """Begin a tag; its value is written next, then ``}``. Members in ``more`` are plain JSON."""
        self.tagged = True
        self.write(encode_plain({TAG: kind, **more})[:-1] + ',"value":')

    def member(self, name: str) -> None:
        """Begin another member of the open tag."""
        self.write(f',"{name}":')

    def aside(self, function: Callable[..., None], *args: Any) -> str:
        """What ``function`` writes, apart, so that it can be dropped or sorted; places that failed are forgotten."""
        out, self._out = self._out, io.StringIO()
        size, place = self.size, len(self.path)
        try:
            function(*args)
            return self._out.getvalue()
        except Refused:
            if self.lenient:
                del self.path[place:]
            raise
        finally:
            self._out, self.size = out, size

    def mapping(self, value: dict[str, Any]) -> None:
        """Write a dict: as an object where JSON can say it, else as pairs."""
        if TAG in value or not all(type(key) is str and is_encodable(key) for key in value):
            self.open_tag("dict")
            self.pairs(value.items())
            return self.write("}")
        mark = "{"
        for key, item in sorted(value.items()) if self.lenient and len(value) > 1 else value.items():
            self.write(f"{mark}{self._quote(key)}:")
            self.walk(item, key)
            mark = ","
        return self.write("{}" if mark == "{" else "}")

    def pairs(self, items: Iterable[tuple[Any, Any]], *, ordered: bool = False) -> None:
        """Write keys of any type with their values."""
        pieces = (self._pair(key, item) for key, item in items)
        self._join(sorted(pieces) if self.lenient and not ordered else pieces)

    def _pair(self, key: Any, item: Any) -> str:
        def write() -> None:
            self.write("[")
            self.walk(key, Key(key))
            self.write(",")
            self.walk(item, Key(key))
            self.write("]")

        return self.aside(write)

    def sequence(self, value: Iterable[Any]) -> None:
        """Write items as an array."""
        self.write("[")
        for index, item in enumerate(value):
            if index:
                self.write(",")
            self.walk(item, index)
        self.write("]")

    def members(self, value: Iterable[Any]) -> None:
        """Write the members of a set, in an order that no hash seed changes."""
        self._join(sorted([self.aside(self.walk, item, Key("{…}", shown=True)) for item in value]))

    def _join(self, pieces: Iterable[str]) -> None:
        self.write("[")
        for index, piece in enumerate(pieces):
            self.write(f",{piece}" if index else piece)
        self.write("]")


class Key(str):
    """A place in a path that is written in brackets: a key that is no text, the member of a set."""

    __slots__ = ("bare",)
    bare: bool

    def __new__(cls, key: Any, *, shown: bool = False) -> Key:
        """Text keys as they are, small numbers as Python writes them, others by type: keys may be secret too."""
        kind = type(key)
        self = str.__new__(cls, key if kind is str else _shown(key, kind))
        self.bare = shown or kind is not str
        return self


def _shown(key: Any, kind: type) -> str:
    small = kind in (float, bool, type(None)) or (kind is int and INT_MIN <= key <= INT_MAX)
    return repr(key) if small else f"<{type_name(kind)}>"
