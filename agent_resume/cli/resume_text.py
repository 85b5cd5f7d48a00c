"""What ``resume RUN`` says: the status, what a resume would skip, and the command that does it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from . import fold, screen, show_json, show_text, tables

if TYPE_CHECKING:
    from agent_resume.models import RunRow
    from agent_resume.store import Store
    from agent_resume.store_admin_detail import RunDetail


_RESUMABLE = ("paused", "failed", "interrupted", "idle")


def whole(store: Store, detail: RunDetail) -> list[str]:
    """What ``show RUN`` says, and ``watch RUN`` at its end; on a terminal with the command that says how to go on."""
    how = _how_to_go_on(store, detail) if screen.is_terminal() and detail.status in _RESUMABLE else ()
    return show_text.apart(
        show_text.header(store, detail),
        show_text.timeline(store, detail),
        show_text.questions(store, detail.pauses),
        show_text.run_warnings(detail),
        how,
    )


def _how_to_go_on(store: Store, detail: RunDetail) -> list[str]:
    label, text = f"  {screen.paint('how to go on:', 'dim')}", typed(store, detail)
    return [f"{label} {text}"] if fold.fits(f"{label} {text}") else [label, *fold.command(text, "    ")]


def plan(store: Store, detail: RunDetail) -> list[str]:
    """Status, timeline, savings and instructions."""
    return show_text.apart(
        show_text.header(store, detail),
        show_text.timeline(store, detail),
        show_text.questions(store, detail.open_pauses),
        show_text.untaken(store, detail.untaken),
        _advice(store, detail),
    )


def _advice(store: Store, detail: RunDetail) -> list[str]:
    status = detail.status
    if status == "completed":
        return fold.lines("The run is completed; nothing is left to resume.")
    if status == "cancelled":
        if detail.is_lingering:
            return [
                *fold.lines(f"The run is cancelled, and still being left by {show_text.owner_text(detail)}."),
                *fold.lines("Wait for it. If it hangs, take it over, reopen the run and go on:"),
                *_command(store, detail, "--take-over --force --exec"),
            ]
        return [
            *fold.lines("The run is cancelled. To reopen it and go on:"),
            *_command(store, detail, "--force --exec"),
        ]
    if detail.is_held:
        since = "" if detail.begun_at is None else f"; it began at {detail.begun_at}"
        answers = answering(store, detail)
        then = "It goes on by itself then; if" if answers else "Wait for it, or if"
        return [
            *fold.lines(f"The run is being executed by {show_text.owner_text(detail)}{since}."),
            *answers,
            *fold.lines(f"{then} it hangs, take it over and go on:"),
            *_command(store, detail, "--take-over --exec"),
        ]
    return [*fold.lines(_savings(detail)), *answering(store, detail), *deciding(store, detail), *_how(store, detail)]


def deciding(store: Store, detail: RunDetail) -> list[str]:
    """The commands that decide each step of which nobody knows whether it took effect."""
    lines = []
    for step in detail.doubtful:
        key, name = screen.fit(shlex.quote(step.key)), screen.fit(step.key)
        lines += [
            *fold.lines(f"Step {name} was started and may have taken effect. Unless its verify= can tell, decide:"),
            *_command(store, detail, f"--step {key} --mark-done JSON", "(it happened)"),
            *_command(store, detail, f"--step {key} --retry", "(it did not)"),
        ]
    return lines


def answering(store: Store, detail: RunDetail) -> list[str]:
    """The command that answers each open question; with ``--exec`` where nobody would take the answer otherwise."""
    asked = [pause for pause in detail.open_pauses if pause.kind != "sleep"]
    then = " --exec" if not detail.is_held and _can_exec(detail) else ""
    lines = ["To answer:"] if asked else []
    for pause in asked:
        named = f" --name {screen.fit(shlex.quote(pause.name))}" if len(asked) > 1 else ""
        lines += _command(store, detail, f"--answer JSON{named}{then}")
    return lines


def next_step(store: Store, detail: RunDetail) -> str:
    """What makes a run that nobody executes take an answer."""
    if detail.is_held:
        return "its process goes on with it"
    if detail.status == "completed":
        return "it is completed by now"
    return f"go on with: {typed(store, detail, '--exec')}" if _can_exec(detail) else "start the agent again to go on"


def _can_exec(detail: RunDetail) -> bool:
    from agent_resume import store_admin_command

    command = store_admin_command.command_of(detail.run)
    return not isinstance(command, str) and command.refusal is None


def _savings(detail: RunDetail) -> str:
    from agent_resume import report

    done = len(detail.completed)
    if not done:
        return "A resume starts from the beginning: no step is completed yet."
    saved, skips = report.seconds_text(detail.saved_ms), f"A resume skips {tables.plural(done, 'completed step')}"
    return f"{skips}." if saved == report.seconds_text(0) else f"{skips} and saves {saved}."


def _command(store: Store, detail: RunDetail, options: str, remark: str = "") -> list[str]:
    return fold.command(typed(store, detail, options), "  ", remark=remark)


def _how(store: Store, detail: RunDetail) -> list[str]:
    from agent_resume import store_admin_command

    command = store_admin_command.command_of(detail.run)
    if isinstance(command, str):
        return fold.lines(f"It cannot be resumed by --exec: {command}.")
    # Without an answer it would only stop at its question again.
    asks = detail.status == "paused" and any(pause.kind == "pause" for pause in detail.open_pauses)
    to_resume = ["To resume it:", *_command(store, detail, "--exec")]
    lines = to_resume if command.refusal is None and not asks else []
    lines += [
        "which runs:" if command.refusal is None else "It was started by:",
        *fold.command(screen.fit(command.text), "  "),
    ]
    if command.refusal is not None:
        lines += fold.lines(f"It cannot be resumed by --exec: {screen.fit(command.refusal)}.")
    return [*lines, *_renamed(store, detail.run)]


def _renamed(store: Store, run: RunRow) -> list[str]:
    from agent_resume import store_lineage

    # A Checkpoint, whose run is called like its id at first, finds it by that.
    former = [name for name in store.ask(store_lineage.former_names, run.id) if name != run.id]
    now, then = screen.fit(repr(run.name)), screen.fit(repr(former[-1])) if former else ""
    said = f"It was renamed: its program goes on with it once it calls its agent {now}, not {then}."
    return fold.lines(said) if former else []


def typed(store: Store, detail: RunDetail, options: str = "") -> str:
    """``resume`` of this run, with options, as it is typed into a shell; ids that look like options come last, after ``--``."""
    run_id, where = detail.run.id, store.location.option
    quoted = screen.fit(shlex.quote(run_id))
    behind = f" {options}" if options else ""
    return (
        f"agent-resume resume{screen.fit(where)} {quoted}{behind}"
        if not run_id.startswith("-")
        else f"agent-resume resume{screen.fit(where)}{behind} -- {quoted}"
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
        "inDoubt": [step.key for step in detail.doubtful],
        "command": None if recorded is None else {
            "argv": list(recorded.argv), "cwd": recorded.cwd, "text": recorded.text, "masked": list(recorded.masked),
        },
        "canExec": recorded is not None and recorded.refusal is None,
        "whyNot": command if isinstance(command, str) else command.refusal,
    }  # fmt: skip
