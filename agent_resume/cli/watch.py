"""``agent-resume events`` and ``agent-resume watch``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from . import exits, screen, session
from .options import Db, Json, Run

if TYPE_CHECKING:
    from rich.text import Text

    from agent_resume.models import EventRow, RunRow
    from agent_resume.store import Store
    from agent_resume.store_admin_detail import RunDetail

_ONGOING = ("running", "overdue", "idle")


def events_command(
    run: Run,
    type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only events of this type.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new events until the run ends.")] = False,
    json: Json = False,
    db: Db = None,
) -> int:
    """Print a run's events in order.

    With --json one document; together with --follow one JSON object a line.
    """
    with session.opened(db) as store:
        row = session.find(store, run)
        found = _follow(store, row) if follow else iter(store.events(row.id))
        wanted = (event for event in found if type is None or event.type == type)
        if json and not follow:
            screen.array(store.redactor.value(event.to_dict()) for event in wanted)
            return exits.OK
        from . import show_text

        found_any = False
        try:
            for event in wanted:
                found_any = True
                shown = store.redactor.value(event.to_dict()) if json else None
                screen.line(
                    show_text.event_line(store, event) if shown is None else screen.json_text(shown, indent=None)
                )
                screen.flush()
        except KeyboardInterrupt:
            return exits.INTERRUPTED
        if not (found_any or json):
            screen.note("no event fits")
        return exits.OK


def _follow(store: Store, row: RunRow) -> Iterator[EventRow]:
    from agent_resume.store_notify import NOTHING_SEEN

    after, seen = 0, NOTHING_SEEN
    while True:
        # The status is read first: events that come after it are seen in the next round, none is missed.
        ongoing = store.shown_status(store.find_run(row.id)) in _ONGOING
        new = store.events(row.id, after)
        for event in new:
            after = event.seq
            yield event
        if not ongoing:
            return
        seen = store.await_news(row.seq, seen)


def watch_command(run: Run, db: Db = None) -> int:
    """Watch a run until it ends: a live timeline, or lines in a pipe and on a dumb terminal.

    Ctrl-C stops the watching, never the run. The exit code is the run's status.
    """
    with session.opened(db) as store:
        row = session.find(store, run)
        _tell_unseen(store, row)
        try:
            live = screen.is_terminal() and screen.can_redraw()
            return _live(store, row) if live else _lines(store, row)
        except KeyboardInterrupt:
            return exits.INTERRUPTED


def _tell_unseen(store: Store, row: RunRow) -> None:
    from . import show_text

    if _detail(store, row).is_unseen:
        screen.note(f"run {row.id}: owner {show_text.UNSEEN}; waiting for its next event, until Ctrl-C")


def _lines(store: Store, row: RunRow) -> int:
    from . import show_text

    for event in _follow(store, row):
        screen.line(show_text.event_line(store, event))
        screen.flush()
    return _end(store, row)


def _live(store: Store, row: RunRow) -> int:
    import sys

    from rich.console import Console
    from rich.live import Live

    from agent_resume.store_notify import NOTHING_SEEN

    seen = NOTHING_SEEN
    console = Console(file=sys.stdout, highlight=False)
    # Redirected streams would hide from us that this is a terminal.
    with Live(
        console=console, auto_refresh=False, vertical_overflow="crop", redirect_stdout=False, redirect_stderr=False
    ) as live:
        while True:
            detail = _detail(store, row)
            live.update(_picture(store, detail, console.height - 1), refresh=True)
            if detail.status not in _ONGOING:
                break
            seen = store.await_news(row.seq, seen, seconds=1.0)  # a second later its durations are others
    return exits.OF_STATUS[detail.status]


def _picture(store: Store, detail: RunDetail, height: int) -> Text:
    """The header and as much of the timeline's end as there is room for."""
    from rich.text import Text

    from . import show_text

    head = [*show_text.header(store, detail), ""]
    steps = show_text.timeline(store, detail)
    foot = show_text.questions(store, detail.open_pauses)
    room = max(3, height - len(head) - len(foot) - 1)
    if len(steps) > room:
        head.append(screen.paint(f"  … {len(steps) - room + 1} earlier steps", "dim"))
        steps = steps[-room + 1 :]
    return Text.from_ansi("\n".join([*head, *steps, *foot]), no_wrap=True, overflow="ellipsis")


def _detail(store: Store, row: RunRow) -> RunDetail:
    from agent_resume import store_admin_detail

    return store_admin_detail.detail(store, row)


def _end(store: Store, row: RunRow) -> int:
    status = store.shown_status(store.find_run(row.id))
    screen.note(f"run {row.id} is {status}")
    return exits.OF_STATUS[status]
