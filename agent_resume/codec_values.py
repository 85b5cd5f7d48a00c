"""The extension point: how the user's own types are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: What ``Store(codecs=[…])`` takes: codecs, classes to be found by name, and the word ``"pickle"``.
PICKLE = "pickle"


@dataclass(frozen=True, slots=True)
class ValueCodec:
    """How values of one type are written and read.

    ``encode`` may return anything that can itself be stored: plain data, tuples, bytes, dataclasses, values with
    codecs of their own. The name is stored with each value, so it must stay what it is; a value whose codec is not
    registered when it is read raises ``StoredValueUnreadable``. Subclasses of ``type`` use the codec too, but only
    where ``decode`` gives the subclass back.

    Attributes:
        name: what the stored value says about itself.
        type: the type that is kept.
        encode: from a value to storable data.
        decode: from that data to an equal value.
    """

    name: str
    type: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def pickle_codec(*types: type) -> list[ValueCodec]:
    """Codecs that keep values of these types by ``pickle``.

    Danger: reading a pickle runs whatever code its bytes name. Use it only where nobody else can write the database.

    Example:
        Store(codecs=[*pickle_codec(numpy.ndarray)])
    """
    return [ValueCodec(f"pickle:{kind.__module__}:{kind.__qualname__}", kind, _pickled, _unpickled) for kind in types]


def pickle_fallback() -> ValueCodec:
    """The codec behind ``codecs=["pickle"]``: everything that would be refused is pickled. See ``pickle_codec``."""
    return ValueCodec(PICKLE, object, _pickled, _unpickled)


def _pickled(value: Any) -> bytes:
    import pickle

    return pickle.dumps(value, protocol=5)


def _unpickled(data: bytes) -> Any:
    import pickle

    # Only reached with the codec that the user asked for by name.
    return pickle.loads(data)
