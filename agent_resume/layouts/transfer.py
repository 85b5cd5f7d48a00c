"""Exports and imports, run by run: what one run refuses stops no other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, TextIO

from agent_resume.errors import AgentResumeError, StoreError
from agent_resume.layouts import badgr, files, flowcast_export, lossless
from agent_resume.layouts.detect import Format
from agent_resume.layouts.filenames import Names
from agent_resume.layouts.outcomes import (
    Bends,
    ExportAction,
    ExportRow,
    ExportSummary,
    Progress,
    Refused,
    text_of,
)
from agent_resume.models import RunDump
from agent_resume.store import Store

OnConflict = Literal["fail", "skip", "replace", "rename"]
_TICKS = 1000


class _Ticker:
    """Counts, and tells every thousandth time."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._label = ""
        self._done = 0
        self._told = 0
        self._total = 0

    def begin(self, label: str, total: int) -> None:
        self._label, self._done, self._told, self._total = label, 0, 0, total

    def tick(self, by: int = 1) -> None:
        self._done += by
        if self._progress is not None and self._done - self._told >= (_TICKS if by == 1 else 1 << 20):
            self._told = self._done
            self._progress(self._label, self._done, max(self._done, self._total))


def export_runs(
    store: Store,
    run_ids: Iterable[str],
    *,
    format: Format,
    out: str | os.PathLike[str] | TextIO,
    replace: bool = False,
    progress: Progress | None = None,
) -> ExportSummary:
    """Write runs in one of the layouts.

    Args:
        store: where they are.
        run_ids: which.
        format: ``json`` and ``jsonl`` are lossless; ``flowcast`` and ``badgr`` are other tools' layouts.
        out: for ``json`` and ``jsonl`` a file, replaced when it is complete, or a text stream; else a folder.
        replace: an export that is there already, and is another state of the run, gives way. Without this the run is
            refused, because the other tool may have gone on with it.
        progress: called now and then.

    Raises:
        RunNotFound: for ``json`` and ``jsonl``; then nothing is written.
        OSError: the file cannot be written.
        ValueError: a stream for a layout of folders.
    """
    ticker = _Ticker(progress)
    if format in ("json", "jsonl"):
        return _export_lossless(store, list(run_ids), format, out, ticker)
    if not isinstance(out, (str, os.PathLike)):
        raise ValueError(f"{format} writes a folder; give its path")
    names = Names()
    export = _export_flowcast if format == "flowcast" else _export_badgr
    return ExportSummary(
        tuple(_export_one(store, run_id, Path(out), names, export, replace, ticker) for run_id in run_ids)
    )


# Lossless


def _export_lossless(
    store: Store, run_ids: list[str], format: Format, out: str | os.PathLike[str] | TextIO, ticker: _Ticker
) -> ExportSummary:
    write_all = lossless.write_json if format == "json" else lossless.write_jsonl
    dumps = (_dump(store, run_id, ticker) for run_id in run_ids)
    if isinstance(out, (str, os.PathLike)):
        with files.whole_file(Path(out)) as file:
            write_all(dumps, lambda text: file.write(text.encode()), ticker.tick)
        target = str(Path(out))
    else:
        stream = out
        encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-")
        if encoding in ("utf-8", "utf8"):
            write_all(dumps, stream.write, ticker.tick)
        else:
            write_all(dumps, lambda text: stream.write(lossless.ascii_only(text)), ticker.tick)
        target = "-"
    return ExportSummary(tuple(ExportRow(run_id, target, "exported") for run_id in run_ids))


class _dump(AbstractContextManager[RunDump]):
    """``store.dump_run`` that says when it begins."""

    def __init__(self, store: Store, run_id: str, ticker: _Ticker) -> None:
        self._opened = store.dump_run(run_id)
        self._run_id = run_id
        self._ticker = ticker

    def __enter__(self) -> RunDump:
        dump = self._opened.__enter__()
        self._ticker.begin(self._run_id, dump.run["last_seq"])
        return dump

    def __exit__(self, *error: Any) -> None:
        self._opened.__exit__(*error)


# Folders


_Exporter = Callable[[RunDump, Path, Names, Bends, bool, _Ticker], tuple[Path, ExportAction]]


def _export_one(
    store: Store, run_id: str, out: Path, names: Names, export: _Exporter, replace: bool, ticker: _Ticker
) -> ExportRow:
    bends = Bends()
    target = out
    try:
        with _dump(store, run_id, ticker) as dump:
            target, action = export(dump, out, names, bends, replace, ticker)
    except StoreError:
        raise
    except (Refused, AgentResumeError, OSError, RecursionError) as error:
        return ExportRow(run_id, str(target), "refused", text_of(error))
    return ExportRow(run_id, str(target), action, None, bends.items, bends.count)


def _export_flowcast(
    dump: RunDump, out: Path, names: Names, bends: Bends, replace: bool, ticker: _Ticker
) -> tuple[Path, ExportAction]:
    folder = names.pick(dump.run["id"])
    if folder != dump.run["id"]:
        bends.add("run.id", f"no safe name of a folder, written as {folder}")
    with files.NewFolder(out / folder) as new:
        flowcast_export.write_run(dump, new.path, folder, names, bends, ticker.tick)
        return new.target, new.commit(replace=replace)


def _export_badgr(
    dump: RunDump, out: Path, names: Names, bends: Bends, replace: bool, ticker: _Ticker
) -> tuple[Path, ExportAction]:
    # The stem may be another run's too: equal names, created in the same millisecond.
    stem = badgr.file_stem(dump.run)
    name = names.pick_for(stem, dump.run["id"])
    target = out / f"{name}.json"
    if name != stem:
        bends.add("run.name", f"no safe name of a file, written as {name}")
    with files.whole_file(target, replace=replace) as file:
        badgr.write_run(dump, file, bends)
    return target, file.action
