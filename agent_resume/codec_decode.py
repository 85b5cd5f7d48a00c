"""Tagged JSON back to values. A stored name never imports anything; see ``codec_classes``."""

from __future__ import annotations

import collections
import copy
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from agent_resume import codec_exceptions, codec_scalars, failure
from agent_resume.codec_classes import Known, builtin_base, kind_of, plain_name, slot_names
from agent_resume.codec_objects import FACTORIES, field_names
from agent_resume.codec_scalars import TAG
from agent_resume.codec_types import decode_type
from agent_resume.codec_values import PICKLE, ValueCodec
from agent_resume.errors import StoredValueUnreadable

_MISSING: Any = object()


class Decoder:
    """Restores the tags of one text, innermost first.

    Args:
        codecs: the registered codecs by name.
        known: where classes are looked for.
    """

    def __init__(self, codecs: Mapping[str, ValueCodec], known: Known) -> None:
        self._codecs = codecs
        self._known = known

    def restore(self, stored: dict[str, Any]) -> Any:
        """The value of one JSON object, whose members are restored already.

        Raises:
            StoredValueUnreadable: its class or codec is not to be had, or does not fit any more.
        """
        kind = stored.get(TAG, _MISSING)
        if kind is _MISSING:
            return stored
        scalar = codec_scalars.DECODE.get(kind) if isinstance(kind, str) else None
        try:
            if scalar is not None:
                return scalar(stored)
            return _DECODE[kind](self, stored)
        except (StoredValueUnreadable, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - raised again as what it means here
            name = stored.get("class")
            what = name if isinstance(name, str) else f"codec {stored.get('name')!r}" if kind == "codec" else str(kind)
            raise StoredValueUnreadable(
                type=what,
                reason=f"{type(error).__name__} while it was built",
                hint=f"{'mend its decode' if kind == 'codec' else 'restore the class as it was'}, "
                "or run the step again: agent-resume rerun",
            ) from (error if kind == "codec" else None)  # the texts of our own parsers quote the stored value

    def find(self, name: Any, sort: str | None = None) -> Any:
        """The class of a stored name.

        Raises:
            StoredValueUnreadable: it is not loaded, or is of another sort.
        """
        if not isinstance(name, str):
            return decode_type(name, self.find)
        found = self._known.find(name)
        name = plain_name(name)
        if found is None:
            module, _, qualname = name.partition(":")
            raise StoredValueUnreadable(
                type=name,
                reason="its class is not in any module that the program has imported",
                hint=f"import {module} before the run, pass returns={qualname.rpartition('.')[2]}, "
                f"or name it: Store(codecs=[{qualname.rpartition('.')[2]}])",
            )
        if sort is not None and kind_of(found) != sort:
            raise StoredValueUnreadable(
                type=name,
                reason=f"it was a {sort} and is a {kind_of(found) or 'class of another sort'} now",
                hint="restore the class as it was, or run the step again: agent-resume rerun",
            )
        return found

    def codec(self, stored: dict[str, Any]) -> Any:
        """A value of the user's own codec."""
        name = stored["name"]
        codec = self._codecs.get(name)
        if codec is None:
            how = 'Store(codecs=["pickle"])' if name == PICKLE else f"Store(codecs=[…]) with the codec named {name!r}"
            raise StoredValueUnreadable(
                type=name, reason="its codec is not registered", hint=f"open the store with {how}"
            )
        return codec.decode(stored["value"])


def _dict(_: Decoder, stored: dict[str, Any]) -> dict[Any, Any]:
    return dict(stored["value"])


def _defaultdict(_: Decoder, stored: dict[str, Any]) -> Any:
    factory = stored["factory"]
    return collections.defaultdict(None if factory is None else FACTORIES[factory], _dict(_, stored))


def _counter(_: Decoder, stored: dict[str, Any]) -> Any:
    counter: collections.Counter[Any] = collections.Counter()
    dict.update(counter, _dict(_, stored))
    return _set_attributes(counter, stored)


def _ordered(_: Decoder, stored: dict[str, Any]) -> Any:
    return _set_attributes(collections.OrderedDict(stored["value"]), stored)


def _unset(_: Decoder, stored: dict[str, Any]) -> Any:
    return sys.modules["msgspec"].UNSET


def _url(decoder: Decoder, stored: dict[str, Any]) -> Any:
    cls = decoder.find(stored["class"])
    if cls.__module__ != "pydantic.networks":
        raise TypeError("not a URL class")
    return cls(stored["value"])


# Objects


def _set_attributes(value: Any, stored: dict[str, Any]) -> Any:
    for name, item in stored.get("attributes", {}).items():
        object.__setattr__(value, name, item)
    return value


def _fields(decoder: Decoder, stored: dict[str, Any]) -> Any:
    sort = stored[TAG]
    cls = decoder.find(stored["class"], sort)
    fields: dict[str, Any] = stored["value"]
    declared = field_names(cls, sort)
    _no_strangers(stored["class"], fields, declared)
    if sort == "struct":
        return _struct(cls, fields, stored.get("attributes", {}))
    value = object.__new__(cls)
    for name, item in fields.items():
        object.__setattr__(value, name, item)
    for name in declared:
        if name not in fields:
            default = _default(cls, name, sort)
            if default is not _MISSING:
                object.__setattr__(value, name, default)
    if sort == "attrs" and "_attrs_cached_hash" in {slot for step in cls.__mro__ for slot in vars(step)}:
        object.__setattr__(value, "_attrs_cached_hash", None)
    return _set_attributes(value, stored)


def _no_strangers(name: Any, fields: Mapping[str, Any], declared: Any) -> None:
    strangers = [field for field in fields if field not in declared]
    if strangers:
        raise StoredValueUnreadable(
            type=str(name),
            reason=f"it was stored with the field {strangers[0]!r}, which the class has no more",
            hint="give the field back, or run the step again: agent-resume rerun",
        )


def _default(cls: Any, name: str, sort: str) -> Any:
    """What a field that was added since, or never set, starts with; missing when it was simply not set."""
    if sort == "dataclass":
        import dataclasses

        field = next(field for field in dataclasses.fields(cls) if field.name == name)
        if field.default is not dataclasses.MISSING:
            return field.default
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        if not field.init:
            return _MISSING
    else:
        given: Any = next(given for given in cls.__attrs_attrs__ if given.name == name)
        if not given.init:
            return _MISSING
        factory = getattr(given.default, "factory", None)
        if factory is not None and not given.default.takes_self:
            return factory()
        if factory is None and repr(given.default) != "NOTHING":
            return given.default
    raise _without(cls.__qualname__, name)


def _without(cls: Any, name: str) -> StoredValueUnreadable:
    return StoredValueUnreadable(
        type=str(cls),
        reason=f"it was stored without the field {name!r}, which has no default",
        hint="give the field a default, or run the step again: agent-resume rerun",
    )


def _struct(cls: Any, fields: dict[str, Any], held: dict[str, Any]) -> Any:
    from msgspec.structs import force_setattr

    # There is no way round __post_init__: it gets copies to work on, and what it has set is set back.
    value = cls(**(copy.deepcopy(fields) if hasattr(cls, "__post_init__") else fields))
    getattr(value, "__dict__", {}).clear()
    for name, item in (*fields.items(), *held.items()):
        force_setattr(value, name, item)
    return value


def _namedtuple(decoder: Decoder, stored: dict[str, Any]) -> Any:
    cls = decoder.find(stored["class"], "namedtuple")
    fields: dict[str, Any] = stored["value"]
    _no_strangers(stored["class"], fields, cls._fields)
    values = [fields[name] if name in fields else cls._field_defaults[name] for name in cls._fields]
    return _set_attributes(tuple.__new__(cls, values), stored)


def _enum(decoder: Decoder, stored: dict[str, Any]) -> Any:
    cls = decoder.find(stored["class"], "enum")
    name = stored["value"]
    if name is None:
        return cls(stored["of"])
    if name not in cls._member_map_:
        raise StoredValueUnreadable(
            type=str(stored["class"]),
            reason=f"it has no member {name!r} any more",
            hint="give the member back, or run the step again: agent-resume rerun",
        )
    return cls._member_map_[name]


def _pydantic(decoder: Decoder, stored: dict[str, Any]) -> Any:
    cls = decoder.find(stored["class"], None)
    if kind_of(cls) != "pydantic":
        raise TypeError("not a pydantic model")
    fields: dict[str, Any] = stored["value"]
    _no_strangers(stored["class"], fields, cls.model_fields)
    extra = stored.get("extra")
    known = set(stored.get("set", [*fields, *(extra or ())]))
    for name, field in cls.model_fields.items():
        if name in fields:
            continue
        if not field.is_required():
            fields[name] = field.get_default(call_default_factory=True, validated_data=dict(fields))
        elif name not in stored.get("unset", ()):
            raise _without(stored["class"], name)
    ordered = {name: fields[name] for name in cls.model_fields if name in fields}
    value = cls.__new__(cls)
    held: dict[str, Any] = stored.get("attributes", {})
    slots = slot_names(cls)
    object.__setattr__(value, "__dict__", ordered | {name: item for name, item in held.items() if name not in slots})
    for name in held.keys() & set(slots):
        object.__setattr__(value, name, held[name])
    object.__setattr__(value, "__pydantic_fields_set__", known)
    if not getattr(cls, "__pydantic_root_model__", False):
        # A root model has neither, and would take them for attributes.
        object.__setattr__(value, "__pydantic_extra__", _extra(cls, stored))
        object.__setattr__(value, "__pydantic_private__", _private(cls, stored.get("private")))
    return value


def _extra(cls: Any, stored: dict[str, Any]) -> dict[str, Any] | None:
    extra: dict[str, Any] | None = stored.get("extra")
    if cls.model_config.get("extra") == "allow":
        return {} if extra is None else extra
    _no_strangers(stored["class"], extra or {}, ())
    return None


def _private(cls: Any, held: dict[str, Any] | None) -> dict[str, Any] | None:
    """What was stored, and the defaults of private attributes that were added since."""
    made = {
        name: private.get_default() for name, private in cls.__private_attributes__.items() if name not in (held or ())
    }
    made = {name: item for name, item in made.items() if type(item).__name__ != "PydanticUndefinedType"}
    return {**made, **(held or {})} if made or held is not None else None


def _subclass(decoder: Decoder, stored: dict[str, Any]) -> Any:
    cls = decoder.find(stored["class"], "subclass")
    base: Any = builtin_base(cls)
    if base.__name__ != stored["base"]:
        raise TypeError("another base")
    inner = stored["value"]
    if base in (dict, list, set, bytearray):
        value = base.__new__(cls)
        base.__init__(value, inner)
    else:
        value = base.__new__(cls, inner)
    return _set_attributes(value, stored)


def _exception(decoder: Decoder, stored: dict[str, Any]) -> Any:
    cls = decoder.find(stored["class"], "exception")
    return failure.instance(cls, stored["value"], stored.get("attributes", {}))


def _reduced(decoder: Decoder, stored: dict[str, Any]) -> Any:
    return decoder.find(stored["class"], "reduced")(*stored["value"])


_DECODE: dict[Any, Callable[[Decoder, dict[str, Any]], Any]] = {
    "dict": _dict,
    "tuple": lambda _, stored: tuple(stored["value"]),
    "set": lambda _, stored: set(stored["value"]),
    "frozenset": lambda _, stored: frozenset(stored["value"]),
    "OrderedDict": _ordered,
    "Counter": _counter,
    "defaultdict": _defaultdict,
    "deque": lambda _, stored: collections.deque(stored["value"], stored["maxlen"]),
    "namespace": lambda _, stored: types.SimpleNamespace(**stored["value"]),
    "msgspec.UNSET": _unset,
    "pydantic.url": _url,
    "codec": Decoder.codec,
    "dataclass": _fields,
    "attrs": _fields,
    "struct": _fields,
    "namedtuple": _namedtuple,
    "enum": _enum,
    "pydantic": _pydantic,
    "subclass": _subclass,
    "reduced": _reduced,
    "exception": _exception,
    "exception-text": lambda _, stored: codec_exceptions.StoredException(*stored["value"]),
}
