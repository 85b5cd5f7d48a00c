"""What a step's result says about the model that made it, so that nobody has to write it down by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Names that the common model SDKs use for the same two numbers.
_INPUT = ("input_tokens", "prompt_tokens", "inputTokens", "request_tokens", "prompt_token_count")
_OUTPUT = ("output_tokens", "completion_tokens", "outputTokens", "response_tokens", "candidates_token_count")

_SILENT = frozenset({str, int, float, bool, list, type(None)})


def usage_of(value: Any) -> dict[str, Any]:
    """``inputTokens``, ``outputTokens`` and ``model`` of a result that carries ``usage``; empty for any other.

    Objects and dicts are looked at alike. Never raises: a property may do anything.
    """
    if type(value) in _SILENT or (type(value) is dict and "usage" not in value):
        return {}
    try:
        usage = _get(value, "usage")
        if callable(usage):
            usage = usage()
        if usage is None:
            return {}
        found: dict[str, Any] = {}
        for name, spellings in (("inputTokens", _INPUT), ("outputTokens", _OUTPUT)):
            number = next((n for n in (_get(usage, spelling) for spelling in spellings) if _is_count(n)), None)
            if number is not None:
                found[name] = number
        model = _get(value, "model")
        if found and isinstance(model, str):
            found["model"] = str(model)
    except Exception:  # noqa: BLE001 - a result's own properties ran; what they do is not the step's failure
        return {}
    return found


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def merged(value: Any, meta: dict[str, Any] | None) -> dict[str, Any] | None:
    """The meta to store: what the caller gave, completed by what the result says; None when neither says anything."""
    if type(value) in _SILENT or (type(value) is dict and "usage" not in value):
        return meta
    found = usage_of(value)
    if not found:
        return meta
    return {**found, **(meta or {})}
