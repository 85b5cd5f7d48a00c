"""``agent-resume prune``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import completion, screen, session, tables
from .exits import OF_STATUS, Usage
from .options import Db, Json, span

if TYPE_CHECKING:
    from agent_resume.store import Store
    from agent_resume.store_admin_prune import Doomed, PruneFilter


def prune_command(
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="SPAN", help="Only runs not changed for so long: 12h, 30d, 6w."),
    ] = None,
    keep_last: Annotated[
        int, typer.Option("--keep-last", min=0, help="Keep the newest so many of each agent name.")
    ] = 0,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            autocompletion=completion.values(*OF_STATUS),
            help="As list shows it; may be repeated. Default: completed, failed, cancelled.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Only runs of this name."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and delete nothing.")] = False,
    json: Json = False,
    db: Db = None,
) -> None:
    """Delete old runs and give their space back.

    A run that a live process executes, or may execute (a running one), is never touched. Rows of dead processes that no run needs go too. Say at least
    --older-than or --keep-last.
    """
    from agent_resume import clock, store_admin_prune

    if older_than is None and not keep_last:
        raise Usage("say which runs may go: --older-than 30d, --keep-last 3, or both")
    statuses = tuple(status or store_admin_prune.ENDED)
    unknown = [one for one in statuses if one not in OF_STATUS]
    if unknown:
        raise Usage(f"--status: no status {unknown[0]!r}; there are {', '.join(sorted(OF_STATUS))}")
    before = None if older_than is None else clock.iso(max(0, clock.now_ms() - span(older_than, "--older-than")))
    wanted = store_admin_prune.PruneFilter(before, keep_last, statuses, name)
    with session.opened(db) as store:
        if not store.exists():
            screen.note(f"no store at {store.display}; nothing to prune")
            found: list[Doomed] = []
        else:
            found = store.ask(store_admin_prune.candidates, store.owner.judge, wanted)
        _prune(store, found, wanted, dry_run=dry_run, json=json)


def _forget_owners(store: Store, gone: list[Doomed], *, dry_run: bool) -> int:
    from agent_resume import store_admin_prune

    if not store.exists():
        return 0
    return store_admin_prune.forgettable_owners(store, gone) if dry_run else store_admin_prune.forget_owners(store)


def _prune(store: Store, found: list[Doomed], wanted: PruneFilter, *, dry_run: bool, json: bool) -> None:
    from agent_resume import store_admin_prune

    before = store_admin_prune.file_bytes(store.database)
    gone = found if dry_run else list(store_admin_prune.delete_runs(store, found, wanted))
    owners = _forget_owners(store, gone, dry_run=dry_run)
    kept = None if dry_run or not gone else store_admin_prune.reclaim(store.database)
    freed = before - store_admin_prune.file_bytes(store.database)
    total = sum(run.bytes for run in gone)
    if json:
        screen.document(
            {
                "dryRun": dry_run,
                "runs": [
                    {
                        "id": run.id,
                        "name": run.name,
                        "status": run.status,
                        "updatedAt": run.updated_at,
                        "bytes": run.bytes,
                    }
                    for run in gone
                ],
                "bytes": total,
                "bytesFreed": 0 if dry_run else freed,
                "notReclaimed": kept,
                "ownersForgotten": owners,
            }
        )
    else:
        rows = [
            [screen.fit(run.id), screen.paint_status(run.status), tables.age(run.updated_at), tables.size(run.bytes)]
            for run in gone
        ]
        tables.print_table(("ID", "STATUS", "AGE", "SIZE"), rows, None, right=("AGE", "SIZE"))
    what = "would go" if dry_run else "deleted"
    screen.note(f"{tables.plural(len(gone), 'run')} {what}, {tables.size(total)} of data")
    if owners:
        screen.note(f"{tables.plural(owners, 'row')} of dead processes {what}")
    if gone and not dry_run:
        screen.note(
            f"the file is {tables.size(max(0, freed))} smaller"
            if kept is None
            else f"space was not given back yet: {kept}"
        )
