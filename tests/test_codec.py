"""The codec's surface: formats, tags, limits, freshness, depth."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import textwrap
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from agent_resume.codec import DEFAULT, DEFAULT_MAX_BYTES, MAX_DEPTH, Codec, Encoded, json_value
from agent_resume.errors import OutputNotStorable, StoredValueUnreadable


def test_plain_json_is_stored_as_compact_plain_json_that_sql_can_look_into() -> None:
    value = {"x": {"y": [1, 2.5, "é", None, True]}, "big": 2**63 - 1}
    encoded = DEFAULT.encode(value)
    assert encoded == Encoded("json", '{"x":{"y":[1,2.5,"é",null,true]},"big":9223372036854775807}')
    found = sqlite3.connect(":memory:").execute("SELECT json_extract(?, '$.x.y[2]')", (encoded.text,))
    assert found.fetchone() == ("é",)


def test_case_059_what_comes_back_is_fresh_each_time() -> None:
    value: Any = {"h": []}
    encoded, first = DEFAULT.settle(value)
    value["h"].append("later")
    first["h"].append(1)
    again = DEFAULT.decode(encoded.format, encoded.text)
    assert again == {"h": []}
    assert again is not first
    nested = DEFAULT.settle((value, value))[1]
    assert nested[0] is not nested[1]


@pytest.mark.parametrize("value", [None, True, False, 0, -5, 2**63 - 1, 1.5, -0.0, "", "text", "é", 'a\0b\n"\\'])
def test_scalars_take_the_short_way_to_the_same_text(value: Any) -> None:
    encoded, fresh = DEFAULT.settle(value)
    assert fresh is value
    assert encoded == DEFAULT.encode(value)
    assert encoded.text == json.dumps(value, ensure_ascii=False)
    assert type(DEFAULT.decode(encoded.format, encoded.text)) is type(value)


def test_case_034_nothing_like_values_are_values() -> None:
    for value in (None, False, 0, "", [], {}):
        encoded = DEFAULT.encode(value)
        assert encoded.text
        assert DEFAULT.decode(encoded.format, encoded.text) == value


def test_columns_without_a_format_hold_plain_json_unchanged_and_escape_what_looks_like_a_tag() -> None:
    plain = {"a": [1, {"b": "c"}]}
    assert DEFAULT.encode_tagged(plain) == DEFAULT.encode(plain).text
    for value in ({"$type": "tuple", "value": [1]}, [{"$type": {"$type": 1}}], {"x": "$type"}, {"$type": (1,)}, (1,)):
        text = DEFAULT.encode_tagged(value)
        assert DEFAULT.decode_tagged(text) == value
        assert DEFAULT.decode("tagged", text) == value
    # The text of such a column, written by hand or by another tool as plain JSON, is read as what it says.
    assert DEFAULT.decode_tagged('{"answer": [1, 2]}') == {"answer": [1, 2]}


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": -float("inf")}, 10**400, [1e308 * 10]])
def test_case_035_the_text_is_strict_json(value: Any) -> None:
    text = DEFAULT.encode(value).text
    json.loads(text, parse_constant=pytest.fail)
    orjson = pytest.importorskip("orjson", reason="a second, stricter parser")
    orjson.loads(text)


@pytest.mark.parametrize(
    "value", ["ok \udc81", {"\udc81": 1}, "\ud83d\ude00", "a\0b", {"\0": "\0"}, "\ufffe\uffff", {"k": ("\ud800", "x")}]
)
def test_case_032_any_text_can_be_bound_and_read_by_sqlite(value: Any) -> None:
    encoded = DEFAULT.encode(value)
    assert "\0" not in encoded.text
    back = sqlite3.connect(":memory:").execute("SELECT json(?)", (encoded.text,)).fetchone()[0]
    assert DEFAULT.decode(encoded.format, back) == value


def test_display_restores_nothing_and_never_fails() -> None:
    assert json_value("tagged", DEFAULT.encode((1,)).text) == {"$type": "tuple", "value": [1]}
    assert json_value("json", '{"$type": 1}') == {"$type": 1}
    assert json_value("json", "cut of") == "cut of"
    assert json_value("future", "[" * 100_000) == "[" * 100_000


def test_an_unknown_format_and_broken_text_are_errors() -> None:
    for format, text in (("pickle", "x"), ("json", "{"), ("tagged", "[1"), ("json", "9" * 5000)):
        with pytest.raises(StoredValueUnreadable):
            DEFAULT.decode(format, text)


# Limits


def test_the_size_limit_counts_bytes_and_names_both() -> None:
    codec = Codec(max_bytes=1000)
    codec.encode("x" * 998)
    codec.encode(["é" * 498])
    for value in ("x" * 999, "é" * 500, {"a": ["x" * 999]}, ("x" * 999,), [1] * 600, "\udc81" * 300):
        with pytest.raises(OutputNotStorable, match="the limit is 1,000 bytes") as caught:
            codec.settle(value, key="s")
        assert caught.value.path == "$"
        assert "raise the limit" in str(caught.value)
    assert DEFAULT_MAX_BYTES == 100 * 1024 * 1024
    assert len(Codec(max_bytes=10).digest("x" * 1000)) == 32


@pytest.mark.parametrize("size", [1024, 1024**2, 20 * 1024**2])
def test_large_values_come_back(size: int) -> None:
    value = {"text": "x" * size}
    encoded, fresh = DEFAULT.settle(value)
    assert fresh == value
    assert encoded.format == "json"


MEGABYTES = 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"t": "x" * (MEGABYTES << 20)},
        lambda: ["line of text — with a dash\n" * 40] * (MEGABYTES << 10),
        lambda: ["日本語 😀" * 50] * (MEGABYTES << 11),
        lambda: [{"i": i, "name": f"item {i}", "score": i / 7} for i in range(MEGABYTES * 10_000)],
        lambda: [(i, str(i)) for i in range(MEGABYTES * 10_000)],
        lambda: {(i, i): {i} for i in range(MEGABYTES * 5000)},
        lambda: [b"x" * (MEGABYTES << 19), (1,)],
    ],
    ids=["one text", "texts with dashes", "texts with emoji", "records", "tuples", "odd keys and sets", "bytes"],
)
def test_encoding_takes_at_most_four_times_the_encoded_size(make: Any) -> None:
    value = make()
    DEFAULT.encode(value[:2] if isinstance(value, list) else (1,))
    tracemalloc.start()
    try:
        encoded = DEFAULT.encode(value)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    size = len(encoded.text.encode())
    assert peak <= 4 * size, f"{peak / size:.1f} times"


def nested(levels: int, kind: str) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"list": lambda v: [v], "dict": lambda v: {"k": v}, "tuple": lambda v: (v,), "keys": lambda v: {2: v}}[
            kind
        ](value)
    return value


def below(depth: int, function: Any) -> Any:
    return function() if depth == 0 else below(depth - 1, function)


@pytest.mark.parametrize("kind", ["list", "dict", "tuple", "keys"])
@pytest.mark.parametrize("stack", [0, 800, 900])
def test_what_may_be_nested_is_written_and_read_at_any_depth_of_the_callers_stack(kind: str, stack: int) -> None:
    value = nested(MAX_DEPTH, kind)
    encoded = below(stack // 2, lambda: DEFAULT.encode(value))
    back = below(stack, lambda: DEFAULT.decode(encoded.format, encoded.text))
    assert back == value
    json_value(encoded.format, encoded.text)
    with pytest.raises(OutputNotStorable, match="levels deep"):
        below(stack // 2, lambda: DEFAULT.encode(nested(MAX_DEPTH + 1, kind)))


def test_a_value_that_changes_while_it_is_stored_is_stored_or_refused() -> None:
    value: dict[Any, Any] = {str(i): (i,) for i in range(2000)}
    stop = threading.Event()

    def change() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            value[f"new {number % 100}"] = (number,)
            value.pop(f"new {(number + 50) % 100}", None)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(10):
            try:
                encoded = DEFAULT.encode(value)
            except OutputNotStorable:
                continue
            assert isinstance(DEFAULT.decode(encoded.format, encoded.text), dict)
    finally:
        stop.set()
        thread.join()


def test_one_codec_serves_many_threads() -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(100):
                value = {"n": (number, i), "s": {number}}
                assert DEFAULT.settle(value)[1] == value
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# Processes


def test_the_text_is_the_same_whatever_the_hash_seed(tmp_path: Path) -> None:
    script = tmp_path / "seeded.py"
    script.write_text(
        "from agent_resume.codec import DEFAULT\n"
        "print(DEFAULT.encode({'s': set('abcdefgh'), 'f': frozenset({(1, 'x'), (2, 'y'), None})}).text)\n"
    )
    texts = {
        subprocess.run(
            [sys.executable, str(script)], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in "0123"
    }  # fmt: skip
    assert len(texts) == 1


def test_classes_of_the_program_itself_are_found_again_by_the_next_start_of_it(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, pathlib, multiprocessing
            from dataclasses import dataclass
            from agent_resume.codec import DEFAULT
            @dataclass
            class Saved:
                x: int
            def child(text, queue):
                queue.put(DEFAULT.decode("tagged", text).x)
            if __name__ == "__main__":
                store = pathlib.Path(sys.argv[1])
                if not store.exists():
                    store.write_text(DEFAULT.encode(Saved(7)).text)
                else:
                    assert DEFAULT.decode("tagged", store.read_text()) == Saved(7)
                    context = multiprocessing.get_context("spawn")
                    queue = context.Queue()
                    process = context.Process(target=child, args=(store.read_text(), queue))
                    process.start()
                    print(queue.get(timeout=30))
                    process.join()
            """
        )
    )
    for expected in ("", "7\n"):
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path / "saved.json")],
            env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == expected


def test_plain_values_need_no_heavy_import() -> None:
    code = (
        "import sys; from agent_resume.codec import DEFAULT; DEFAULT.settle({'a': [1]}); "
        "print([m for m in ('pydantic', 'msgspec', 'attr', 'asyncio', 'decimal', 'uuid', 'sqlalchemy') if m in sys.modules])"
        "; DEFAULT.settle({'a': (1,)}); print([m for m in ('pydantic', 'msgspec', 'attr') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n[]\n"
