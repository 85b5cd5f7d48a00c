"""What goes in comes out: nested combinations of everything that is kept, equal and of the same types.

``check_round_trip`` takes the way there and back as an argument: ``test_values_stored.py`` sends many more of the same
values through a database.
"""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import ipaddress
import json
import math
import os
import pathlib
import random
import types
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from agent_resume.codec import DEFAULT, json_value

T = TypeVar("T")
IN_CI = bool(os.environ.get("CI")) or os.environ.get("HYPOTHESIS_PROFILE") == "ci"
EXAMPLES = int(os.environ.get("ROUND_TRIP_EXAMPLES") or (10_000 if IN_CI else 300))


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"
    NO = "no"


class Access(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


class Pair(NamedTuple):
    left: Any
    right: Any = None


@dataclass
class Box:
    content: Any
    label: str = "none"
    made: int = field(default=0, init=False)


@dataclass(frozen=True, slots=True)
class Frozen:
    content: Any


class Model(BaseModel):
    model_config = ConfigDict(extra="allow")
    content: Any
    number: float = 1.0
    _secret: Any = PrivateAttr(default=None)


class Page(BaseModel, Generic[T]):
    items: list[T] = Field(default_factory=list, alias="pageItems")


class Text(str):
    pass


class Table(dict):
    pass


def same(left: Any, right: Any) -> bool:  # noqa: C901 - one line a kind
    """Equal and of equal types all the way down; NaN is the same as NaN, and -0.0 is not 0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, (enum.Enum, type(None), bool)):
        return left is right
    if type(left) is float:
        return (
            math.isnan(left)
            and math.isnan(right)
            or (left == right and math.copysign(1, left) == math.copysign(1, right))
        )
    if type(left) is complex:
        return same(left.real, right.real) and same(left.imag, right.imag)
    if type(left) is decimal.Decimal:
        return left.as_tuple() == right.as_tuple()
    if isinstance(left, (dt.datetime, dt.time)):
        return left == right and left.fold == right.fold and repr(left.tzinfo) == repr(right.tzinfo)
    if isinstance(left, dict):
        factories = getattr(left, "default_factory", 0) is getattr(right, "default_factory", 0)
        return factories and same_mappings(left, right) and same_mappings(attributes(left), attributes(right))
    if isinstance(left, (list, tuple, collections.deque)):
        ends = getattr(left, "maxlen", 0) == getattr(right, "maxlen", 0)
        return ends and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, (set, frozenset)):
        return same_sets(left, right)
    if isinstance(left, BaseModel):
        return left.model_fields_set == right.model_fields_set and all(
            same(getattr(left, name), getattr(right, name))
            for name in ("__dict__", "__pydantic_extra__", "__pydantic_private__")
        )
    if is_dataclass(left):
        return all(same(getattr(left, item.name), getattr(right, item.name)) for item in fields(left))
    if isinstance(left, types.SimpleNamespace):
        return same(vars(left), vars(right))
    return bool(left == right)


def attributes(value: Any) -> dict[str, Any]:
    return dict(getattr(value, "__dict__", {}))


def same_mappings(left: dict[Any, Any], right: dict[Any, Any]) -> bool:
    # Order is kept in every dict, though equality does not ask for it.
    pairs = list(zip(left.items(), right.items(), strict=False))
    return len(left) == len(right) and all(same(a, b) and same(x, y) for (a, x), (b, y) in pairs)


def same_sets(left: Any, right: Any) -> bool:
    rest = list(right)
    for item in left:
        place = next((place for place, other in enumerate(rest) if same(item, other)), None)
        if place is None:
            return False
        del rest[place]
    return not rest


def model(content: Any, extra: Any, secret: Any, given_number: bool) -> Model:
    made = Model(content=content, more=extra, **({"number": 3} if given_number else {}))
    made._secret = secret
    return made


def box(content: Any, label: str, made: int) -> Box:
    value = Box(content, label)
    value.made = made
    return value


def text_table(pairs: dict[Any, Any], note: str) -> Table:
    value = Table(pairs)
    value.note = note
    return value


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
ZONES = st.sampled_from(
    [
        None,
        dt.UTC,
        dt.timezone(dt.timedelta(hours=5, minutes=30)),
        dt.timezone(-dt.timedelta(hours=3, seconds=7), "odd"),
        zoneinfo.ZoneInfo("Europe/Berlin"),
        zoneinfo.ZoneInfo("America/New_York"),
    ]
)
DATETIMES = st.builds(
    lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold),
    st.datetimes(min_value=dt.datetime(2, 1, 1), max_value=dt.datetime(9998, 1, 1)),
    ZONES,
    st.sampled_from([0, 1]),
)
TIMES = st.builds(
    lambda time, zone, fold: time.replace(tzinfo=zone, fold=fold), st.times(), ZONES, st.sampled_from([0, 1])
)
HASHABLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(2**70), max_value=2**70),
    st.floats(),
    ANY_TEXT,
    st.binary(max_size=8),
    DATETIMES,
    st.dates(),
    TIMES,
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.uuids(),
    st.complex_numbers(),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3)),
    st.sampled_from([*Colour, *Level, *Word, Access.READ, Access.READ | Access.RUN, Access(0)]),
    ANY_TEXT.filter(lambda text: "\0" not in text).map(pathlib.PurePosixPath),
    st.sampled_from([pathlib.Path("a/b"), pathlib.PureWindowsPath("C:/x"), ipaddress.ip_address("::1")]),
    st.builds(Text, ANY_TEXT),
)
KEYS = st.one_of(ANY_TEXT, st.sampled_from(["$type", "value", "1", "null"]), HASHABLE, st.tuples(HASHABLE, HASHABLE))


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    mappings = st.dictionaries(KEYS, children, max_size=4)
    lists = st.lists(children, max_size=4)
    return st.one_of(
        lists,
        lists.map(tuple),
        st.dictionaries(ANY_TEXT, children, max_size=4),
        mappings,
        st.sets(HASHABLE, max_size=4),
        st.frozensets(HASHABLE, max_size=4),
        mappings.map(collections.OrderedDict),
        st.builds(collections.defaultdict, st.sampled_from([None, list, int, dict]), mappings),
        st.dictionaries(KEYS, st.integers(-5, 5), max_size=4).map(collections.Counter),
        st.builds(collections.deque, lists, st.sampled_from([None, 2, 9])),
        st.builds(Pair, children, children),
        st.builds(box, children, ANY_TEXT, st.integers()),
        st.builds(Frozen, children),
        st.builds(model, children, children, children, st.booleans()),
        lists.map(lambda items: Page[Any](pageItems=items)),
        st.builds(text_table, mappings, ANY_TEXT),
        children.map(lambda item: types.SimpleNamespace(item=item)),
        st.binary(max_size=8).map(bytearray),
    )


# A signalling NaN cannot be hashed, so it is no key.
VALUES = st.recursive(HASHABLE | st.decimals(allow_nan=True), containers, max_leaves=8)


def through_text(value: Any) -> Any:
    """There and back without a database; the text is what a database would hold."""
    encoded = DEFAULT.encode(value)
    encoded.text.encode("utf-8")
    assert "\0" not in encoded.text
    json.loads(encoded.text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    json_value(encoded.format, encoded.text)
    return DEFAULT.decode(encoded.format, encoded.text)


def check_round_trip(value: Any, there_and_back: Callable[[Any], Any]) -> None:
    """The value that came back is the same, and storing that again gives the same text."""
    back = there_and_back(value)
    assert same(back, value)
    assert DEFAULT.encode(back) == DEFAULT.encode(value)
    assert same(DEFAULT.decode_tagged(DEFAULT.encode_tagged(value)), value)


@settings(max_examples=max(EXAMPLES // 20, 50), deadline=None, suppress_health_check=list(HealthCheck))
@given(VALUES)
def test_nested_values_of_all_kept_types_come_back_equal_and_of_the_same_types(value: Any) -> None:
    check_round_trip(value, through_text)


@settings(max_examples=max(EXAMPLES // 20, 50), deadline=None, suppress_health_check=list(HealthCheck))
@given(VALUES)
def test_equal_values_have_equal_digests_and_settling_gives_the_decoded_form(value: Any) -> None:
    encoded, fresh = DEFAULT.settle(value)
    assert same(fresh, value)
    assert DEFAULT.encode(value) == encoded
    assert DEFAULT.digest(fresh) == DEFAULT.digest(value)


@settings(max_examples=max(EXAMPLES // 20, 50), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(KEYS, VALUES, max_size=6), st.randoms(use_true_random=False))
def test_the_digest_does_not_ask_for_the_order_of_a_dict(value: dict[Any, Any], shuffle: random.Random) -> None:
    items = list(value.items())
    shuffle.shuffle(items)
    assert DEFAULT.digest(dict(items)) == DEFAULT.digest(value)
