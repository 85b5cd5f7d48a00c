"""File names from run ids: safe on Linux, macOS and Windows, and never the same for two runs."""

from __future__ import annotations

import hashlib
import re

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
# Names that Windows keeps for devices, with any ending.
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(10)}
)
# The path around it needs room too: 255 bytes are the most for one name, 260 characters for a path on Windows.
_LONGEST = 120
_DIGEST = 8


def safe_name(text: str, *, longest: int = _LONGEST) -> str:
    """``text`` itself where it is a safe file name, else a readable part of it with a digest of all of it."""
    cleaned = _UNSAFE.sub("_", text)
    if cleaned == text and is_safe(text, longest):
        return text
    return marked(text, longest)


def is_safe(text: str, longest: int = _LONGEST) -> bool:
    """Whether every file system takes ``text`` as it is, and no command takes it for an option."""
    if not text or len(text) > longest or _UNSAFE.search(text):
        return False
    if not (text[0].isalnum() and text[-1].isalnum()):
        return False
    return text.partition(".")[0].lower() not in _DEVICES


def marked(text: str, longest: int = _LONGEST, *, owner: str | None = None) -> str:
    """A readable part of ``text`` and a digest of its owner's id, so that names that clean up alike stay apart."""
    whole = text if owner is None else owner
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    readable = _UNSAFE.sub("_", text)
    if readable.partition(".")[0].lower() in _DEVICES:
        readable = f"run_{readable}"
    return f"{readable[: longest - _DIGEST - 1].strip('._-') or 'run'}_{digest}"


def could_be(name: str, text: str) -> bool:
    """Whether an export may have named ``text`` so."""
    stem = marked(text)
    return name in (safe_name(text), stem) or re.fullmatch(re.escape(stem) + r"_[0-9]+", name) is not None


class Names:
    """The names given in one export; two ids that differ only in case get different files."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def pick(self, text: str, owner: str | None = None) -> str:
        """The name for ``text``; the same one each time it is asked for the same owner, which is ``text`` itself if None."""
        whole = text if owner is None else owner
        name = safe_name(text)
        if self._owners.setdefault(name.lower(), whole) == whole:
            return name
        name = stem = marked(text, owner=owner)
        number = 1
        while self._owners.setdefault(name.lower(), whole) != whole:
            number += 1
            name = f"{stem}_{number}"
        return name

    def release(self, name: str, owner: str) -> None:
        """Let nobody have a name that turned out to be in use."""
        self._owners[name.lower()] = f"\0{owner}"
