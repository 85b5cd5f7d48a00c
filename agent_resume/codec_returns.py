"""``returns=``: it finds the class and checks the value; the stored type leads."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from agent_resume.codec_refusals import type_name
from agent_resume.errors import StoredValueUnreadable


def conform(value: Any, returns: Any, json_text: str | None) -> Any:
    """``value`` when it is what ``returns`` says; plain JSON that describes it is built into it.

    Args:
        value: the decoded value.
        returns: an annotation.
        json_text: the stored text when it was plain JSON (the answer to a wait, another tool's record), else None.

    Raises:
        StoredValueUnreadable: it is not, and cannot be built.
    """
    if returns is Any or returns is object or type(value) is returns or returns is type(value):
        return value
    try:
        adapter = _adapter(returns)
    except TypeError:
        # An annotation that cannot be a key.
        adapter = _adapter.__wrapped__(returns)
    if adapter is None:
        return _of_class(value, returns)
    from pydantic import PydanticUserError, ValidationError

    try:
        strict = adapter.validate_python(value, strict=True)
    except PydanticUserError:
        # A name in the annotation that is not defined, which shows only now.
        return _of_class(value, returns)
    except ValidationError as error:
        if json_text is None:
            raise _mismatch(value, returns, "it is of another type") from _without_values(error)
    else:
        # What validation made of it may be bent (3 to 3.0, a subclass to its base): the stored value leads, unless
        # it is plain JSON that stands for an object.
        if json_text is None or _same(strict, value) or type(strict).__module__.startswith("pydantic_core"):
            return value
    built = _built(adapter, returns, json_text, value)
    return value if _same(built, value) else built


def _built(adapter: Any, returns: Any, json_text: str, value: Any) -> Any:
    from pydantic import ValidationError

    try:
        # "5" is no int, though a text of JSON may stand for a date and an array for a set.
        built = adapter.validate_json(json_text, strict=True)
    except ValidationError as error:
        built = _by_own_rules(adapter, json_text, value)
        if built is None:
            raise _mismatch(value, returns, "the stored JSON does not fit it") from _without_values(error)
    if _loses(built, value):
        raise _mismatch(value, returns, "its sets would lose members")
    return built


def _by_own_rules(adapter: Any, json_text: str, value: Any) -> Any:
    """What is built loosely, as the fields of models may want it; None where anything outside of objects was bent."""
    from pydantic import ValidationError

    try:
        built = adapter.validate_json(json_text)
    except ValidationError:
        return None
    return built if _bends_objects_only(built, value) else None


def _bends_objects_only(built: Any, value: Any) -> bool:
    if isinstance(value, dict) and not isinstance(built, dict):
        return True
    if isinstance(value, dict):
        return built.keys() == value.keys() and all(_bends_objects_only(built[name], value[name]) for name in value)
    if isinstance(value, list) and isinstance(built, (list, tuple)):
        return len(built) == len(value) and all(map(_bends_objects_only, built, value))
    return _same(built, value)


def _loses(built: Any, value: Any) -> bool:
    """Whether a set was built from an array that has some member twice."""
    if isinstance(built, (set, frozenset)):
        return len(built) != len(value)
    if isinstance(built, dict):
        return any(_loses(item, value.get(name)) for name, item in built.items())
    return isinstance(built, (list, tuple)) and any(map(_loses, built, value))


def _same(built: Any, value: Any) -> bool:
    try:
        return bool(built == value)
    except Exception:  # noqa: BLE001 - a class's own comparison may raise anything
        return False


@lru_cache(maxsize=256)
def _adapter(returns: Any) -> Any:
    """A validator, or None for annotations that pydantic cannot make one of."""
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(returns)
    except Exception:  # noqa: BLE001 - annotations are code and may raise anything
        return None


def _of_class(value: Any, returns: Any) -> Any:
    """``value``, checked only by its class: all that can be done for annotations that pydantic does not know."""
    try:
        fits = not isinstance(returns, type) or isinstance(value, returns)
    except TypeError:
        # Such as a TypedDict, which is no class to be an instance of.
        fits = True
    if not fits:
        raise _mismatch(value, returns, "it is of another type")
    return value


def _without_values(error: Any) -> Exception:
    """The places and kinds of a validation error; its own text carries the values."""
    lines = [f"{'.'.join(map(str, item['loc'])) or '$'}: {item['type']}" for item in error.errors(include_input=False)]
    return ValueError("; ".join(lines[:10]))


def _mismatch(value: Any, returns: Any, reason: str) -> StoredValueUnreadable:
    wanted = type_name(returns) if isinstance(returns, type) else str(returns)
    return StoredValueUnreadable(
        type=type_name(type(value)),
        reason=f"returns= says {wanted}, and {reason}",
        hint="make returns= fit what the step returns, or run the step again: agent-resume rerun",
    )
