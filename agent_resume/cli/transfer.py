"""``agent-resume export``, ``import`` and ``copy``."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from . import bar, completion, exits, screen, session, tables
from .exits import Usage
from .options import Db, Json, moment

if TYPE_CHECKING:
    from agent_resume.layouts import ExportRow, ImportRow
    from agent_resume.store import Store

Layout = Literal["json", "jsonl", "flowcast", "badgr"]


def export_command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN…]", help="Runs: ids, prefixes, or NAME@latest.", autocompletion=completion.run_ids
        ),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Every run of the store, oldest first.")] = False,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Every run of exactly this name."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Every run created at or after: an ISO time, or 2h, 3d ago."),
    ] = None,
    format: Annotated[
        Layout,
        typer.Option("--format", help="json and jsonl hold everything; flowcast and badgr are other tools' files."),
    ] = "json",
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="PATH", help="A file, or for flowcast and badgr a folder. Default: stdout."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace what is there: another state of the run, or a file that is no export."),
    ] = False,
    db: Db = None,
) -> int:
    """Write runs to a file, to stdout, or as another tool's files.

    Say which runs, in one way: some RUNs; or --all; or --name, --since or both. What another layout cannot hold as it is is
    named on stderr. Exit code 1 when a run was refused.
    """
    if sum((bool(runs), all, name is not None or since is not None)) != 1:
        raise Usage("say which, in one way: some RUNs; or --all; or --name, --since or both")
    _check_target(format, out)
    begin = moment(since, "--since")
    from agent_resume import layouts

    with session.opened(db) as store:
        ids = list(dict.fromkeys(session.find(store, run).id for run in runs)) if runs else _ids(store, name, begin)
        live = _live(store)
        target = screen.json_stream() if out is None or out == "-" else out
        with bar.shown("export", wanted=not screen.is_terminal(None if out == "-" else out)) as tell:
            summary = layouts.export_runs(store, ids, format=format, out=target, replace=replace, progress=tell)
    for row in summary.rows:
        _tell(row, row.run_id, row.target if target is out else "stdout")
        if row.run_id in live and row.action != "refused":
            screen.note(f"run {row.run_id} was being executed; its export is of that moment")
    return exits.FAILED if summary.refused else exits.OK


def _check_target(format: Layout, out: str | None) -> None:
    if format in ("flowcast", "badgr") and out in (None, "-"):
        raise Usage(f"{format} writes a folder; say which: --out FOLDER")
    if out == "":
        raise Usage("an empty --out names nothing; . is this folder, - is stdout")
    if out is not None and format in ("json", "jsonl") and Path(out).is_dir():
        raise Usage(f"--out {out} is a folder; name a file in it")


def _live(store: Store) -> set[str]:
    from agent_resume.top_level import list_runs

    from . import recover

    running = {run.id for status in ("running", "overdue") for run in list_runs(db=store, status=status)}
    return running.difference(recover.unseen(store))


def _ids(store: Store, name: str | None, since: str | None) -> list[str]:
    from agent_resume.top_level import list_runs

    found = [run.id for run in list_runs(db=store, name=name, since=since, sort="created")]
    if not store.exists():
        screen.note(f"no store at {store.display}; there is nothing to export")
    elif not found and (name is not None or since is not None):
        screen.note("no run fits; there is nothing to export")
    return found


def _tell(row: ExportRow | ImportRow, what: str, where: str) -> None:
    if row.reason is not None:
        screen.note(f"{what}: {row.action}: {row.reason}")
    elif where != "stdout":
        screen.note(f"{what}: {row.action} ({where})")
    for bend in row.bent:
        screen.note(f"{what}: {bend}")
    if row.bent_count > len(row.bent):
        screen.note(f"{what}: and {row.bent_count - len(row.bent)} more places")


@contextmanager
def _files(paths: list[str]) -> Iterator[dict[Path, str]]:
    """The files of some paths, each with what it was called: what comes through a pipe is put into one first."""
    with tempfile.TemporaryDirectory(prefix="agent-resume-") as folder:
        found: dict[Path, str] = {}
        for number, path in enumerate(paths):
            file = Path(path)
            if path == "-" or file.is_fifo():
                file = Path(folder, str(number), "stdin" if path == "-" else "pipe")  # the name that errors say
                file.parent.mkdir()
                with open(0 if path == "-" else path, "rb", closefd=path != "-") as source, file.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
            found[file] = path
        yield found


def import_command(
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="Exported files, or run folders of flowcast.")],
    format: Annotated[
        Literal["auto", "json", "jsonl", "flowcast", "badgr"], typer.Option("--format", help="What the files are.")
    ] = "auto",
    on_conflict: Annotated[
        Literal["fail", "skip", "replace", "rename"],
        typer.Option("--on-conflict", help="When another run has the id. The very same run is never stored twice."),
    ] = "fail",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and store nothing.")] = False,
    json: Json = False,
    db: Db = None,
) -> int:
    """Read runs from files, pipes or (-) stdin into the store.

    Each run is stored whole or not at all. Exit code 1 when one was refused.
    """
    from agent_resume import layouts

    if "" in paths:
        raise Usage("an empty PATH names nothing; . is this folder")
    with session.opened(db) as store, _files(paths) as files, bar.shown("import") as tell:
        summary = layouts.import_paths(
            store, files, format=format, dry_run=dry_run, on_conflict=on_conflict, progress=tell
        )
    rows = [replace(row, source=files.get(Path(row.source), row.source)) for row in summary.rows]
    if json:
        screen.document([row.to_dict() for row in rows])
    else:
        shown = [[screen.fit(row.run_id or "-"), row.action, screen.fit(row.source)] for row in rows]
        tables.print_table(("ID", "ACTION", "SOURCE"), shown, None, cut="SOURCE")
    for row in rows:
        if row.reason is not None or row.bent_count:
            _tell(row, row.run_id or row.source, row.source)
    if not rows:
        screen.note("no run is in it")
    if dry_run:
        screen.note("nothing was stored (--dry-run)")
    return exits.FAILED if summary.refused else exits.OK


def copy_command(
    to: Annotated[
        str, typer.Option("--to", metavar="STORE", help="Where to: a file or a SQLAlchemy URL; made when missing.")
    ],
    on_conflict: Annotated[
        Literal["fail", "replace"], typer.Option("--on-conflict", help="When the target has another run of an id.")
    ] = "fail",
    json: Json = False,
    source: Annotated[
        str | None,
        typer.Option("--from", "--db", metavar="STORE", help="Where from: as --db elsewhere.", show_default=False),
    ] = None,
) -> int:
    """Copy every run into another store, and check the copy.

    An interrupted copy is begun again by the same command; what is there already is left alone. Exit code 1 when a run was
    not copied because the target has another one, or another state, of its id.
    """
    from agent_resume import errors, store_copy

    with session.opened(source) as store, session.opened(to) as target:
        if not store.exists():
            raise exits.Stop(exits.STORE, f"no store at {store.display}; name the source with --from")
        if store.location.is_same(target.location):
            raise Usage(f"{target.display} is the source itself; name another store with --to")
        try:
            report = store_copy.copy(store, target, on_conflict=on_conflict)
        except errors.StoreUnavailable as error:
            error.args = (f"{error}; then the same command goes on where this one stopped",)
            raise
    if json:
        screen.document(
            {"from": store.display, "to": target.display, "copied": report.copied, "present": report.present,
             "steps": report.steps, "events": report.events, "pauses": report.pauses, "checksum": report.checksum,
             "live": list(report.live),
             "refused": [{"runId": run_id, "reason": reason} for run_id, reason in report.refused]}
        )  # fmt: skip
    else:
        others = f"{len(report.refused)} not copied, " if report.refused else ""
        screen.line(
            f"{tables.plural(report.copied, 'run')} copied, {report.present} there already, {others}"
            f"checksum {report.checksum}"
        )
    for _, reason in report.refused:
        screen.note(reason)
    for run_id in report.live:
        screen.note(f"run {run_id} was being executed; its copy is of that moment")
    return exits.FAILED if report.refused else exits.OK
