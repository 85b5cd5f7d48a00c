"""Imports, run by run: each is stored whole or not at all, and what one refuses stops no other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from agent_resume.errors import AgentResumeError, StoreError
from agent_resume.layouts import badgr, detect, files, flowcast_import, lossless_read
from agent_resume.layouts.detect import Found
from agent_resume.layouts.outcomes import Bends, ImportRow, ImportSummary, Progress, Refused, text_of
from agent_resume.layouts.progress import Ticker
from agent_resume.models import ImportOutcome, RunDump
from agent_resume.store import Store

OnConflict = Literal["fail", "skip", "replace", "rename"]
_NOT_OURS = "give what agent-resume export wrote, a run's folder of flowcast, or a state of badgr"
_REFUSALS = (Refused, AgentResumeError, OSError, RecursionError)


def import_paths(
    store: Store,
    paths: Iterable[str | os.PathLike[str]],
    *,
    format: str = "auto",
    dry_run: bool = False,
    on_conflict: OnConflict = "fail",
    progress: Progress | None = None,
) -> ImportSummary:
    """Store the runs that files and folders hold.

    Args:
        store: where to.
        paths: exported files, flowcast's run folders, or folders of either.
        format: one of ``detect.FORMATS``, or ``auto``.
        dry_run: say what would become of each, and store nothing.
        on_conflict: what to do about a run whose id is taken by a different one: refuse it, leave it out, let it take
            the other's place, or store it under a new id. The very same run is never stored twice.
        progress: called now and then.
    """
    work = _Import(store, format, dry_run, on_conflict, Ticker(progress))
    for path in paths:
        work.take(Path(path))
    return ImportSummary(tuple(work.rows))


class _Import:
    def __init__(self, store: Store, format: str, dry_run: bool, on_conflict: OnConflict, ticker: Ticker) -> None:
        self.rows: list[ImportRow] = []
        self._store = store
        self._format = format
        self._dry_run = dry_run
        self._on_conflict: OnConflict = on_conflict
        self._ticker = ticker
        # An export of no runs is one too.
        self._is_known = False

    def take(self, path: Path) -> None:
        before = len(self.rows)
        self._is_known = False
        if path.is_symlink():  # named by the caller himself, and no file that lies in an export
            path = Path(os.path.realpath(path))
        try:
            self._refuse_own_store(path)
            for found in detect.look(path, self._format):
                self._read(found)
            if len(self.rows) == before and not self._is_known:
                raise Refused(f"no run of a known layout here; {_NOT_OURS}")
        except StoreError:
            raise
        except _REFUSALS as error:
            self._refuse(None, path, error)

    def _refuse_own_store(self, path: Path) -> None:
        # To open and close it as a plain file would drop the locks that this process has on it.
        place = self._store.location
        if place.kind == "sqlite" and self._store.exists() and path.exists() and os.path.samefile(place.target, path):
            raise Refused(f"{path.name} {lossless_read.IS_A_STORE}")

    def _read(self, found: Found) -> None:
        try:
            if found.kind == "flowcast":
                self._flowcast(found.path)
            elif found.kind == "jsonl":
                self._lines(found.path)
            else:
                self._document(found.path, is_guess=found.is_guess)
        except StoreError:
            raise
        except _REFUSALS as error:
            self._refuse(None, found.path, error)

    def _refuse(self, run_id: str | None, source: Path, error: BaseException) -> None:
        reason = text_of(error)
        if isinstance(error, Refused) and "; " not in reason:  # a place in the file, and what is wrong there
            reason += "; export it again where it came from, or mend the file"
        self.rows.append(ImportRow(run_id, str(source), "refused", reason))

    def _store_run(self, run_id: str | None, source: Path, bends: Bends, dump: Callable[[], RunDump]) -> None:
        try:
            outcome = self._outcome(dump())
        except StoreError:
            raise
        except _REFUSALS as error:
            self._refuse(run_id, source, error)
            return
        self.rows.append(ImportRow(outcome.run_id, str(source), outcome.action, None, bends.items, bends.count))

    def _outcome(self, dump: RunDump) -> ImportOutcome:
        return self._store.import_run(dump, on_conflict=self._on_conflict, dry_run=self._dry_run)

    def _flowcast(self, path: Path) -> None:
        bends = Bends()
        self._ticker.begin(path.name, 0)
        try:
            with flowcast_import.read_run(path, self._store.codec, bends, self._ticker.tick) as dump:
                self._store_run(dump.run["id"], path, bends, lambda: dump)
        except (Refused, OSError) as error:
            self._refuse(path.name, path, error)

    def _lines(self, path: Path) -> None:
        with files.open_regular(path) as file:
            self._ticker.begin(path.name, os.fstat(file.fileno()).st_size)
            lines = lossless_read.Lines(file, self._ticker.read)
            lines.begin()
            self._is_known = True
            for dump in _runs_of(lines):
                self._store_run(lines.run_id, path, Bends(), dump)
            lines.end()

    def _document(self, path: Path, *, is_guess: bool) -> None:
        with files.open_regular(path) as file:
            data = file.read()
        document = lossless_read.read_document(path.name, data)
        if self._format in ("auto", "badgr") and badgr.is_state(document):
            bends = Bends()
            given = document.get("id")
            run_id = given if isinstance(given, str) else None
            self._store_run(run_id, path, bends, lambda: badgr.read_run(document, self._store.codec, bends))
        elif self._format in ("auto", "json") and isinstance(document, dict) and "runs" in document:
            runs = lossless_read.document_runs(document)
            self._is_known = True
            for index, run in enumerate(runs):
                self._one_of(run, index, path)
        elif not is_guess:
            if self._format == "auto":
                raise Refused(f"not a file of a known layout; {_NOT_OURS}")
            raise Refused(f"not a {self._format} file; --format auto finds out what it is")

    def _one_of(self, run: Any, index: int, path: Path) -> None:
        given = run.get("id") if isinstance(run, dict) else None
        run_id = given if isinstance(given, str) else None
        self._ticker.begin(run_id or path.name, lossless_read.row_count(run))
        self._store_run(run_id, path, Bends(), lambda: lossless_read.document_dump(run, index, self._ticker.tick))


def _runs_of(lines: lossless_read.Lines) -> Iterator[Callable[[], RunDump]]:
    """What gives each run's dump, or says why not; the next begins where the next run does."""
    while lines.find_run():
        yield lines.read_run
