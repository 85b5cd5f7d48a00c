"""``meta`` of steps: given, found in results, stored, summed."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from contextlib import closing
from types import SimpleNamespace

import pytest

from agent_resume import Checkpoint, OutputNotStorable, list_runs, load_run


def rows(db, query, *values):
    with closing(sqlite3.connect(db)) as database:
        return database.execute(query, values).fetchall()


@dataclasses.dataclass
class Usage:
    input_tokens: int
    output_tokens: int


@dataclasses.dataclass
class Message:
    text: str
    model: str
    usage: Usage


def meta_of(db, key="s"):
    return next(step.meta for step in load_run("r", db=db).steps if step.name == key)


def test_meta_is_stored_beside_the_result_and_comes_back(db):
    given = {"cli": "claude", "model": "m", "inputTokens": 3, "tags": ["a"], "when": (1, 2)}
    with Checkpoint("r", db=db) as run:
        run.step("s", lambda: 1, meta=given)
    assert {name: value for name, value in meta_of(db).items() if name != "when"} == {
        name: value for name, value in given.items() if name != "when"
    }


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (Message("hi", "m-1", Usage(3, 4)), {"inputTokens": 3, "outputTokens": 4, "model": "m-1"}),
        (
            {"usage": {"input_tokens": 3, "output_tokens": 4}, "model": "m"},
            {"inputTokens": 3, "outputTokens": 4, "model": "m"},
        ),
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 4}}, {"inputTokens": 3, "outputTokens": 4}),
        ({"usage": {"input_tokens": 3}}, {"inputTokens": 3}),
        ({"usage": {"input_tokens": 0, "output_tokens": 0}}, {"inputTokens": 0, "outputTokens": 0}),
        ({"usage": None, "model": "m"}, {}),
        ({"usage": "a lot", "model": "m"}, {}),
        ({"usage": {"input_tokens": "3", "output_tokens": True}}, {}),
        ({"usage": {"input_tokens": -1}}, {}),
        ({"text": "no usage"}, {}),
        ("usage", {}),
        (5, {}),
        (None, {}),
        ([{"usage": {"input_tokens": 3}}], {}),
    ],
)
def test_a_result_that_carries_usage_fills_the_meta_by_itself(db, result, found):
    with Checkpoint("r", db=db) as run:
        assert run.step("s", lambda: result) == result
    assert meta_of(db) == found


def test_what_is_given_wins_over_what_is_found(db):
    result = {"usage": {"input_tokens": 3, "output_tokens": 4}, "model": "theirs"}
    with Checkpoint("r", db=db) as run:
        run.step("s", lambda: result, meta={"model": "mine", "cli": "x"})
    assert meta_of(db) == {"inputTokens": 3, "outputTokens": 4, "model": "mine", "cli": "x"}


class _Trap:
    @property
    def usage(self):
        raise RuntimeError("never ask me")


def test_looking_for_usage_never_fails_a_step():
    from agent_resume.run_usage import usage_of

    assert usage_of(_Trap()) == {}
    assert usage_of(SimpleNamespace(usage=lambda: SimpleNamespace(input_tokens=1, output_tokens=2))) == {
        "inputTokens": 1, "outputTokens": 2,
    }  # fmt: skip


def test_meta_that_cannot_be_stored_is_refused_before_the_function_is_called(db):
    with Checkpoint("r", db=db) as run:
        for meta in ({"f": open}, {"lock": object()}):
            with pytest.raises(OutputNotStorable):
                run.step("s", pytest.fail, meta=meta)
            with pytest.raises(OutputNotStorable):
                run.record("s", 1, meta)
        assert not run.has("s")


def test_a_failed_step_keeps_the_meta_it_was_given(db):
    with Checkpoint("r", db=db) as run, pytest.raises(ZeroDivisionError):
        run.step("s", lambda: 1 / 0, meta={"cli": "claude"})
    assert meta_of(db) == {"cli": "claude"}


def test_tokens_are_summed_by_run_and_by_model(db, cli):
    with Checkpoint("r", db=db) as run:
        for number, model in enumerate(["m-1", "m-1", "m-2"]):
            run.step(f"s{number}", lambda: 1, meta={"cli": "c", "model": model, "inputTokens": 10, "outputTokens": 1})
        run.record("rec", 1, {"inputTokens": 5})
        run.record("odd", 1, {"inputTokens": "many"})
    (summary,) = list_runs(db=db)
    assert (summary.input_tokens, summary.output_tokens) == (35, 3)
    assert rows(db, "SELECT input_tokens, output_tokens FROM run_overview") == [(35, 3)]
    assert rows(db, "SELECT model, sum(input_tokens) FROM step_timeline WHERE model IS NOT NULL GROUP BY model") == [
        ("m-1", 20), ("m-2", 10),
    ]  # fmt: skip
    shown = cli("show", "r", "--db", db)
    assert shown.returncode == 0, shown.stderr
    assert "m-1" in shown.stdout
    assert json.loads(cli("list", "--json", "--db", db).stdout)[0]["inputTokens"] == 35
