"""Values that JSON would bend, written as JSON text with tags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agent_resume.codec_classes import Known
from agent_resume.codec_plain import expanded
from agent_resume.codec_refusals import TOO_DEEP, Refusal, Refused, type_name
from agent_resume.codec_values import ValueCodec
from agent_resume.codec_writer import Steps, Writer

# A plain scan of a branch costs as much as the branch; done at each of these levels, never at all of them.
_SCANNED_LEVELS = 3
# So many containers may have come about by sharing; then it is counted how many they will be.
_SUSPICIOUS = 200_000


class TooLarge(Refused):
    """The text would pass the limit."""


class _Frame:
    """A container that is being written.

    Attributes:
        value: the container; kept alive, since it is known by its id.
        steps: its writer.
        otherwise: how it is written when a part of it cannot be kept, or None.
        asides: how many asides were open when it began.
        depth: length of the path to it.
    """

    __slots__ = ("asides", "depth", "otherwise", "steps", "value")

    def __init__(self, value: Any, depth: int, asides: int) -> None:
        self.value = value
        self.steps: Steps = iter(())
        self.otherwise: Callable[[], Steps] | None = None
        self.asides = asides
        self.depth = depth


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
        """
        if not self.write_scalar(value):
            self._run(value)
        return self._out.getvalue()

    def _run(self, root: Any) -> None:
        frames = self._frames
        step: tuple[Any, Any] | None = (root, None)
        while True:
            try:
                if step is not None:
                    self._enter(*step)
                step = next(frames[-1].steps, None)
                if step is None:
                    self._leave()
                    if not frames:
                        return
            except TooLarge:
                raise
            except Exception as error:  # noqa: BLE001 - the value's own code may raise anything
                self._recover(error)
                step = None
            if self._entered >= _SUSPICIOUS:
                self._entered = 0
                if expanded(root, self._limit // 2) * 2 > self._limit:
                    raise TooLarge(type_name(type(root)), TOO_DEEP)

    def _enter(self, value: Any, part: Any) -> None:
        self.path.append(part)
        kind = type(value)
        if id(value) in self._active:
            frame = _Frame(value, len(self.path), len(self._asides))
            frame.otherwise = self._otherwise(kind)
            self._frames.append(frame)
            frame.steps = _refuse(Refused(type_name(kind), Refusal("it contains itself", "return a value without cycles")))
            frame.value = None
            return
        if self.size > self._limit:
            raise TooLarge(type_name(kind), TOO_DEEP)
