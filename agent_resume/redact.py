"""Masks credentials in what is shown, logged or recorded beside results; never in what an agent needs back."""

from __future__ import annotations

import base64
import fnmatch
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from agent_resume.codec_classes import from_loaded, plain_name

#: What stands in place of a credential.
MASK = "[redacted]"


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# A key is split into words: apiKey, API_KEY and x-api-key are all "api key".
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_STRONG = _set(
    "password passwords passwd passphrase passcode pwd secret secrets credential credentials authorization "
    "cookie cookies apikey apikeys bearer jwt"
)
# Of words written together: PGPASSWORD, clientsecret.
_ENDINGS = ("password", "passwd", "passphrase", "secret", "apikey", "accesstoken", "authtoken", "refreshtoken")
_WHOLE = _set("auth sig pat")
_KEY_OWNERS = _set(
    "api access private secret signing encryption account subscription master storage shared deploy ssh auth "
    "openai anthropic gemini google azure aws groq mistral cohere hf huggingface github gitlab slack stripe tavily "
    "langsmith langchain sendgrid twilio datadog pinecone openrouter deepseek"
)
# A name that ends so is about a credential and holds none: token_count, password_file, secret_name.
_ABOUT = _set(
    "count counts file path type name names env var variable url uri endpoint length len limit budget usage used "
    "expiry expires expiration at in ttl policy id ids required enabled exists hint stdin prompt index rate price "
    "cost size manager store jar field header format algorithm version source provider scope scopes estimate "
    "ratio total details per left remaining"
)
# Tokens of text, of pages and of grammars, and how many there are.
_NO_SECRET_TOKEN = _set(
    "next page previous prev continuation sync cursor resume stop eos bos pad unk sep cls mask special first last per "
    "end start max min total each output input sample draft unexpected invalid prompt completion reasoning"
)
_SECRET_TOKENS = _set("access refresh auth api bearer session")

_SHAPES = re.compile(
    r"""
    -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----.*?(?:-----END[ ][A-Z ]*PRIVATE[ ]KEY-----|\Z)
    | (?<![A-Za-z0-9])(?:
        sk-(?:(?=[\w-]*\d)[\w-]{6,}|[\w-]{16,})
      | (?:sk|rk|pk)_(?:live|test)_\w{8,} | whsec_\w{16,}
      | gh[opsur]_\w{16,} | github_pat_\w{20,} | glpat-[\w-]{16,}
      | xox[abeoprs]-[\w-]{10,} | xapp-[\w-]{10,}
      | (?:AKIA|ASIA)[0-9A-Z]{16} | AIza[\w-]{30,} | ya29\.[\w-]{20,}
      | hf_[A-Za-z0-9]{20,} | gsk_[A-Za-z0-9]{20,} | xai-[A-Za-z0-9]{20,} | pplx-[A-Za-z0-9]{20,} | tvly-[\w-]{16,}
      | r8_[A-Za-z0-9]{20,} | npm_[A-Za-z0-9]{30,} | pypi-[\w-]{30,} | dop_v1_\w{30,} | shpat_\w{20,}
      | lsv2_\w{20,} | SG\.[\w-]{16,}\.[\w-]{16,}
      | eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_SCHEME = re.compile(r"\b(Bearer|Basic)(\s+)((?=[^\s\"',]*[\d=._+/-])[\w.~+/=-]{8,}|[\w.~+/=-]{20,})", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)([^\s/:@?#\"']*):([^\s/\"']+)@|(?<=://)([^\s/:@?#\"']{16,})@")
# A password of a database's URL may have a slash in it.
_SERVER = re.compile(r"(\bpostgres(?:ql)?(?:\+\w+)?://[^\s:/@?\"']*):([^\s@\"']{1,256})@")
# KEY=value, key: value, "key": "value", --key=value, --key value; whether the key is a secret's is asked of its words.
_ASSIGNED = re.compile(
    r"""
    (?<![\w.-])
    (?P<before>(?P<flag>--?)?(?P<key>[A-Za-z_][\w.-]*)(?:\\?["'])?)
    (?P<sign>\s*(?:=>|=|:)\s*|(?(flag)[ \t]+(?=[^\s-])|(?!)))
    (?P<value>
        \[redacted\]
      | (?P<quote>\\?["'])(?:(?!(?P=quote)).)*(?P=quote)?
      | (?:(?:Bearer|Basic|Token|ApiKey)\s+)?[^\s"',;&)\]}]+
    )
    """,
    re.VERBOSE | re.IGNORECASE,
)
# Nothing to look at closer in a text without any of these.
_HINTS = re.compile("pass|pwd|secret|credential|auth|cookie|key|token|jwt|bearer|sig|pat", re.IGNORECASE)
_NOTHING = frozenset({"none", "null", "true", "false", "undefined", "yes", "no", "on", "off", "?", "{", "[", MASK})
_HEADER_LINE = re.compile(r"(?im)^([ \t>\"'-]*(?:set-)?cookie[ \t]*:[ \t]*)(\S.*)$")
_TAG_MEMBERS = frozenset({"$type", "class", "base", "factory", "name", "zone"})
_PAIRS = frozenset({"dict", "OrderedDict", "defaultdict", "Counter"})


class Redactor:
    """Masks credentials by the names they are kept under and by how they look.

    Args:
        patterns: names of further keys to mask, as case-insensitive shell patterns (``"x-internal-*"``); or a
            function of a key and a value that returns what is to be shown in its place. It is asked for every scalar
            with the key it is under (None where there is none), before the default rules; when it raises, or returns
            what JSON cannot say, the value is masked.
    """

    def __init__(self, patterns: Callable[[str | None, Any], Any] | Sequence[str] | None = None) -> None:
        self._function = patterns if callable(patterns) else None
        names = () if patterns is None or callable(patterns) else (patterns,) if isinstance(patterns, str) else patterns
        self._patterns = tuple(re.compile(fnmatch.translate(_flat(name)), re.IGNORECASE) for name in names)

    def text(self, text: str) -> str:
        """``text`` with credentials masked; everything else as it was."""
        return str(self._scalar(None, text))

    def value(self, value: Any) -> Any:
        """A copy of a JSON value, plain or tagged, with credentials masked."""
        result: list[Any] = [None]
        # Each item: what to copy, the key it is under, whether all of it is hidden, and where the copy goes.
        pending: list[tuple[Any, Any, bool, Any, Any]] = [(value, None, False, result, 0)]
        while pending:
            item, key, hidden, target, place = pending.pop()
            if isinstance(item, dict):
                masked: dict[Any, Any] = {}
                target[place] = masked
                pending.extend(self._members(item, masked, hidden=hidden))
            elif isinstance(item, (list, tuple)):
                target[place] = copy = [None] * len(item)
                pending.extend((part, key, hidden, copy, index) for index, part in enumerate(item))
            elif hidden:
                target[place] = item if item is None or isinstance(item, bool) or item == "" else MASK
            else:
                target[place] = self._scalar(key, item)
        return result[0]

    def argv(self, argv: Sequence[str]) -> tuple[list[str], list[int]]:
        """A command line with credentials masked, and the places where something was.

        Returns:
            The masked arguments, and the indexes of those that differ from the given ones.
        """
        masked: list[str] = []
        hide_next = False
        for argument in argv:
            if hide_next and not argument.startswith("--"):
                masked.append(MASK)
                hide_next = False
                continue
            hide_next = _is_flag(argument) and self.is_secret(argument.lstrip("-"))
            masked.append(self.text(argument))
        return masked, [place for place, argument in enumerate(argv) if masked[place] != argument]

    def is_secret(self, key: str) -> bool:
        """Whether what is kept under ``key`` is to be masked."""
        return strength(key) > 0 or self._is_named(key)

    def _is_named(self, key: str) -> bool:
        flat = _flat(key)
        return any(pattern.match(flat) for pattern in self._patterns)

    def _members(self, item: Mapping[Any, Any], masked: dict[Any, Any], *, hidden: bool) -> list[Any]:
        """The members of a JSON object as pending copies into ``masked``, which gets its keys in order."""
        kind = item.get("$type")
        tag = isinstance(kind, str)
        pending: list[tuple[Any, Any, bool, Any, Any]] = []
        for name, member in item.items():
            if tag and name in _TAG_MEMBERS:
                masked[name] = member
            elif tag and name == "value" and kind in _PAIRS and isinstance(member, list):
                masked[name] = [[None, None] for _ in member]
                for pair, copy in zip(member, masked[name], strict=True):
                    key, part = pair if isinstance(pair, list) and len(pair) == 2 else (None, pair)
                    names = _key_names(key)
                    secret = hidden or any(self._hides(name, part) for name in names)
                    pending.append((key, None, False, copy, 0))
                    pending.append((part, names[0] if names else None, secret, copy, 1))
            else:
                shown = place = name if tag or not isinstance(name, str) else self._inline(name)
                count = 1
                while place in masked or (place != name and place in item):
                    count += 1
                    place = f"{shown} {count}"
                masked[place] = None
                pending.append((member, name, hidden or self._hides(name, member), masked, place))
        return pending

    def _hides(self, key: Any, item: Any) -> bool:
        if not isinstance(key, str):
            return False
        known = strength(key)
        # Numbers under a word such as "token" are counts, or places in a text.
        return known > 1 or self._is_named(key) or (known == 1 and not isinstance(item, (int, float)))

    def _scalar(self, key: str | None, value: Any) -> Any:
        if self._function is not None:
            try:
                shown = self._function(key, value)
                if shown is not value:
                    json.dumps(shown, ensure_ascii=False, allow_nan=False).encode()
                value = shown
            except Exception:  # noqa: BLE001 - what the user's function cannot judge is not shown
                return MASK
        return self._inline(value) if isinstance(value, str) else value

    def _inline(self, text: str) -> str:
        if len(text) < 4:
            return text
        text = _SHAPES.sub(MASK, text)
        if "postgres" in text:
            text = _SERVER.sub(rf"\1:{MASK}@", text)
        text = _USERINFO.sub(lambda found: f"{MASK}@" if found[1] is None else f"{found[1]}:{MASK}@", text)
        text = _HEADER_LINE.sub(rf"\1{MASK}", text)
        if self._patterns or _HINTS.search(text):
            text = self._assignments(text)
        return _SCHEME.sub(rf"\1\2{MASK}", text)

    def _assignments(self, text: str) -> str:
        pieces: list[str] = []
        at = 0
        while found := _ASSIGNED.search(text, at):
            masked = self._assigned(found)
            # Where nothing was masked, the value may itself be the key of the next pair.
            stop = found.end() if masked is not None else found.end("before")
            pieces.append(text[at : found.start()] + (masked if masked is not None else found["before"]))
            at = stop
        pieces.append(text[at:])
        return "".join(pieces)

    def _assigned(self, found: re.Match[str]) -> str | None:
        key, sign, value = found["key"], found["sign"], found["value"]
        known = 2 if self._is_named(key) else strength(key)
        if not known:
            return None
        quote = found["quote"] or ""
        inner = value[len(quote) : -len(quote)] if quote and value.endswith(quote) else value[len(quote) :]
        if inner.lower() in _NOTHING or not inner:
            return None
        if known == 1 and sign.strip() != "=" and not quote and not _looks_random(inner):
            return None
        end = quote if quote and value.endswith(quote) and len(value) > len(quote) else ""
        return f"{found['before']}{sign}{quote}{MASK}{end}"


def _key_names(key: Any) -> list[str]:
    """What the key of a pair says, where it is text or a tag that stands for text: bytes, an enum's member."""
    if not isinstance(key, dict):
        return [key] if isinstance(key, str) else []
    names = _key_names(key.get("value"))
    if key.get("$type") == "bytes":
        return [_bytes_text(name) for name in names]
    if key.get("$type") == "enum" and isinstance(key.get("class"), str):
        members = getattr(from_loaded(plain_name(key["class"])), "_member_map_", {})
        meant = [getattr(members.get(name), "_value_", None) for name in names]
        return [*(text for text in meant if isinstance(text, str)), *names]
    return names


def _bytes_text(stored: str) -> str:
    try:
        return base64.b64decode(stored).decode("utf-8", "replace")
    except ValueError:
        return stored


def _looks_random(text: str) -> bool:
    return len(text) >= 20 or (len(text) >= 6 and any(map(str.isdigit, text)))


def _is_flag(argument: str) -> bool:
    return argument.startswith("-") and "=" not in argument and not argument.startswith(("--no-", "--skip-", "--ask-"))


def _flat(key: str) -> str:
    return key.lower().replace("-", "_").replace(".", "_")


@lru_cache(maxsize=4096)
def strength(key: str) -> int:
    """How surely a key of this name holds a credential: 2 surely, 1 if it holds text, 0 not."""
    words = [word.lower() for word in _WORDS.findall(key[-200:])]
    if not words or words[-1] in _ABOUT:
        return 0
    if (
        not _STRONG.isdisjoint(words)
        or any(word.endswith(_ENDINGS) for word in words)
        or (len(words) == 1 and words[0] in _WHOLE)
    ):
        return 2
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in ("key", "keys") and before in _KEY_OWNERS:
        return 2
    if last == "token" and before not in _NO_SECRET_TOKEN:
        return 1
    if last == "tokens" and before in _SECRET_TOKENS:
        return 1
    return 0


#: The rules that hold where the user gave none.
DEFAULT = Redactor()


class _Unmasked(Redactor):
    def text(self, text: str) -> str:
        return text

    def value(self, value: Any) -> Any:
        return value


#: Shows everything as it is.
NOTHING = _Unmasked()
