"""``agent-resume events`` and ``agent-resume watch``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from . import exits, screen, session, tables
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
    """Print a run's events in order, a line each, without tracebacks.

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
    """Watch a run until it ends.

    A live timeline, or lines in a pipe and on a dumb terminal. At its end, or when it pauses, the run is shown as `show`
    does. Ctrl-C stops the watching, never the run; that is exit code 130. Else the exit code is the run's status.
    """
    with session.opened(db) as store:
        row = session.find(store, run)
        _tell_unseen(store, row)
        live = screen.is_terminal() and screen.can_redraw()
        try:
            return _live(store, row) if live else _lines(store, row)
        except KeyboardInterrupt:
            _leave(store, row)
            return exits.INTERRUPTED


def _leave(store: Store, row: RunRow) -> None:
    status = store.shown_status(store.find_run(row.id))
    screen.note(f"no longer watched: run {row.id} is {status}{' and goes on' if status == 'running' else ''}")


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
    from . import resume_text

    detail = _detail(store, row)
    if detail.status in _ONGOING:
        detail = _redraw(store, row, detail)
    for line in resume_text.whole(store, detail):
        screen.line(line)
    return exits.OF_STATUS[detail.status]


def _redraw(store: Store, row: RunRow, detail: RunDetail) -> RunDetail:
    """Show a run on a screen of its own for as long as it goes on; what it is then.

    Where lines are drawn over, a resized terminal has moved them, and leaves old ones behind.
    """
    import sys

    from rich.console import Console
    from rich.live import Live

    from agent_resume.store_notify import NOTHING_SEEN

    seen = NOTHING_SEEN
    console = Console(file=sys.stdout, highlight=False)
    # Redirected streams would hide from us that this is a terminal.
    with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        while detail.status in _ONGOING:
            live.update(_picture(store, detail, console.height - 1), refresh=True)
            seen = store.await_news(row.seq, seen, seconds=1.0)  # a second later its durations are others
            detail = _detail(store, row)
    return detail


def _picture(store: Store, detail: RunDetail, height: int) -> Text:
    """The header and as much of the timeline's end as there is room for."""
    from rich.text import Text

    from . import show_text

    head = [*show_text.header(store, detail), ""]
    steps = show_text.timeline_steps(store, detail)
    foot = show_text.questions(store, detail.open_pauses)
    if height - len(head) - len(foot) < 4:  # on a small terminal the steps come first
        head = head[:1]
    room = max(1, height - len(head) - len(foot))
    hidden = 0
    while len(steps) - hidden > 1 and sum(map(len, steps[hidden:])) + (1 if hidden else 0) > room:
        hidden += 1
    if hidden:
        head.append(screen.paint(f"  … {tables.plural(hidden, 'earlier step')}", "dim"))
    shown = [line for lines in steps[hidden:] for line in lines]
    return Text.from_ansi("\n".join([*head, *shown, *foot]), no_wrap=True, overflow="ellipsis")


def _detail(store: Store, row: RunRow) -> RunDetail:
    from agent_resume import store_admin_detail

    return store_admin_detail.detail(store, row)


def _end(store: Store, row: RunRow) -> int:
    status = store.shown_status(store.find_run(row.id))
    screen.note(f"run {row.id} is {status}")
    return exits.OF_STATUS[status]
