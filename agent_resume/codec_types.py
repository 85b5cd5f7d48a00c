"""Types as JSON: the arguments of a generic pydantic model, ``Page[Item]``, must be found again with it."""

from __future__ import annotations

import functools
import operator
import types
import typing
from collections.abc import Callable
from typing import Any

from agent_resume.codec_classes import Known, class_name
from agent_resume.codec_refusals import Refusal, Refused, type_name

# How the types that are no classes are written; the first spelling is the one that is read.
_SPECIAL: tuple[tuple[Any, str | None], ...] = ((type(None), None), (None, "None"), (Any, "Any"), (Ellipsis, "..."))
_HINT = "give the annotation: run.step(…, returns=…), or make the arguments plain classes"
_BUILTIN: dict[str, Any] = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, bytearray, list, dict, tuple, set, frozenset, object)
}
# ``List`` beside ``list``: equal in meaning, but a model that is parametrised with one is another class.
_ALIASES = {f"typing.{name}": alias for name, alias in vars(typing).items() if typing.get_origin(alias) is not None}


def encode_type(annotation: Any, known: Known) -> Any:
    """JSON of a type argument.

    Raises:
        Refused: a type that could not be found again.
    """
    for special, name in _SPECIAL:
        if annotation is special:
            return name
    origin, args = _generic(annotation)
    if origin is None:
        return _encode_class(annotation, known)
    if origin is typing.Literal and all(type(item) in (str, int, bool, type(None)) for item in args):
        return {"of": "Literal", "args": list(args)}
    alias = f"typing.{getattr(annotation, '_name', None)}"
    if origin in (typing.Union, types.UnionType):
        of = "|" if type(annotation) is types.UnionType else "Union"
    elif typing.get_origin(_ALIASES.get(alias)) is origin:
        of = alias
    else:
        of = _encode_class(origin, known)
    return {"of": of, "args": [encode_type(item, known) for item in args]}


def _generic(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    metadata = getattr(annotation, "__pydantic_generic_metadata__", None)
    if metadata and metadata["origin"] is not None:
        return metadata["origin"], metadata["args"]
    return typing.get_origin(annotation), typing.get_args(annotation)


def _encode_class(annotation: Any, known: Known) -> str:
    if isinstance(annotation, type):
        name = annotation.__name__
        if name in _BUILTIN and _BUILTIN[name] is annotation:
            return name
        found = known.name(annotation)
        if found is not None:
            return found
    raise Refused(type_name(type(annotation)), Refusal("a type argument that cannot be found again by name", _HINT))


def decode_type(stored: Any, find: Callable[[str], type]) -> Any:
    """The type of its JSON; ``find`` raises where a class is missing."""
    if isinstance(stored, str) or stored is None:
        for special, name in _SPECIAL:
            if stored == name:
                return special
        return _BUILTIN.get(str(stored)) or find(str(stored))
    if stored["of"] == "Literal":
        return typing.Literal[tuple(stored["args"])]
    args = tuple(decode_type(item, find) for item in stored["args"])
    if stored["of"] == "|":
        return functools.reduce(operator.or_, args)
    if stored["of"] == "Union":
        return typing.Union[args]  # noqa: UP007 - built at run time
    origin = _ALIASES.get(stored["of"]) if isinstance(stored["of"], str) else None
    if origin is None:
        origin = decode_type(stored["of"], find)
    return origin[args if len(args) != 1 else args[0]]


def stored_class(kind: type, known: Known, *, lenient: bool) -> Any:
    """What a tag says about the class: its name, or for a parametrised generic model origin and arguments.

    Raises:
        Refused: no later process could find the class.
    """
    metadata = getattr(kind, "__pydantic_generic_metadata__", None)
    if metadata and metadata["origin"] is not None:
        return _stored_generic(kind, known, lenient=lenient)
    name = class_name(kind) if lenient else known.name(kind)
    if name is not None:
        return name
    reason = "its class cannot be found again by its name"
    hint = "define it at the top level of a module, pass returns=, or name it: Store(codecs=[TheClass])"
    raise Refused(type_name(kind), Refusal(reason, hint))


def _stored_generic(kind: type, known: Known, *, lenient: bool) -> Any:
    stored = encode_type(kind, known)
    if lenient or decode_type(stored, lambda name: known.find(name) or object) is kind:
        return stored
    raise Refused(type_name(kind), Refusal("its type arguments would give back another class", _HINT))
