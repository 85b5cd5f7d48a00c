"""One sequence from flowcast's two: the records of state.json, which are the truth, and the lines of its log.

Nothing of the log is kept here but what orders it; lines are read again when their events are made.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from agent_resume.layouts import flowcast_shapes as shapes
from agent_resume.layouts.flowcast_names import Keys
from agent_resume.layouts.flowcast_own import odd_head
from agent_resume.layouts.flowcast_read import Source, is_time
from agent_resume.layouts.flowcast_shapes import ABSENT, key_text


class Line(NamedTuple):
    """A log line as far as its place matters; ``key`` is None for what is no step's line."""

    kind: str
    key: str | None
    ts: str
    duration: Any
    offset: int


class Item(NamedTuple):
    """One event to be.

    Attributes:
        kind: ``line`` (of the log), ``record`` (of state.json, without a line), ``open`` (a start that only
            ``currentStep`` tells of), ``unknown`` (an attempt that ended nobody knows how) or ``bare`` (a result without
            a record).
        at: index of the line or record.
        key: of the step, as flowcast has it.
        attempt: of the step, where there is one.
    """

    kind: Literal["line", "record", "open", "unknown", "bare"]
    at: int = -1
    key: str | None = None
    attempt: int | None = None


@dataclass(slots=True)
class Found:
    """What both say of one key.

    Attributes:
        seq: number of its first event.
        starts: how often it was begun.
        last: kind of the last line or record of it.
        open: begun, and not ended.
        error_at: offset of its last error line.
        done_at: offset of its last done line.
        first: its first record.
        record: its last one.
    """

    key: str
    seq: int = 0
    starts: int = 0
    started_at: str | None = None
    last: str = ""
    open: bool = False
    error_at: int | None = None
    done_at: int | None = None
    first: dict[str, Any] | None = None
    record: dict[str, Any] | None = None

    @property
    def attempts(self) -> int:
        """At least one, since something of it is there."""
        return max(1, self.starts)


@dataclass(slots=True)
class Plan:
    """The whole run in order.

    Attributes:
        items: one for each event; the number of an event is its place, from 1.
        matched: line -> the record that it tells of.
        current: ``currentStep`` as the export will derive it.
        done: keys in the order in which the export will put them into ``completed``.
        heads: of own events' lines, where they are not the usual ones.
    """

    lines: list[Line] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    matched: dict[int, int] = field(default_factory=dict)
    steps: dict[str, Found] = field(default_factory=dict)
    keys: Keys = field(default_factory=Keys)
    current: Any = ABSENT
    done: dict[str, None] = field(default_factory=dict)
    first_ts: str = ""
    last_ts: str = ""
    paused_at: str | None = None
    heads: dict[int, dict[str, Any]] = field(default_factory=dict)

    def odd_ones(self) -> dict[str, Any]:
        """What of own events has no place in their rows, by the events' numbers."""
        if not self.heads:
            return {}
        numbers = {item.at: seq for seq, item in enumerate(self.items, 1) if item.kind == "line"}
        return {"heads": {str(numbers[index]): head for index, head in self.heads.items()}}


def make_plan(source: Source, records: list[dict[str, Any]], completed: dict[str, Any], folder: str) -> Plan:
    """Read the log once and put everything in order.

    Args:
        source: the folder.
        records: the entries of ``steps`` that have a key.
        completed: results by key.
        folder: the folder's name.
    """
    plan = Plan(records=records)
    plan.first_ts = plan.last_ts = _first_time(source, records)
    _scan(plan, source, folder)
    plan.matched = _match(plan.lines, records)
    _merge(plan, completed, source.state.get("currentStep"))
    plan.keys.take([*plan.steps, *(line.key for line in plan.lines if line.key is not None), *completed])
    return plan


_EPOCH = "1970-01-01T00:00:00.000Z"


def _first_time(source: Source, records: list[dict[str, Any]]) -> str:
    """When the run began; where state.json does not say, the first time that is on record."""
    times = [source.state.get("startedAt"), *(record.get("completedAt") for record in records[:1])]
    times += [fields.get("ts") for _, (_, fields) in zip(range(1), source.lines(), strict=False)]
    known = [time for time in times if is_time(time)]
    return known[0] if is_time(times[0]) else min(known, default=_EPOCH)


def _scan(plan: Plan, source: Source, folder: str) -> None:
    ts = plan.first_ts
    for offset, fields in source.lines():
        ts = fields["ts"] if is_time(fields.get("ts")) else ts
        if shapes.is_step_line(fields):
            key = key_text(fields["key"])
            plan.lines.append(Line(str(fields["event"]), key, ts, fields.get("durationMs", ABSENT), offset))
            continue
        kind = "paused" if shapes.is_pause_line(fields) else "own"
        if kind == "own":
            head = odd_head(fields, ts, folder)
            if head is not None:
                plan.heads[len(plan.lines)] = head
        plan.lines.append(Line(kind, None, ts, ABSENT, offset))


# Which line tells of which record


def _match(lines: list[Line], records: list[dict[str, Any]]) -> dict[int, int]:
    lines_of: dict[str, list[int]] = defaultdict(list)
    records_of: dict[str, list[int]] = defaultdict(list)
    for index, line in enumerate(lines):
        if line.kind == "done" and line.key is not None:
            lines_of[line.key].append(index)
    for index, record in enumerate(records):
        if "durationMs" in record:
            records_of[key_text(record["key"])].append(index)
    pairs: list[tuple[int, int]] = []
    for key, mine in lines_of.items():
        theirs = records_of.get(key, [])
        straight = list(zip(mine, theirs, strict=False))
        if len(mine) == len(theirs) and all(lines[m].duration == records[t]["durationMs"] for m, t in straight):
            pairs += straight
        else:
            pairs += _match_one(mine, theirs, lines, records)
    return dict(_uncrossed(sorted(pairs)))


def _match_one(
    mine: list[int], theirs: list[int], lines: list[Line], records: list[dict[str, Any]]
) -> list[tuple[int, int]]:
    """Pairs of one key where some lines or some records are missing: by duration and time, else by duration."""
    places: dict[tuple[str, Any], list[int]] = defaultdict(list)
    for place, other in enumerate(theirs):
        record = records[other]
        duration = repr(record["durationMs"])
        places[duration, None].append(place)
        if isinstance(record.get("completedAt"), str):
            places[duration, record["completedAt"]].append(place)
    pairs: list[tuple[int, int]] = []
    at = 0
    for index in mine:
        duration = repr(lines[index].duration)
        for clue in ((duration, lines[index].ts), (duration, None)):
            fits = places.get(clue, [])
            first = bisect.bisect_left(fits, at)
            if first < len(fits):
                pairs.append((index, theirs[fits[first]]))
                at = fits[first] + 1
                break
    return pairs


def _uncrossed(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of the pairs that is in order on both sides."""
    if all(one[1] < other[1] for one, other in zip(pairs, pairs[1:], strict=False)):
        return pairs
    ends: list[int] = []
    last: list[int] = []
    before: list[int | None] = []
    for index, (_, record) in enumerate(pairs):
        place = bisect.bisect_left(ends, record)
        before.append(last[place - 1] if place else None)
        ends[place : place + 1] = [record]
        last[place : place + 1] = [index]
    kept: list[tuple[int, int]] = []
    at: int | None = last[-1] if last else None
    while at is not None:
        kept.append(pairs[at])
        at = before[at]
    return kept[::-1]


# The sequence


class _Merger:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._open: dict[str, int] = {}

    def step(self, key: str) -> Found:
        found = self.plan.steps.get(key)
        if found is None:
            found = self.plan.steps[key] = Found(key, seq=len(self.plan.items) + 1)
        return found

    def record(self, index: int) -> None:
        record = self.plan.records[index]
        kind = "done" if "durationMs" in record else "record"
        found = self.step(key_text(record["key"]))
        self._settle(found, kind, record)
        self.plan.items.append(Item("record", index, found.key, found.attempts if kind == "done" else None))

    def _settle(self, found: Found, kind: str, record: dict[str, Any] | None) -> None:
        found.last = kind
        found.open = False
        if record is not None:
            found.first = found.first or record
            found.record = record
        self.plan.current = shapes.current_step(self.plan.current, kind, found.key)
        self.plan.done.setdefault(found.key)

    def line(self, index: int) -> None:
        line = self.plan.lines[index]
        self.plan.last_ts = max(self.plan.last_ts, line.ts)
        if line.kind == "paused":
            self.plan.paused_at = line.ts
        if line.key is None or line.kind == "skip":
            self.plan.items.append(Item("line", index, line.key))
            return
        known = self.plan.steps.get(line.key)
        if line.kind == "start" and known is not None and known.open:
            self.plan.items.append(Item("unknown", index, line.key, known.attempts))
        found = self.step(line.key)
        if line.kind == "start":
            self.begin(found, line.ts)
        elif line.kind == "done":
            matched = self.plan.matched.get(index)
            found.done_at = line.offset
            self._settle(found, "done", None if matched is None else self.plan.records[matched])
        elif line.kind == "error":
            found.last, found.open, found.error_at = "error", False, line.offset
        else:
            self.plan.done.pop(line.key, None)
        attempt = None if line.kind == "rerun" else found.attempts
        self.plan.items.append(Item("line", index, line.key, attempt))

    def begin(self, found: Found, ts: str) -> None:
        found.starts += 1
        found.started_at = ts
        found.last, found.open = "start", True
        self.plan.current = found.key


def _merge(plan: Plan, completed: dict[str, Any], current: Any) -> None:
    merger = _Merger(plan)
    told = set(plan.matched.values())
    at = 0
    for index, line in enumerate(plan.lines):
        if index in plan.matched:
            while at < plan.matched[index]:
                merger.record(at)
                at += 1
            at += 1
        else:
            while at < len(plan.records) and at not in told and _is_before(plan.records[at], line.ts):
                merger.record(at)
                at += 1
        merger.line(index)
    for index in range(at, len(plan.records)):
        merger.record(index)
    for key in completed:
        if key not in plan.steps or plan.steps[key].record is None:
            found = merger.step(key)
            found.last = "bare"
            plan.items.append(Item("bare", key=key))
            plan.done.setdefault(key)
    _open_current(plan, merger, completed, current)


def _is_before(record: dict[str, Any], ts: str) -> bool:
    completed_at = record.get("completedAt")
    if not is_time(completed_at):
        return True
    # A step's own start line may have the very time of its end.
    return completed_at < ts if "durationMs" in record else completed_at <= ts


def _open_current(plan: Plan, merger: _Merger, completed: dict[str, Any], current: Any) -> None:
    """The log may lack the start of the step that the process died in; state.json names it."""
    if not isinstance(current, str) or current in completed:
        return
    found = plan.steps.get(current)
    if found is not None and (found.open or found.last == "error"):
        return
    found = merger.step(current)
    found.starts += 1
    found.last, found.open = "start", True
    plan.current = current
    plan.items.append(Item("open", key=current, attempt=found.attempts))
