"""Values to stored text and back: the first run and a resumed one see the same.

Plain JSON values are stored as plain JSON, everything else that can be kept as JSON with tags: an object with the key
``$type``. What cannot be kept faithfully is refused when it is stored, never bent when it is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from math import isfinite
from typing import TYPE_CHECKING, Any

from agent_resume.codec_classes import Known
from agent_resume.codec_flat import flat_text, quick_loads
from agent_resume.codec_plain import (
    DEFAULT_MAX_BYTES,
    INT_MAX,
    INT_MIN,
    MAX_DEPTH,
    TooLarge,
    dumps,
    dumps_canonical,
    is_encodable,
    is_plain,
    loads,
    utf8_size,
)
from agent_resume.codec_values import PICKLE, ValueCodec, pickle_codec, pickle_fallback
from agent_resume.errors import OutputNotStorable, StoredValueUnreadable

if TYPE_CHECKING:
    from agent_resume.codec_encode import Encoder
    from agent_resume.codec_refusals import Refused

__all__ = ["DEFAULT", "DEFAULT_MAX_BYTES", "MAX_DEPTH", "Codec", "Encoded", "ValueCodec", "json_value", "pickle_codec"]

_TAG_TEXT = '"$type"'
_FLAT = frozenset({dict, list})
_IMMUTABLE = frozenset({type(None), bool, int, float, str})


# Made once a step and changed by nobody: not frozen, since that costs a quarter of a µs a field.
@dataclass(slots=True)
class Encoded:
    """A value as it is stored.

    Attributes:
        format: ``"json"`` or ``"tagged"``.
        text: JSON text that UTF-8 can hold.
    """

    format: str
    text: str


class Codec:
    """Encodes and decodes values by one set of rules.

    Args:
        codecs: ``ValueCodec`` objects; classes that may be stored although no module has them; the word ``"pickle"``,
            also by itself, which pickles everything that would be refused (see ``pickle_codec`` for its danger).
        max_bytes: largest text of one value.

    Raises:
        ValueError: two codecs of one name, a name that UTF-8 cannot hold, or a codec for a type that is plain JSON.
        TypeError: something else among ``codecs``, or ``max_bytes`` is no int.
    """

    def __init__(self, codecs: Sequence[ValueCodec | type | str] = (), *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        if type(max_bytes) is not int:
            raise TypeError(f"the largest size of a value is an int, in bytes, not {max_bytes!r}")
        self.max_bytes = max_bytes
        self._codecs: list[ValueCodec] = []
        self._fallback: ValueCodec | None = None
        self._by_name: dict[str, ValueCodec] = {}
        self._classes: list[type] = []
        for codec in (codecs,) if isinstance(codecs, str) else codecs:
            self._register(codec)
        self._known = Known(self._classes)

    def _register(self, codec: ValueCodec | type | str) -> None:
        if isinstance(codec, type):
            self._classes.append(codec)
            return
        if codec == PICKLE:
            codec = self._fallback = pickle_fallback()
        elif isinstance(codec, ValueCodec):
            if codec.type in (*_IMMUTABLE, dict, list):
                raise ValueError(f"codec {codec.name!r}: {codec.type.__name__} is plain JSON and needs no codec")
            self._codecs.append(codec)
        else:
            raise TypeError('codecs= takes ValueCodec objects, classes and the word "pickle"')
        if not is_encodable(codec.name):
            raise ValueError(f"the codec's name {codec.name!r} has a lone surrogate and cannot be stored")
        if codec.name in self._by_name:
            raise ValueError(f"two codecs are named {codec.name!r}; stored values find theirs by its name")
        self._by_name[codec.name] = codec

    def encode(self, value: Any, *, key: str | None = None, returns: Any = None, hint: Any = None) -> Encoded:
        """The stored form of ``value``.

        Args:
            value: what is to be stored.
            key: the step it belongs to, for the error.
            returns: annotation that will be given when it is read again; its classes count as findable.
            hint: the same from a return annotation, or the function that may have one.

        Raises:
            OutputNotStorable: something in it cannot be kept, or it is too large.
        """
        return self._encode(value, key, returns, hint)

    def encode_tagged(self, value: Any, *, key: str | None = None) -> str:
        """Text for a column without a format beside it: always read by ``decode_tagged``.

        Raises:
            OutputNotStorable: as for ``encode``.
        """
        return self._encode(value, key, None, None, escaped=True).text

    def settle(
        self, value: Any, *, key: str | None = None, returns: Any = None, hint: Any = None
    ) -> tuple[Encoded, Any]:
        """The stored form, and the value that it gives back: fresh, and what a resumed run will see.

        Raises:
            OutputNotStorable: as for ``encode``, and when the value is not what ``returns`` says.
        """
        text = _scalar_text(value) if type(value) in _IMMUTABLE else None
        if text is not None and returns is None and len(text) * 4 <= self.max_bytes:
            return Encoded("json", text), value
        if returns is None and type(value) in _FLAT:
            text = flat_text(value)
            if text is not None and len(text) <= self.max_bytes:
                return Encoded("json", text), quick_loads(text)
        encoded = self.encode(value, key=key, returns=returns, hint=hint)
        try:
            return encoded, self.decode(encoded.format, encoded.text, returns=returns, hint=hint)
        except StoredValueUnreadable as error:
            kind, reason, todo = error._parts
            place = self._failing_place(encoded, self._knowing(returns, hint))
            raise OutputNotStorable(
                key=key, path=place, type=kind, reason=f"it could not be given back: {reason}", hint=todo, result=value
            ) from error

    def decode(self, format: str, text: str, *, returns: Any = None, hint: Any = None) -> Any:
        """The value of a stored text, each time a new object.

        Raises:
            StoredValueUnreadable: not JSON, a class or codec that is missing, or not what ``returns`` says.
        """
        if format == "json":
            value = _load(text)
        elif format == "tagged":
            from agent_resume.codec_decode import Decoder

            value = _load(text, Decoder(self._by_name, self._knowing(returns, hint)).restore)
        else:
            raise StoredValueUnreadable(
                type="value", reason=f"its format {format!r} is not known", hint="upgrade agent-resume"
            )
        if returns is None:
            return value
        from agent_resume.codec_returns import conform

        return conform(value, returns, text if format == "json" else None)

    def _failing_place(self, encoded: Encoded, known: Known) -> str:
        """The innermost part of a stored value that cannot be given back."""
        from agent_resume.codec_refusals import path_text

        path: list[Any] = []
        stored = json_value(encoded.format, encoded.text)
        while True:
            parts: Any = (
                stored.items() if isinstance(stored, dict) else enumerate(stored) if isinstance(stored, list) else ()
            )
            broken = next((part for part in parts if self._is_broken(part[1], known)), None)
            if broken is None:
                return path_text(path)
            if not (isinstance(stored, dict) and "$type" in stored):
                path.append(broken[0])
            stored = broken[1]

    def _is_broken(self, stored: Any, known: Known) -> bool:
        from agent_resume.codec_decode import Decoder

        if not isinstance(stored, (dict, list)):
            return False
        try:
            _load(dumps(stored), Decoder(self._by_name, known).restore)
        except StoredValueUnreadable:
            return True
        return False

    def decode_tagged(self, text: str, *, returns: Any = None) -> Any:
        """The value of a column without a format beside it."""
        return self.decode("tagged" if _TAG_TEXT in text else "json", text, returns=returns)

    def digest(self, value: Any) -> str:
        """32 hexadecimal digits that equal values of equal types share, in every process.

        Order in dicts and sets does not count; what cannot be stored counts by the name of its type. Never raises for
        a value, and never uses up an iterator.
        """
        return hashlib.sha256(self._canonical(value).encode("utf-8", "backslashreplace")).hexdigest()[:32]

    def _canonical(self, value: Any) -> str:
        if (
            type(value) is list
            and (text := flat_text(value)) is not None
            and _TAG_TEXT not in text
            and "\x7f" not in text
        ):
            return text  # in ASCII, nothing to be escaped in it, and without keys to sort: the same
        try:
            if is_plain(value, limit=self.max_bytes):
                text = dumps_canonical(value)
                if _TAG_TEXT not in text:
                    return text
        except (ValueError, TypeError, RecursionError, RuntimeError, TooLarge):
            pass
        encoder = self._encoder(self._known, lenient=True)
        try:
            return encoder.text(value)
        except Exception:  # noqa: BLE001 - a digest never fails, whatever the value does
            return f"opaque {type(value).__qualname__}"

    def _knowing(self, returns: Any, hint: Any) -> Known:
        if returns is None and hint is None:
            return self._known
        return Known(self._classes, (returns, hint))

    def _encoder(self, known: Known, *, lenient: bool = False) -> Encoder:
        from agent_resume.codec_encode import Encoder

        return Encoder(self._codecs, self._fallback, known, limit=self.max_bytes, lenient=lenient)

    def _encode(self, value: Any, key: str | None, returns: Any, hint: Any, *, escaped: bool = False) -> Encoded:
        format = "json"
        try:
            text = self._plain_text(value)
            if text is None or (escaped and _TAG_TEXT in text):
                format, text = self._tagged_text(value, key, self._knowing(returns, hint))
        except TooLarge:
            raise self._too_large(value, key, "many more bytes") from None
        if len(text) * 4 > self.max_bytes:
            size = utf8_size(text)
            if size > self.max_bytes:
                raise self._too_large(value, key, f"{size:,} bytes")
        return Encoded(format, text)

    def _plain_text(self, value: Any) -> str | None:
        """Plain JSON of ``value``, or None when it needs tags, or a closer look at why not."""
        if type(value) in _IMMUTABLE:
            return _scalar_text(value)
        try:
            if not is_plain(value, limit=self.max_bytes):
                return None
            text = dumps(value)
        except (ValueError, TypeError, RecursionError, RuntimeError):
            # A cycle, or another thread is changing it.
            return None
        return text if is_encodable(text) else None

    def _tagged_text(self, value: Any, key: str | None, known: Known) -> tuple[str, str]:
        from agent_resume.codec_refusals import Refused

        encoder = self._encoder(known)
        try:
            text = encoder.text(value)
        except Refused as refused:
            raise self._not_storable(refused, encoder, value, key) from refused.__cause__
        return ("tagged" if encoder.tagged else "json"), text

    def _too_large(self, value: Any, key: str | None, size: str) -> OutputNotStorable:
        return OutputNotStorable(
            key=key,
            path="$",
            type=type(value).__name__,
            reason=f"its text has {size}, the limit is {self.max_bytes:,} bytes",
            hint="write it to a file and return the path, or raise the limit: Store(max_output_bytes=…)",
            result=value,
        )

    def _not_storable(self, refused: Refused, encoder: Encoder, value: Any, key: str | None) -> OutputNotStorable:
        from agent_resume.codec_refusals import path_text

        return OutputNotStorable(
            key=key,
            path=path_text(encoder.path),
            type=refused.kind,
            reason=refused.refusal.reason,
            hint=refused.refusal.hint,
            result=value,
        )


def _scalar_text(value: Any) -> str | None:
    """JSON of a scalar that is exactly what JSON says, else None."""
    kind = type(value)
    if kind is str:
        return encode_basestring(value) if is_encodable(value) else None
    if kind is int:
        return int.__repr__(value) if INT_MIN <= value <= INT_MAX else None
    if kind is float:
        return float.__repr__(value) if isfinite(value) else None
    return "null" if value is None else "true" if value else "false"


def _load(text: str, hook: Any = None) -> Any:
    if hook is None:
        try:
            return quick_loads(text)
        except (ValueError, TypeError):
            pass  # deep, loosely written (imported) or broken: the long way tells which
    try:
        return loads(text, hook)
    except (ValueError, TypeError, RecursionError) as error:
        reason = f"its text is not JSON that agent-resume wrote: {type(error).__name__}"
        raise StoredValueUnreadable(
            type="value", reason=reason, hint="run the step again: agent-resume rerun"
        ) from error


def json_value(format: str, text: str) -> Any:
    """The stored JSON for display: tags stay as they are, nothing is restored and nothing imported."""
    try:
        return loads(text)
    except (ValueError, TypeError, RecursionError):
        return text


#: The rules without anything of the user's own.
DEFAULT = Codec()
