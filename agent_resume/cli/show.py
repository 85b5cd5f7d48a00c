"""``agent-resume show``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import screen, session
from .exits import USAGE, Stop, Usage
from .options import Db, Json, Run

if TYPE_CHECKING:
    from agent_resume.models import RunRow
    from agent_resume.store import Store

Unmasked = Annotated[bool, typer.Option("--unmasked", help="Show credentials in stored values as they are.")]


def show_command(
    run: Run,
    step: Annotated[
        str | None,
        typer.Option(
            "--step",
            metavar="KEY",
            help="One step: its attempts and its whole result.",
        ),
    ] = None,
    events: Annotated[bool, typer.Option("--events", help="Its events too.")] = False,
    report: Annotated[bool, typer.Option("--report", help="The Markdown report instead.")] = False,
    unmasked: Unmasked = False,
    json: Json = False,
    db: Db = None,
) -> None:
    """Show one run: what it is, its timeline, its questions."""
    if report and (json or step is not None or events):
        raise Usage("--report stands alone; leave out --json, --step and --events")
    if step is not None and events:
        raise Usage("--step shows the step's own events; leave out --events")
    with session.opened(db) as store:
        if unmasked:
            from agent_resume import redact

            store.redactor = redact.NOTHING
        row = session.find(store, run)
        if report:
            _show_report(store, row)
        elif step is not None:
            _show_step(store, row, step, json=json)
        elif json:
            _show_json(store, row, events=events)
        else:
            _show_text(store, row, events=events)


def _show_report(store: Store, row: RunRow) -> None:
    from agent_resume import codec, report, store_status

    state = store.load_run(row.id)
    summary = None if row.summary is None else store.redactor.value(codec.json_value("tagged", row.summary))
    for line in report.markdown(state, summary, store_status.duration_ms(row)).split("\n"):
        screen.line(screen.fit(store.redactor.text(line)))


def _show_step(store: Store, row: RunRow, key: str, *, json: bool) -> None:
    from agent_resume import store_admin_detail

    from . import show_json, show_text

    found = store_admin_detail.step_detail(store, row, key)
    if found is None:
        raise Stop(
            USAGE,
            f"run {row.id!r} has no step {key!r}; agent-resume show -- {row.id!r} lists its steps",
        )
    if json:
        screen.document(show_json.one_step_json(store, found))
        return
    for line in show_text.one_step(store, found):
        screen.line(line)


def _show_json(store: Store, row: RunRow, *, events: bool) -> None:
    from agent_resume import store_admin_detail

    from . import show_json

    detail = store_admin_detail.detail(store, row)
    shown = show_json.with_outputs(store, detail, show_json.run_json(store, detail))
    if events:
        shown["eventList"] = [store.redactor.value(event.to_dict()) for event in store.events(row.id)]
    screen.document(shown)


def _show_text(store: Store, row: RunRow, *, events: bool) -> None:
    from agent_resume import store_admin_detail

    from . import resume_text, show_text

    listed = [show_text.event_line(store, event) for event in store.events(row.id)] if events else []
    for line in show_text.apart(resume_text.whole(store, store_admin_detail.detail(store, row)), listed):
        screen.line(line)
