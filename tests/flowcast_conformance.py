"""Reads a run's folder by the rules of flowcast's layout alone, and complains about everything they do not allow.

It shares no code with the package: number text, hashes, name order and escapes are worked out here a second time.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

MARKER = "\x00flowcast:sidecar\x00"
TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z", re.ASCII)
RUN_ID = re.compile(r"[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]", re.ASCII)
STEP_LINES = {
    "start": [["status", "key"]],
    "done": [["status", "key", "durationMs", "result", "meta"], ["status", "key", "durationMs", "meta"]],
    "skip": [["status", "key"]],
    "rerun": [["status", "key", "reason"]],
    "error": [["status", "key", "error", "durationMs", "meta"]],
}
ERROR_FIELDS = [
    "message", "code", "gate", "timedOut", "exitCode", "schemaError", "configError", "spawnError", "failures",
    "voterErrors",
]  # fmt: skip
MISSING = object()


class Violation(AssertionError):
    """A rule that the folder breaks."""


@dataclass
class Reading:
    """What flowcast would see."""

    state: dict[str, Any]
    results: dict[str, Any] = field(default_factory=dict)
    step_log: list[tuple[str, str]] = field(default_factory=list)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    pauses: list[Any] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)


def rule(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


# JavaScript's JSON, a second time


def js_number(value: float) -> str:
    if isinstance(value, int):
        value = float(value) if abs(value) > 2**53 else value
    if isinstance(value, int):
        return str(value)
    rule(math.isfinite(value), "a number that JSON cannot hold")
    if value == 0:
        return "0"
    exact = Decimal(repr(abs(value))).normalize().as_tuple()
    digits = "".join(map(str, exact.digits))
    place = len(digits) + int(exact.exponent)
    sign = "-" if value < 0 else ""
    if place > 21 or place <= -6:
        tail = "." + digits[1:] if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{tail}e{place - 1:+d}"
    if place <= 0:
        return f"{sign}0.{'0' * -place}{digits}"
    padded = digits.ljust(place, "0")
    return f"{sign}{padded[:place]}{'.' if padded[place:] else ''}{padded[place:]}"


def js_string(text: str) -> str:
    out = ['"']
    short = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
    for char in text:
        if char in short:
            out.append(short[char])
        elif ord(char) < 0x20 or 0xD800 <= ord(char) <= 0xDFFF:
            out.append(f"\\u{ord(char):04x}")
        else:
            out.append(char)
    return "".join([*out, '"'])


def is_index(name: str) -> bool:
    plain = name.isascii() and name.isdigit() and (name == "0" or name[0] != "0")
    return plain and int(name) < 4294967295


def js_names(names: list[str]) -> list[str]:
    return sorted(filter(is_index, names), key=int) + [name for name in names if not is_index(name)]


def js_json(value: Any, indent: int = 0, depth: int = 0) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return js_number(value)
    if isinstance(value, str):
        return js_string(value)
    inner = "\n" + " " * indent * (depth + 1) if indent else ""
    outer = "\n" + " " * indent * depth if indent else ""
    if isinstance(value, list):
        items = [js_json(item, indent, depth + 1) for item in value]
        brackets = "[]"
    else:
        colon = ": " if indent else ":"
        items = [f"{js_string(n)}{colon}{js_json(value[n], indent, depth + 1)}" for n in js_names(list(value))]
        brackets = "{}"
    if not items:
        return brackets
    return brackets[0] + inner + ("," + inner).join(items) + outer + brackets[1]


def utf16(text: str) -> list[int]:
    found = []
    for char in text:
        code = ord(char)
        found += [code] if code < 0x10000 else [0xD800 + (code - 0x10000 >> 10), 0xDC00 + (code - 0x10000 & 0x3FF)]
    return found


def side_name(key: str) -> str:
    allowed = set(map(ord, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"))
    value, units = 2166136261, utf16(key)
    for unit in units:
        value = (value ^ unit) * 16777619 % 2**32
    digits = ""
    while value or not digits:
        value, rest = divmod(value, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[rest] + digits
    return "".join(chr(unit) if unit in allowed else "_" for unit in units) + "_" + digits


def strict(text: str, where: str) -> Any:
    def refuse(word: str) -> Any:
        raise Violation(f"{where}: {word} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except ValueError as error:
        raise Violation(f"{where}: {error}") from None


# The folder


def read(folder: Path) -> Reading:
    """What flowcast sees of a folder that an exporter wrote.

    Raises:
        Violation: it breaks a rule.
    """
    names = {path.name for path in folder.iterdir()}
    rule("state.json" in names, "no state.json")
    rule(names <= {"state.json", "run.log.jsonl", "report.md", "steps"}, f"odd names: {names}")
    data = (folder / "state.json").read_bytes()
    text = data.decode("utf-8")
    state = strict(text, "state.json")
    rule(isinstance(state, dict), "state.json holds no object")
    rule(text == js_json(state, 2), "state.json is not as JavaScript writes it")
    reading = Reading(state)
    _check_state(state, folder)
    _read_results(reading, folder)
    _check_records(reading)
    _read_log(reading, folder)
    _check_history(reading)
    _check_report(reading, folder)
    return reading


def _check_state(state: dict[str, Any], folder: Path) -> None:
    rule(list(state)[:5] == ["runId", "status", "completed", "steps", "startedAt"], f"order {list(state)}")
    rule(RUN_ID.fullmatch(state["runId"]) is not None, "a run id that flowcast refuses")
    rule(state["runId"] == folder.name, "the run id is not the folder's name")
    rule(state["status"] in ("running", "paused", "completed"), f"status {state['status']}")
    rule(isinstance(state["completed"], dict) and isinstance(state["steps"], list), "completed or steps")
    rule(TIME.fullmatch(state["startedAt"]) is not None, "startedAt")
    rule(state.get("currentStep") is None or isinstance(state["currentStep"], str), "currentStep")
    done = state["status"] == "completed"
    rule(done == ("completedAt" in state) == ("summary" in state), "completedAt and summary belong to completed runs")
    if done:
        rule(TIME.fullmatch(state["completedAt"]) is not None, "completedAt")
    if "expectMaxMs" in state:
        value = state["expectMaxMs"]
        rule(type(value) in (int, float) and value > 0 and math.isfinite(value), "expectMaxMs")
    if state["status"] == "paused":
        rule("pauseContext" in state, "a paused run without pauseContext")
    rule("pauseReason" not in state or isinstance(state["pauseReason"], str), "pauseReason")


def _read_results(reading: Reading, folder: Path) -> None:
    used = set()
    for key, stored in reading.state["completed"].items():
        if not (isinstance(stored, str) and stored.startswith(MARKER)):
            size = len(utf16(stored if isinstance(stored, str) else js_json(stored)))
            small = stored is None or size <= 500
            rule(small or len(side_name(key)) > 247, f"a large result of {key!r} is inline")
            reading.results[key] = stored
            continue
        name = stored[len(MARKER) :]
        rule(re.search(r"[/\\\x00]", name) is None, f"a side file outside the folder: {name!r}")
        rule(name == side_name(key) or len(side_name(key)) > 247, f"side file {name!r} of {key!r}")
        rule(name not in used, f"one side file for two keys: {name!r}")
        used.add(name)
        reading.results[key] = _read_side(folder / "steps" / f"{name}.out", key)
    there = {path.name for path in (folder / "steps").iterdir()} if (folder / "steps").exists() else set()
    rule(there == {f"{name}.out" for name in used}, f"side files {there}")
    rule(bool(used) or not (folder / "steps").exists(), "an empty steps folder")


def _read_side(path: Path, key: str) -> Any:
    head, found, body = path.read_bytes().decode("utf-8").partition("\n")
    rule(found == "\n" and head in ("json", "string"), f"type line {head!r}")
    if head == "string":
        rule(len(utf16(body)) > 500, f"a small string of {key!r} in a side file")
        return body
    value = strict(body, str(path))
    rule(js_json(value) == body, f"the body of {key!r} is not compact JSON")
    marked = isinstance(value, str) and value.startswith(MARKER)
    size = len(utf16(value if isinstance(value, str) else body))
    rule(marked or size > 500, f"a small result of {key!r} in a side file")
    return value


def _check_records(reading: Reading) -> None:
    first: dict[str, dict[str, Any]] = {}
    for record in reading.state["steps"]:
        rule(isinstance(record, dict) and isinstance(record.get("key"), str), f"record {record!r}")
        rule(record["status"] == "done", f"record status {record['status']!r}")
        rule(TIME.fullmatch(record["completedAt"]) is not None, "record completedAt")
        timed = "durationMs" in record
        rule(not timed or type(record["durationMs"]) is int, "record durationMs")
        head = ["key", "status", "durationMs", "completedAt"] if timed else ["key", "status", "completedAt"]
        plain = [name for name in record if not is_index(name)]
        rule(plain[: len(head)] == head, f"record order {list(record)}")
        first.setdefault(record["key"], record)
    for key, value in reading.results.items():
        rule(key in first, f"no record of {key!r}")
        bent = any(_truthy(first[key].get(name)) for name in ("cli", "model", "inputTokens"))
        rule(isinstance(value, str) or not bent, f"flowcast would give {key!r} back as text")


def _truthy(value: Any) -> bool:
    return isinstance(value, (dict, list)) or (value is not None and value is not False and value not in (0, ""))


def _read_log(reading: Reading, folder: Path) -> None:
    path = folder / "run.log.jsonl"
    if not path.exists():
        return
    data = path.read_bytes()
    rule(data.endswith(b"\n") and len(data) > 1, "the log does not end with a line end")
    for raw in data[:-1].split(b"\n"):
        text = raw.decode("utf-8")
        line = strict(text, "log")
        rule(isinstance(line, dict), f"log line {text[:60]}")
        rule(js_json(line) == text, f"not compact: {text[:60]}")
        names = [name for name in line if not is_index(name)]
        rule(names[:4] == ["event", "type", "ts", "runId"], f"log line order {names}")
        rule(TIME.fullmatch(line["ts"]) is not None, "log ts")
        rule(line["runId"] == reading.state["runId"], "log runId")
        reading.lines.append(line)
        _sort_line(reading, line, names[4:])


def _sort_line(reading: Reading, line: dict[str, Any], rest: list[str]) -> None:
    kind, key = line["event"], line.get("key")
    rule(isinstance(kind, str), "an event without a name")
    if isinstance(key, (str, int, float)) and not isinstance(key, bool) and line.get("status") == kind in STEP_LINES:
        rule(line["type"] == kind and rest in STEP_LINES[kind], f"{kind} line {rest}")
        reading.step_log.append((kind, key))
        if kind == "error":
            known = [name for name in ERROR_FIELDS if name in line["error"]]
            rule(list(line["error"]) == known and isinstance(line["meta"], dict), f"error {line['error']}")
            reading.errors.append(line)
    elif kind == "paused" and key == "__pause__":
        rule(rest in (["status", "key"], ["status", "key", "reason"]) and line["status"] == "paused", f"pause {rest}")
        reading.step_log.append(("paused", key))
        reading.pauses.append(line.get("reason"))
    else:
        rule("status" not in rest or rest[0] == "status", f"own event {rest}")
        dropped = {"event", "ts", "runId"} | ({"type"} if line["type"] == kind else set())
        reading.events.append((kind, {name: value for name, value in line.items() if name not in dropped}))


def _check_history(reading: Reading) -> None:
    started: set[str] = set()
    done: dict[str, list[dict[str, Any]]] = {}
    for line in reading.lines:
        if line.get("status") == line["event"] and isinstance(line.get("key"), str):
            if line["event"] == "start":
                started.add(line["key"])
            if line["event"] == "done":
                rule(line["key"] in started, f"{line['key']!r} is done before it started")
                done.setdefault(line["key"], []).append(line)
    timed: dict[str, int] = {}
    for record in reading.state["steps"]:
        if "durationMs" in record:
            timed[record["key"]] = timed.get(record["key"], 0) + 1
    rule(timed == {key: len(lines) for key, lines in done.items()}, "done lines and step records do not match")
    recorded = {record["key"] for record in reading.state["steps"] if "durationMs" not in record}
    for key, lines in done.items():
        if key in reading.results and key not in recorded:
            rule("result" in lines[-1], f"the log has no result of {key!r}")
            rule(
                js_json(lines[-1]["result"]) == js_json(reading.results[key]), f"the log has another result of {key!r}"
            )


def _check_report(reading: Reading, folder: Path) -> None:
    state = reading.state
    path = folder / "report.md"
    wanted = state["status"] == "completed" and state.get("summary") is not None
    rule(path.exists() == wanted, "report.md belongs to completed runs")
    if not wanted:
        return
    data = path.read_bytes()
    head = "# Workflow Run Report\n\n"
    names = (("Run ID", "runId"), ("Status", "status"), ("Started", "startedAt"), ("Completed", "completedAt"))
    head += "".join(f"**{label}**: {state[name]}\n" for label, name in names)
    began, ended = (dt.datetime.fromisoformat(state[name]) for name in ("startedAt", "completedAt"))
    head += f"**Total time**: {_fixed((ended - began) / dt.timedelta(seconds=1))}s\n\n## Summary\n"
    entries = "".join(f"- **{name}**: {_shown(value)}\n" for name, value in _entries(state["summary"])) or "\n"
    rows = "".join(_row(record) for record in state["steps"]) or "\n"
    body = "\n## Steps\n\n| Step | Status | Duration | CLI |\n|------|--------|----------|-----|\n"
    text = f"{head}{entries}{body}{rows}\n## Full log\n"
    rule(data.startswith(text.encode("utf-8", "replace")), "report.md")
    last = data[len(text.encode("utf-8", "replace")) :]
    rule(b"run.log.jsonl" in last and last.count(b"\n") == 1 and last.endswith(b"\n"), "the end of report.md")


def _entries(summary: Any) -> list[tuple[str, Any]]:
    if isinstance(summary, dict):
        return [(name, summary[name]) for name in js_names(list(summary))]
    if isinstance(summary, list):
        return [(str(at), item) for at, item in enumerate(summary)]
    if isinstance(summary, str):
        return [(str(at), chr(unit)) for at, unit in enumerate(utf16(summary))]
    return []


def _fixed(value: float) -> str:
    shown = Decimal(abs(value)).quantize(Decimal("0.1"), ROUND_HALF_UP)
    return f"-{shown}" if value < 0 else str(shown)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "[object Object]"
    if isinstance(value, list):
        return ",".join("" if item is None else _shown(item) for item in value)
    return value if isinstance(value, str) else js_json(value)


def _row(record: dict[str, Any]) -> str:
    duration = f"{_fixed(record['durationMs'] / 1000)}s" if "durationMs" in record else "-"
    cli = record.get("cli")
    return f"| {record['key']} | {record['status']} | {duration} | {'-' if cli is None else _shown(cli)} |\n"
