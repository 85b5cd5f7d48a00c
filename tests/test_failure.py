"""A failure is kept as text, whatever its class does."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from typing import Any

import pytest

from agent_resume import failure
from agent_resume.errors import RunNotFound, StepTimeout
from agent_resume.failure import describe, rebuild


class ApiError(Exception):
    def __init__(self, *, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class RateLimited(Exception):
    __slots__ = ("retry_after",)

    def __init__(self, retry_after: int) -> None:
        super().__init__("slow down")
        self.retry_after = retry_after


class Computed(Exception):
    def __init__(self, code: int) -> None:
        self.code = code

    def __str__(self) -> str:
        return f"computed {self.code}"


class Hostile(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__

    def __reduce__(self) -> Any:
        raise KeyboardInterrupt

    def __getattribute__(self, name: str) -> Any:
        raise GeneratorExit


class NoText(Exception):
    def __str__(self) -> Any:
        return 5


class Recursive(Exception):
    def __str__(self) -> str:
        return str(self)


class LyingArgs(Exception):
    @property
    def args(self) -> Any:
        raise RuntimeError


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: B036
        return caught


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ApiError(status=500), "status 500"),
        (Computed(7), "computed 7"),
        (Hostile("x"), "<its message could not be read>"),
        (NoText(), "<its message could not be read>"),
        (Recursive(), "<its message could not be read>"),
        (LyingArgs("real"), "real"),
        (ValueError("real cause", threading.Lock()), "real cause"),
        (ValueError("\0 and \udc81"), "\\x00 and \\udc81"),
        (KeyError("k"), "'k'"),
        (SystemExit(3), "3"),
        (asyncio.CancelledError(), ""),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "bad"),
        (ExceptionGroup("many", [ValueError("a"), ApiError(status=1)]), "many"),
        (type("Dynamic", (Exception,), {"__module__": 5})("dyn"), "dyn"),
    ],
    ids=lambda item: type(item).__name__ if isinstance(item, BaseException) else "",
)
def test_case_037_038_any_exception_is_described_without_raising(error: BaseException, message: str) -> None:
    for exc in (error, raised(error)):
        described = describe(exc)
        assert message in described["message"]
        assert described["type"] == type(error).__qualname__
        text = json.dumps(described, allow_nan=False)
        assert "\0" not in text
        json.dumps(described, ensure_ascii=False).encode()
        rebuild(described)


def test_case_038_arguments_that_cannot_be_stored_are_left_out_and_the_text_is_kept() -> None:
    error = ValueError("real cause", threading.Lock())
    described = describe(raised(error))
    assert "real cause" in described["message"]
    assert "args" not in described
    assert rebuild(described) is None or str(rebuild(described)) == described["message"]


@pytest.mark.parametrize(
    ("arguments", "kept"), [(("m", 1), True), (("m",), False), ((), False), (range(8), True), (range(9), False)]
)
def test_arguments_are_kept_where_the_text_does_not_say_them_and_they_are_few(arguments: Any, kept: bool) -> None:
    described = describe(raised(ValueError(*arguments)))
    assert described.get("args") == (list(arguments) if kept else None)


def test_the_traceback_is_bounded_and_says_where() -> None:
    described = describe(raised(ValueError("x" * 100_000)))
    assert len(described["traceback"]) <= failure.TRACEBACK_LIMIT
    assert "test_failure.py" in described["traceback"]
    assert "left out" in described["traceback"]
    assert len(described["message"]) <= failure.MESSAGE_LIMIT


def test_the_cause_is_in_the_traceback_and_our_own_frames_are_not() -> None:
    from agent_resume.codec import DEFAULT

    with pytest.raises(TypeError) as caught:
        DEFAULT.encode(object())
    assert describe(caught.value)["traceback"].count("test_failure.py") == 1
    with pytest.raises(KeyError) as caught_cause:
        raise KeyError("inner") from OSError("root")
    assert "root" in describe(caught_cause.value)["traceback"]


def test_deep_recursion_and_long_chains_are_described() -> None:
    def sink(depth: int) -> int:
        return sink(depth + 1) + 1

    with pytest.raises(RecursionError) as caught:
        sink(0)
    assert len(describe(caught.value)["traceback"]) <= failure.TRACEBACK_LIMIT
    error: BaseException = ValueError("first")
    for number in range(2000):
        following = ValueError(str(number))
        following.__cause__ = error
        error = following
    assert describe(error)["message"] == "1999"
    loop = ValueError("loop")
    loop.__cause__ = loop
    assert describe(loop)["message"] == "loop"


def test_code_like_attributes_are_named_as_flowcast_names_them() -> None:
    error = RuntimeError("no")
    error.code, error.gate, error.timed_out, error.exit_code = "E1", "lint", True, 3  # type: ignore[attr-defined]
    error.schema_error, error.spawn_error = "bad", OSError("no such program")  # type: ignore[attr-defined]
    error.failures = [ValueError("a"), {"index": 7, "message": "b"}]  # type: ignore[attr-defined]
    error.voter_errors = [{"lens": "cost", "error": ValueError("c")}]  # type: ignore[attr-defined]
    described = describe(error)
    assert {name: described[name] for name in ("code", "gate", "timedOut", "exitCode", "schemaError", "spawnError")} == {
        "code": "E1", "gate": "lint", "timedOut": True, "exitCode": 3, "schemaError": "bad", "spawnError": "no such program",
    }  # fmt: skip
    assert described["failures"] == [{"index": 0, "message": "a"}, {"index": 7, "message": "b"}]
    assert described["voterErrors"] == [{"lens": "cost", "error": "c"}]


def test_timeouts_say_so_and_groups_list_their_members() -> None:
    described = describe(StepTimeout("r", "s", 5))
    assert (described["code"], described["timedOut"]) == ("TIMEOUT", True)
    group = describe(BaseExceptionGroup("g", [KeyboardInterrupt(), ValueError("v")]))
    assert group["failures"] == [{"index": 0, "message": ""}, {"index": 1, "message": "v"}]


def test_a_program_that_failed_says_its_exit_code() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        subprocess.run([sys.executable, "-c", "raise SystemExit(9)"], check=True)
    assert describe(caught.value)["exitCode"] == 9


@pytest.mark.parametrize(
    "error",
    [ApiError(status=404), ValueError("v"), ValueError(), ValueError("a", 1), KeyError("k"), KeyError(1)]
    + [
        FileNotFoundError(2, "no such file"),
        FileNotFoundError(2, "no", "a.txt"),
        ModuleNotFoundError("m", name="m"),
        TimeoutError(),
        TimeoutError("slow"),
        RunNotFound("r1"),
        StopIteration(3),
    ]
    + [StepTimeout("r", "s", 5)],
    ids=repr,
)
def test_a_kept_error_is_rebuilt_with_its_class_text_and_attributes(error: Exception) -> None:
    described = json.loads(json.dumps(describe(raised(error))))
    again = rebuild(described)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert {name: vars(again)[name] for name in vars(error)} == vars(error)


def test_a_kept_error_is_rebuilt_with_what_its_slots_hold() -> None:
    again = rebuild(json.loads(json.dumps(describe(raised(RateLimited(30))))))
    assert isinstance(again, RateLimited)
    assert again.retry_after == 30


def test_an_error_without_its_class_or_text_is_not_rebuilt() -> None:
    class Local(Exception):
        pass

    assert rebuild(describe(Local("x"))) is None
    assert rebuild({"type": "NoSuch", "module": "no.such.module", "message": "x"}) is None
    assert rebuild({"type": "dict", "module": "builtins", "message": "x"}) is None
    assert rebuild({}) is None
    group = ExceptionGroup("many", [ValueError("a")])
    assert rebuild(describe(group)) is None


def test_rebuilding_runs_no_constructor_and_imports_nothing() -> None:
    before = set(sys.modules)
    assert rebuild({"type": "JSONDecodeError", "module": "agent_resume_no_such", "message": "x"}) is None
    assert set(sys.modules) == before
    again = rebuild({"type": "ApiError", "module": __name__, "message": "status 1", "args": ["status 1"]})
    assert isinstance(again, ApiError)
    assert not hasattr(again, "status")
