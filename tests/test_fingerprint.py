"""Fingerprints of inputs and of code: equal in every process, different where it matters."""

from __future__ import annotations

import collections
import decimal
import functools
import gc
import hashlib
import subprocess
import sys
import textwrap
import threading
import types
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from agent_resume import fingerprint as module
from agent_resume.codec import DEFAULT
from agent_resume.codec_plain import dumps_canonical
from agent_resume.fingerprint import code_hash, describe_inputs, fingerprint


@dataclass
class Point:
    x: int
    y: Any = None


class Model(BaseModel):
    x: int


class Agent:
    def method(self, a: int) -> int:
        return a

    def __call__(self, a: int) -> int:
        return a + 1


def plain(*_: Any, **__: Any) -> None:
    pass


def test_no_arguments_have_no_fingerprint() -> None:
    assert fingerprint(plain, ()) is None
    assert fingerprint(Agent().method, ()) is None
    assert fingerprint(functools.partial(plain), ()) is None


def test_arguments_of_partials_count_wherever_they_stand() -> None:
    whole = fingerprint(plain, (1, 2, 3))
    assert fingerprint(functools.partial(plain, 1), (2, 3)) == whole
    assert fingerprint(functools.partial(functools.partial(plain, 1), 2), (3,)) == whole
    assert fingerprint(functools.partial(plain, a=1, b=2), ()) == fingerprint(functools.partial(plain, b=2, a=1), ())
    assert fingerprint(functools.partial(plain, a=1), ()) != fingerprint(functools.partial(plain, a=2), ())
    assert fingerprint(functools.partial(functools.partial(plain, a=1), a=2), ()) == fingerprint(
        functools.partial(plain, a=2), ()
    )
    assert fingerprint(Agent().method, (1,)) == fingerprint(Agent().method, (1,))


EQUAL = [
    ({"a": 1, "b": [1, {"c": 2, "d": 3}]}, {"b": [1, {"d": 3, "c": 2}], "a": 1}),
    ({1: "x", "1": "y"}, {"1": "y", 1: "x"}),
    ({"a", "b", "c", 1}, {1, "c", "b", "a"}),
    (Point(1, {"a", "b"}), Point(1, {"b", "a"})),
    (Model(x=1), Model(x=1)),
    ({"$type": 1, "a": 2}, {"a": 2, "$type": 1}),
    (collections.Counter("ab"), collections.Counter("ba")),
    ([shared := {"k": [1]}, shared], [{"k": [1]}, {"k": [1]}]),
    (object(), object()),
    (threading.Lock(), threading.Lock()),
    (lambda: 1, lambda: 2),
    ({"client": object(), "n": 1}, {"client": object(), "n": 1}),
    (ConnectionError("unreachable", threading.local()), ConnectionError("unreachable", threading.local())),
]
DIFFERENT = [
    (1, 2), (1, 1.0), (1, True), (1, "1"), (None, "None"), ([], ()), ((), {}), ({}, set()), ("a", b"a"),
    ({"a": 1}, {"a": 2}), ({"a": 1}, {"b": 1}), ([1, 2], [2, 1]), (Point(1), Point(2)), (Point(1), Model(x=1)),
    (decimal.Decimal("1.0"), decimal.Decimal("1.00")), (0.0, -0.0), ("\udc81", "\\udc81"),
    ({"$type": "tuple", "value": [1]}, (1,)), ({"client": object(), "n": 1}, {"client": object(), "n": 2}),
    (collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1)), (object(), threading.Lock()),
    (ValueError("a"), ValueError("b")), (ValueError("a"), KeyError("a")),
    ([[1], 2], [[1, 2]]), (Point(1, object()), Point(2, object())),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), EQUAL)
def test_equal_inputs_have_equal_fingerprints(left: Any, right: Any) -> None:
    assert fingerprint(plain, (left,)) == fingerprint(plain, (right,))


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_different_inputs_have_different_fingerprints(left: Any, right: Any) -> None:
    assert fingerprint(plain, (left,)) != fingerprint(plain, (right,))


def test_what_cannot_be_encoded_counts_by_type_and_nothing_is_used_up_or_said() -> None:
    class Rude:
        def __getattr__(self, name: str) -> Any:
            raise SystemError(name)

        def __eq__(self, other: object) -> bool:
            raise SystemError

        __hash__ = object.__hash__

    items = iter([1, 2, 3])
    cycle: list[Any] = []
    cycle.append(cycle)
    deep: Any = 1
    for _ in range(50_000):
        deep = [deep]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (items, cycle, deep, Rude(), Point(1, Rude()), types.ModuleType("m"), {Rude(): 1}):
            print_of = fingerprint(plain, (value,))
            assert print_of is not None
            assert len(print_of) == 32
            assert fingerprint(plain, (value,)) == print_of
    assert list(items) == [1, 2, 3]


def test_fingerprints_and_code_hashes_are_the_same_in_every_process(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(
        textwrap.dedent(
            """
            import functools
            from agent_resume.fingerprint import code_hash, fingerprint
            def work(a, b):
                return a in {"x", "y", "z", b"1", 1, None} or (lambda: {"p", "q"})()
            print(fingerprint(work, ({"a", "b", "c"}, {"k": frozenset("xyz"), "n": (1, 2.5)})), code_hash(work))
            """
        )
    )
    outputs = {
        subprocess.run(
            [sys.executable, str(script)], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("0", "1", "2", "3")
    }  # fmt: skip
    assert len(outputs) == 1


@example(["\x7f"])
@given(
    st.lists(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text()
    )
)
def test_short_lists_of_scalars_have_the_digest_of_their_canonical_text(items: list[Any]) -> None:
    text = dumps_canonical(items)
    assert DEFAULT.digest(items) == hashlib.sha256(text.encode()).hexdigest()[:32]


def test_messages_name_types_and_no_values() -> None:
    text = describe_inputs(functools.partial(plain, "sk-test-123", limit=3), ({"a": 1}, Point(1)))
    assert text.replace("tests.", "") == "(str, dict, test_fingerprint.Point, limit=int)"


# Code


def compiled(source: str, name: str = "f", start: int = 0) -> Any:
    names: dict[str, Any] = {"functools": functools}
    exec(compile("\n" * start + textwrap.dedent(source), f"file{start}.py", "exec"), names)
    return names[name]


SAME_CODE = [
    ("def f(): return 2", "def f(): return 2"),
    ("def f():\n    return 2", "def f():\n\n    # a comment\n    return 2"),
    ("def f():\n    'old words'\n    return 2", "def f():\n    'new words'\n    return 2"),
    ("def f(a): return a", "def f(b): return b"),
    ("def f(a=1): return a", "def f(a=2): return a"),
    ("f = lambda: 2", "def f(): return 2"),
]
CHANGED_CODE = [
    ("def f(): return 2", "def f(): return 3"),
    ("def f(): return 2", "def f(): return 2.0"),
    ("def f(): return 1", "def f(): return True"),
    ("def f(): return 0.0", "def f(): return -0.0"),
    ("def f(): return 'a'", "def f(): return b'a'"),
    ("def f(): return a", "def f(): return b"),
    ("def f(): return x.a", "def f(): return x.b"),
    ("def f(): return (lambda: 2)()", "def f(): return (lambda: 3)()"),
    ("def f(): return [i for i in (1, 2)]", "def f(): return [i for i in (1, 3)]"),
    ("def f(a): return 1", "def f(a, b): return 1"),
    ("def f(*a): return 1", "def f(a): return 1"),
    ("def f(): return 1", "async def f(): return 1"),
    ("def f(x): return x in {'a', 'b'}", "def f(x): return x in {'a', 'c'}"),
    ("def f():\n    return 2", "def f():\n    print()\n    return 2"),
    ("def g(a, b):\n    return lambda: a\nf = g(1, 2)", "def g(a, b):\n    return lambda: b\nf = g(1, 2)"),
    ("def f():\n  try: g()\n  except A: h()", "def f():\n  try: g()\n  except B: h()"),
]


@pytest.mark.parametrize(("old", "new"), SAME_CODE)
def test_moving_and_commenting_code_does_not_change_it(old: str, new: str) -> None:
    assert code_hash(compiled(old)) == code_hash(compiled(new, start=40))


@pytest.mark.parametrize(("old", "new"), CHANGED_CODE)
def test_case_022_changed_code_is_noticed(old: str, new: str) -> None:
    assert code_hash(compiled(old)) != code_hash(compiled(new))


def test_what_is_around_a_function_is_looked_through() -> None:
    def work(a: int) -> int:
        return a * 7

    @functools.wraps(work)
    def wrapped(*args: Any) -> Any:
        return work(*args)

    expected = code_hash(work)
    assert expected is not None
    assert expected.startswith(f"{sys.implementation.cache_tag}:")
    assert code_hash(functools.partial(work, 1)) == expected
    assert code_hash(functools.partial(functools.partial(work), 1)) == expected
    assert code_hash(wrapped) == expected
    assert code_hash(functools.lru_cache(work)) == expected
    assert code_hash(types.MethodType(work, 3)) == expected
    assert code_hash(functools.partial(wrapped, 1)) == expected


def test_methods_callable_objects_and_classes_have_the_code_of_theirs() -> None:
    assert code_hash(Agent().method) == code_hash(Agent.method)
    assert code_hash(Agent()) == code_hash(Agent.__call__)
    assert code_hash(Point) == code_hash(Point.__init__)


@pytest.mark.parametrize("fn", [len, print, int, object, [].append, functools.partial(len), "no function", None])
def test_code_that_is_not_python_has_no_hash(fn: Any) -> None:
    assert code_hash(fn) is None


def test_a_wrapper_of_itself_ends() -> None:
    def work() -> None:
        pass

    work.__wrapped__ = work  # type: ignore[attr-defined]
    assert code_hash(work) is None


def test_hashes_are_remembered_for_as_long_as_the_code_lives() -> None:
    function = compiled("def f(): return 12345")
    identity = id(function.__code__)
    first = code_hash(function)
    assert module._hashes[identity][1] == first
    assert code_hash(function) is code_hash(function)
    del function
    gc.collect()
    assert identity not in module._hashes


def test_running_code_does_not_change_its_hash() -> None:
    function = compiled("def f(n):\n    t = 0\n    for i in range(n):\n        t += i\n    return t")
    before = code_hash(function)
    for _ in range(100):
        function(100)
    module._hashes.clear()
    assert code_hash(function) == before
