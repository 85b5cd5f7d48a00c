"""A run as a person reads it: header, timeline with bars, questions, warnings. Lines of text, made from records."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from . import fold, screen, tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent_resume.models import EventRow, PauseRow, StepRow
    from agent_resume.store import Store
    from agent_resume.store_admin_detail import RunDetail, StepDetail

#: What is said of a run that is marked as running and that nobody owns.
UNSEEN = "none is seen: a Checkpoint between two steps, or one whose process died there"
_BAR = 16
#: What is shorter is shown as 0.0s.
_SHOWN_MS = 50
#: A terminal narrower than this has no room for bars.
_WIDE = 72


def apart(*blocks: Sequence[str]) -> list[str]:
    """The lines of some blocks, with an empty one between any two that are not empty."""
    lines: list[str] = []
    for block in blocks:
        lines += ["", *block] if lines and block else block
    return lines


def header(store: Store, detail: RunDetail) -> list[str]:
    """The run's id and status, and what is known of it, a line each."""
    from agent_resume.store_admin_fork import is_fresh

    run = detail.run
    given, made = detail.tokens
    rows = [("agent", screen.fit(run.name))] if run.name != run.id else []
    rows += [
        ("started", f"{run.created_at} ({tables.age(run.created_at)} ago)"),
        ("ended" if run.finished_at else "changed", _ended(detail)),
        ("steps", _steps_text(detail)),
    ]
    if given is not None or made is not None:
        rows += [("tokens", _tokens(store, detail))]
    if detail.owner is not None and (detail.is_lingering or run.status in ("running", "paused")):
        rows += [("owner", owner_text(detail))]
    elif detail.is_unseen:
        rows += [("owner", UNSEEN)]
    if run.error is not None:
        rows += [("error", error_text(store, json.loads(run.error)))]
    rows += [("loop", screen.fit(_loop(detail)))] if _loop(detail) else []
    if run.forked_from is not None:
        rows += [("forked from", screen.fit(run.forked_from) + (", not executed yet" if is_fresh(run) else ""))]
    if run.parent_run_id is not None:
        rows += [("parent", screen.fit(run.parent_run_id))]
    meta = {name: value for name, value in run.meta_dict.items() if name != "eventsLost"}
    if meta:
        rows += [("meta", _value(store, meta))]
    return [*_head(run.id, detail.status), *(line for label, text in rows for line in _row(label, text))]


def _row(label: str, text: str) -> list[str]:
    from agent_resume import report

    return fold.lines(text, f"  {report.pad(label, 11)} ", style="red" if label == "error" else "")


def _head(name: str, status: str) -> list[str]:
    head, shown = screen.paint(screen.fit(name), "bold"), screen.paint_status(status)
    # A name is copied from there: it stays whole, on a line of its own.
    return [f"{head}  {shown}"] if fold.fits(f"{head}  {shown}") else [head, f"  {shown}"]


def _ended(detail: RunDetail) -> str:
    from agent_resume import report

    when = detail.run.finished_at or detail.run.updated_at
    return f"{when} ({tables.age(when)} ago), after {report.seconds_text(detail.duration_ms)}"


def _steps_text(detail: RunDetail) -> str:
    from collections import Counter

    found = Counter(_status(detail, step) for step in detail.steps if step.status != "completed")
    others = "".join(f", {count} {status}" for status, count in sorted(found.items()))
    return f"{len(detail.completed)} of {len(detail.steps)} completed{others}; {tables.plural(detail.events, 'event')}"


def _status(detail: RunDetail, step: StepRow) -> str:
    return "cut off" if step.key in detail.cut_off else step.status.replace("_", " ")


def _tokens(store: Store, detail: RunDetail) -> str:
    from agent_resume import report
    from agent_resume.store_status import recorded_step

    given, made = detail.tokens
    by_model = report.tokens_by_model(recorded_step(store, step, None) for step in detail.steps)
    shown = f"{given or 0:,} in, {made or 0:,} out"
    if by_model:
        models = (f"{screen.fit(model)} {into:,}+{out:,}" for model, (into, out) in sorted(by_model.items()))
        shown += f" ({'; '.join(models)})"
    return shown


def owner_text(detail: RunDetail) -> str:
    """Who has the run, and whether that process lives."""
    from agent_resume import ownership

    assert detail.owner is not None  # asked only where there is one
    words = {"alive": "alive", "dead": "dead", "unknown": "cannot be seen from here"}
    owner = detail.owner
    return (
        f"process {owner.pid} on {screen.fit(ownership.host_name(owner.host))}, "
        f"{words[detail.owner_verdict or 'unknown']}, last beat {tables.age(owner.beat_at)} ago"
    )


def _loop(detail: RunDetail) -> str:
    from agent_resume import codec

    found = {name: getattr(detail.run, f"loop_{name}") for name in ("turns", "status", "verdict", "reason")}
    values = {name: codec.json_value("tagged", text) for name, text in found.items() if text is not None}
    return ", ".join(f"{name} {_plain(value)}" for name, value in values.items())


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _value(store: Store, value: Any) -> str:
    return screen.fit(_plain(store.redactor.value(value)))


def error_text(store: Store, error: Mapping[str, Any]) -> str:
    """A stored failure on one line."""
    kind, message = str(error.get("type") or "Error"), str(error.get("message") or "")
    return screen.fit(store.redactor.text(f"{kind.rsplit('.', 1)[-1]}: {message}" if message else kind))


def timeline(store: Store, detail: RunDetail) -> list[str]:
    """A line a step: name, status, duration, a bar, and what else is to be said; more lines where that does not fit."""
    return [line for lines in timeline_steps(store, detail) for line in lines]


def timeline_steps(store: Store, detail: RunDetail) -> list[list[str]]:
    """The timeline's lines, step by step."""
    from agent_resume import report

    names = [screen.fit(step.key) for step in detail.steps]
    longest = max((step.duration_ms or 0 for step in detail.steps), default=0)
    words = max((len(_status(detail, step)) for step in detail.steps), default=0)
    bars = longest >= _SHOWN_MS and not (screen.is_terminal() and screen.columns() < _WIDE)
    # What stands beside a name: two blanks before each column.
    room = max(16, screen.columns() - 2 - (2 + words) - (2 + 7) - (2 + _BAR if bars else 0))
    fitting = [size for size in map(report.width, names) if size <= room or not screen.is_terminal()]
    width = max(fitting, default=min(room, 16))
    found = []
    for step, name in zip(detail.steps, names, strict=True):
        took = _took(detail, step)
        bar = f"  {report.pad(_bar(step.duration_ms, longest), _BAR)}" if bars else ""
        status = screen.paint_status(report.pad(_status(detail, step), words))
        lines = []
        if report.width(name) > width:  # a line of its own: it may be needed whole
            lines.append(f"  {name}")
            name = ""
        row = f"  {report.pad(name, width)}  {status}  {took:>7}{bar}"
        found.append([*lines, *_remarked(row, _remarks(store, step, detail.marks.get(step.key, {})))])
    return found


def _remarked(row: str, remarks: list[tuple[str, str]]) -> list[str]:
    whole = f"{row}  {'; '.join(screen.paint(text, style) for text, style in remarks)}".rstrip()
    if fold.fits(whole):
        return [whole]
    return [row.rstrip(), *(line for text, style in remarks for line in fold.lines(text, "    ", style=style))]


def _took(detail: RunDetail, step: StepRow) -> str:
    from agent_resume import clock, report

    if step.status == "running":
        alive = step.key not in detail.cut_off and step.started_at is not None
        return report.seconds_text(clock.now_ms() - clock.parse_iso(step.started_at or "")) if alive else "..."
    return report.seconds_text(step.duration_ms)


def _bar(ms: int | None, longest: int) -> str:
    if not ms or ms < _SHOWN_MS:
        return ""
    eighths = max(1, round(ms / longest * _BAR * 8))
    if not screen.draws():
        return "=" * max(1, round(eighths / 8))
    whole, rest = divmod(eighths, 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[rest].strip()


def _remarks(store: Store, step: StepRow, marks: Mapping[str, EventRow]) -> list[tuple[str, str]]:
    """What is said of a step, each with its style."""
    said = []
    unknown = marks.get("unknown")
    if unknown is not None:
        said.append((f"attempt {step.attempts} after one of unknown outcome", ""))
    elif step.attempts > 1:
        said.append((f"attempt {step.attempts}", ""))
    if step.effect == "once" and step.status != "completed":
        said.append(("effect once", ""))
    from agent_resume.store_admin_detail import MARKS

    said += [(text, "yellow") for kind, text in MARKS.items() if kind in marks and kind != "unknown"]
    if step.error is not None and step.status != "completed":
        said.append((error_text(store, step.error_dict or {}), "red"))
    return said


def questions(store: Store, pauses: Sequence[PauseRow]) -> list[str]:
    """Pauses, waits and sleeps: what was asked, and what was answered."""
    from agent_resume import codec

    lines = []
    for pause in pauses:
        reason = "" if pause.reason in (None, pause.name) else f": {screen.fit(store.redactor.text(str(pause.reason)))}"
        line = f"{pause.kind} {screen.fit(pause.name)}{reason}"
        if pause.answered_at is not None:
            value = _value(store, codec.json_value("tagged", pause.value or "null"))
            line = f"{line}  {_answered(pause, value)}, {tables.age(pause.answered_at)} ago"
        elif pause.asked_at is not None:
            line += f"  {'its time is over' if pause.is_over else screen.paint('open', 'yellow')}, asked {tables.age(pause.asked_at)} ago"
        if pause.deadline is not None:
            line += f", until {pause.deadline}"
        lines += fold.lines(line, "  ", indent=4)
        if pause.context is not None and pause.answered_at is None:
            lines += fold.lines(_value(store, codec.json_value("tagged", pause.context)), "    ")
    return lines


def _answered(pause: PauseRow, value: str) -> str:
    if pause.kind == "sleep":
        return "over"
    if pause.answered_by == "timeout":
        return f"its time was over, {value} was taken"
    said = f"answered {value} by {screen.fit(str(pause.answered_by))}"
    return said if pause.asked_at is not None else f"not asked; {said}"


def untaken(store: Store, pauses: Sequence[PauseRow]) -> list[str]:
    """Answers that wait for the run to go on."""
    from agent_resume import codec

    texts = (f"{screen.fit(p.name)} = {_value(store, codec.json_value('tagged', p.value or 'null'))}" for p in pauses)
    return [line for text in texts for line in fold.lines(f"answered, not yet taken: {text}", "  ", indent=4)]


def run_warnings(detail: RunDetail) -> list[str]:
    """What concerns the run and no step of it."""
    from agent_resume.store_admin_detail import MARKS

    texts = [f"{MARKS[kind]}, {tables.age(e.ts)} ago" for kind, e in detail.marks.get(None, {}).items()]
    if detail.events_lost:
        texts.append(f"{tables.plural(detail.events_lost, 'event')} could not be stored")
    return [line for text in texts for line in fold.lines(text, "  ", style="yellow")]


def one_step(store: Store, detail: StepDetail) -> list[str]:
    """One step: its attempts with their errors, and its whole result."""
    from agent_resume import codec, report

    step = detail.row
    status = "cut off" if detail.cut_off else step.status
    lines = _head(step.key, status)
    if step.meta_dict:
        lines += fold.lines(screen.fit(_plain(store.redactor.value(step.meta_dict))), "  meta  ")
    for attempt in detail.attempts:
        took = report.seconds_text(attempt["durationMs"])
        outcome = "cut off" if detail.cut_off and attempt["outcome"] == "running" else attempt["outcome"]
        lines += fold.lines(f"attempt {attempt['attempt']}  {attempt['startedAt']}  {outcome}  {took}", "  ", indent=4)
        error = attempt["error"]
        if error:
            lines += fold.lines(error_text(store, error), "    ", style="red")
            trace = str(error.get("traceback") or "").rstrip().split("\n")
            for row in filter(None, trace):
                code = screen.fit(store.redactor.text(row))
                before = f"{'':{6 + len(code) - len(code.lstrip())}}"
                if code.strip(" ^~") or fold.fits(before + code.lstrip()):  # marks point at nothing in a folded line
                    lines += fold.lines(code.lstrip(), before)
    if detail.text is not None and step.output_format is not None:
        shown = store.redactor.value(codec.json_value(step.output_format, detail.text))
        lines += ["", *screen.json_text(shown).split("\n")]
    return lines


def _short(value: Any) -> Any:
    """An event's data without tracebacks, each of which is many lines in one."""
    if not isinstance(value, dict) or not isinstance(value.get("error"), dict):
        return value
    return {**value, "error": {name: part for name, part in value["error"].items() if name != "traceback"}}


def event_line(store: Store, event: EventRow) -> str:
    """One event on one line."""
    step = "" if event.step_key is None else f"  {screen.fit(event.step_key)}"
    attempt = f" (attempt {event.attempt})" if event.attempt is not None and event.attempt > 1 else ""
    data = (
        ""
        if event.data is None
        else f"  {screen.fit(screen.json_text(store.redactor.value(_short(event.value)), indent=None))}"
    )
    return f"{event.seq:>6}  {event.ts}  {screen.fit(event.type)}{step}{attempt}{data}"
