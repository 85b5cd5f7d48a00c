"""Values that JSON would bend, written as JSON text with tags."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agent_resume import codec_objects, codec_scalars
from agent_resume.codec_classes import Known
from agent_resume.codec_plain import MAX_DEPTH, SCALARS, encode_plain, is_encodable, is_plain
from agent_resume.codec_refusals import TOO_DEEP, Refusal, Refused, explain, type_name
from agent_resume.codec_scalars import TAG
from agent_resume.codec_values import ValueCodec
from agent_resume.codec_writer import Writer

# A plain scan of a branch costs as much as the branch; done at each of these levels, never at all of them.
_SCANNED_LEVELS = 3


class TooLarge(Refused):
    """The text passed the limit while it was written."""


class Encoder(Writer):
    """One encoding of one value.

    Args:
        codecs: the user's own codecs, in the order in which they are asked.
        fallback: a codec for what would be refused, or None.
        known: classes that can be found again although no module has them.
        limit: characters; writing stops beyond it, so that shared parts cannot fill the memory.
        lenient: for digests, see ``Writer``.
    """

    def __init__(
        self,
        codecs: Sequence[ValueCodec],
        fallback: ValueCodec | None,
        known: Known,
        *,
        limit: int,
        lenient: bool = False,
    ) -> None:
        super().__init__(known, lenient=lenient)
        self._codecs = codecs
        self._fallback = fallback
        self._limit = limit
        self._active: set[int] = set()

    def walk(self, value: Any, part: Any) -> None:
        """Write ``value``; ``part`` is its place in the value around it."""
        kind = type(value)
        if not self.write_scalar(value, kind):
            self.path.append(part)
            self._enter(value, kind)
            self.path.pop()

    def _enter(self, value: Any, kind: type) -> None:
        identity, name = id(value), type_name(kind)
        try:
            if identity in self._active:
                raise Refused(name, Refusal("it contains itself", "return a value without cycles"))
            if len(self._active) >= MAX_DEPTH:
                raise Refused(name, TOO_DEEP)
            if self.size > self._limit:
                raise TooLarge(name, Refusal("", ""))
            self._active.add(identity)
            try:
                if self.lenient:
                    self.write(self.aside(self._dispatch, value, kind))
                else:
                    self._dispatch(value, kind)
            finally:
                self._active.discard(identity)
        except (Refused, RecursionError):
            if not self.lenient:
                raise
            self.write_tag("opaque", name)
        except Exception as error:
            if not self.lenient:
                reason = f"{type_name(type(error))} while it was taken apart"
                raise Refused(name, Refusal(reason, "return plain data instead")) from error
            self.write_tag("opaque", name)

    def _dispatch(self, value: Any, kind: type) -> None:
        for codec in self._codecs:
            if codec.type is kind:
                return self._by_codec(codec, value)
        container = _CONTAINERS.get(kind)
        if container is not None:
            return container(self, value)
        scalar = codec_scalars.ENCODE.get(kind)
        if scalar is not None:
            self.tagged = True
            return self.write(encode_plain(scalar(value)))
        parts = codec_scalars.PARTS.get(kind)
        if parts is not None:
            self.open_tag(parts[0])
            self.sequence(parts[1](value))
            return self.write("}")
        return self._object(value, kind)

    def _object(self, value: Any, kind: type) -> None:
        for codec in self._codecs:
            if issubclass(kind, codec.type):
                return self._by_codec(codec, value)
        if self._fallback is None:
            return self._known_object(value, kind)
        try:
            text = self.aside(self._known_object, value, kind)
        except TooLarge:
            raise
        except Refused:
            return self._by_codec(self._fallback, value)
        return self.write(text)

    def _known_object(self, value: Any, kind: type) -> None:
        if not codec_objects.encode(self, value, kind):
            raise Refused(type_name(kind), explain(value))

    def _by_codec(self, codec: ValueCodec, value: Any) -> None:
        kind = type(value)
        data = codec.encode(value)
        if data is value:
            reason = f"codec {codec.name!r} gave it back as it was"
            raise Refused(type_name(kind), Refusal(reason, "its encode must return storable data"))
        if kind is not codec.type and codec.type is not object and not self.lenient:
            back = type(codec.decode(codec.encode(value)))
            if back is not kind:
                reason = f"codec {codec.name!r} would give back a {type_name(back)}"
                raise Refused(type_name(kind), Refusal(reason, "register a ValueCodec for this very type"))
        self.open_tag("codec", name=codec.name)
        self.walk(data, f"<{codec.name}>")
        self.write("}")

    def _plain_branch(self, value: Any, children: Iterable[Any]) -> bool:
        """Write a branch in which nothing needs a tag at C speed; False when there is something."""
        if self.lenient:
            return False
        if len(self._active) > _SCANNED_LEVELS and not set(map(type, children)) <= SCALARS:
            return False
        if not is_plain(value):
            return False
        text = encode_plain(value)
        if not is_encodable(text) or f'"{TAG}"' in text:
            return False
        self.write(text)
        return True

    def _list(self, value: list[Any]) -> None:
        if not self._plain_branch(value, value):
            self.sequence(value)

    def _dict(self, value: dict[Any, Any]) -> None:
        if not self._plain_branch(value, value.values()):
            self.mapping(value)

    def _tagged(self, kind: str, writer: Callable[[Writer, Any], None], value: Any) -> None:
        self.open_tag(kind)
        writer(self, value)
        self.write("}")


_CONTAINERS: dict[type, Callable[[Encoder, Any], None]] = {
    dict: Encoder._dict,
    list: Encoder._list,
    tuple: lambda encoder, value: encoder._tagged("tuple", Writer.sequence, value),
    set: lambda encoder, value: encoder._tagged("set", Writer.members, value),
    frozenset: lambda encoder, value: encoder._tagged("frozenset", Writer.members, value),
}
