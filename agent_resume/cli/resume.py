"""``agent-resume resume``: what a run waits for, and how it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from . import completion, exits, screen, session
from .exits import Usage
from .options import Db, Json, json_value

if TYPE_CHECKING:
    from agent_resume.models import PauseRow, RunRow
    from agent_resume.store import Store


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the options say is to be stored before anything is executed."""

    answer: str | None
    name: str | None
    step: str | None
    mark_done: str | None
    retry: bool
    take_over: bool
    force: bool

    @property
    def changes(self) -> bool:
        return bool(self.answer is not None or self.mark_done is not None or self.retry or self.take_over or self.force)

    def check(self) -> None:
        if self.name is not None and self.answer is None:
            raise Usage("--name says what an --answer is for; give both")
        if (self.mark_done is not None or self.retry) != (self.step is not None):
            raise Usage("--step KEY goes with --mark-done JSON or --retry")
        if self.mark_done is not None and self.retry:
            raise Usage("--mark-done says that the step happened, --retry that it did not; choose one")


def resume_command(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN", help="Run id, a prefix of one, or NAME@latest.", autocompletion=completion.run_ids
        ),
    ] = None,
    exec: Annotated[
        bool, typer.Option("--exec", help="Run the command that started the run, where it was started.")
    ] = False,
    answer: Annotated[str | None, typer.Option("--answer", metavar="JSON", help="Answer the run's question.")] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Which question, when there are several.")
    ] = None,
    step: Annotated[
        str | None,
        typer.Option("--step", metavar="KEY", help="The step that is in doubt."),
    ] = None,
    mark_done: Annotated[
        str | None, typer.Option("--mark-done", metavar="JSON", help="It happened: this is its result.")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="It did not happen: run it again.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the run from an owner that lives and hangs.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Reopen a cancelled run; with --take-over also while a process is in it.")
    ] = False,
    all_interrupted: Annotated[
        bool, typer.Option("--all-interrupted", help="With --exec: every interrupted run of this store but new forks.")
    ] = False,
    at_once: Annotated[
        int, typer.Option("--at-once", min=1, max=64, help="With --all-interrupted: so many at a time.")
    ] = 2,
    json: Json = False,
    db: Db = None,
) -> int:
    """Say how a run is resumed; answer it; resume it.

    Nothing is taken over and nothing is executed without --exec.

    The exit code is the run's status: as it is now, or after the command when --exec ran it. --answer, --mark-done,
    --retry, --take-over and --force without --exec are 0 once they are stored. An --answer to what was answered before
    is not stored, and nothing is executed then: exit code 1.
    """
    asked = _Asked(answer, name, step, mark_done, retry, take_over, force)
    asked.check()
    if all_interrupted:
        if run is not None or asked.changes or not exec:
            raise Usage("--all-interrupted goes with --exec, and with nothing that concerns one run")
        from . import recover

        return recover.all_interrupted(db, at_once, json=json)
    if run is None:
        with session.opened(db):
            raise Usage("which run? give a RUN, or --all-interrupted --exec; agent-resume list shows them")
    return _resume(run, asked, db, exec=exec, json=json)


def _resume(run: str, asked: _Asked, db: str | None, *, exec: bool, json: bool) -> int:
    with session.opened(db) as store:
        row = session.find(store, run)
        counts = _store(store, row, asked, goes_on=exec) if asked.changes else None
        # The answer that counts may be the opposite of one that does not: nothing is executed on account of that.
        if exec and counts is not False:
            return _execute(store, row, json=json, counts=counts)
        if asked.changes and not json:
            return exits.FAILED if counts is False else exits.OK
        return _report(store, row, json=json, stored=asked.changes, counts=counts)


def _store(store: Store, row: RunRow, asked: _Asked, *, goes_on: bool) -> bool | None:
    """Store what is asked for; whether the answer is the one that counts, None without one."""
    from agent_resume import store_admin
    from agent_resume.store_sql import Place

    place, judge, by = Place(row.seq, row.id), store.owner.judge, _me()
    if asked.take_over and not asked.force:
        store.direct(store_admin.take_over, place)
        screen.note(f"run {row.id} was taken over; it is interrupted now")
    if asked.force:
        store.direct(store_admin.reopen, place, None if asked.take_over else judge)
        screen.note(f"run {row.id} was reopened; it is interrupted now")
    if asked.step is not None and asked.mark_done is not None:
        encoded = store.codec.encode(json_value(asked.mark_done, "--mark-done"), key=asked.step)
        store.direct(store_admin.mark_done, judge, place, asked.step, encoded, by)
        screen.note(f"step {asked.step!r} of run {row.id} is completed with that value")
    elif asked.step is not None:
        store.direct(store_admin.retry, judge, place, asked.step, by)
        screen.note(f"step {asked.step!r} of run {row.id} will run again")
    if asked.answer is not None:
        pause, counts = store.answer(row.id, asked.name, json_value(asked.answer, "--answer"), by=by)
        screen.note(_answered(store, row, pause, counts=counts, goes_on=goes_on))
        return counts
    if not goes_on:
        from agent_resume import store_admin_detail

        from . import resume_text

        screen.note(resume_text.next_step(store, store_admin_detail.detail(store, row)))
    return None


def _answered(store: Store, row: RunRow, pause: PauseRow, *, counts: bool, goes_on: bool) -> str:
    from agent_resume import store_admin_detail

    from . import resume_text

    detail = store_admin_detail.detail(store, row)
    if not counts:
        return (
            f"{pause.name!r} of run {row.id} was answered before, by {pause.answered_by}; that answer counts, and this "
            f"one was not stored; {resume_text.next_step(store, detail)}"
        )
    if pause.asked_at is None:
        names = ", ".join(screen.fit(other.name) for other in detail.open_pauses if other.kind != "sleep")
        return (
            f"{pause.name!r} has not been asked yet; the answer is kept for when it is. Open now: {names or 'nothing'}"
        )
    said = f"{pause.name!r} of run {row.id} is answered"
    return said if goes_on else f"{said}; {resume_text.next_step(store, detail)}"


def _me() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        return "the command line"


def _execute(store: Store, row: RunRow, *, json: bool, counts: bool | None) -> int:
    from agent_resume import store_admin_detail

    from . import launch

    detail = store_admin_detail.detail(store, row)
    if detail.status == "completed":
        screen.note(f"run {row.id} is completed already; nothing was executed")
        code = exits.OK
    elif detail.status == "cancelled":
        screen.note(f"run {row.id} is cancelled; nothing was executed. --force reopens it")
        code = exits.CANCELLED
    else:
        launch.usable_command(detail.run)
        if detail.status == "paused":
            launch.wait_for_the_asker(store, detail.run)
        code = launch.execute(store, detail.run, aside=json)
    if json:
        _report(store, row, json=True, counts=counts, ended=code)
    return code


def _report(
    store: Store, row: RunRow, *, json: bool, stored: bool = False, counts: bool | None = None, ended: int | None = None
) -> int:
    from agent_resume import store_admin_detail

    from . import resume_text

    detail = store_admin_detail.detail(store, row)
    code = exits.of_run(detail) if ended is None else ended
    code = exits.FAILED if counts is False else exits.OK if stored else code
    if json:
        screen.document({**resume_text.plan_json(store, detail, code), "answerCounts": counts})
    else:
        for line in resume_text.plan(store, detail):
            screen.line(line)
    return code
