"""The progress bar of long exports and imports: on a terminal, through rich, which is imported only then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agent_resume import report


@contextmanager
def shown(what: str, *, wanted: bool = True) -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar on stderr while that is a terminal; it is gone at the end.

    Args:
        what: the work, one word.
        wanted: False where other text goes to the same terminal.

    Yields:
        What tells it how far the work is: a label, what is done of it, and of how much. None without a bar.
    """
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        task = progress.add_task(what, total=None)

        def tell(label: str, done: int, total: int) -> None:
            progress.update(task, description=f"{what} {report.printable(label)}", completed=done, total=total)

        yield tell
