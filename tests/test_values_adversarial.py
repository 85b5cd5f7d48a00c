"""Values that break serializers, each with what happens to it: how it is kept, or where and why it is refused."""

from __future__ import annotations

import array
import asyncio
import collections
import contextlib
import contextvars
import datetime as dt
import decimal
import enum
import functools
import io
import ipaddress
import itertools
import json
import math
import os
import pathlib
import queue
import re
import socket
import struct
import sys
import threading
import types
import typing
import uuid
import weakref
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent_resume.codec import DEFAULT, MAX_DEPTH
from agent_resume.errors import OutputNotStorable

SECRET = "sk-test-1234567890"


class Colour(enum.Enum):
    RED = 1


class Shade(enum.Enum):
    SAME = 1
    ALIAS = 1  # noqa: PIE796 - an alias is what this is about


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


@dataclass
class Account:
    name: str
    client: Any = None
    total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.total += 1


class Number(int):
    pass


class Reduced(dict):
    def __reduce__(self) -> Any:
        return (dict, ())


class Slotted:
    __slots__ = ("x",)


class Proxy:
    """Lies about its class, as lazy proxies do."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError(SECRET)


class Exploding:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(SECRET)


class ZoneOfTheirOwn(dt.tzinfo):
    def utcoffset(self, _: Any) -> dt.timedelta:
        return dt.timedelta(hours=1)


def nested(levels: int, wrap: Callable[[Any], Any] = lambda item: [item]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


def tokyo_as_oslo() -> dt.tzinfo:
    rules = struct.pack(">4s16x6L l2B4s", b"TZif", 0, 0, 0, 0, 1, 4, 9 * 3600, 0, 0, b"JST\0")
    return zoneinfo.ZoneInfo.from_file(io.BytesIO(rules), key="Europe/Oslo")


def cyclic_list() -> Any:
    value: list[Any] = [1]
    value.append({"back": value})
    return value


def branching_cycle() -> Any:
    value: list[Any] = []
    value.extend([value, value])
    return value


def cyclic_account() -> Any:
    account = Account("a")
    account.client = {"owner": account}
    return account


def exploding_lists() -> Any:
    return nested(60, lambda item: [item, item])


async def never_awaited() -> None:
    pass


def coroutine() -> Any:
    made = never_awaited()
    made.close()
    return made


async def numbers() -> Any:
    yield 1


def local_class() -> Any:
    @dataclass
    class Local:
        x: int

    return Local(1)


JSON, TAGGED = "json", "tagged"

# name, value, how it is stored
KEPT: list[tuple[str, Any, str]] = [
    ("none", None, JSON),
    ("false", False, JSON),
    ("zero", 0, JSON),
    ("empty text", "", JSON),
    ("empty list", [], JSON),
    ("empty dict", {}, JSON),
    ("minus zero", -0.0, JSON),
    ("smallest float", 5e-324, JSON),
    ("largest float", sys.float_info.max, JSON),
    ("float that looks like an int", 1e22, JSON),
    ("largest 64-bit int", 2**63 - 1, JSON),
    ("smallest 64-bit int", -(2**63), JSON),
    ("int of 2**63", 2**63, TAGGED),
    ("int of 2**63, in a list", {"n": [1, 2**63]}, TAGGED),
    ("int below 64 bits, in a list", [-(2**63) - 1], TAGGED),
    ("int beyond the digits limit", 10**5000 + 1, TAGGED),
    ("negative int beyond the digits limit", -(10**5000), TAGGED),
    ("nan", {"loss": math.nan}, TAGGED),
    ("negative nan", -math.nan, TAGGED),
    ("infinities", [math.inf, -math.inf], TAGGED),
    ("1 beside '1'", {1: "x", "1": "y", None: "n", "null": "m", (1, 2): "t"}, TAGGED),
    ("bool and float keys", {False: 0, 2.5: 1}, TAGGED),
    ("tag-like dict", {"$type": "tuple", "value": [1]}, JSON),
    ("tag-like dict beside a tuple", [{"$type": "tuple", "value": [1]}, (1,)], TAGGED),
    ("tag in a tag-like dict", {"$type": {"$type": ("$type",)}}, TAGGED),
    ("lone surrogate", "ok " + chr(0xDC81), TAGGED),
    ("surrogate pair in two halves", chr(0xD83D) + chr(0xDE00), TAGGED),
    ("surrogate and backslashes", "\\udc81 \\\\ " + chr(0xDC81), TAGGED),
    ("surrogate as key", {chr(0xD800): 1}, TAGGED),
    ("nul", "a\0b", JSON),
    ("nul as key", {"\0": 1}, JSON),
    ("emoji, line separators, bidi", "😀\u2028\u2029\u0085\u202e\ufeff\uffff", JSON),
    ("nfc and nfd keys", {"caf\u00e9": 1, "cafe\u0301": 2}, JSON),
    ("text that looks like json", '{"$type":"tuple"}', JSON),
    ("tuple", (1, 2), TAGGED),
    ("empty tuple", (), TAGGED),
    ("set of mixed types", {1, "1", (1,), None}, TAGGED),
    ("bytes of every kind", bytes(range(256)), TAGGED),
    ("empty bytearray", bytearray(), TAGGED),
    ("datetime in a fold", dt.datetime(2026, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1), TAGGED),
    ("datetime in a gap", dt.datetime(2026, 3, 29, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")), TAGGED),
    ("naive datetime with a fold", dt.datetime(2026, 1, 1, fold=1), TAGGED),
    ("offset with seconds", dt.datetime(1900, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=-12345))), TAGGED),
    ("first and last moment", [dt.datetime.min, dt.datetime.max.replace(tzinfo=dt.UTC)], TAGGED),
    ("time with a zone of rules", dt.time(1, 2, tzinfo=zoneinfo.ZoneInfo("Asia/Kolkata")), TAGGED),
    ("longest durations", [dt.timedelta.min, dt.timedelta.max, dt.timedelta(microseconds=-1)], TAGGED),
    ("zones", [dt.UTC, zoneinfo.ZoneInfo("UTC"), dt.timezone(dt.timedelta(hours=1), "X")], TAGGED),
    ("decimals", [decimal.Decimal("1.10"), decimal.Decimal("-0E+5"), decimal.Decimal("1E+999999")], TAGGED),
    ("decimal longer than the context", decimal.Decimal("1." + "3" * 60), TAGGED),
    ("uuid", uuid.UUID(int=1), TAGGED),
    ("path that is not utf-8", pathlib.Path(os.fsdecode(b"/tmp/\xff")), TAGGED),
    ("windows path", pathlib.PureWindowsPath("C:\\x\\y"), TAGGED),
    ("enum alias", Shade.ALIAS, TAGGED),
    ("flags together", Access.READ | Access.WRITE, TAGGED),
    ("flags with a bit nobody named", Access(8), TAGGED),
    ("enum as key", {Colour.RED: Colour.RED}, TAGGED),
    ("complex with minus zero", complex(-0.0, math.inf), TAGGED),
    ("range with big ends", range(0, 10**30, 7), TAGGED),
    ("slice", slice(None, 3, None), TAGGED),
    ("int subclass", Number(7), TAGGED),
    ("ordered dict", collections.OrderedDict([("b", 1), ("a", 2)]), TAGGED),
    ("counter with negative and no int counts", collections.Counter({"a": -1, "b": 2.5}), TAGGED),
    ("deque that is full", collections.deque([1, 2, 3], maxlen=3), TAGGED),
    ("defaultdict", collections.defaultdict(list, {1: [2]}), TAGGED),
    ("field set after init", Account("a"), TAGGED),
    ("nested to the limit", nested(MAX_DEPTH), JSON),
    ("dicts nested to the limit", nested(MAX_DEPTH, lambda item: {"k": item}), JSON),
    ("tuples nested to the limit", nested(MAX_DEPTH, lambda item: (item,)), TAGGED),
    ("odd keys nested to the limit", nested(MAX_DEPTH, lambda item: {1: item}), TAGGED),
    ("one list many times", [[1, 2]] * 1000, JSON),
    ("one dict on many levels", {"a": (shared := {"x": [1]}), "b": [shared, [shared]]}, JSON),
    ("two levels of sharing", nested(12, lambda item: [item, item]), JSON),
    ("very long text", "x" * 1_000_000, JSON),
    ("long key", {"k" * 100_000: 1}, JSON),
]


def shown(value: Any) -> Any:
    """What tells apart even 1 and True, 0.0 and -0.0; sets have no order of their own, huge ints no decimal text."""
    if isinstance(value, set):
        return sorted(map(repr, value))
    return hex(value) if type(value) is int else repr(value)


@pytest.mark.parametrize(("value", "stored"), [pytest.param(*rest, id=name) for name, *rest in KEPT])
def test_a_hostile_value_is_kept(value: Any, stored: str) -> None:
    encoded, fresh = DEFAULT.settle(value)
    assert encoded.format == stored
    encoded.text.encode()
    json.loads(encoded.text, parse_constant=pytest.fail)
    assert type(fresh) is type(value)
    assert shown(fresh) == shown(value)
    assert DEFAULT.encode(fresh) == encoded
    assert shown(DEFAULT.decode_tagged(DEFAULT.encode_tagged(value))) == shown(value)


# name, how to make the value, where, type, a word of the reason, a word of the advice
REFUSED: list[tuple[str, Callable[[], Any], str, str, str, str]] = [
    ("object", object, "$", "object", "no known way", "ValueCodec"),
    (
        "client deep inside",
        lambda: {"items": [1, 2, 3, {"client": io.StringIO()}]},
        "$.items[3].client",
        "_io.StringIO",
        "open",
        "read it",
    ),
    (
        "client in a dataclass",
        lambda: [Account("a", client=threading.Lock())],
        "$[0].client",
        "_thread.lock",
        "process",
        "leave it out",
    ),
    ("generator", lambda: (x for x in range(3)), "$", "generator", "generator", "list("),
    ("generator in a tuple", lambda: (1, (x for x in "ab")), "$[1]", "generator", "use it up", "list("),
    ("async generator", numbers, "$", "async_generator", "async generator", "async for"),
    ("coroutine", coroutine, "$", "coroutine", "not been awaited", "await it"),
    ("future", lambda: asyncio.Future(loop=asyncio.new_event_loop()), "$", "_asyncio.Future", "awaited", "await it"),
    ("map object", lambda: map(str, [1]), "$", "map", "iterator", "list("),
    ("zip object", lambda: {"z": zip([1], [2], strict=True)}, "$.z", "zip", "iterator", "list("),
    ("itertools", lambda: itertools.count(), "$", "itertools.count", "iterator", "list("),
    ("list iterator", lambda: iter([1]), "$", "list_iterator", "iterator", "list("),
    ("dict keys", lambda: {"a": 1}.keys(), "$", "dict_keys", "view", "list("),
    ("mapping proxy", lambda: types.MappingProxyType({}), "$", "mappingproxy", "view", "dict("),
    ("memoryview", lambda: memoryview(b"x"), "$", "memoryview", "memory", "bytes("),
    ("open file", pathlib.Path(os.devnull).open, "$", "_io.TextIOWrapper", "open", "path"),
    ("binary buffer", lambda: io.BytesIO(b"x"), "$", "_io.BytesIO", "open", "content"),
    ("lock", threading.Lock, "$", "_thread.lock", "this process", "leave it out"),
    ("condition", threading.Condition, "$", "threading.Condition", "this process", "leave it out"),
    ("thread-local", threading.local, "$", "_thread._local", "this process", "leave it out"),
    ("asyncio lock", asyncio.Lock, "$", "asyncio.locks.Lock", "this process", "leave it out"),
    ("asyncio event", asyncio.Event, "$", "asyncio.locks.Event", "this process", "leave it out"),
    ("asyncio queue", asyncio.Queue, "$", "asyncio.queues.Queue", "this process", "list("),
    ("queue", queue.SimpleQueue, "$", "_queue.SimpleQueue", "this process", "list("),
    ("socket", socket.socket, "$", "socket.socket", "socket", "data that was received"),
    ("module", lambda: sys, "$", "module", "module", "name"),
    ("function", lambda: len, "$", "builtin_function_or_method", "code", "computes"),
    ("lambda in a dict", lambda: {"f": lambda: 1}, "$.f", "function", "code", "computes"),
    ("bound method", lambda: [].append, "$", "builtin_function_or_method", "code", "computes"),
    ("partial", lambda: functools.partial(print), "$", "functools.partial", "code", "computes"),
    ("class", lambda: [Account], "$[0]", "type", "class", "name"),
    ("generic alias", lambda: list[int], "$", "types.GenericAlias", "", ""),
    ("type variable", lambda: typing.TypeVar("T"), "$", "typing.TypeVar", "", ""),
    ("weak reference", lambda: weakref.ref(Account), "$", "weakref.ReferenceType", "weak", "refers"),
    ("context variable", lambda: contextvars.ContextVar("x"), "$", "_contextvars.ContextVar", "context", "get()"),
    ("regular expression match", lambda: re.match("a", "a"), "$", "re.Match", "", ""),
    ("array", lambda: array.array("i", [1]), "$", "array.array", "", ""),
    ("ellipsis", lambda: ..., "$", "ellipsis", "", ""),
    ("slots without fields", Slotted, "$", "test_values_adversarial.Slotted", "no known way", "dataclass"),
    ("proxy that lies about its class", Proxy, "$", "test_values_adversarial.Proxy", "no known way", ""),
    ("object whose attributes explode", Exploding, "$", "test_values_adversarial.Exploding", "no known way", ""),
    (
        "time zone of their own",
        lambda: dt.datetime(2026, 1, 1, tzinfo=ZoneOfTheirOwn()),
        "$",
        "test_values_adversarial.ZoneOfTheirOwn",
        "time zone",
        "astimezone",
    ),
    (
        "time zone read from a file under another's key",
        lambda: [dt.datetime(2026, 1, 1, tzinfo=tokyo_as_oslo())],
        "$[0]",
        "zoneinfo.ZoneInfo",
        "time zone",
        "astimezone",
    ),
    (
        "surrogate in the name of a time zone",
        lambda: [dt.timezone(dt.timedelta(hours=1), "\udc81")],
        "$[0]",
        "timezone",
        "surrogate",
        "without",
    ),
    (
        "surrogate in the scope of an address",
        lambda: {"ip": ipaddress.IPv6Address("fe80::1%\udc81")},
        "$.ip",
        "IPv6Address",
        "surrogate",
        "without",
    ),
    (
        "defaultdict of a lambda",
        lambda: collections.defaultdict(lambda: 0),
        "$",
        "defaultdict",
        "default_factory",
        "dict(",
    ),
    ("dict subclass with its own pickling", lambda: Reduced(a=1), "$", "test_values_adversarial.Reduced", "", ""),
    ("chain map", lambda: collections.ChainMap({}), "$", "collections.ChainMap", "", ""),
    (
        "class in a function",
        local_class,
        "$",
        "test_values_adversarial.local_class.<locals>.Local",
        "found again",
        "returns=",
    ),
    ("list in itself", cyclic_list, "$[1].back", "list", "itself", "cycles"),
    ("branching cycle", branching_cycle, "$[0]", "list", "itself", "cycles"),
    ("dataclass in itself", cyclic_account, "$.client.owner", "test_values_adversarial.Account", "itself", "cycles"),
    ("one level too deep", lambda: nested(MAX_DEPTH + 1), "$", "list", "levels deep", "flatten"),
    ("far too deep", lambda: nested(100_000), "$", "list", "levels deep", "flatten"),
    ("far too deep, tuples", lambda: nested(100_000, lambda item: (item,)), "$", "tuple", "levels deep", "flatten"),
    ("lists that explode", exploding_lists, "$", "list", "limit", "path"),
    ("context manager", contextlib.nullcontext, "$", "contextlib.nullcontext", "", ""),
    ("object as key", lambda: {Colour: 1}, "$[<enum.EnumType>]", "enum.EnumType", "class", "name"),
    ("lock in a set", lambda: {threading.Lock()}, "$[{…}]", "_thread.lock", "this process", ""),
]


@pytest.mark.parametrize(
    ("make", "path", "kind", "reason", "advice"), [pytest.param(*rest, id=name) for name, *rest in REFUSED]
)
def test_a_hostile_value_is_refused_with_its_place(
    make: Callable[[], Any], path: str, kind: str, reason: str, advice: str
) -> None:
    value = make()
    try:
        with pytest.raises(OutputNotStorable) as caught:
            DEFAULT.encode(value, key="my step")
        # The digest of the same value counts it by its type and does not complain.
        assert len(DEFAULT.digest(value)) == 32
    finally:
        close(value)
    error = caught.value
    assert "…" in error.path if "deep" in reason else error.path == path
    assert error.type.removeprefix("tests.") == kind
    assert reason in error.reason
    assert advice in str(error)
    assert "'my step'" in str(error)
    assert error.result is value
    assert SECRET not in str(error)


def close(value: Any) -> None:
    if issubclass(type(value), asyncio.Future):
        value.get_loop().close()
    elif issubclass(type(value), (io.IOBase, socket.socket)):
        value.close()


def test_the_lists_are_as_long_as_promised() -> None:
    assert len(KEPT) + len(REFUSED) >= 120
