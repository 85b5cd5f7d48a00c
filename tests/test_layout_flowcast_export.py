"""Exports to flowcast's layout: what real runs become, checked by a reader that knows the layout's rules only."""

from __future__ import annotations

import base64
import datetime as dt
import itertools
import math
import uuid
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import flowcast_conformance as conformance
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_resume import Checkpoint, Store
from agent_resume.layouts import export_runs

RUNS = 500 if settings.default is not None and settings.default.max_examples >= 400 else 60
NAN = float("nan")

hostile_texts = st.sampled_from(
    [
        "", "\0flowcast:sidecar\0../../etc/passwd", "\0flowcast:sidecar\0", "a" * 500, "a" * 501, "漢" * 500, "漢" * 501,
        "😀" * 250, "😀" * 251, "\ud83d", "x\udc81y" * 300, "\ud83d\ude00", "\u2028\u2029\x85\x7f\ufeff", "json\n{}",
        "a\r\nb\n", "__proto__", "__pause__", '"\\/\b\f\n\r\t\x00\x1f', "NaN", "2", "01",
    ]
)  # fmt: skip
texts = st.one_of(st.text(max_size=30), hostile_texts)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-5, 5),
    st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, 10**20, 10**21, -(10**20)]),
    st.floats(),
    texts,
    st.binary(max_size=5),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        [dt.datetime(2026, 1, 2, tzinfo=dt.UTC), dt.date(2026, 1, 2), dt.timedelta(1, 2, 3), uuid.UUID(int=7)]
    ),
    st.complex_numbers(allow_nan=False, allow_infinity=False),
)
names = st.one_of(
    st.text(max_size=8), st.sampled_from(["2", "10", "01", "4294967294", "4294967295", "__proto__", "k\udc00"])
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.frozensets(st.integers(0, 3), max_size=1),
        st.dictionaries(names, inner, max_size=4),
        st.dictionaries(st.one_of(st.integers(0, 9), st.none(), st.booleans(), st.text(max_size=2)), inner, max_size=3),
    ),
    max_leaves=12,
)
keys = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
    st.sampled_from(
        [
            "", " ", "..", "../up", "a/b", "a_b", "a b", "a\\b", "C:\\x", "con", "A", "a", "0", "2", "10", "01", "turn-1",
            "turn-02", "k" * 240, "k" * 300, "日本", "😀", "cafe\u0301", "caf\xe9", "__proto__", "constructor", "__pause__",
            "a\nb", "tab\t", "steps/x.out",
        ]
    ),
)  # fmt: skip
metas = st.one_of(
    st.none(),
    st.dictionaries(
        st.sampled_from(
            ["cli", "model", "inputTokens", "outputTokens", "key", "status", "completedAt", "durationMs", "note", "3"]
        ),
        st.one_of(texts, st.integers(0, 9), st.booleans(), st.none(), st.floats(0, 1)),
        max_size=4,
    ),
)
event_types = st.sampled_from(["gate", "loop", "x", "start", "done", "paused", "completed", "skips", "é"])
event_data = st.one_of(
    st.none(),
    values,
    st.dictionaries(
        st.sampled_from(["key", "status", "event", "type", "ts", "runId", "name", "7"]),
        st.sampled_from(["done", "start", "paused", "__pause__", "x", 1, None, True]),
        max_size=5,
    ),
)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("step"), keys, values, metas),
        st.tuples(st.just("fail"), keys, texts, metas),
        st.tuples(st.just("record"), keys, values, metas),
        st.tuples(st.just("event"), event_types, event_data, st.none()),
        st.tuples(st.just("resume"), st.none(), st.none(), st.none()),
    ),
    max_size=8,
)
endings = st.one_of(
    st.none(),
    st.tuples(st.just("done"), st.one_of(st.none(), st.dictionaries(names, values, max_size=4), values)),
    st.tuples(st.just("pause"), st.dictionaries(names, values, max_size=3)),
)


def as_javascript(value: Any) -> Any:
    """What the README says becomes of a value; worked out from the value itself, not from what is stored."""
    for kinds, convert in _CONVERSIONS:
        if isinstance(value, kinds):
            return convert(value)
    return value


def _int(value: int) -> Any:
    exact = abs(value) < 2**53 or (abs(value) < 10**21 and conformance.js_number(float(value)) == str(value))
    return value if exact else str(value)


def _dict(value: dict[Any, Any]) -> Any:
    pairs = [(as_javascript(key), as_javascript(item)) for key, item in value.items()]
    shown = [key if isinstance(key, str) else conformance._shown(key) for key, _ in pairs]
    if len(set(shown)) < len(shown):
        return [list(pair) for pair in pairs]
    return {name: item for name, (_, item) in zip(shown, pairs, strict=True)}


_CONVERSIONS: tuple[tuple[Any, Any], ...] = (
    (bool, bool),
    (float, lambda value: value if math.isfinite(value) else None),
    (int, _int),
    (str, lambda value: value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")),
    (bytes, lambda value: base64.b64encode(value).decode()),
    (dt.timedelta, dt.timedelta.total_seconds),
    (dt.date, lambda value: value.isoformat()),
    ((Decimal, uuid.UUID, complex), str),
    (dict, _dict),
    ((list, tuple, frozenset), lambda value: [as_javascript(item) for item in value]),
)


def same(one: Any, other: Any) -> bool:
    return conformance.js_json(one) == conformance.js_json(other)


class Twin:
    """Does the same to a real run and to a few lists, which say what flowcast must see."""

    def __init__(self, store: Store, run_id: str) -> None:
        self.store, self.run_id = store, run_id
        self.run = Checkpoint(run_id, db=store)
        self.results: dict[str, Any] = {}
        self.order: list[str] = []
        self.log: list[tuple[str, str]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.stored: set[str] = set()

    def do(self, kind: str, name: Any, value: Any, meta: Any) -> None:
        if kind in ("step", "fail", "record") and name in self.stored:
            return
        getattr(self, f"do_{kind}")(name, value, meta)

    def do_step(self, key: str, value: Any, meta: Any) -> None:
        self.run.step(key, lambda: value, meta=meta)
        self.results[key] = value
        self.stored.add(key)
        self.order.append(key)
        self.log += [("start", key), ("done", key)]

    def do_fail(self, key: str, text: str, meta: Any) -> None:
        with pytest.raises(ValueError):
            self.run.step(key, lambda: (_ for _ in ()).throw(ValueError(text)), meta=meta)
        self.log += [("start", key), ("error", key)]

    def do_record(self, key: str, value: Any, meta: Any) -> None:
        self.run.record(key, value, meta)
        self.results[key] = value
        self.stored.add(key)
        self.order.append(key)

    def do_event(self, kind: str, data: Any, _: Any) -> None:
        self.run.event(kind, data)
        fields = data if isinstance(data, dict) and all(isinstance(name, str) for name in data) else None
        if data is None:
            shown: Any = {}
        elif isinstance(flat := as_javascript(data), dict):
            shown = {f"{name}_" if name in ("event", "ts", "runId") else name: item for name, item in flat.items()}
        else:
            shown = {"data": flat}
        if fields is not None and self._mimics(kind, shown):
            shown = {("key_" if name == "key" else name): item for name, item in shown.items()}
        self.events.append((kind, shown))

    @staticmethod
    def _mimics(kind: str, shown: dict[str, Any]) -> bool:
        key = shown.get("key")
        is_step = isinstance(key, (str, int, float)) and not isinstance(key, bool) and shown.get("status") == kind
        return (is_step and kind in conformance.STEP_LINES) or (kind == "paused" and key == "__pause__")

    def do_resume(self, *_: Any) -> None:
        self.run.close()
        self.run = Checkpoint(self.run_id, db=self.store)
        timed = [key for kind, key in self.log if kind == "done"]
        for key in dict.fromkeys(timed):
            self.run.step(key, lambda: pytest.fail("ran again"))
        # Skips of one execution are stored as ranges, in the order of the steps.
        self.log += [("skip", key) for key in dict.fromkeys(timed)]
        self.run.flush_log()


def export(store: Store, run_id: str, out: Path) -> tuple[Path, Any]:
    (row,) = export_runs(store, [run_id], format="flowcast", out=out).rows
    assert row.action in ("exported", "unchanged"), row.reason
    return Path(row.target), row


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Store(tmp_path_factory.mktemp("conformance") / "runs.db", durability="relaxed") as opened:
        yield opened


_numbers = itertools.count()


@pytest.mark.timeout(600)
@settings(max_examples=RUNS, suppress_health_check=list(HealthCheck))
@given(operations=operations, ending=endings)
def test_every_run_is_exported_by_the_rules_of_the_layout(store, tmp_path_factory, operations, ending):
    run_id = f"run-{next(_numbers)}"
    out = tmp_path_factory.getbasetemp() / "conformance-out"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        twin = Twin(store, run_id)
        twin.do_event("x", None, None)
        for operation in operations:
            twin.do(*operation)
        if ending is not None and ending[0] == "done":
            twin.run.done(ending[1])
        elif ending is not None:
            with pytest.raises(BaseException, match="waits for an answer"):
                twin.run.pause("why? 👀", ending[1])
        twin.run.close()
        target, row = export(store, run_id, out)
    reading = conformance.read(target)
    assert same(reading.results, {key: as_javascript(value) for key, value in twin.results.items()})
    assert [record["key"] for record in reading.state["steps"]] == twin.order
    expected_log = twin.log + ([("paused", "__pause__")] if ending is not None and ending[0] == "pause" else [])
    assert [entry for entry in reading.step_log if entry[0] != "skip"] == [e for e in expected_log if e[0] != "skip"]
    assert sorted(e for e in reading.step_log if e[0] == "skip") == sorted(e for e in expected_log if e[0] == "skip")
    own = [(kind, data) for kind, data in reading.events if "agentResume" not in data]
    assert [kind for kind, _ in own] == [kind for kind, _ in twin.events]
    for (kind, data), (_, shown) in zip(own, twin.events, strict=True):
        first = {name: shown[name] for name in ("type", "status") if name in shown}
        expected = {name: item for name, item in (first | shown).items() if not (name == "type" and item == kind)}
        assert same(data, expected)
    if ending is not None and ending[0] == "done":
        assert same(reading.state["summary"], as_javascript({} if ending[1] is None else ending[1]))
    if ending is not None and ending[0] == "pause":
        assert reading.state["pauseReason"] == "why? 👀"
        assert same(reading.state["pauseContext"], as_javascript(ending[1]))
    assert row.bent_count >= len(row.bent)
