"""What became of each run that was exported or imported, and what another layout could not hold as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

#: Called now and then during long work with a run's id or a file's name, what is done of it, and of how much.
Progress = Callable[[str, int, int], None]

ExportAction = Literal["exported", "replaced", "unchanged", "refused"]
ImportAction = Literal["imported", "identical", "skipped", "replaced", "renamed", "refused"]


class Refused(Exception):
    """This run, or this file, cannot be taken; the text says why. It becomes a row's reason and never leaves layouts/."""


@dataclass(frozen=True, slots=True)
class Bend:
    """One place that could not be kept as it was.

    Attributes:
        path: where: ``steps['plan'].output.total``.
        what: what was done with it.
    """

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


class Bends:
    """Collects bends; beyond ``kept`` they are only counted, so that a run of a million bent values stays small."""

    def __init__(self, kept: int = 100) -> None:
        self.count = 0
        self._kept = kept
        self._items: list[Bend] = []

    def add(self, path: str, what: str) -> None:
        """Note one place."""
        self.count += 1
        if len(self._items) < self._kept:
            self._items.append(Bend(path, what))

    @property
    def items(self) -> tuple[Bend, ...]:
        """The first ones."""
        return tuple(self._items)


@dataclass(frozen=True, slots=True)
class ExportRow:
    """One run's export.

    Attributes:
        run_id: the run.
        target: the file or folder that holds it now, or would have.
        action: ``unchanged``: the same export was there already.
        reason: why it was refused.
        bent: the first places that the layout could not hold as they were.
        bent_count: all of them.
    """

    run_id: str
    target: str
    action: ExportAction
    reason: str | None = None
    bent: tuple[Bend, ...] = ()
    bent_count: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The row as the command line prints it."""
        return {"runId": self.run_id, "target": self.target, "action": self.action} | _rest(self)


@dataclass(frozen=True, slots=True)
class ImportRow:
    """One run's import, or a path that held none.

    Attributes:
        run_id: its id in this store; None when the path gave no run.
        source: the file or folder it came from.
        action: ``identical``: the very same run is stored already.
        reason: why it was refused.
        bent: the first places that could not be taken as they were.
        bent_count: all of them.
    """

    run_id: str | None
    source: str
    action: ImportAction
    reason: str | None = None
    bent: tuple[Bend, ...] = ()
    bent_count: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The row as the command line prints it."""
        return {"runId": self.run_id, "source": self.source, "action": self.action} | _rest(self)


def _rest(row: ExportRow | ImportRow) -> dict[str, Any]:
    rest: dict[str, Any] = {} if row.reason is None else {"reason": row.reason}
    if row.bent_count:
        rest["bent"] = [{"path": bend.path, "what": bend.what} for bend in row.bent]
        rest["bentCount"] = row.bent_count
    return rest


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """Every run of one export, in order."""

    rows: tuple[ExportRow, ...]

    @property
    def refused(self) -> tuple[ExportRow, ...]:
        """Those that were not written."""
        return tuple(row for row in self.rows if row.action == "refused")


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """Every run and every useless path of one import, in order."""

    rows: tuple[ImportRow, ...]

    @property
    def refused(self) -> tuple[ImportRow, ...]:
        """Those that were not taken."""
        return tuple(row for row in self.rows if row.action == "refused")


def text_of(error: BaseException) -> str:
    """An error as the reason of a row."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
