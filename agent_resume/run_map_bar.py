"""The progress bar of ``run.map``: on a terminal, through rich, which is imported only then."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import report

if TYPE_CHECKING:
    from .run_core import RunCore


class Bar:
    """A bar on stderr while it is a terminal and progress is wanted; else nothing.

    The lines of single steps are held back meanwhile. Neither ``sys.stdout`` nor ``sys.stderr`` is replaced.
    """

    def __init__(self, core: RunCore, name: str, items: Any) -> None:
        self._core = core
        self._name = name
        self._total = len(items) if hasattr(items, "__len__") else None
        self._progress: Any = None
        self._task: Any = None

    @property
    def wanted(self) -> bool:
        """Whether it will be drawn; entering it imports rich then."""
        return self._core.shows and sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> Bar:
        if self.wanted:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                TextColumn("[run] {task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
                TimeElapsedColumn(), console=Console(stderr=True), transient=True, redirect_stdout=False,
                redirect_stderr=False,
            )  # fmt: skip
            self._task = self._progress.add_task(report.printable(self._name), total=self._total)
            self._progress.start()
            self._core.bars += 1
        return self

    def advance(self) -> None:
        """One more item is done."""
        if self._progress is not None:
            self._progress.advance(self._task)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._core.bars -= 1
            self._progress.stop()
