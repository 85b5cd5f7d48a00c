"""Credentials are masked by the names they are kept under and by how they look; nothing innocent is."""

from __future__ import annotations

import enum
import json
import time
from pathlib import Path
from typing import Any

import pytest

from agent_resume import Checkpoint, Store, codec
from agent_resume.redact import DEFAULT, MASK, Redactor

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"


@pytest.mark.parametrize(
    "key",
    [
        "api_key",
        "apiKey",
        "API-KEY",
        "x-api-key",
        "OPENAI_API_KEY",
        "openai_key",
        "password",
        "db.password",
        "userPassword",
    ]
    + [
        "passwd",
        "pwd",
        "PGPASSWORD",
        "clientsecret",
        "client_secret",
        "secret",
        "AWS_SECRET_ACCESS_KEY",
        "authorization",
        "Authorization",
        "cookie",
    ]
    + ["Set-Cookie", "access_token", "refreshToken", "token", "GITHUB_TOKEN", "id_token", "csrfToken", "bearer"]
    + [
        "credentials",
        "private_key",
        "ssh_key",
        "auth",
        "jwt",
        "access_tokens",
        "passphrase",
        "AccountKey",
        "proxy-authorization",
    ],
)
def test_what_is_kept_under_a_credentials_name_is_masked(key: str) -> None:
    assert DEFAULT.value({key: "x"}) == {key: MASK}
    assert DEFAULT.value([{"a": {key: ["x", {"y": "z"}]}}]) == [{"a": {key: [MASK, {"y": MASK}]}}]


@pytest.mark.parametrize(
    "key",
    [
        "inputTokens",
        "outputTokens",
        "max_tokens",
        "token_count",
        "tokens",
        "total_tokens",
        "tokenLimit",
        "next_page_token",
    ]
    + [
        "eos_token",
        "first_token",
        "key",
        "keys",
        "step_key",
        "primary_key",
        "foreign_key",
        "public_key",
        "keyboard",
        "monkey",
    ]
    + [
        "password_file",
        "secret_name",
        "api_key_env",
        "access_key_id",
        "author",
        "authority",
        "authored_by",
        "secretary",
    ]
    + [
        "cookie_jar",
        "token_type",
        "passage",
        "compass",
        "passed",
        "signature",
        "tokenizer",
        "cached_tokens",
        "reasoning_tokens",
    ],
)
def test_innocent_names_are_left_alone(key: str) -> None:
    assert DEFAULT.value({key: "some text"}) == {key: "some text"}
    assert DEFAULT.value({key: 5}) == {key: 5}


def test_numbers_under_token_are_counts_and_flags_and_blanks_stay() -> None:
    value = {"token": 5, "has_password": True, "password": None, "secret": "", "cookie": False}
    assert DEFAULT.value(value) == value
    assert DEFAULT.value({"password": 12345}) == {"password": MASK}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sk-test-123", MASK),
        ("key is sk-ant-api03-AbC_dEf-123.", f"key is {MASK}."),
        ("ghp_0123456789abcdefABCD in a text", f"{MASK} in a text"),
        ("xoxb-12345-67890-abcdef", MASK),
        ("AKIAIOSFODNN7EXAMPLE", MASK),
        (JWT, MASK),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nrest", f"{MASK}\nrest"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE cut off", MASK),
        ("Authorization: Bearer abc.def", f"Authorization: {MASK}"),
        ("sent Bearer abcdef123456", f"sent Bearer {MASK}"),
        ("curl --password=hunter2 -v", f"curl --password={MASK} -v"),
        ("curl --password hunter2 -v", f"curl --password {MASK} -v"),
        ("postgresql://me:p@ss/w@host/db", f"postgresql://me:{MASK}@ss/w@host/db"),
        ("postgresql+psycopg://me:p/w@host/db", f"postgresql+psycopg://me:{MASK}@host/db"),
        ("postgresql://me:p@ss@host/db", f"postgresql://me:{MASK}@host/db"),
        ("https://abcdefghijklmnopqrst@host/x", f"https://{MASK}@host/x"),
        ("https://h/p?token=abc&x=1", f"https://h/p?token={MASK}&x=1"),
        ("export API_KEY='a b'; go", f"export API_KEY='{MASK}'; go"),
        ('{"api_key": "abc", "n": 1}', f'{{"api_key": "{MASK}", "n": 1}}'),
        ('{\\"password\\": \\"a b\\"}', f'{{\\"password\\": \\"{MASK}\\"}}'),
        ("ApiError(secret='x', code=5)", f"ApiError(secret='{MASK}', code=5)"),
        ("Cookie: a=b; c=d\nHost: x", f"Cookie: {MASK}\nHost: x"),
        ("a=1 db_password = x", f"a=1 db_password = {MASK}"),
        ("AccountName=me;AccountKey=abc==;Other=1", f"AccountName=me;AccountKey={MASK};Other=1"),
    ],
)
def test_credentials_inside_a_text_are_masked(text: str, shown: str) -> None:
    assert DEFAULT.text(text) == shown
    assert DEFAULT.text(DEFAULT.text(text)) == DEFAULT.text(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "risk-assessment of sk-learn",
        "task-1234567890",
        "unexpected token: foo",
        "the password is wrong",
        "password",
    ]
    + [
        "max_tokens=100 inputTokens: 5",
        "token: expected",
        "basic understanding of things",
        "bearer of bad news",
        "key=value",
    ]
    + ["https://host/path@2x.png", "https://me@host/", "git@github.com:a/b", "12:30", "password: None", "secret=false"]
    + ["cookies are sweet", "step_key=a token_count=7", "mailto:a@b", "sort by key: name", "deadbeef" * 8],
)
def test_innocent_texts_are_left_alone(text: str) -> None:
    assert DEFAULT.text(text) == text


def test_a_command_line_is_masked_and_says_where() -> None:
    argv = [
        "prog",
        "--api-key",
        "abc",
        "--token=xyz",
        "-H",
        "Authorization: Bearer abc",
        "--no-password",
        "x",
        "--password",
    ]
    masked, places = DEFAULT.argv([*argv, "--force", "PGPASSWORD=y", "plain"])
    assert masked == ["prog", "--api-key", MASK, f"--token={MASK}", "-H", f"Authorization: {MASK}", "--no-password", "x"] + [
        "--password", "--force", f"PGPASSWORD={MASK}", "plain",
    ]  # fmt: skip
    assert places == [2, 3, 5, 10]


def test_tagged_values_keep_their_tags_and_hide_what_is_under_odd_keys() -> None:
    value = {
        "$type": "dict",
        "value": [["api_key", "x"], [1, "y"], ["n", {"$type": "tuple", "value": ["sk-test-123"]}]],
    }
    assert DEFAULT.value(value)["value"] == [["api_key", MASK], [1, "y"], ["n", {"$type": "tuple", "value": [MASK]}]]
    model = {"$type": "pydantic", "class": "shop:Secret", "value": {"token": "x", "name": "n"}}
    assert DEFAULT.value(model) == {"$type": "pydantic", "class": "shop:Secret", "value": {"token": MASK, "name": "n"}}


class Header(enum.StrEnum):
    KEY = "x-api-key"
    PAGE = "x-page"


class Word(str):
    pass


def test_keys_that_mean_text_count_as_that_text() -> None:
    plain = {"page": "shown"}
    keys = [Header.KEY, Word("password"), b"password", "pass\udc81 password", Word("\udc81 password")]
    for key in keys:
        text = codec.DEFAULT.encode_tagged(
            {key: "hunter2", **plain, Header.PAGE: "shown", b"\xff": "shown", 1: "shown"}
        )
        masked = DEFAULT.value(json.loads(text))
        assert "hunter2" not in json.dumps(masked)
        assert json.dumps(masked).count(MASK) == 1
        assert json.dumps(masked).count("shown") == 4
    gone = {"$type": "enum", "class": "no_such_module:Header", "value": "AUTH"}
    assert DEFAULT.value({"$type": "dict", "value": [[gone, "hunter2"]]})["value"] == [[gone, MASK]]
    broken = {"$type": "dict", "value": [[{"$type": "bytes", "value": "x"}, "shown"]]}
    assert DEFAULT.value(broken) == broken
    seen: list[Any] = []
    Redactor(lambda key, value: seen.append((key, value))).value(json.loads(text))
    assert (Header.PAGE.value, "shown") in seen


@pytest.mark.parametrize(
    "shown", [object(), b"x", {1, 2}, float("nan"), "\udc81", [object()]], ids=lambda shown: type(shown).__name__
)
def test_what_a_function_returns_is_masked_where_json_cannot_say_it(shown: Any, tmp_path: Path) -> None:
    redactor = Redactor(lambda key, value: shown)
    assert redactor.value({"a": 1}) == {"a": MASK}
    assert redactor.text("a") == MASK

    def fail() -> None:
        raise KeyError("real cause")

    with Store(tmp_path / "runs.db", redact=lambda key, value: shown) as store:
        run = Checkpoint("r", db=store)
        with pytest.raises(KeyError, match="real cause"):
            run.step("s", fail)
        run.event("note", text="x")
        run.flush()
        assert [event.data for event in store.events("r") if event.type == "note"] == [json.dumps({"text": MASK})]
        (step,) = run.timeline()
        assert (step.status, step.error["type"]) == ("failed", MASK)
    assert Redactor(lambda key, value: {"hidden": True}).value(["a"]) == [{"hidden": True}]


def test_keys_that_are_credentials_are_masked_and_no_entry_is_lost() -> None:
    assert DEFAULT.value({"sk-test-123": 1, "sk-test-456": 2}) == {MASK: 1, f"{MASK} 2": 2}


def test_the_value_given_is_not_changed_and_order_stays() -> None:
    value = {"b": 1, "password": "x", "a": [1, "sk-test-123"]}
    assert list(DEFAULT.value(value)) == ["b", "password", "a"]
    assert value == {"b": 1, "password": "x", "a": [1, "sk-test-123"]}


def test_further_names_can_be_given_as_shell_patterns() -> None:
    redactor = Redactor(["x-internal-*", "Ssn"])
    assert redactor.value({"X_Internal_Id": 5, "ssn": "1", "password": "p", "other": "o"}) == {
        "X_Internal_Id": MASK, "ssn": MASK, "password": MASK, "other": "o",
    }  # fmt: skip
    assert redactor.text("ssn=123 other=1") == f"ssn={MASK} other=1"
    assert redactor.argv(["--ssn", "1"]) == (["--ssn", MASK], [1])


def test_a_function_is_asked_for_every_scalar_and_the_default_rules_still_hold() -> None:
    seen: list[Any] = []

    def judge(key: str | None, value: Any) -> Any:
        seen.append((key, value))
        if value == "boom":
            raise RuntimeError
        return "***" if key == "name" else value

    redactor = Redactor(judge)
    value = {"name": "Ann", "items": ["boom", 3], "password": "x", "t": "sk-test-123"}
    assert redactor.value(value) == {"name": "***", "items": [MASK, 3], "password": MASK, "t": MASK}
    assert ("items", 3) in seen
    assert redactor.text("boom") == MASK


def test_deep_values_are_masked_too() -> None:
    value: Any = {"password": "x"}
    for _ in range(5000):
        value = [{"a": value}]
    masked = DEFAULT.value(value)
    for _ in range(5000):
        masked = masked[0]["a"]
    assert masked == {"password": MASK}


@pytest.mark.parametrize(
    "text", ["a" * 300_000, "a-" * 150_000, "key " * 70_000, '"' * 200_000, "://" * 90_000, "sk-" * 90_000]
)
def test_no_text_takes_quadratic_time(text: str) -> None:
    start = time.process_time()
    DEFAULT.text(text)
    # Quadratic would be minutes; this only has to tell the two apart.
    assert time.process_time() - start < 30
