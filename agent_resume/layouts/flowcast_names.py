"""flowcast's names: run ids that it takes, side files, the marker that stands for one, keys it cannot share with us."""

from __future__ import annotations

import re
from collections.abc import Iterable

from agent_resume import names
from agent_resume.codec_plain import is_encodable
from agent_resume.layouts import jstext

#: What a string in ``completed`` begins with when it names a side file.
MARKER = "\0flowcast:sidecar\0"
#: Results above this many UTF-16 units go to a side file.
INLINE_UNITS = 500
STATE, BACKUP, LOG, REPORT, SIDE = "state.json", "state.json.bak", "run.log.jsonl", "report.md", "steps"
PAUSE_KEY = "__pause__"

_RUN_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
# flowcast writes ``<name>.out.tmp`` first; 255 bytes are the most a file system takes.
_LONGEST = 255 - len(".out.tmp")
_UNSTORABLE = re.compile("[\0\ud800-\udfff\\\\]")


def takes_run_id(text: str) -> bool:
    """Whether flowcast opens a run of this id."""
    return _RUN_ID.fullmatch(text) is not None


def side_name(key: str) -> str:
    """The side file of a key, without ``.out``, as flowcast names it."""
    hashed = 0x811C9DC5
    units = jstext.code_units(key)
    for unit in units:
        hashed = ((hashed ^ unit) * 0x01000193) & 0xFFFFFFFF
    # One underscore for each 16-bit unit: two for a character beyond them.
    safe = _UNSAFE.sub(lambda found: "__" if found[0] > "\uffff" else "_", key)
    return f"{safe}_{_base36(hashed)}"


def _base36(value: int) -> str:
    text = ""
    while True:
        value, digit = divmod(value, 36)
        text = _DIGITS[digit] + text
        if not value:
            return text


def fits(name: str) -> bool:
    """Whether flowcast can write a side file of this name."""
    return len(name) <= _LONGEST


def shortened(name: str) -> str:
    """A name that fits; the marker carries it, so it need not be the one that flowcast would choose."""
    return name if fits(name) else f"{name[:100]}_{name.rpartition('_')[2]}"


def side_file_of(value: object) -> str | None:
    """The name after the marker, or None for an ordinary result."""
    return value[len(MARKER) :] if isinstance(value, str) and value.startswith(MARKER) else None


def is_inside(name: str) -> bool:
    """Whether a side file's name stays in its folder, on every system."""
    return bool(name) and not re.search(r"[/\\\0:]", name)


class Keys:
    r"""Keys that cannot be names here, those with lone surrogates or NUL or too long, under names that can; and back.

    ``\ud83d`` stands for such a half, ``\x00`` for NUL, ``\\`` for a backslash, in these keys only.
    """

    def __init__(self, stored: dict[str, str] | None = None) -> None:
        self.originals: dict[str, str] = dict(stored or {})
        self._names: dict[str, str] = {original: name for name, original in self.originals.items()}

    def take(self, keys: Iterable[str]) -> None:
        """Learn every key of a run before any of them is renamed, so that no name is given twice."""
        keys = list(dict.fromkeys(keys))
        odd = [key for key in keys if not is_storable(key) or len(key.encode()) > names.LONGEST]
        if not odd:
            return
        taken = set(keys)
        for key in odd:
            name = names.shortened(escaped(key), names.LONGEST - 20)
            while name in taken:
                name += "'"
            taken.add(name)
            self._names[key] = name
            self.originals[name] = key

    def stored(self, key: str) -> str:
        """Under which name a key is stored here."""
        return self._names.get(key, key)

    def original(self, name: str) -> str:
        """The key in flowcast of a stored name."""
        return self.originals.get(name, name)


def is_storable(text: str) -> bool:
    """Whether a text can be a name here."""
    return "\0" not in text and is_encodable(text)


def escaped(text: str) -> str:
    """A text that can be stored, from which the original can be read."""

    def spell(found: re.Match[str]) -> str:
        char = found[0]
        return "\\\\" if char == "\\" else "\\x00" if char == "\0" else f"\\u{ord(char):04x}"

    return _UNSTORABLE.sub(spell, text)
