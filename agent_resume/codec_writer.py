"""Writing tagged JSON piece by piece: no second copy of a large value stands in memory, and no depth is too deep.

Writers of containers are generators: they write what they can and yield each part that is itself a container, with
its place; whoever drives them writes that part before it goes on. So the walk needs no stack of calls.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring, encode_basestring_ascii
from math import isfinite
from typing import Any

from agent_resume import codec_scalars
from agent_resume.codec_classes import Known
from agent_resume.codec_plain import INT_MAX, INT_MIN, encode_plain, is_encodable
from agent_resume.codec_refusals import Refusal, Refused, type_name
from agent_resume.codec_scalars import TAG

# Characters that are held as text; a StringIO that is asked for its text holds it twice and a half.
_HELD = 1 << 18

#: The parts that are still to be written by somebody else, each with its place.
Steps = Iterator[tuple[Any, Any]]


class Writer:
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
        #: Characters written.
        self.size = 0
        self._quote = encode_basestring_ascii if lenient else encode_basestring
        self._out = io.StringIO()
        self._parts: list[bytes] = []
        self._taken = 0
        self._asides: list[tuple[io.StringIO, int]] = []

    def write(self, piece: str) -> None:
        """Append a piece of JSON."""
        self._out.write(piece)
        self.size += len(piece)
        if self.size - self._taken > _HELD and not self._asides:
            # Text with a single dash in it stands in memory at two bytes a character, UTF-8 at little over one.
            self._parts.append(self._out.getvalue().encode())
            self._out = io.StringIO()
            self._taken = self.size

    def written(self) -> str:
        """All that was written; it is given away, part by part."""
        rest = self._out.getvalue()
        self._out = io.StringIO()
        text = ""
        self._parts.reverse()
        while self._parts:
            text += self._parts.pop().decode()
        return text + rest if text else rest

    def begin_aside(self) -> None:
        """Write what follows apart, so that it can be dropped or sorted."""
        self._asides.append((self._out, self.size))
        self._out = io.StringIO()

    def end_aside(self) -> str:
        """What was written since ``begin_aside``."""
        text = self._out.getvalue()
        self._out, self.size = self._asides.pop()
        return text

    def write_scalar(self, value: Any) -> bool:
        """Write ``value`` when it is a scalar of JSON; whether it was."""
        kind = type(value)
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
        self.write(tag_text({TAG: kind, "value": value, **more}))

    def open_tag(self, kind: str, **more: Any) -> None:
        """Begin a tag; its value is written next, then ``}``. Members in ``more`` are plain JSON."""
        self.tagged = True
        self.write(tag_text({TAG: kind, **more})[:-1] + ',"value":')

    def member(self, name: str) -> None:
        """Begin another member of the open tag."""
        self.write(f',"{name}":')

    def child(self, value: Any, part: Any) -> Steps:
        """Write a part, or yield it."""
        if not self.write_scalar(value):
            yield value, part

    def mapping(self, value: dict[Any, Any]) -> Steps:
        """Write a dict: as an object where JSON can say it, else as pairs."""
        if TAG in value or not all(type(key) is str and is_encodable(key) for key in value):
            self.open_tag("dict")
            yield from self.pairs(value.items())
            self.write("}")
            return
        mark = "{"
        for key in sorted(value) if self.lenient else value:
            self.write(f"{mark}{self._quote(key)}:")
            item = value[key]
            if not self.write_scalar(item):
                yield item, key
            mark = ","
        self.write("{}" if mark == "{" else "}")

    def pairs(self, items: Iterable[tuple[Any, Any]], *, ordered: bool = False) -> Steps:
        """Write keys of any type with their values; equal dicts may differ in order, their digests must not."""
        shuffled = self.lenient and not ordered
        texts: list[str] = []
        self.write("[")
        for index, (key, item) in enumerate(items):
            if shuffled:
                self.begin_aside()
            elif index:
                self.write(",")
            self.write("[")
            yield from self.child(key, Key(key))
            self.write(",")
            yield from self.child(item, Key(key))
            self.write("]")
            if shuffled:
                texts.append(self.end_aside())
        self.write(",".join(sorted(texts)) + "]")

    def sequence(self, value: Iterable[Any]) -> Steps:
        """Write items as an array."""
        self.write("[")
        for index, item in enumerate(value):
            if index:
                self.write(",")
            if not self.write_scalar(item):
                yield item, index
        self.write("]")

    def members(self, value: Iterable[Any]) -> Steps:
        """Write the members of a set, in an order that no hash seed changes."""
        texts: list[str] = []
        for item in value:
            self.begin_aside()
            yield from self.child(item, Key.MEMBER)
            texts.append(self.end_aside())
        self.write(f"[{','.join(sorted(texts))}]")


def tag_text(tag: dict[str, Any]) -> str:
    """JSON text of a tag whose members are plain.

    Raises:
        Refused: a text in it has a lone surrogate; only values that are str themselves have a spelling for that.
    """
    text = encode_plain(tag)
    if not is_encodable(text):
        raise Refused(
            tag[TAG], Refusal("a name in it has a lone surrogate, which no UTF-8 can hold", "name it without")
        )
    return text


class Key(str):
    """A place in a path that may have to be written in brackets: a key that is no text, the member of a set."""

    __slots__ = ("bare",)
    bare: bool
    MEMBER: Key

    def __new__(cls, key: Any) -> Key:
        """Text keys as they are, small numbers as Python writes them, others by type: keys may be secret too."""
        kind = type(key)
        self = str.__new__(cls, key if kind is str else _shown(key, kind))
        self.bare = kind is not str
        return self


def _shown(key: Any, kind: type) -> str:
    small = kind in (float, bool, type(None)) or (kind is int and INT_MIN <= key <= INT_MAX)
    return repr(key) if small else f"<{type_name(kind)}>"


Key.MEMBER = Key("{…}")
Key.MEMBER.bare = True
