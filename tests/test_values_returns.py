"""``returns=`` finds the class and checks the value; the stored type leads."""

from __future__ import annotations

import dataclasses
import datetime as dt
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest
from pydantic import BaseModel

from agent_resume.codec import DEFAULT
from agent_resume.errors import OutputNotStorable, StoredValueUnreadable


class Animal(BaseModel):
    name: str


class Dog(Animal):
    tricks: list[str] = []


@dataclass
class Point:
    x: float
    y: float = 0.0


class Typed(TypedDict):
    a: int


class Opaque:
    pass


@dataclass
class Holder:
    thing: Opaque | None


@pytest.mark.parametrize(
    ("value", "returns"),
    [
        (3, float),
        (3.0, int),
        (True, int),
        (1, bool),
        ([3, 4.5], list[float]),
        ({"a": 1}, dict[str, float]),
        ({"a": 1}, Typed),
        (Dog(name="d", tricks=["sit"]), Animal),
        ([Dog(name="d")], list[Animal]),
        ({"a": Dog(name="d")}, dict[str, Animal | None]),
        (Point(3), Point),
        ((1, "a"), tuple[int, str]),
        (None, str | None),
        ("x", typing.Literal["x", "y"]),
        ("x", "no such annotation"),
        ([1], Iterator[int]),
        (Holder(None), Holder),
        ({1, 2}, set[int]),
        (dt.datetime(2026, 1, 1), dt.datetime),
        ({"x": [1]}, Any),
        ({"x": [1]}, object),
        (5, typing.TypeVar("T")),
    ],
)
def test_a_value_that_fits_is_given_back_as_it_is(value: Any, returns: Any) -> None:
    encoded, first = DEFAULT.settle(value, returns=returns)
    again = DEFAULT.decode(encoded.format, encoded.text, returns=returns)
    for back in (first, again):
        assert (back, type(back)) == (value, type(value))
        assert repr(back) == repr(value)


@pytest.mark.parametrize(
    ("value", "returns", "built"),
    [
        ({"name": "d"}, Animal, Animal(name="d")),
        ([{"name": "d"}], list[Animal], [Animal(name="d")]),
        ({"x": 3}, Point, Point(3.0)),
        ("2026-01-01T00:00:00Z", dt.datetime, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        ([1, 2], set[int], {1, 2}),
        ([1, "a"], tuple[int, str], (1, "a")),
        ([[1, 2]], list[set[int]], [{1, 2}]),
        ({"x": "3"}, Point, Point(3.0)),
        ([{"a": {"x": "3"}}], list[dict[str, Point]], [{"a": Point(3.0)}]),
        ({"name": "d", "tricks": ["sit"]}, Dog | None, Dog(name="d", tricks=["sit"])),
    ],
)
def test_plain_json_that_describes_it_is_built_into_it(value: Any, returns: Any, built: Any) -> None:
    encoded, first = DEFAULT.settle(value, returns=returns)
    assert encoded.format == "json"
    assert first == built
    assert type(first) is type(built)
    assert DEFAULT.decode("json", encoded.text, returns=returns) == built


@pytest.mark.parametrize(
    ("value", "returns"),
    [("sk-test-123", int), ({"name": 5}, Animal), (Point(1), Animal), ((1,), list[int]), ([Point(1)], list[Animal])]
    + [({"no": "sk-test-123"}, Point), (3, Opaque), (None, int), (5, str)],
)
def test_a_value_that_does_not_fit_is_refused_and_its_content_not_shown(value: Any, returns: Any) -> None:
    with pytest.raises(OutputNotStorable, match="returns=") as caught:
        DEFAULT.settle(value, key="s", returns=returns)
    assert caught.value.result is value
    encoded = DEFAULT.encode(value)
    with pytest.raises(StoredValueUnreadable, match="returns=") as unreadable:
        DEFAULT.decode(encoded.format, encoded.text, returns=returns)
    assert "sk-test-123" not in f"{caught.value}{unreadable.value}{unreadable.value.__cause__}"


@pytest.mark.parametrize(
    ("value", "returns"),
    [("5", int), ("1e2", float), ("true", bool), (["5"], list[int]), ({"a": "5"}, dict[str, int]), ([1, 1], set[int])]
    + [(["1"], set[int]), ([[1, 2, 2]], list[frozenset[int]]), ({"a": [1, 1]}, dict[str, set[int]]), (0, dt.datetime)],
)
def test_plain_json_of_another_type_is_refused_and_not_bent(value: Any, returns: Any) -> None:
    with pytest.raises(OutputNotStorable, match="returns="):
        DEFAULT.settle(value, returns=returns)


def test_an_annotation_is_a_hint_only_and_may_be_wrong() -> None:
    def liar() -> int:
        return "text"  # type: ignore[return-value]

    def unknown() -> NoSuchName:  # type: ignore[name-defined]  # noqa: F821
        pass

    for hint in (liar, unknown, int, list[int], lambda: 1, print, 5, "x", dataclasses):
        assert DEFAULT.settle("text", hint=hint)[1] == "text"
        assert DEFAULT.settle([Point(1)], hint=hint)[1] == [Point(1)]


def test_a_subclass_made_after_its_base_was_looked_through_is_found() -> None:
    @dataclass
    class Local:
        x: int

    assert DEFAULT.settle(Local(1), returns=Local)[1] == Local(1)

    @dataclass
    class Later(Local):
        y: int = 2

    assert DEFAULT.settle(Later(1), returns=Local)[1] == Later(1)
