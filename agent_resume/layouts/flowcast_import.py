"""A folder of flowcast's as the rows of a run, with everything kept that flowcast would want back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_resume.codec import Codec
from agent_resume.layouts import flowcast_shapes as shapes
from agent_resume.layouts import jstext
from agent_resume.layouts.filenames import Names, could_be
from agent_resume.layouts.flowcast_events import EventRows
from agent_resume.layouts.flowcast_names import is_storable
from agent_resume.layouts.flowcast_plan import make_plan
from agent_resume.layouts.flowcast_read import Source, is_time, open_source
from agent_resume.layouts.flowcast_shapes import ABSENT, OURS_IN_META, OURS_IN_STATE
from agent_resume.layouts.flowcast_state import LOOP_FIELDS, top_fields, what_to_keep
from agent_resume.layouts.flowcast_steps import StepRows
from agent_resume.layouts.outcomes import Bends, Refused
from agent_resume.models import RunDump
from agent_resume.names import shortened


@contextmanager
def read_run(path: Path, codec: Codec, bends: Bends, tick: Callable[[], None] = lambda: None) -> Iterator[RunDump]:
    """The rows of the run in a folder; they are read while they are stored.

    Args:
        path: the folder.
        codec: how values are stored.
        bends: gets a note for each place that could not be taken as it was.
        tick: called for every step and event.

    Raises:
        Refused: there is no run to be had.
    """
    if not is_storable(path.name):
        raise Refused("the folder's name cannot be a run id; rename it")
    source = open_source(path)
    try:
        for place, what in source.notes:
            bends.add(place, what)
        yield _Import(source, codec, bends, tick).dump()
    finally:
        source.close()


class _Import:
    def __init__(self, source: Source, codec: Codec, bends: Bends, tick: Callable[[], None]) -> None:
        self.source = source
        self.codec = codec
        self.bends = bends
        self.tick = tick
        self.folder = source.path.name
        self.meta: dict[str, Any] = {}
        self.completed = self._typed("completed", dict, {})
        self.plan = make_plan(source, self._records(), self.completed, self.folder)
        for name, original in self.plan.keys.originals.items():
            bends.add(f"steps[{name!r}]", f"the key {jstext.quoted(original)} cannot be a name here and is stored so")

    def _typed(self, name: str, kind: type, default: Any) -> Any:
        value = self.source.state.get(name, ABSENT)
        if isinstance(value, kind):
            return value
        if value is not ABSENT:
            self.bends.add(name, f"not an {'object' if kind is dict else 'array'}, read as empty, as flowcast does")
        return default

    def _records(self) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        for index, record in enumerate(self._typed("steps", list, [])):
            if isinstance(record, dict) and type(record.get("key")) in (str, int, float):
                records.append(record)
            else:
                self.bends.add(f"steps[{index}]", "no step record, left out")
        return records

    def dump(self) -> RunDump:
        plan = self.plan
        pauses = self._pauses()
        run = self._run(pauses)
        steps = StepRows(self.source, plan, self.completed, self.codec, self.bends, ended=run["status"] == "completed")
        events = EventRows(self.source, plan, steps, self.folder, self.codec, self._pause_name())
        kept = self._kept(run, pauses[0] if pauses else None)
        if kept:
            run["meta"] = self.codec.encode_tagged(self.meta | {OURS_IN_META: kept})
        return RunDump(
            run=run,
            steps=self._ticking(steps.rows()),
            events=self._ticking(events.rows()),
            pauses=iter(pauses),
        )

    def _ticking(self, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            self.tick()
            yield row

    # The run's own row

    def _run(self, pauses: list[dict[str, Any]]) -> dict[str, Any]:
        state = self.source.state
        status = self._status(state.get("status", ABSENT))
        ours = state.get(OURS_IN_STATE)
        ours = ours if isinstance(ours, dict) else {}
        run_id = self._our_id(ours.get("id"))
        completed_at = state.get("completedAt")
        updated_at = self._updated_at(completed_at)
        ended = status == "completed"
        run: dict[str, Any] = {
            "id": run_id, "name": run_id, "status": status, "last_seq": len(self.plan.items), "input": None,
            "input_digest": None, "result": None, "result_format": None, "error": None, "summary": None,
            "expect_max_ms": None, "meta": None, "parent_run_id": None, "forked_from": None, "command": None,
            "created_at": self.plan.first_ts, "updated_at": updated_at, "finished_at": None, "epoch": 1,
        }  # fmt: skip
        if ended:
            run["finished_at"] = completed_at if is_time(completed_at) else updated_at
        if isinstance(ours.get("name"), str) and ours["name"] and is_storable(ours["name"]):
            run["name"] = ours["name"]
        if isinstance(ours.get("meta"), dict) and ours["meta"]:
            self.meta = ours["meta"]
            run["meta"] = self.codec.encode_tagged(self.meta)
        if "input" in ours:
            run["input"] = self.codec.encode_tagged(ours["input"])
            run["input_digest"] = self.codec.digest(ours["input"])
        if "result" in ours and ended:
            encoded = self.codec.encode(ours["result"])
            run["result_format"], run["result"] = encoded.format, encoded.text
        if "summary" in state:
            run["summary"] = self.codec.encode_tagged(state["summary"])
        for column, name in LOOP_FIELDS.items():
            run[column] = self.codec.encode_tagged(state[name]) if name in state else None
        expected = state.get("expectMaxMs")
        if isinstance(expected, (int, float)) and not isinstance(expected, bool) and 0 < expected < 2**53:
            run["expect_max_ms"] = round(expected) or 1
        parent = state.get("parentRunId")
        if isinstance(parent, str) and parent and is_storable(parent):
            run["parent_run_id"] = parent
        return run

    def _status(self, status: Any) -> str:
        if status in ("completed", "paused"):
            return str(status)
        if status != "running":
            shown = "missing" if status is ABSENT else jstext.compact(status)
            self.bends.add("status", f"{shown}, read as running, as flowcast does")
        # No process of ours has it: whatever ran it has ended, or goes on with a state that is not this one.
        return "interrupted"

    def _our_id(self, given: Any) -> str:
        """The id that an export had to rename, where the folder still has the name that it gave."""
        if isinstance(given, str) and given and is_storable(given) and could_be(self.folder, given):
            return given
        return self.folder

    def _updated_at(self, completed_at: Any) -> str:
        """The newest time on record; the file's own times say when it was copied."""
        times = [self.plan.first_ts, self.plan.last_ts]
        times += [text for record in self.plan.records if is_time(text := record.get("completedAt"))]
        return max([*times, completed_at] if is_time(completed_at) else times)

    # Pauses

    def _pause_name(self) -> Callable[[Any], str]:
        def name(reason: Any) -> str:
            return shortened(reason) if isinstance(reason, str) and reason and is_storable(reason) else "pause"

        return name

    def _pauses(self) -> list[dict[str, Any]]:
        state = self.source.state
        if "pauseReason" not in state and "pauseContext" not in state:
            return []
        reason = state.get("pauseReason")
        context = self.codec.encode_tagged(state["pauseContext"]) if "pauseContext" in state else None
        return [
            {
                "name": self._pause_name()(reason), "kind": "pause",
                "reason": reason if isinstance(reason, str) and is_storable(reason) else None,
                "context": context, "asked_at": self.plan.paused_at or self._updated_at(None), "deadline": None,
                "value": None, "answered_at": None, "answered_by": None,
            }
        ]  # fmt: skip

    # What our columns have no place for

    def _kept(self, run: dict[str, Any], pause: dict[str, Any] | None) -> dict[str, Any]:
        state = {name: value for name, value in self.source.state.items() if name not in ("completed", "steps")}
        if state.get("runId", self.folder) != self.folder:
            self.bends.add("runId", f"{jstext.compact(state['runId'])} inside, but the folder's name counts")
        state["runId"] = self.folder
        derived = top_fields(run, pause, self.plan.current, self.folder, Names(), Bends(0))
        kept = what_to_keep(derived, state, run["last_seq"])
        order = list(self.source.state)
        if list(shapes.in_order(dict.fromkeys(order), None)) != order:
            kept["order"] = order
        done = [key for key in jstext.ordered(list(self.plan.done)) if key in self.completed]
        if done != jstext.ordered(list(self.completed)):
            kept["completedOrder"] = [self.plan.keys.stored(key) for key in self.completed]
        if self.plan.keys.originals:
            kept["keys"] = self.plan.keys.originals
        return kept | self.plan.odd_ones()
