"""``agent-resume cancel``, ``rename``, ``tag``, ``fork`` and ``rerun``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import screen, session, tables
from .exits import TooDeep, Usage
from .options import Db, Json, Run, json_value

if TYPE_CHECKING:
    from agent_resume.models import RunRow
    from agent_resume.store import Store
    from agent_resume.store_admin_fork import Forked
    from agent_resume.store_sql import Place


def _place(row: RunRow) -> Place:
    from agent_resume.store_sql import Place

    return Place(row.seq, row.id)


def _tell_next(store: Store, row: RunRow) -> None:
    from agent_resume import store_admin_detail

    from . import resume_text

    screen.note(resume_text.next_step(store, store_admin_detail.detail(store, row)))


def cancel_command(run: Run, db: Db = None) -> None:
    """Cancel a run: its agent is told at its next step.

    A cancelled run is not resumed; `agent-resume resume RUN --force` reopens it.
    """
    from agent_resume import store_admin_detail

    from . import show_text

    with session.opened(db) as store:
        row = store.cancel(session.find(store, run).id)
        detail = store_admin_detail.detail(store, row)
        still = f"; {show_text.owner_text(detail)}, ends its step and then stops" if detail.is_lingering else ""
        screen.note(f"run {row.id} is cancelled{still}")


def rename_command(
    run: Run, name: Annotated[str, typer.Argument(metavar="NAME", help="The new agent name.")], db: Db = None
) -> None:
    """Give a run another agent name; its id stays."""
    from agent_resume import store_admin_edit
    from agent_resume.names import check_name

    with session.opened(db) as store:
        row = session.find(store, run)
        store.direct(store_admin_edit.rename, _place(row), check_name("run name", name))
        screen.note(f"run {row.id} is a run of {name!r} now")
        if name != row.name:
            screen.note(f"a program that calls its agent {row.name!r} will not find this run; rename the agent too")


def tag_command(
    run: Run,
    tags: Annotated[list[str] | None, typer.Argument(metavar="[NAME[=VALUE]…]", help="Tags to set.")] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="NAME", help="A tag to remove; may be repeated.")
    ] = None,
    json: Json = False,
    db: Db = None,
) -> None:
    """Set, remove or print a run's tags.

    They are kept in the run's meta. In SQL: json_extract(meta, '$.tags.NAME'); on PostgreSQL as_json(meta) -> 'tags' ->>
    'NAME'.
    """
    from agent_resume import store_admin_edit

    add: dict[str, Any] = {}
    for text in tags or ():
        name, equals, value = text.partition("=")
        if not name:
            raise Usage(f"{text!r} has no name; write NAME or NAME=VALUE")
        add[name] = value if equals else True
    with session.opened(db) as store:
        row = session.find(store, run)
        if add or remove:
            now = store.direct(store_admin_edit.tag, _place(row), add, tuple(remove or ()))
        else:
            now = row.meta_dict.get("tags", {})
        shown = store.redactor.value(now)
        if json:
            screen.document(shown)
            return
        for name, value in shown.items():
            screen.line(screen.fit(name if value is True else f"{name}={value}"))


def fork_command(
    run: Run,
    before: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="STEP",
            help="Share the completed steps before this one. Default: all completed ones.",
        ),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="STEP=JSON", help="Another result for a step; may be repeated."),
    ] = None,
    answers: Annotated[bool, typer.Option("--answers", help="Copy the answers to the run's questions too.")] = False,
    new_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Id of the new run.")] = None,
    json: Json = False,
    db: Db = None,
) -> None:
    """Make a new run that shares completed steps with this one.

    The source is never changed, and its tags are copied. Prints the new run's id; resume it with --exec, also where the
    program gives the source's run_id itself. Until then it is listed as interrupted (new fork), and resume
    --all-interrupted leaves it out.
    """
    from agent_resume import store_admin_fork
    from agent_resume.names import check_name

    with session.opened(db) as store:
        row = session.find(store, run)
        given = {key: store.codec.encode(value, key=key) for key, value in map(_assignment, values or ())}
        run_id = None if new_id is None else check_name("run id", new_id)
        request = store_admin_fork.ForkRequest(before, given, answers, run_id)
        forked = store.direct(store_admin_fork.fork, _place(row), request)
        if json:
            screen.document(
                {"id": forked.run.id, "forkedFrom": row.id, "shared": list(forked.shared), "set": list(given),
                 "answers": list(forked.answers), "answersCopied": answers}
            )  # fmt: skip
        else:
            screen.line(screen.fit(forked.run.id))
        _tell_fork(row, forked, list(given), answers=answers)
        _tell_next(store, forked.run)


def _tell_fork(row: RunRow, forked: Forked, given: list[str], *, answers: bool) -> None:
    decided = f", and {tables.plural(len(given), 'value')} set: {', '.join(given)}" if given else ""
    screen.note(f"it shares {tables.plural(len(forked.shared), 'completed step')} with {row.id}{decided}")
    for key in forked.ahead:
        screen.note(f"{row.id} has no step {key!r}; the value counts only if the fork reaches one of that key")
    for key in forked.again:
        screen.note(
            f"step {key!r} takes effect once, and may have done so in {row.id}; it is not shared, so the fork will do "
            "it again (--set gives it a result instead)"
        )
    if forked.answers and not answers:
        names = ", ".join(map(repr, forked.answers))
        screen.note(f"answers were not copied: {names}; the fork will ask again (--answers copies them)")
    tags = row.meta_dict.get("tags")
    if tags and isinstance(tags, dict):
        screen.note(f"it has the tags of {row.id}: {', '.join(tags)}")


def _assignment(text: str) -> tuple[str, object]:
    # A key may hold "=": the value is what is JSON behind the first "=" that leaves any.
    at = text.find("=")
    while at >= 0:
        try:
            return text[:at], json_value(text[at + 1 :], "--set")
        except TooDeep:
            raise
        except Usage:
            at = text.find("=", at + 1)
    raise Usage(f"--set: {text!r} is not STEP=JSON; a text needs its own quotes: 'STEP=\"text\"'")


def rerun_command(
    run: Run,
    step: Annotated[str, typer.Argument(metavar="STEP", help="The step's key.")],
    downstream: Annotated[
        bool, typer.Option("--downstream", help="Also what was first reached after it, answers too.")
    ] = False,
    json: Json = False,
    db: Db = None,
) -> None:
    """Discard a step's stored result: the next resume runs it again."""
    from agent_resume import store_admin_edit
    from agent_resume.store_queries import steps_of

    with session.opened(db) as store:
        row = session.find(store, run)
        gone, answers = store.direct(store_admin_edit.rerun, store.owner.judge, _place(row), step, downstream)
        if json:
            screen.document({"id": row.id, "discarded": gone, "answers": answers})
        if gone:
            screen.note(f"discarded {tables.plural(len(gone), 'result')} of run {row.id}: {', '.join(gone)}")
        if answers:
            screen.note(f"discarded what was answered after it: {', '.join(map(repr, answers))}; it is asked again")
        for key in (one.key for one in store.ask(steps_of, row.seq) if one.key in gone and one.effect == "once"):
            screen.note(f"step {key!r} takes effect once, and has done so: the next execution does it again")
        _tell_next(store, row)
