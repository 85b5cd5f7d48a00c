"""Why a value cannot be stored, and what its owner can do about it. Texts name types and places, never values."""

from __future__ import annotations

import io
import json
import types
from typing import Any, NamedTuple

from agent_resume import redact
from agent_resume.codec_plain import MAX_DEPTH

_GENERIC = "return plain data, a dataclass or a pydantic model, or give a ValueCodec for it: Store(codecs=[…])"


class Refusal(NamedTuple):
    """Why, and what to do."""

    reason: str
    hint: str


class Refused(Exception):
    """A value inside the one being encoded cannot be kept; the codec turns this into ``OutputNotStorable``."""

    def __init__(self, kind: str, refusal: Refusal) -> None:
        super().__init__(kind)
        self.kind = kind
        self.refusal = refusal


def type_name(kind: type) -> str:
    """``int64``-like short name for builtins, else dotted; survives classes that lie about theirs."""
    try:
        module = type.__getattribute__(kind, "__module__")
        name = type.__getattribute__(kind, "__qualname__")
    except Exception:  # noqa: BLE001 - a metaclass may do anything
        return "object"
    if module in ("builtins", None) or not isinstance(module, str):
        return str(name)
    return f"{module}.{name}"


def explain(value: object) -> Refusal:
    """The refusal that fits a value of a type that nothing can keep."""
    for kinds, refusal in _BY_TYPE:
        if isinstance_safely(value, kinds):
            return refusal
    name = type_name(type(value))
    by_package = _BY_PACKAGE.get(name.rpartition(".")[0]) or _BY_PACKAGE.get(name.partition(".")[0])
    if by_package is not None:
        return by_package
    if callable(value):
        return Refusal("it is code, not data", "return what it computes, or its name")
    if hasattr_safely(value, "__await__"):
        return _AWAITABLE
    if hasattr_safely(value, "__aiter__"):
        return _ASYNC_ITERATOR
    if hasattr_safely(value, "__next__"):
        return _ITERATOR
    if hasattr_safely(value, "read") or hasattr_safely(value, "fileno"):
        return _OPEN
    return Refusal("its type has no known way to be kept and given back equal", _GENERIC)


def isinstance_safely(value: object, kinds: Any) -> bool:
    """``isinstance`` by the real type: a proxy's ``__class__`` may run anything."""
    return issubclass(type(value), kinds)


def hasattr_safely(value: object, name: str) -> bool:
    """Whether the type has the attribute; instances are not asked, their ``__getattr__`` may run anything."""
    return any(name in vars(kind) for kind in type(value).__mro__)


_ITERATOR = Refusal(
    "it is an iterator: keeping it would use it up, and what it still holds is unknown",
    "collect it inside the step: return list(…)",
)
_ASYNC_ITERATOR = Refusal(
    "it is an async iterator: keeping it would use it up",
    "collect it inside the step: return [item async for item in …]",
)
_AWAITABLE = Refusal(
    "it has not been awaited, so there is no result yet",
    "await it inside the step, or use the async form: await run.step(…) of an AsyncRun",
)
_OPEN = Refusal(
    "it is open: a file, stream or connection ends with the process",
    "read it inside the step and return the content, or return its path",
)
_SOCKET = Refusal("it is an open socket and ends with the process", "return the data that was received")
_LOCK = Refusal(
    "locks and threads exist only in this process", "leave it out of the result and make it where it is used"
)
_QUEUE = Refusal("queues exist only in this process", "take out what it holds, and return list(…) of that")
_ARRAY = Refusal(
    "arrays are kept only through a codec",
    'return x.tolist() (scalars: x.item()), or Store(codecs=[ValueCodec("ndarray", numpy.ndarray, '
    "lambda a: [a.dtype.str, a.tolist()], lambda v: numpy.array(v[1], dtype=v[0]))])",
)
_FRAME = Refusal(
    "data frames are kept only through a codec",
    'return df.to_dict("records"), or write it to a file and return its path, or give a ValueCodec: Store(codecs=[…])',
)
_TENSOR = Refusal(
    "tensors are kept only through a codec",
    "return x.tolist(), or save it to a file and return its path, or give a ValueCodec: Store(codecs=[…])",
)

_BY_TYPE: tuple[tuple[Any, Refusal], ...] = (
    (
        types.GeneratorType,
        Refusal("it is a generator: keeping it would use it up", "collect it inside the step: return list(…)"),
    ),
    (types.AsyncGeneratorType, Refusal("it is an async generator: keeping it would use it up", _ASYNC_ITERATOR.hint)),
    (types.CoroutineType, _AWAITABLE),
    (io.IOBase, _OPEN),
    (types.ModuleType, Refusal("it is a module", "return its name")),
    (type, Refusal("it is a class, not data", "return its name, or an instance of it")),
    (
        (types.FunctionType, types.BuiltinFunctionType, types.MethodType),
        Refusal("it is code, not data", "return what it computes, or its name"),
    ),
    (memoryview, Refusal("it is a view of another object's memory", "return bytes(…)")),
    (types.MappingProxyType, Refusal("it is a view of another dict", "return dict(…)")),
    ((type({}.keys()), type({}.values()), type({}.items())), Refusal("it is a view of a dict", "return list(…)")),
    (types.TracebackType, Refusal("it is a traceback", "return traceback.format_exc()")),
    (types.FrameType, Refusal("it is a stack frame", "return the text that is needed from it")),
)

_BY_PACKAGE: dict[str, Refusal] = {
    "numpy": _ARRAY,
    "pandas": _FRAME,
    "polars": _FRAME,
    "pyarrow": _FRAME,
    "torch": _TENSOR,
    "tensorflow": _TENSOR,
    "jax": _TENSOR,
    "jaxlib": _TENSOR,
    "_thread": _LOCK,
    "threading": _LOCK,
    "queue": _QUEUE,
    "_queue": _QUEUE,
    "multiprocessing": _LOCK,
    "asyncio.locks": _LOCK,
    "asyncio.queues": _QUEUE,
    "asyncio": _AWAITABLE,
    "_asyncio": _AWAITABLE,
    "socket": _SOCKET,
    "_socket": _SOCKET,
    "weakref": Refusal("it is a weak reference", "return what it refers to"),
    "sqlite3": _OPEN,
    "_contextvars": Refusal("it is a context variable", "return its value: variable.get()"),
    "subprocess": Refusal("it is a process and ends by itself", "return its output and exit code"),
}

TOO_DEEP = Refusal(f"nested more than {MAX_DEPTH} levels deep", "flatten it, or write it to a file and return its path")

_LONGEST_PART = 60
_MOST_PARTS = 24


def path_text(parts: list[Any]) -> str:
    """``$.items[3].client``; what looks like a credential in a key is masked."""
    text = "$"
    if len(parts) > _MOST_PARTS:
        parts = [*parts[: _MOST_PARTS - 4], Ellipsis, *parts[-3:]]
    for part in parts:
        if part is Ellipsis:
            text += "…"
        elif isinstance(part, int):
            text += f"[{part}]"
        elif part is not None:
            shown = redact.DEFAULT.text(str(part))
            shown = shown if len(shown) <= _LONGEST_PART else f"{shown[:_LONGEST_PART]}…"
            if getattr(part, "bare", False) or shown.startswith("<"):
                text += f"[{shown}]"
            elif shown.isidentifier():
                text += f".{shown}"
            else:
                text += f"[{json.dumps(shown)}]"
    return text
