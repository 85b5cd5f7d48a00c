"""``agent-resume export``, ``import`` and ``copy``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from . import exits, screen, session, tables
from .exits import Usage
from .options import Db, Json, complete_run

if TYPE_CHECKING:
    from agent_resume.layouts import ExportRow, ImportRow
    from agent_resume.store import Store

Layout = Literal["json", "jsonl", "flowcast", "badgr"]


def export_command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN…]", help="Runs: ids, prefixes, or NAME@latest.", autocompletion=complete_run),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Every run of the store, oldest first.")] = False,
    format: Annotated[
        Layout,
        typer.Option("--format", help="json and jsonl hold everything; flowcast and badgr are other tools' files."),
    ] = "json",
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="PATH", help="A file, or for flowcast and badgr a folder. Default: stdout."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an export that holds another state of the run.")
    ] = False,
    db: Db = None,
) -> int:
    """Write runs to a file, to stdout, or as another tool's files.

    What another layout cannot hold as it is is named on stderr. Exit code 1 when a run was refused.
    """
    if bool(runs) == all:
        raise Usage("say which: some RUNs, or --all")
    if format in ("flowcast", "badgr") and out is None:
        raise Usage(f"{format} writes a folder; say which: --out FOLDER")
    from agent_resume import layouts

    with session.opened(db) as store:
        ids = _all_ids(store) if all else [session.find(store, run).id for run in runs or ()]
        target = sys.stdout if out is None or out == "-" else out
        summary = layouts.export_runs(store, ids, format=format, out=target, replace=replace)
    for row in summary.rows:
        _tell(row, row.run_id, row.target if target is not sys.stdout else "stdout")
    return exits.FAILED if summary.refused else exits.OK


def _all_ids(store: Store) -> list[str]:
    from agent_resume.top_level import list_runs

    if not store.exists():
        screen.note(f"no store at {store.display}; there is nothing to export")
    return [run.id for run in list_runs(db=store, sort="created")]


def _tell(row: ExportRow | ImportRow, what: str, where: str) -> None:
    if row.reason is not None:
        screen.note(f"{what}: {row.action}: {row.reason}")
    elif where != "stdout":
        screen.note(f"{what}: {row.action} ({where})")
    for bend in row.bent:
        screen.note(f"{what}: {bend}")
    if row.bent_count > len(row.bent):
        screen.note(f"{what}: and {row.bent_count - len(row.bent)} more places")


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
    """Read runs from files into the store.

    Each run is stored whole or not at all. Exit code 1 when one was refused.
    """
    from agent_resume import layouts

    with session.opened(db) as store:
        summary = layouts.import_paths(
            store, list(map(Path, paths)), format=format, dry_run=dry_run, on_conflict=on_conflict
        )
    if json:
        screen.document([row.to_dict() for row in summary.rows])
    else:
        shown = [[screen.fit(row.run_id or "-"), row.action, screen.fit(row.source)] for row in summary.rows]
        tables.print_table(("ID", "ACTION", "SOURCE"), shown, None)
    for row in summary.rows:
        if row.reason is not None or row.bent_count:
            _tell(row, row.run_id or row.source, row.source)
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
) -> None:
    """Copy every run into another store, and check the copy.

    An interrupted copy is begun again by the same command; what is there already is left alone.
    """
    from agent_resume import store_copy

    with session.opened(source) as store, session.opened(to) as target:
        if not store.exists():
            raise exits.Stop(exits.STORE, f"no store at {store.display}; name the source with --from")
        if store.location == target.location:
            raise Usage(f"{target.display} is the source itself; name another store with --to")
        report = store_copy.copy(store, target, on_conflict=on_conflict)
    if json:
        screen.document(
            {"from": store.display, "to": target.display, "copied": report.copied, "present": report.present,
             "steps": report.steps, "events": report.events, "pauses": report.pauses, "checksum": report.checksum,
             "live": list(report.live)}
        )  # fmt: skip
    else:
        screen.line(
            f"{tables.plural(report.copied, 'run')} copied, {report.present} there already, checksum {report.checksum}"
        )
    for run_id in report.live:
        screen.note(f"run {run_id} was being executed; its copy is of that moment")
