"""``agent-resume list``."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from . import completion, screen, session, tables
from .exits import OF_STATUS, Usage
from .options import Db, Format, Json, moment

if TYPE_CHECKING:
    from agent_resume.models import RunSummary
    from agent_resume.store import Store

SCREENFUL = 50
_SORTS = ("created", "updated", "name", "status")
_HEADERS = ("ID", "NAME", "STATUS", "STEPS", "DURATION", "AGE", "TOKENS")
_KEYS = (
    "id", "name", "status", "storedStatus", "createdAt", "updatedAt", "finishedAt", "stepsTotal", "stepsCompleted",
    "durationMs", "inputTokens", "outputTokens",
)  # fmt: skip
_RIGHT = ("STEPS", "DURATION", "AGE", "TOKENS")
_EXPENDABLE = ("STEPS", "NAME", "DURATION", "AGE", "TOKENS")


_Status = Annotated[
    str | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        autocompletion=completion.values(*sorted(OF_STATUS)),
        help=f"Only runs shown as this: {', '.join(sorted(OF_STATUS))}.",
    ),
]
_Sort = Annotated[
    str,
    typer.Option(
        "--sort",
        metavar="FIELD",
        autocompletion=completion.values(*_SORTS, *(f"-{name}" for name in _SORTS)),
        help=f"{', '.join(_SORTS)}; a leading - turns it round.",
    ),
]


def list_command(
    status: _Status = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Only runs of exactly this name."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Created at or after: an ISO time, or 2h, 3d ago.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Created before: an ISO time, or 2h, 3d ago.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=0, help=f"Most runs to show, 0 for all. Default: {SCREENFUL} in a table, else all."
        ),
    ] = None,
    sort: _Sort = "-created",
    format: Format = None,
    json: Json = False,
    db: Db = None,
) -> None:
    """List runs, newest first."""
    if status is not None and status not in OF_STATUS:
        raise Usage(f"--status: no status {status!r}; there are {', '.join(sorted(OF_STATUS))}")
    if sort.removeprefix("-") not in _SORTS:
        raise Usage(f"--sort: one of {', '.join(_SORTS)}, perhaps with a leading -; not {sort!r}")
    tables.check(format, json=json)
    most = SCREENFUL if limit is None and not (json or format in tables.LINE_FORMATS) else limit or None
    begin, end = moment(since, "--since"), moment(until, "--until")
    with session.opened(db) as store:
        from agent_resume.top_level import list_runs

        if not store.exists():
            from agent_resume import store_admin_doctor

            screen.note(store_admin_doctor.no_store(store))
        most = None if most is None else min(most, sys.maxsize - 1)
        wanted = None if most is None else most + 1
        found = list_runs(db=store, status=status, name=name, since=begin, until=end, limit=wanted, sort=sort)
        runs = found if most is None else itertools.islice(found, most)
        shown = _print(store, runs, json=json, format=format)
        if not json and format not in tables.LINE_FORMATS and not shown and store.exists():
            screen.note(
                "no run fits" if any(given is not None for given in (status, name, since, until)) else "no run yet"
            )
        if limit is None and most is not None and next(found, None) is not None:
            screen.note(f"only {most} runs are shown; --limit 0 shows all")


def _print(store: Store, runs: Iterator[RunSummary], *, json: bool, format: str | None) -> int:
    """How many rows of a table were printed."""
    from agent_resume import store_admin_fork, store_pauses

    if json:
        screen.array(run.to_dict() for run in runs)
    elif format in tables.LINE_FORMATS:
        tables.records((run.to_dict() for run in runs), format, _KEYS)
    else:
        found = list(runs)
        remarks: dict[str, str] = {}
        for status, remark, chosen in (
            ("paused", "answered", store_pauses.answered),
            ("interrupted", "new fork", store_admin_fork.fresh),
        ):
            ids = [run.id for run in found if run.status == status]
            remarks |= dict.fromkeys(store.ask(chosen, ids) if ids else (), remark)
        rows = [_cells(run, remarks.get(run.id)) for run in found]
        tables.print_table(_HEADERS, rows, format, right=_RIGHT, expendable=_EXPENDABLE, cut="NAME")
        return len(rows)
    return 0


def _cells(run: RunSummary, remark: str | None) -> list[str]:
    from agent_resume import clock, report

    took = clock.now_ms() - clock.parse_iso(run.created_at) if run.shown_status == "running" else run.duration_ms
    return [
        screen.fit(run.id),
        screen.fit(run.name),
        screen.paint_status(run.shown_status if remark is None else f"{run.shown_status} ({remark})"),
        f"{run.steps_completed}/{run.steps_total}",
        report.seconds_text(took),
        tables.age(run.created_at),
        _tokens(run),
    ]


def _tokens(run: RunSummary) -> str:
    if run.input_tokens is None and run.output_tokens is None:
        return "-"
    given, made = ("?" if count is None else tables.number(count) for count in (run.input_tokens, run.output_tokens))
    return f"{given}+{made}"
