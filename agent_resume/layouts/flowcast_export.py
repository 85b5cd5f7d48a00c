"""One run as a folder that flowcast goes on with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agent_resume import clock
from agent_resume.layouts import files, jstext
from agent_resume.layouts import flowcast_shapes as shapes
from agent_resume.layouts.filenames import Names
from agent_resume.layouts.flatten import flatten_column
from agent_resume.layouts.flowcast_log import LogWriter, Record, record_fields
from agent_resume.layouts.flowcast_names import LOG, REPORT, STATE, Keys
from agent_resume.layouts.flowcast_report import report_lines
from agent_resume.layouts.flowcast_results import Results
from agent_resume.layouts.flowcast_shapes import ABSENT, RECORD_NAMES, TRAP_NAMES
from agent_resume.layouts.flowcast_state import STATUSES, kept_of, top_fields, with_kept, write_state
from agent_resume.layouts.outcomes import Bends
from agent_resume.models import RunDump


def write_run(
    dump: RunDump, path: Path, folder: str, names: Names, bends: Bends, tick: Callable[[], None] = lambda: None
) -> None:
    """Write a run's files into ``path``, an empty folder.

    Args:
        dump: the run; its iterators are used up, steps first.
        path: where to.
        folder: the id that flowcast will know it by.
        names: such ids of other runs.
        bends: gets a note for each place that flowcast cannot hold as it is.
        tick: called for every step and event.
    """
    run = dump.run
    kept = kept_of(flatten_column(run["meta"], Bends(0), "run.meta"))
    keys = Keys(kept.get("keys"))
    results = Results(path, keys, bends)
    for row in dump.steps:
        results.take(row)
        tick()
    with files.new_file(path / LOG) as file:
        log = LogWriter(file, folder, results, keys, bends, heads=kept.get("heads"))
        for row in dump.events:
            log.take(row)
            tick()
    if not log.lines:
        (path / LOG).unlink()
    pauses = list(dump.pauses)
    pause = _last_pause(pauses, log.paused)
    _note_pauses(pauses, pause, bends)
    fields = with_kept(top_fields(run, pause, log.current, folder, names, bends), kept, run["last_seq"])
    fields = shapes.in_order(fields | {"completed": None, "steps": None}, kept.get("order"))
    _note_status(run, bends)
    records = _Records(_all_records(log, results), results, bends)
    with files.new_file(path / STATE) as file:
        write_state(file, fields, _completed(log, results, kept), records.entries(noting=True))
    if fields.get("status") == "completed" and fields.get("summary") is not None:
        with files.new_file(path / REPORT) as file:
            for line in report_lines(fields, records.entries()):
                file.write(line.encode("utf-8", "replace") + b"\n")
    _set_times(path, run, log.last_ts)


def _last_pause(pauses: list[dict[str, Any]], name: str | None) -> dict[str, Any] | None:
    asked = [pause for pause in pauses if pause["kind"] == "pause" and pause["asked_at"] is not None]
    named = [pause for pause in asked if pause["name"] == name]
    return named[-1] if named else max(asked, key=lambda pause: str(pause["asked_at"]), default=None)


def _note_pauses(pauses: list[dict[str, Any]], last: dict[str, Any] | None, bends: Bends) -> None:
    for pause in pauses:
        path = f"pauses[{pause['name']!r}]"
        if pause["answered_at"] is not None:
            bends.add(f"{path}.value", "flowcast keeps no answers, left out; it is asked again there")
        elif pause is not last:
            bends.add(path, "flowcast keeps only the last question, left out")


def _note_status(run: dict[str, Any], bends: Bends) -> None:
    if run["status"] in ("failed", "cancelled"):
        bends.add("run.status", f"{run['status']}, written as {STATUSES.get(run['status'], 'running')}")


def _all_records(log: LogWriter, results: Results) -> list[Record]:
    """Those of the events, after those of steps that no event tells of (a fork shares steps, not their events)."""
    silent = [
        Record(name, step.duration_ms if step.duration_ms is not None else ABSENT, step.finished_at or "", None)
        for name, step in ((name, results.steps[name]) for name in results.by_seq if name not in log.told)
        if step.has_result and step.finished_at
    ]
    return silent + log.records


def _completed(log: LogWriter, results: Results, kept: dict[str, Any]) -> Iterator[tuple[str, str]]:
    untold = [name for name in results.by_seq if name not in log.done]
    names = dict.fromkeys((*kept.get("completedOrder", ()), *untold, *log.done))
    by_key = {step.key: step for name in names if (step := results.steps.get(name)) is not None and step.has_result}
    for key in jstext.ordered(list(by_key)):
        yield key, results.stored(by_key[key])


class _Records:
    """The entries of ``steps``, made twice from the same: for state.json and for the report."""

    def __init__(self, records: list[Record], results: Results, bends: Bends) -> None:
        self._records = records
        self._results = results
        self._bends = bends
        self._last = {record.key: index for index, record in enumerate(records)}
        # Only the first record of a key springs the trap.
        self._first = {record.key: index for index, record in reversed(list(enumerate(records)))}
        # A key whose every record is as it was imported may keep the trap that flowcast itself has set.
        self._changed = {record.key for record in records if record.raw is None}

    def entries(self, *, noting: bool = False) -> Iterator[dict[str, Any]]:
        bends = self._bends if noting else Bends(0)
        for index, record in enumerate(self._records):
            step = self._results.steps.get(record.key)
            last = self._last[record.key] == index
            meta = _without_clashes(step.meta, record.key, bends) if step is not None and last else None
            fields = record_fields(record, step, last=last, meta=meta)
            first = self._first[record.key] == index
            if first and record.key in self._changed and step is not None and step.has_result:
                fields = _untrapped(fields, record.key, step.is_text, bends)
            yield fields


def _without_clashes(meta: dict[str, Any], key: str, bends: Bends) -> dict[str, Any]:
    if not any(name in meta for name in RECORD_NAMES):
        return meta
    renamed: dict[str, Any] = {}
    for name, value in meta.items():
        clash = name in RECORD_NAMES
        if clash:
            bends.add(f"steps[{key!r}].meta.{name}", f"would replace the step's own, written as {name}_")
        renamed[f"{name}_" if clash else name] = value
    return renamed


def _untrapped(fields: dict[str, Any], key: str, is_text: bool, bends: Bends) -> dict[str, Any]:
    if not shapes.is_trapped(fields, is_text):
        return fields
    renamed: dict[str, Any] = {}
    for name, value in fields.items():
        trap = name in TRAP_NAMES and shapes.is_truthy(value)
        if trap:
            bends.add(
                f"steps[{key!r}].meta.{name}", f"would make flowcast turn the result into text, written as {name}_"
            )
        renamed[f"{name}_" if trap else name] = value
    return renamed


def _set_times(path: Path, run: dict[str, Any], last_ts: str | None) -> None:
    """Flowcast's dashboard tells a dead run by the age of these files, not by what is in them."""
    ms = clock.parse_iso(run["updated_at"])
    for name, text in ((STATE, run["updated_at"]), (REPORT, run["finished_at"]), (LOG, last_ts)):
        file = path / name
        if file.exists():
            nanoseconds = (clock.parse_iso(text) if text else ms) * 1_000_000
            os.utime(file, ns=(nanoseconds, nanoseconds))
