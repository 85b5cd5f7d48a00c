"""Objects of known sorts, written field by field and built again without running their constructors."""

from __future__ import annotations

import collections
import functools
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

from agent_resume import codec_exceptions
from agent_resume.codec_classes import builtin_base, class_name, kind_of, slot_names
from agent_resume.codec_refusals import Refusal, Refused
from agent_resume.codec_types import stored_class
from agent_resume.codec_writer import Writer

_FACTORIES: tuple[type, ...] = (
    list, dict, set, int, float, str, bool, tuple, frozenset, bytes, complex,
    collections.OrderedDict, collections.Counter, collections.deque,
)  # fmt: skip
#: Names of what a defaultdict may make.
FACTORIES: dict[str, type] = {kind.__name__: kind for kind in _FACTORIES}
# Bookkeeping that instances carry beside their data: what a generic alias leaves, and attrs' cached hash.
_NOT_DATA = frozenset({"__orig_class__", "_attrs_cached_hash"})


def encode(writer: Writer, value: Any, kind: type) -> bool:
    """Write ``value`` when its type is of a known sort.

    Returns:
        Whether it was.

    Raises:
        Refused: known, but not to be kept.
    """
    collection = _COLLECTIONS.get(kind)
    if collection is not None:
        collection(writer, value)
        return True
    if kind is type(getattr(sys.modules.get("msgspec"), "UNSET", None)) and value is not None:
        writer.write_tag("msgspec.UNSET", None)
        return True
    if kind.__module__ == "pydantic.networks" and hasattr(kind, "_constraints"):
        return _encode_url(writer, value, kind)
    sort = kind_of(kind)
    if sort is None:
        return False
    if sort == "exception":
        codec_exceptions.encode(writer, value)
        return True
    name = stored_class(kind, writer.known, lenient=writer.lenient)
    _BY_SORT[sort](writer, value, kind, name)
    return True


def _encode_url(writer: Writer, value: Any, kind: type) -> bool:
    if kind(str(value)) != value:
        return False
    writer.write_tag("pydantic.url", str(value), **{"class": class_name(kind)})
    return True


# Collections


def _ordered(writer: Writer, value: Any) -> None:
    writer.open_tag("OrderedDict")
    writer.pairs(value.items(), ordered=True)
    writer.write("}")


def _counter(writer: Writer, value: Any) -> None:
    writer.open_tag("Counter")
    writer.pairs(value.items())
    writer.write("}")


def _defaultdict(writer: Writer, value: Any) -> None:
    factory = value.default_factory
    if factory is None:
        writer.open_tag("defaultdict", factory=None)
    elif isinstance(factory, type) and FACTORIES.get(factory.__name__) is factory:
        writer.open_tag("defaultdict", factory=factory.__name__)
    else:
        reason = "its default_factory is code of the program's own"
        raise Refused("defaultdict", Refusal(reason, "return dict(…) of it, or use a built-in factory such as list"))
    writer.pairs(value.items())
    writer.write("}")


def _deque(writer: Writer, value: Any) -> None:
    writer.open_tag("deque", maxlen=value.maxlen)
    writer.sequence(value)
    writer.write("}")


def _namespace(writer: Writer, value: Any) -> None:
    writer.open_tag("namespace")
    writer.mapping(vars(value))
    writer.write("}")


_COLLECTIONS: dict[type, Callable[[Writer, Any], None]] = {
    collections.OrderedDict: _ordered,
    collections.Counter: _counter,
    collections.defaultdict: _defaultdict,
    collections.deque: _deque,
    types.SimpleNamespace: _namespace,
}


# Objects


def attributes(value: Any, kind: type, without: Iterable[str] = ()) -> dict[str, Any]:
    """What an instance holds beside its fields; cached properties are computed again when they are wanted."""
    held: dict[str, Any] = {}
    for name in slot_names(kind):
        try:
            held[name] = object.__getattribute__(value, name)
        except AttributeError:
            continue
    held.update(getattr(value, "__dict__", None) or {})
    for name in (*without, *_NOT_DATA):
        held.pop(name, None)
    return {name: item for name, item in held.items() if not _is_cached_property(kind, name)}


def _is_cached_property(kind: type, name: str) -> bool:
    return any(isinstance(vars(step).get(name), functools.cached_property) for step in kind.__mro__)


def write_attributes(writer: Writer, held: dict[str, Any]) -> None:
    """Write the member ``attributes`` where there are any."""
    if held:
        writer.member("attributes")
        writer.mapping(held)


def _encode_fields(writer: Writer, value: Any, kind: type, name: Any, sort: str, names: tuple[str, ...]) -> None:
    fields: dict[str, Any] = {}
    for field in names:
        try:
            fields[field] = object.__getattribute__(value, field)
        except AttributeError:
            # A field with init=False that nothing has set yet.
            continue
    writer.open_tag(sort, **{"class": name})
    writer.mapping(fields)
    write_attributes(writer, attributes(value, kind, names))
    writer.write("}")


def field_names(kind: type, sort: str) -> tuple[str, ...]:
    """Names of the fields of a dataclass, attrs class or msgspec Struct."""
    if sort == "dataclass":
        import dataclasses

        return tuple(field.name for field in dataclasses.fields(kind))
    if sort == "attrs":
        return tuple(field.name for field in kind.__attrs_attrs__)  # type: ignore[attr-defined]
    return tuple(kind.__struct_fields__)  # type: ignore[attr-defined]


def _encode_dataclass(writer: Writer, value: Any, kind: type, name: Any) -> None:
    _encode_fields(writer, value, kind, name, "dataclass", field_names(kind, "dataclass"))


def _encode_attrs(writer: Writer, value: Any, kind: type, name: Any) -> None:
    _encode_fields(writer, value, kind, name, "attrs", field_names(kind, "attrs"))


def _encode_struct(writer: Writer, value: Any, kind: type, name: Any) -> None:
    _encode_fields(writer, value, kind, name, "struct", field_names(kind, "struct"))


def _encode_namedtuple(writer: Writer, value: Any, kind: type, name: Any) -> None:
    fields = kind._fields  # type: ignore[attr-defined]
    writer.open_tag("namedtuple", **{"class": name})
    writer.mapping(dict(zip(fields, tuple.__iter__(value), strict=True)))
    write_attributes(writer, attributes(value, kind, fields))
    writer.write("}")


def _encode_enum(writer: Writer, value: Any, kind: Any, name: Any) -> None:
    member = value._name_
    writer.open_tag("enum", **{"class": name})
    if isinstance(member, str) and kind._member_map_.get(member) is value:
        writer.walk(member, "name")
    else:
        # A combination of flags has no name of its own.
        writer.write("null")
        writer.member("of")
        writer.walk(value._value_, "value")
    writer.write("}")


def _encode_pydantic(writer: Writer, value: Any, kind: Any, name: Any) -> None:
    held = dict(vars(value))
    fields = {field: held.pop(field) for field in kind.model_fields if field in held}
    writer.open_tag("pydantic", **{"class": name})
    writer.mapping(fields)
    known = set(value.__pydantic_fields_set__)
    if known != set(fields) | set(value.__pydantic_extra__ or ()):
        writer.member("set")
        writer.sequence(sorted(known))
    if value.__pydantic_extra__ is not None:
        writer.member("extra")
        writer.mapping(value.__pydantic_extra__)
    private = getattr(value, "__pydantic_private__", None)
    if private is not None:
        writer.member("private")
        writer.mapping({key: item for key, item in private.items() if type(item).__name__ != "PydanticUndefinedType"})
    write_attributes(writer, {key: item for key, item in held.items() if not _is_cached_property(kind, key)})
    writer.write("}")


def _encode_subclass(writer: Writer, value: Any, kind: type, name: Any) -> None:
    base: Any = builtin_base(kind)
    writer.open_tag("subclass", base=base.__name__, **{"class": name})
    if issubclass(base, dict):
        writer.walk(dict(dict.items(value)), None)
    elif base is str:
        writer.walk(str.__str__(value) if type(value) is str else str.__add__("", value), None)
    elif base in (int, float, complex):
        writer.walk(base.__pos__(value), None)
    else:
        writer.walk(base(base.__iter__(value)), None)
    write_attributes(writer, attributes(value, kind))
    writer.write("}")


_BY_SORT: dict[str, Callable[[Writer, Any, type, Any], None]] = {
    "dataclass": _encode_dataclass,
    "attrs": _encode_attrs,
    "struct": _encode_struct,
    "namedtuple": _encode_namedtuple,
    "enum": _encode_enum,
    "pydantic": _encode_pydantic,
    "subclass": _encode_subclass,
}
