"""Values that JSON would bend, written as JSON text with tags."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agent_resume import codec_exceptions, codec_objects, codec_scalars
from agent_resume.codec_classes import Known
from agent_resume.codec_plain import (
    MAX_DEPTH,
    SCALARS,
    TooLarge,
    dumps,
    expanded,
    is_encodable,
    is_plain,
)
from agent_resume.codec_refusals import TOO_DEEP, Refusal, Refused, explain, type_name
from agent_resume.codec_scalars import TAG
from agent_resume.codec_values import ValueCodec
from agent_resume.codec_writer import Steps, Writer, tag_text

# A plain scan of a branch costs as much as the branch; done at each of these levels, never at all of them.
_SCANNED_LEVELS = 3
# So many containers may have come about by sharing; then it is counted how many they will be.
_SUSPICIOUS = 200_000


class _Frame:
    """A container that is being written.

    Attributes:
        value: the container, kept alive, since it is known by its id.
        steps: its writer.
        otherwise: how it is written when something in it cannot be kept, or None.
        asides: how many asides were open when it began.
        entered: whether it is marked as being written.
    """

    __slots__ = ("asides", "entered", "otherwise", "steps", "value")

    def __init__(self, value: Any, asides: int) -> None:
        self.value = value
        self.steps: Steps = iter(())
        self.otherwise: Callable[[], Steps] | None = None
        self.asides = asides
        self.entered = False


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
        #: Where in the value the walk is; after ``Refused`` it is the offending place.
        self.path: list[Any] = []
        self._codecs = codecs
        self._fallback = fallback
        self._limit = limit
        self._active: set[int] = set()
        self._frames: list[_Frame] = []
        self._entered = 0

    def text(self, value: Any) -> str:
        """JSON text of ``value``.

        Raises:
            Refused: something in it cannot be kept.
            TooLarge: the text would pass the limit.
        """
        if not self.write_scalar(value):
            self._run(value)
        return self.written()

    def _run(self, root: Any) -> None:
        part: tuple[Any, Any] | None = (root, None)
        while True:
            try:
                if part is not None:
                    self._enter(*part)
                part = next(self._frames[-1].steps, None)
                if part is None:
                    self._leave()
            except TooLarge:
                raise
            except Exception as error:  # noqa: BLE001 - the value's own code may raise anything
                self._recover(error)
                part = None
            if not self._frames:
                return
            if self._entered == _SUSPICIOUS and expanded(root, self._limit // 2) * 2 > self._limit:
                raise TooLarge

    def _enter(self, value: Any, part: Any) -> None:
        kind = type(value)
        frame = _Frame(value, len(self._asides))
        self.path.append(part)
        self._frames.append(frame)
        self._entered += 1
        if self.lenient:
            self._prepare(frame, lambda: self._opaque(kind))
        if id(value) in self._active:
            raise Refused(type_name(kind), Refusal("it contains itself", "return a value without cycles"))
        self._active.add(id(value))
        frame.entered = True
        if len(self._frames) > MAX_DEPTH:
            raise Refused(type_name(kind), TOO_DEEP)
        if self.size > self._limit:
            raise TooLarge
        frame.steps = self._steps(frame, value, kind)

    def _prepare(self, frame: _Frame, otherwise: Callable[[], Steps]) -> None:
        frame.otherwise = otherwise
        self.begin_aside()

    def _leave(self) -> None:
        frame = self._pop()
        if len(self._asides) > frame.asides:
            self.write(self.end_aside())

    def _pop(self) -> _Frame:
        frame = self._frames.pop()
        self.path.pop()
        if frame.entered:
            self._active.discard(id(frame.value))
        return frame

    def _recover(self, error: Exception) -> None:
        """Go on with the innermost container that can do without what failed; without one, raise."""
        where = list(self.path)
        kind = type_name(type(self._frames[-1].value))
        while self._frames and self._frames[-1].otherwise is None:
            self._pop()
        if not self._frames:
            self.path = where
            if isinstance(error, Refused):
                raise error
            reason = f"{type_name(type(error))} while it was taken apart"
            raise Refused(kind, Refusal(reason, "return plain data instead")) from error
        frame = self._frames[-1]
        while len(self._asides) > frame.asides:
            self.end_aside()
        otherwise, frame.otherwise = frame.otherwise, None
        if otherwise is not None:
            frame.steps = otherwise()

    def _opaque(self, kind: type) -> Steps:
        self.write_tag("opaque", type_name(kind))
        return iter(())

    def _steps(self, frame: _Frame, value: Any, kind: type) -> Steps:
        for codec in self._codecs:
            if codec.type is kind:
                return self._by_codec(codec, value)
        container = _CONTAINERS.get(kind)
        if container is not None:
            return container(self, value)
        scalar = codec_scalars.ENCODE.get(kind)
        if scalar is not None:
            self.tagged = True
            self.write(tag_text(scalar(value)))
            return iter(())
        parts = codec_scalars.PARTS.get(kind)
        if parts is not None:
            return self._wrapped(parts[0], self.sequence(parts[1](value)))
        return self._object(frame, value, kind)

    def _object(self, frame: _Frame, value: Any, kind: type) -> Steps:
        for codec in self._codecs:
            if issubclass(kind, codec.type):
                return self._by_codec(codec, value)
        if not self.lenient:
            fallback = self._fallback
            if issubclass(kind, BaseException):
                self._prepare(frame, lambda: codec_exceptions.as_text(self, value))
            elif fallback is not None:
                self._prepare(frame, lambda: self._by_codec(fallback, value))
        steps = codec_objects.encode(self, value, kind)
        if steps is None:
            raise Refused(type_name(kind), explain(value))
        return steps

    def _by_codec(self, codec: ValueCodec, value: Any) -> Steps:
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
        yield from self.child(data, f"<{codec.name}>")
        self.write("}")

    def _wrapped(self, kind: str, steps: Steps) -> Steps:
        self.open_tag(kind)
        yield from steps
        self.write("}")

    def _list(self, value: list[Any]) -> Steps:
        return iter(()) if self._plain_branch(value, value) else self.sequence(value)

    def _dict(self, value: dict[Any, Any]) -> Steps:
        return iter(()) if self._plain_branch(value, value.values()) else self.mapping(value)

    def _plain_branch(self, value: Any, children: Iterable[Any]) -> bool:
        """Write a branch in which nothing needs a tag at C speed; False when there is something."""
        level = len(self._frames)
        if self.lenient or (level > _SCANNED_LEVELS and not set(map(type, children)) <= SCALARS):
            return False
        if not is_plain(value, levels=MAX_DEPTH + 1 - level, limit=self._limit):
            return False
        text = dumps(value)
        if not is_encodable(text) or f'"{TAG}"' in text:
            return False
        self.write(text)
        return True


_CONTAINERS: dict[type, Callable[[Encoder, Any], Steps]] = {
    dict: Encoder._dict,
    list: Encoder._list,
    tuple: lambda encoder, value: encoder._wrapped("tuple", encoder.sequence(value)),
    set: lambda encoder, value: encoder._wrapped("set", encoder.members(value)),
    frozenset: lambda encoder, value: encoder._wrapped("frozenset", encoder.members(value)),
}
