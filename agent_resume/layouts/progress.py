"""Telling how far long work has come, now and then."""

from __future__ import annotations

from agent_resume.layouts.outcomes import Progress

_EVERY = 1000
_EVERY_BYTES = 1 << 20


class Ticker:
    """Counts rows or bytes, and tells about every thousandth row and every mebibyte."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._label = ""
        self._done = 0
        # Since it was told last, also of things before this one: many small ones are long work too.
        self._rows = self._bytes = 0
        self._total = 0

    def begin(self, label: str, total: int) -> None:
        """Something new, of a size that is a guess."""
        self._label, self._done, self._total = label, 0, total

    def tick(self) -> None:
        """One row more."""
        self._done += 1
        self._rows += 1
        if self._rows >= _EVERY:
            self._tell()

    def read(self, size: int) -> None:
        """So many bytes more."""
        self._done += size
        self._bytes += size
        if self._bytes >= _EVERY_BYTES:
            self._tell()

    def _tell(self) -> None:
        self._rows = self._bytes = 0
        if self._progress is not None:
            self._progress(self._label, self._done, max(self._done, self._total))
