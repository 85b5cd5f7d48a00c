"""Classes by name: how they are written down, and how they are found again without importing anything."""

from __future__ import annotations

import enum
import functools
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_LOCAL = "<locals>"
# The module that runs as a program has one name in it and another in the children that multiprocessing spawns.
_MAINS = ("__main__", "__mp_main__")
_REDUCED_PACKAGES = ("pydantic_ai",)
_BUILTIN_BASES = (dict, list, tuple, set, frozenset, str, int, float, bytes, bytearray, complex)
# Bookkeeping that instances carry beside their data: what a generic alias leaves, and attrs' cached hash.
_NOT_DATA = frozenset({"__orig_class__", "_attrs_cached_hash"})
# Stands for ":" in the name of a class that is nowhere but in its own module.
_ONLY_THERE = "::"


def kind_of(cls: type) -> str | None:
    """Which sort of class with known parts this is: the only ones that a stored name may build."""
    if issubclass(cls, enum.Enum):
        return "enum"
    if issubclass(cls, BaseException):
        return "exception"
    if is_pydantic(cls):
        return "pydantic"
    if "__dataclass_fields__" in _all_names(cls) and not issubclass(cls, _BUILTIN_BASES):
        return "dataclass"
    if "__attrs_attrs__" in _all_names(cls) and not issubclass(cls, _BUILTIN_BASES):
        return "attrs"
    struct = getattr(sys.modules.get("msgspec"), "Struct", None)
    if struct is not None and issubclass(cls, struct):
        return "struct"
    if issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple):
        return "namedtuple"
    if cls not in _BUILTIN_BASES and issubclass(cls, _BUILTIN_BASES):
        return "subclass" if is_simple_subclass(cls) else "reduced" if _is_reduced(cls) else None
    return None


def _is_reduced(cls: type) -> bool:
    """Whether ``cls`` is made again by calling it with what its ``__reduce_ex__`` says.

    Calling what a stored name says is near to pickle: only for the packages that need it for their results.
    """
    return cls.__module__.partition(".")[0] in _REDUCED_PACKAGES


def is_pydantic(cls: type) -> bool:
    """Whether ``cls`` is a pydantic (2) model, without importing pydantic to ask."""
    base = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    return base is not None and issubclass(cls, base)


def builtin_base(cls: type) -> type:
    """The built-in container or scalar that ``cls`` extends."""
    return next(base for base in _BUILTIN_BASES if issubclass(cls, base))


def is_simple_subclass(cls: type) -> bool:
    """Whether all there is to an instance is its built-in part and its attributes.

    A class that says itself how it is copied, or that is written in C, may have more.
    """
    base = builtin_base(cls)
    for step in cls.__mro__:
        if step in (base, object):
            continue
        if step.__module__ == "typing" and step.__name__ == "Generic":
            continue
        if not step.__flags__ & (1 << 9) or step.__module__ in ("builtins", "collections"):
            return False
        if vars(step).keys() & {"__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs_ex__"}:
            return False
    return True


def _all_names(cls: type) -> set[str]:
    return {name for step in cls.__mro__ for name in vars(step)}


def class_name(cls: type) -> str:
    """``package.module:Outer.Inner``."""
    module = cls.__module__
    return f"{'__main__' if module in _MAINS else module}:{cls.__qualname__}"


def plain_name(stored: str) -> str:
    """A stored name as ``class_name`` writes it."""
    return stored.replace(_ONLY_THERE, ":", 1)


def from_loaded(name: str) -> type | None:
    """The class of that name in a module that the program has imported; nothing is run to find it."""
    module_name, _, qualname = name.partition(":")
    for candidate in _MAINS if module_name in _MAINS else (module_name,):
        found: object = sys.modules.get(candidate)
        for part in qualname.split("."):
            # Read from __dict__: a module's own __getattr__ may import, and that would be code by a stored name.
            names = getattr(found, "__dict__", None) if isinstance(found, (types.ModuleType, type)) else None
            found = names.get(part) if isinstance(names, (dict, types.MappingProxyType)) else None
        if isinstance(found, type):
            return found
    return None


class Known:
    """Classes that the caller gave, by registry, ``returns=`` or annotation: the first place to look."""

    def __init__(self, classes: Iterable[type] = (), annotations: Iterable[Any] = ()) -> None:
        self._classes = tuple(classes)
        self._annotations = tuple(annotation for annotation in annotations if annotation is not None)
        self._names: dict[str, type | None] | None = None

    def find(self, stored: str) -> type | None:
        """The class of that stored name, else None.

        A class that has moved to another module is found by its qualified name alone, but only among the given, only
        where one of them has it, and not where it belonged to another of them when the value was stored.
        """
        names = self._given()
        name = plain_name(stored)
        found = names.get(name) or from_loaded(name)
        if found is None and stored == name:
            found = names.get(name.partition(":")[2])
        if found is None and self._annotations:
            # A subclass that was made after its base had been looked through.
            for annotation in map(resolved, self._annotations):
                found = found or _names(classes_in(annotation)).get(name)
        return found

    def name(self, cls: type) -> str | None:
        """The name by which a later process that is given the same finds exactly ``cls``; None when there is none."""
        name = class_name(cls)
        if self.find(name) is not cls:
            return None
        # Without its module, the name must not lead to a class that merely shares it.
        alike = self._given().get(cls.__qualname__, cls)
        return name if alike is cls else name.replace(":", _ONLY_THERE, 1)

    def _given(self) -> dict[str, type | None]:
        if self._names is None:
            self._names = _names(self._classes)
            for annotation in map(resolved, self._annotations):
                _merge(self._names, _annotated(annotation))
        return self._names


def _annotated(annotation: Any) -> dict[str, type | None]:
    """Names of the classes in an annotation, remembered where it can be a key."""
    try:
        return _annotated_once(annotation)
    except TypeError:
        return _names(classes_in(annotation))


@functools.lru_cache(maxsize=256)
def _annotated_once(annotation: Any) -> dict[str, type | None]:
    return _names(classes_in(annotation))


def _names(classes: Iterable[type]) -> dict[str, type | None]:
    """Classes by their names, and by their qualified names alone: None where several share it."""
    names: dict[str, type | None] = {}
    for cls in classes:
        _merge(names, {class_name(cls): cls, cls.__qualname__: cls})
    return names


def _merge(names: dict[str, type | None], more: Mapping[str, type | None]) -> None:
    for name, cls in more.items():
        if names.setdefault(name, cls) is not cls and ":" not in name:
            names[name] = None


def resolved(annotation: Any) -> Any:
    """The annotation itself, or of a function its return annotation; None when it cannot be evaluated."""
    if isinstance(annotation, type) or not callable(annotation) or typing.get_origin(annotation) is not None:
        return annotation
    inner = annotation
    while hasattr(inner, "func"):
        inner = inner.func
    function = getattr(inner, "__func__", inner)
    if not isinstance(function, types.FunctionType):
        function = next((vars(step)["__call__"] for step in type(inner).__mro__ if "__call__" in vars(step)), None)
    try:
        return typing.get_type_hints(function).get("return")
    except Exception:  # noqa: BLE001 - annotations are code and may raise anything
        return None


def classes_in(annotation: Any) -> list[type]:
    """Every class that ``annotation`` names, those of their fields and their subclasses included."""
    found: dict[type, None] = {}
    pending = [annotation]
    for _ in range(100_000):
        if not pending:
            break
        item = pending.pop()
        if isinstance(item, type) and typing.get_origin(item) is None:
            if item not in found and item.__module__ not in ("builtins", "typing"):
                found[item] = None
                pending.extend(_neighbours(item))
        else:
            pending.extend(_arguments(item))
    return list(found)


def _arguments(annotation: Any) -> Iterator[Any]:
    origin = typing.get_origin(annotation)
    if origin is not None and origin is not typing.Literal:
        yield origin
        yield from typing.get_args(annotation)
    elif isinstance(annotation, (list, tuple)):
        yield from annotation
    else:
        # ``type X = …`` and NewType: what stands behind the name.
        behind = getattr(annotation, "__value__", None) or getattr(annotation, "__supertype__", None)
        if behind is not None:
            yield behind


def _neighbours(cls: type) -> list[Any]:
    if kind_of(cls) is None:
        return []
    # Everything extends the bases that packages bring; only subclasses of a class of the user's are meant by it.
    roots = ("builtins", "enum", "pydantic", "msgspec", "pydantic.main")
    hints: list[Any] = [] if cls.__module__ in roots else list(type.__subclasses__(cls))
    fields = getattr(cls, "model_fields", None) if is_pydantic(cls) else None
    if isinstance(fields, Mapping):
        hints.extend(field.annotation for field in fields.values())
        hints.append(getattr(cls, "__pydantic_generic_metadata__", {}).get("origin"))
        hints.extend(getattr(cls, "__pydantic_generic_metadata__", {}).get("args", ()))
        return hints
    try:
        hints.extend(typing.get_type_hints(cls).values())
    except Exception:  # noqa: BLE001 - annotations are code and may raise anything
        # Annotations that name what does not exist at run time: those that are classes already still help.
        hints.extend(hint for step in cls.__mro__ for hint in vars(step).get("__annotations__", {}).values())
    return hints


@functools.lru_cache(maxsize=4096)
def slot_names(cls: type) -> tuple[str, ...]:
    """Names of the attributes that instances keep outside their ``__dict__``."""
    names: list[str] = []
    for step in cls.__mro__:
        slots = vars(step).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if name in ("__dict__", "__weakref__"):
                continue
            private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{step.__name__.lstrip('_')}{name}" if private else name)
    return tuple(names)


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
