"""Exports, run by run: what one run refuses stops no other."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TextIO

from agent_resume.errors import AgentResumeError, StoreError
from agent_resume.layouts import badgr, files, flowcast_export, flowcast_own, lossless
from agent_resume.layouts.detect import Format
from agent_resume.layouts.filenames import Names, held_in
from agent_resume.layouts.outcomes import Bends, ExportAction, ExportRow, ExportSummary, Progress, Refused, text_of
from agent_resume.layouts.progress import Ticker
from agent_resume.models import RunDump
from agent_resume.store import Store

Out = str | os.PathLike[str] | TextIO


def export_runs(
    store: Store,
    run_ids: Iterable[str],
    *,
    format: Format,
    out: Out,
    replace: bool = False,
    progress: Progress | None = None,
) -> ExportSummary:
    """Write runs in one of the layouts.

    Args:
        store: where they are.
        run_ids: which.
        format: ``json`` and ``jsonl`` are lossless; ``flowcast`` and ``badgr`` are other tools' layouts.
        out: for ``json`` and ``jsonl`` a file, or a text stream; an export that is there is replaced when the new one is
            complete. Else a folder.
        replace: for ``json`` and ``jsonl``, a file that is no export gives way too. For the others, an export that is
            another state of the run does; without this the run is refused, because the other tool may have gone on
            with it. No database ever gives way, the store least of all.
        progress: called now and then.

    Raises:
        RunNotFound: for ``json`` and ``jsonl``; then no file is written.
        OSError: the file cannot be written, or must not be.
        ValueError: a stream for a layout of folders.
    """
    ticker = Ticker(progress)
    if format in ("json", "jsonl"):
        return _export_lossless(store, list(run_ids), format, out, replace, ticker)
    if not isinstance(out, (str, os.PathLike)):
        raise ValueError(f"{format} writes a folder; give its path")
    write = _write_flowcast if format == "flowcast" else _write_badgr
    folder = Path(out)
    held = held_in(folder, "", flowcast_own.run_of) if format == "flowcast" else held_in(folder, ".json", badgr.run_of)
    names = Names(held)
    return ExportSummary(tuple(_export_one(store, run_id, folder, names, write, replace, ticker) for run_id in run_ids))


@contextmanager
def _dump(store: Store, run_id: str, ticker: Ticker) -> Iterator[RunDump]:
    with store.dump_run(run_id) as dump:
        ticker.begin(run_id, dump.run["last_seq"])
        yield dump


def _export_lossless(
    store: Store, run_ids: list[str], format: Format, out: Out, replace: bool, ticker: Ticker
) -> ExportSummary:
    dumps: Iterator[AbstractContextManager[RunDump]] = (_dump(store, run_id, ticker) for run_id in run_ids)

    def write_all(write: Callable[[str], object]) -> None:
        if format == "json":
            lossless.write_json(dumps, write, ticker.tick)
        else:
            lossless.write_jsonl(dumps, len(run_ids), write, ticker.tick)

    if isinstance(out, (str, os.PathLike)):
        action = _to_file(Path(out), replace, write_all)
        return ExportSummary(tuple(ExportRow(run_id, str(out), action) for run_id in run_ids))
    write: Callable[[str], object] = out.write
    if (out.encoding or "utf-8").lower().replace("_", "-") not in ("utf-8", "utf8"):
        write = _escaping(out)
    write_all(write)
    return ExportSummary(tuple(ExportRow(run_id, "-", "exported") for run_id in run_ids))


def _to_file(path: Path, replace: bool, write_all: Callable[[Callable[[str], object]], object]) -> ExportAction:
    try:
        with files.NewFile(path) as new:
            if not (replace or new.is_special):
                _refuse_unless_export(new.target)
            # A terminal would obey what stored values hold of control characters.
            safe = lossless.ascii_only if new.file.isatty() else str
            write_all(lambda text: new.file.write(safe(text).encode()))
            return new.commit(replace=True)
    except Refused as error:  # of no run, but of the file
        raise FileExistsError(errno.EEXIST, str(error)) from None


def _refuse_unless_export(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb") as file:
        head = file.read(lossless.HEAD)
    if head and not lossless.is_export(head):
        raise Refused(f"{path} is there and is no export; choose another name, or --replace it")


def _escaping(out: TextIO) -> Callable[[str], object]:
    """A stream of a small code page gets ASCII, which is the same JSON."""
    return lambda text: out.write(lossless.ascii_only(text))


_Write = Callable[[RunDump, Path, Names, Bends, bool, Ticker], tuple[Path, ExportAction]]


def _export_one(
    store: Store, run_id: str, out: Path, names: Names, write: _Write, replace: bool, ticker: Ticker
) -> ExportRow:
    bends = Bends()
    try:
        with _dump(store, run_id, ticker) as dump:
            target, action = write(dump, out, names, bends, replace, ticker)
    except StoreError:
        raise
    except (Refused, AgentResumeError, OSError, RecursionError) as error:
        return ExportRow(run_id, str(out), "refused", text_of(error))
    return ExportRow(run_id, str(target), action, None, bends.items, bends.count)


def _write_flowcast(
    dump: RunDump, out: Path, names: Names, bends: Bends, replace: bool, ticker: Ticker
) -> tuple[Path, ExportAction]:
    folder = names.pick(dump.run["id"])
    if folder != dump.run["id"]:
        bends.add("run.id", f"no free run id of flowcast's that every file system takes; the folder is {folder}")
    with files.NewFolder(out / folder) as new:
        flowcast_export.write_run(dump, new.path, folder, names, bends, ticker.tick)
        return new.target, new.commit(replace=replace)


def _write_badgr(
    dump: RunDump, out: Path, names: Names, bends: Bends, replace: bool, ticker: Ticker
) -> tuple[Path, ExportAction]:
    run_id, stem = dump.run["id"], badgr.file_stem(dump.run)
    target = out / f"{names.pick(stem, run_id)}.json"
    if target.stem != stem:
        bends.add("run.name", f"with its time no safe or free name of a file; the file is {target.name}")
    with files.NewFile(target) as new:
        badgr.write_run(dump, new.file, bends, ticker.tick)
        return target, new.commit(replace=replace)
