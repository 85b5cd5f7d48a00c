"""Objects of known sorts, written field by field and built again without running their constructors."""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Callable
from typing import Any

from agent_resume import codec_exceptions
from agent_resume.codec_classes import attributes, builtin_base, class_name, kind_of
from agent_resume.codec_refusals import Refusal, Refused, type_name
from agent_resume.codec_types import stored_class
from agent_resume.codec_writer import Steps, Writer

_FACTORIES: tuple[type, ...] = (
    list, dict, set, int, float, str, bool, tuple, frozenset, bytes, complex,
    collections.OrderedDict, collections.Counter, collections.deque,
)  # fmt: skip
#: Names of what a defaultdict may make.
FACTORIES: dict[str, type] = {kind.__name__: kind for kind in _FACTORIES}
# Slots of every model, each with a member of its own.
_OF_PYDANTIC = ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")


def encode(writer: Writer, value: Any, kind: type) -> Steps | None:
    """The writer of ``value`` when its type is of a known sort, else None.

    Raises:
        Refused: known, but its class could not be found again.
    """
    collection = _COLLECTIONS.get(kind)
    if collection is not None:
        return collection(writer, value)
    if value is getattr(sys.modules.get("msgspec"), "UNSET", writer):
        return _unset(writer)
    if kind.__module__ == "pydantic.networks" and hasattr(kind, "_constraints"):
        return _url(writer, value, kind)
    sort = kind_of(kind)
    if sort is None:
        return None
    if sort == "exception":
        return codec_exceptions.encode(writer, value)
    return _BY_SORT[sort](writer, value, kind, stored_class(kind, writer.known, lenient=writer.lenient))


def _unset(writer: Writer) -> Steps:
    writer.write_tag("msgspec.UNSET", None)
    return iter(())


def _url(writer: Writer, value: Any, kind: type) -> Steps:
    if kind(str(value)) != value:
        raise Refused(type_name(kind), Refusal("its text does not give it back", "return str(…) of it"))
    writer.write_tag("pydantic.url", str(value), **{"class": class_name(kind)})
    return iter(())


# Collections


def _ordered(writer: Writer, value: Any) -> Steps:
    writer.open_tag("OrderedDict")
    yield from writer.pairs(value.items(), ordered=True)
    yield from write_attributes(writer, vars(value))
    writer.write("}")


def _counter(writer: Writer, value: Any) -> Steps:
    writer.open_tag("Counter")
    yield from writer.pairs(value.items())
    yield from write_attributes(writer, vars(value))
    writer.write("}")


def _defaultdict(writer: Writer, value: Any) -> Steps:
    factory = value.default_factory
    if factory is None:
        writer.open_tag("defaultdict", factory=None)
    elif isinstance(factory, type) and FACTORIES.get(factory.__name__) is factory:
        writer.open_tag("defaultdict", factory=factory.__name__)
    else:
        reason = "its default_factory is code of the program's own"
        raise Refused("defaultdict", Refusal(reason, "return dict(…) of it, or use a built-in factory such as list"))
    yield from writer.pairs(value.items())
    writer.write("}")


def _deque(writer: Writer, value: Any) -> Steps:
    writer.open_tag("deque", maxlen=value.maxlen)
    yield from writer.sequence(value)
    writer.write("}")


def _namespace(writer: Writer, value: Any) -> Steps:
    writer.open_tag("namespace")
    yield from writer.mapping(vars(value))
    writer.write("}")


_COLLECTIONS: dict[type, Callable[[Writer, Any], Steps]] = {
    collections.OrderedDict: _ordered,
    collections.Counter: _counter,
    collections.defaultdict: _defaultdict,
    collections.deque: _deque,
    types.SimpleNamespace: _namespace,
}


# Objects


def write_attributes(writer: Writer, held: dict[str, Any]) -> Steps:
    """Write the member ``attributes`` where there are any."""
    if held:
        writer.member("attributes")
        yield from writer.mapping(held)


def _encode_fields(writer: Writer, value: Any, kind: type, name: Any, sort: str, names: tuple[str, ...]) -> Steps:
    fields: dict[str, Any] = {}
    for field in names:
        try:
            fields[field] = object.__getattribute__(value, field)
        except AttributeError:
            # A field with init=False that nothing has set yet.
            continue
    writer.open_tag(sort, **{"class": name})
    yield from writer.mapping(fields)
    yield from write_attributes(writer, attributes(value, kind, names))
    writer.write("}")


def field_names(kind: type, sort: str) -> tuple[str, ...]:
    """Names of the fields of a dataclass, attrs class or msgspec Struct."""
    if sort == "dataclass":
        import dataclasses

        return tuple(field.name for field in dataclasses.fields(kind))
    if sort == "attrs":
        return tuple(field.name for field in kind.__attrs_attrs__)  # type: ignore[attr-defined]
    return tuple(kind.__struct_fields__)  # type: ignore[attr-defined]


def _encode_dataclass(writer: Writer, value: Any, kind: type, name: Any) -> Steps:
    return _encode_fields(writer, value, kind, name, "dataclass", field_names(kind, "dataclass"))


def _encode_attrs(writer: Writer, value: Any, kind: type, name: Any) -> Steps:
    return _encode_fields(writer, value, kind, name, "attrs", field_names(kind, "attrs"))


def _encode_struct(writer: Writer, value: Any, kind: type, name: Any) -> Steps:
    return _encode_fields(writer, value, kind, name, "struct", field_names(kind, "struct"))


def _encode_namedtuple(writer: Writer, value: Any, kind: type, name: Any) -> Steps:
    fields = kind._fields  # type: ignore[attr-defined]
    writer.open_tag("namedtuple", **{"class": name})
    yield from writer.mapping(dict(zip(fields, tuple.__iter__(value), strict=True)))
    yield from write_attributes(writer, attributes(value, kind, fields))
    writer.write("}")


def _encode_enum(writer: Writer, value: Any, kind: Any, name: Any) -> Steps:
    member = value._name_
    writer.open_tag("enum", **{"class": name})
    if isinstance(member, str) and kind._member_map_.get(member) is value:
        yield from writer.child(member, "name")
    else:
        # A combination of flags has no name of its own.
        writer.write("null")
        writer.member("of")
        yield from writer.child(value._value_, "value")
    writer.write("}")


def _encode_pydantic(writer: Writer, value: Any, kind: Any, name: Any) -> Steps:
    own = vars(value)
    fields = {field: own[field] for field in kind.model_fields if field in own}
    held = attributes(value, kind, (*fields, *_OF_PYDANTIC))
    writer.open_tag("pydantic", **{"class": name})
    yield from writer.mapping(fields)
    unset = [field for field, info in kind.model_fields.items() if field not in own and info.is_required()]
    if unset:
        writer.member("unset")
        yield from writer.sequence(unset)
    known = set(value.__pydantic_fields_set__)
    if known != set(fields) | set(value.__pydantic_extra__ or ()):
        writer.member("set")
        yield from writer.sequence(sorted(known))
    if value.__pydantic_extra__ is not None:
        writer.member("extra")
        yield from writer.mapping(value.__pydantic_extra__)
    private = getattr(value, "__pydantic_private__", None)
    if private is not None:
        writer.member("private")
        yield from writer.mapping(
            {key: item for key, item in private.items() if type(item).__name__ != "PydanticUndefinedType"}
        )
    yield from write_attributes(writer, held)
    writer.write("}")


def _encode_subclass(writer: Writer, value: Any, kind: type, name: Any) -> Steps:
    base: Any = builtin_base(kind)
    writer.open_tag("subclass", base=base.__name__, **{"class": name})
    if issubclass(base, dict):
        yield from writer.child(dict(dict.items(value)), None)
    elif base is str:
        yield from writer.child(str.__str__(value) if type(value) is str else str.__add__("", value), None)
    elif base in (int, float, complex):
        yield from writer.child(base.__pos__(value), None)
    else:
        yield from writer.child(base(base.__iter__(value)), None)
    yield from write_attributes(writer, attributes(value, kind))
    writer.write("}")


def _encode_reduced(writer: Writer, value: Any, kind: type, name: Any) -> Steps:
    made_by, *rest = value.__reduce_ex__(2)
    if made_by is not kind or len(rest) != 1:
        raise Refused(type_name(kind), Refusal("it has state of its own", "return list(…) or dict(…) of it"))
    writer.open_tag("reduced", **{"class": name})
    yield from writer.sequence(rest[0])
    writer.write("}")


_BY_SORT: dict[str, Callable[[Writer, Any, type, Any], Steps]] = {
    "dataclass": _encode_dataclass,
    "attrs": _encode_attrs,
    "struct": _encode_struct,
    "namedtuple": _encode_namedtuple,
    "enum": _encode_enum,
    "pydantic": _encode_pydantic,
    "subclass": _encode_subclass,
    "reduced": _encode_reduced,
}
