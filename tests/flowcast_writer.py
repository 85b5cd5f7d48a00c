"""Writes folders as flowcast itself would, kills and lost files included, by the rules of its layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowcast_conformance import MARKER, js_json, side_name, utf16

UNDEFINED = object()
T0 = "2026-11-30T09:46:%02d.%03dZ"


class Flow:
    """One run, and what must be recovered of it."""

    def __init__(self, folder: Path, *, limit: int = 500) -> None:
        self.folder = folder
        self.limit = limit
        self.ms = 0
        self.results: dict[str, Any] = {}
        self.lines: list[dict[str, Any]] = []
        self.pending: list[dict[str, Any]] = []
        self.seen: set[str] = set()
        folder.mkdir(parents=True)
        self.state: dict[str, Any] = {
            "runId": folder.name, "status": "running", "completed": {}, "steps": [], "startedAt": self.now(),
        }  # fmt: skip
        self.save()

    def now(self) -> str:
        self.ms += 7
        return T0 % (self.ms // 1000 % 60, self.ms % 1000)

    def save(self) -> None:
        (self.folder / "state.json").write_bytes(js_json(self.state, 2).encode())

    def log(self, event: str, fields: dict[str, Any], ts: str | None = None) -> None:
        line = {"event": event, "type": event, "ts": ts or self.now(), "runId": self.folder.name} | fields
        self.pending.append(line)

    def flush(self) -> None:
        """The log is written later than the state."""
        with (self.folder / "run.log.jsonl").open("ab") as file:
            file.write(b"".join(js_json(line).encode() + b"\n" for line in self.pending))
        self.lines += self.pending
        self.pending.clear()

    def kill(self, lost: int) -> None:
        """The process dies; the last lines of its log were not written."""
        if lost:
            del self.pending[-lost:]
        self.flush()

    def _store(self, key: str, value: Any) -> None:
        text = js_json(value)
        size = len(utf16(value if isinstance(value, str) else text))
        if value is None or size <= self.limit:
            self.state["completed"][key] = value
            return
        (self.folder / "steps").mkdir(exist_ok=True)
        lone = isinstance(value, str) and any(0xD800 <= ord(char) <= 0xDFFF for char in value)
        assert not lone, "large strings with lone surrogates are a test of their own"
        kind = "string" if isinstance(value, str) else "json"
        body = value if isinstance(value, str) else text
        (self.folder / "steps" / f"{side_name(key)}.out").write_bytes(f"{kind}\n{body}".encode())
        self.state["completed"][key] = MARKER + side_name(key)

    def start(self, key: str) -> None:
        self.log("start", {"status": "start", "key": key})
        self.state["currentStep"] = key
        self.save()

    def step(self, key: str, value: Any, meta: dict[str, Any]) -> None:
        if key in self.state["completed"]:
            self.log("skip", {"status": "skip", "key": key})
            return
        self.start(key)
        self.finish(key, value, meta)

    def finish(self, key: str, value: Any, meta: dict[str, Any]) -> None:
        """The end of a step that was begun, perhaps while others were under way."""
        self.ms += len(key) % 3
        ts, duration = self.now(), self.ms % 50
        self.results.pop(key, None)
        if value is not UNDEFINED:
            self._store(key, value)
            self.results[key] = value
        self.state["steps"].append({"key": key, "status": "done", "durationMs": duration, "completedAt": ts} | meta)
        self.state["currentStep"] = None
        fields = {"status": "done", "key": key, "durationMs": duration, "result": value, "meta": meta}
        if value is UNDEFINED:
            del fields["result"]
        self.log("done", fields, ts)
        self.save()

    def swap(self) -> None:
        """Two processes write one log: lines come in another order than the state's."""
        self.pending[-2:] = self.pending[:-3:-1]

    def fail(self, key: str, message: str) -> None:
        if key not in self.state["completed"]:
            self.start(key)
        error = {"message": message, "code": "E", "timedOut": False}
        self.log("error", {"status": "error", "key": key, "error": error, "durationMs": 3, "meta": {}})

    def record(self, key: str, value: Any, meta: dict[str, Any]) -> None:
        self._store(key, value)
        self.results[key] = value
        self.state["steps"].append({"key": key, "status": "done", "completedAt": self.now()} | meta)
        self.save()

    def event(self, kind: str, data: dict[str, Any]) -> None:
        first = {"status": data["status"]} if "status" in data else {}
        self.log(kind, first | data)

    def lose(self, key: str) -> None:
        """A side file is gone, and the next step call notices."""
        if not str(self.state["completed"].get(key, "")).startswith(MARKER):
            return
        (self.folder / "steps" / f"{side_name(key)}.out").unlink()
        del self.state["completed"][key]
        self.results.pop(key)
        self.log("rerun", {"status": "rerun", "key": key, "reason": "sidecar-missing-or-corrupted"})
        self.start(key)

    def set(self, name: str, value: Any) -> None:
        self.state[name] = value
        self.save()

    def pause(self, reason: Any, context: Any) -> None:
        self.state["status"] = "paused"
        if reason is not None:
            self.state["pauseReason"] = reason
        self.state["pauseContext"] = context
        fields = {"status": "paused", "key": "__pause__"} | ({} if reason is None else {"reason": reason})
        self.log("paused", fields)
        self.save()

    def done(self, summary: Any) -> None:
        self.state["status"] = "completed"
        self.state["completedAt"] = self.now()
        self.state["summary"] = summary
        self.save()
