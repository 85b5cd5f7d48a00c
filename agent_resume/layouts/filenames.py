"""File names from run ids: safe on Linux, macOS and Windows, and never the same for two runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

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


#: Whom a name belongs to already, however it is spelled in upper and lower case; None when to nobody.
Held = Callable[[str], str | None]


def held_in(folder: Path, ending: str, owner_of: Callable[[Path], str | None]) -> Held:
    """Whom the names in a folder belong to, as it is now.

    Args:
        folder: where; it may be missing.
        ending: of the names there, which ``Names`` does not know of; the others do not count.
        owner_of: the run id in a file or folder, None when it cannot be told.
    """
    there: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.endswith(ending):
            there.setdefault(path.name.removesuffix(ending).lower(), []).append(path)

    def held(name: str) -> str | None:
        paths = there.get(name.lower(), [])
        exact = folder / f"{name}{ending}"
        if exact in paths:
            return owner_of(exact)
        # Where case does not count, this name is that file.
        return owner_of(paths[0]) or f"\0{paths[0].name}" if paths else None

    return held


class Names:
    """The names given in one export; two ids that differ only in case get different files.

    Args:
        held: whom the names belong to that are there from earlier exports; they are given to nobody else.
    """

    def __init__(self, held: Held = lambda name: None) -> None:
        self._owners: dict[str, str] = {}
        self._held = held

    def pick(self, text: str, owner: str | None = None) -> str:
        """The name for ``text``; the same one each time it is asked for the same owner, which is ``text`` itself if None."""
        whole = text if owner is None else owner
        name = safe_name(text)
        if self._is_given(name, whole):
            return name
        name = stem = marked(text, owner=owner)
        number = 1
        while not self._is_given(name, whole):
            number += 1
            name = f"{stem}_{number}"
        return name

    def _is_given(self, name: str, owner: str) -> bool:
        if name.lower() not in self._owners:
            self._owners[name.lower()] = self._held(name) or owner
        return self._owners[name.lower()] == owner
