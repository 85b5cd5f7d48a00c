"""What ``resume RUN`` says: the status, what a resume would skip, and the command that does it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from . import screen, show_json, show_text, tables

if TYPE_CHECKING:
    from agent_resume.store import Store
    from agent_resume.store_admin_detail import RunDetail


def plan(store: Store, detail: RunDetail) -> list[str]:
    """Status, timeline, savings and instructions."""
    lines = [*show_text.header(store, detail), "", *show_text.timeline(store, detail)]
    if detail.open_pauses:
        lines += ["", *show_text.questions(store, detail.open_pauses)]
    return [*lines, "", *(f"{line}" for line in _advice(store, detail))]


def _advice(store: Store, detail: RunDetail) -> list[str]:
    run, status = detail.run, detail.status
    me = typed(store, detail)
    if status == "completed":
        return ["The run is completed; nothing is left to resume."]
    if status == "cancelled":
        return ["The run is cancelled. To reopen it and go on:", f"  {me} --force --exec"]
    if detail.is_held:
        since = f" since {run.updated_at}" if status == "running" else ""
        return [
            f"The run is being executed by {show_text.owner_text(detail)}{since}.",
            "Wait for it, or if it hangs, take it over and go on:",
            f"  {me} --take-over --exec",
        ]
    lines = [_savings(detail)]
    for pause in detail.open_pauses:
        if pause.kind != "sleep":
            named = f" --name {shlex.quote(pause.name)}" if len(detail.open_pauses) > 1 else ""
            lines += ["To answer:", f"  {typed(store, detail)} --answer JSON{named} --exec"]
    for step in detail.steps:
        if step.status == "in_doubt":
            key = shlex.quote(step.key)
            lines += [
                f"Step {screen.fit(step.key)} may have taken effect. To decide:",
                f"  {me} --step {key} --mark-done JSON    (it happened)",
                f"  {me} --step {key} --retry             (it did not)",
            ]
    return [*lines, *_how(detail, me)]


def _savings(detail: RunDetail) -> str:
    from agent_resume import report

    done = len(detail.completed)
    if not done:
        return "A resume starts from the beginning: no step is completed yet."
    return f"A resume skips {tables.plural(done, 'completed step')} and saves {report.seconds_text(detail.saved_ms)}."


def _how(detail: RunDetail, me: str) -> list[str]:
    from agent_resume import store_admin_command

    command = store_admin_command.command_of(detail.run)
    if isinstance(command, str):
        return [f"It cannot be resumed by --exec: {command}."]
    lines = ["To resume it:", f"  {me} --exec"] if command.refusal is None else []
    lines += ["which runs:" if lines else "It was started by:", f"  {screen.fit(command.text)}"]
    if command.refusal is not None:
        lines.append(f"It cannot be resumed by --exec: {screen.fit(command.refusal)}.")
    return lines


def typed(store: Store, detail: RunDetail) -> str:
    """``resume`` of this run as it is typed into a shell; ids that look like options come last, after ``--``."""
    import os

    from agent_resume import database_location

    run_id = detail.run.id
    here = database_location.resolve()
    where = "" if here == store.location else f" --db {shlex.quote(os.fspath(store.display))}"
    quoted = screen.fit(shlex.quote(run_id))
    return (
        f"agent-resume resume{screen.fit(where)} {quoted}"
        if not run_id.startswith("-")
        else f"agent-resume resume{screen.fit(where)} -- {quoted}"
    )


def plan_json(store: Store, detail: RunDetail, code: int) -> dict[str, Any]:
    """The same for programs."""
    from agent_resume import store_admin_command

    command = store_admin_command.command_of(detail.run)
    shown = show_json.run_json(store, detail)
    recorded = None if isinstance(command, str) else command
    return {
        **{name: shown[name] for name in ("id", "name", "status", "storedStatus", "createdAt", "updatedAt", "owner")},
        "exitCode": code,
        "steps": shown["steps"],
        "skips": {"steps": len(detail.completed), "ms": detail.saved_ms},
        "openPauses": [store.redactor.value(pause.to_dict()) for pause in detail.open_pauses],
        "inDoubt": [step.key for step in detail.steps if step.status == "in_doubt"],
        "command": None if recorded is None else {
            "argv": list(recorded.argv), "cwd": recorded.cwd, "text": recorded.text, "masked": list(recorded.masked),
        },
        "canExec": recorded is not None and recorded.refusal is None,
        "whyNot": command if isinstance(command, str) else command.refusal,
    }  # fmt: skip
