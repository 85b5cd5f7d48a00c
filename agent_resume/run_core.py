"""One execution of a run in this process: what it knows, what it has done, and whom it tells.

Everything here is synchronous and touches no database; the flows in ``run_steps.py`` and ``run_flows.py`` do, through
the effects that their driver performs.
"""

from __future__ import annotations

import functools
import json
import logging
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from . import errors, failure, fingerprint, run_context, run_telling
from .durability import HEARD, PROCESS
from .failure import safely
from .models import StepEvent
from .run_names import Names
from .run_options import OnDuplicate, StepSpec
from .store_index import INDEX_OUTPUT_BYTES, KEPT_ERROR
from .store_runs import NewRun
from .store_sql import Known, Place

if TYPE_CHECKING:
    from .codec import Encoded
    from .database_sql import Row
    from .models import RunRow
    from .run_map import KeySet
    from .store import Store
    from .store_claim import Claim
    from .store_owner import Owner

log = logging.getLogger("agent_resume")
Hook = Callable[[StepEvent], object]
Progress = bool | Literal["auto"]

#: No value: the step has no stored outcome yet.
MISS: Any = object()
#: Longest tagged JSON of a kept exception, in characters: ``show`` reads those of all steps.
EXCEPTION_LIMIT = 64 * 1024

# Positions in a row of the index.
KEY, ID, SEQ, FINGERPRINT, CODE, FORMAT, OUTPUT = range(7)


class RunCore(Names):
    """The state of one execution.

    Attributes:
        place: where steps are written, fenced by the epoch; None for a ``Checkpoint`` that has not written yet.
        exclusive: the run is owned (``agent_run``), not joined (``Checkpoint``).
        index: finished steps by key.
        stopped: why this execution starts no further step, when it does not.
        asked: reason by name of the questions that this execution came to.
    """

    def __init__(
        self,
        store: Store,
        run_id: str,
        name: str,
        *,
        exclusive: bool,
        on_step: Hook | None = None,
        progress: Progress = "auto",
        strict: bool = False,
        on_duplicate: OnDuplicate = "error",
        full: bool = True,
    ) -> None:
        super().__init__(run_id, strict=strict, on_duplicate=on_duplicate)
        self.store = store
        self.codec = store.codec
        self.name = name
        self.exclusive = exclusive
        self.full = full
        #: Of outcomes and records: what others see of them a moment too early, they wait for (``sync_seen``).
        self.lasting = HEARD if full else PROCESS
        self.place: Place | None = None
        self._loose: Place | None = None
        self.row: RunRow | None = None
        self.index: dict[str, Row] = {}
        self.entered = False
        self.stopped: str | None = None
        self.done_here = False
        self.ending = False
        self.unnamed_pauses: set[str] = set()
        self.asked: dict[str, str] = {}
        self.paused: tuple[str, str, Any] | None = None
        self.warned: set[tuple[str, str]] = set()
        self._hook = on_step
        self.shows = run_telling.on_a_terminal() if progress == "auto" else bool(progress)
        self.tells = self._hook is not None or self.shows
        self.mapped: dict[str, tuple[run_context.StepContext | None, KeySet]] = {}
        self.bars = 0
        self._owner: Owner | None = None
        self._joined: Owner | None = None
        self.command: str | None = None
        self.owns_store = False
        self.body: Any = None
        self.closed = False

    # -- the run -------------------------------------------------------------------------------------------------

    def settle_in(self, row: RunRow, index: list[Row]) -> None:
        """Take the run's row and its finished steps."""
        self.row = row
        self.run_id = row.id
        self.place = Place(row.seq, row.id, row.epoch, Known())
        self._loose = self.place if self.exclusive else Place(row.seq, row.id, None, self.place.known)
        self.index.update((entry[KEY], entry) for entry in index)

    @property
    def where(self) -> Place:
        """The run's place, once it is known."""
        if self.place is None:
            raise errors.RunNotFound(self.run_id, where=self.store.display, at=self.store.location.option)
        return self.place

    @property
    def loose(self) -> Place:
        """Where records and events go: fenced for an owner, open to all for a ``Checkpoint``."""
        return self._loose if self._loose is not None else self.where

    @property
    def owner(self) -> Owner:
        """This process as an owner; a new one after a fork."""
        owner = self._owner
        if owner is None or owner.generation != self.store.database.generation:
            owner = self._owner = self.store.owner
        return owner

    @property
    def has_owner(self) -> bool:
        """Whether ``owner`` is known already; making one reads files."""
        return self._owner is not None and self._owner.generation == self.store.database.generation

    def is_in_flight(self, key: str) -> bool:
        """Whether this process is executing the step."""
        return self.place is not None and (self.place.seq, key) in self.owner.in_flight

    def refuse_if_stopped(self, action: str) -> None:
        """No further step once this execution has paused or ended.

        Raises:
            RunCancelled, InvalidTransition: it has.
        """
        if self.stopped == "cancelled":
            raise errors.RunCancelled(self.run_id, at=self.store.location.option)
        if self.stopped is not None:
            raise errors.InvalidTransition(
                self.run_id, status=self.stopped, action=action, hint="start the agent again to go on"
            )

    def new_run(self) -> NewRun:
        """What the run is created with when this execution is its first."""
        return NewRun(self.name, id=self.run_id, command=self.command)

    def leave(self) -> None:
        """This execution is over: the process beats for it no more."""
        owner, self._joined = self._joined, None
        if owner is not None and owner.generation == self.store.database.generation:
            owner.leave()

    def join(self, owner: Owner) -> None:
        """From now on this process beats for this execution; nothing when it does already."""
        with self.lock:
            if self._joined is owner:
                return
            self._joined = owner
        owner.join()

    def belongs_to(self, owner: Owner) -> bool:
        """Whether this execution has made ready for its first write, as ``owner``."""
        return self.entered and self._joined is owner and owner.registered

    # -- replay --------------------------------------------------------------------------------------------------

    def replay(self, spec: StepSpec, entry: Row) -> Any:
        """The stored outcome of a step, or ``MISS`` when it is to be run again.

        Raises:
            DuplicateStep, StepInputChanged, and what ``keep_errors`` kept.
        """
        key = spec.key
        if not spec.fleeting:
            self.note_use(key)
        if spec.args or entry[FINGERPRINT] is not None or spec.fingerprint is not None:
            if spec.fingerprint is None:
                spec.fingerprint = fingerprint.fingerprint(spec.fn, spec.args, codec=self.codec)
            if self.inputs_changed(spec, entry):
                if spec.on_change == "rerun":
                    return MISS
                self._tell_input_change(spec, entry)
        if entry[FORMAT] == KEPT_ERROR or entry[OUTPUT] is None:
            return MISS
        if not spec.fleeting and self.code_changed(spec, entry):
            return MISS
        decode = functools.partial(self.decode, key, entry[FORMAT], entry[OUTPUT], spec.returns, spec.fn)
        value = decode()
        self.skipped(entry[SEQ], key, decode)
        return value

    def inputs_changed(self, spec: StepSpec, entry: Row) -> bool:
        """Whether the step was recorded for other inputs."""
        # A recorded value (no code) declared no inputs.
        return spec.fingerprint != entry[FINGERPRINT] and (entry[FINGERPRINT] is not None or entry[CODE] is not None)

    def _tell_input_change(self, spec: StepSpec, entry: Row) -> None:
        self.mark("input_changed", spec.key)
        if spec.on_change == "error" or self.strict:
            recorded, given = entry[FINGERPRINT], spec.fingerprint
            at = self.store.location.option
            raise errors.StepInputChanged(self.run_id, spec.key, recorded=recorded, given=given, at=at)
        inputs = fingerprint.describe_inputs(spec.fn, spec.args)
        self.warn_once(
            errors.StepInputChangedWarning,
            spec.key,
            f"step {spec.key!r} of run {self.run_id!r} was recorded for other inputs than {inputs}: its stored result is "
            f"returned (recorded {entry[FINGERPRINT]}, given {spec.fingerprint}); on_change='rerun' runs it again",
        )

    def code_changed(self, spec: StepSpec, entry: Row) -> bool:
        """Whether the step's code is another than recorded, as far as the two can be compared."""
        recorded = entry[CODE]
        if recorded is None or (spec.key, "code") in self.warned:
            return False
        now = fingerprint.code_hash(spec.fn)
        return now is not None and now != recorded and now.split(":")[0] == recorded.split(":")[0]

    def tell_code_change(self, key: str) -> None:
        """Warn, once, that a stored result comes from other code."""
        self.warn_once(
            errors.StepCodeChangedWarning,
            key,
            f"the code of step {key!r} of run {self.run_id!r} changed since its result was stored: the stored result is "
            f"returned; to run it again: agent-resume rerun{self.store.location.option} -- {self.run_id!r} {key!r}",
        )

    def warn_once(self, kind: type[errors.AgentResumeWarning], key: str, text: str) -> None:
        """Warn about a step once an execution; under ``strict`` raise it."""
        if self.strict:
            raise kind(text)  # each time: an error that is raised once is a wrong value the second time
        mark = (key, "code" if kind is errors.StepCodeChangedWarning else kind.__name__)
        if mark in self.warned:
            return
        self.warned.add(mark)
        warnings.warn(text, kind, stacklevel=run_telling.outside())

    def warn_once_plainly(self, mark: str, kind: type[errors.AgentResumeWarning], text: str) -> None:
        """Warn once an execution, under ``strict`` too."""
        if (mark, "") not in self.warned:
            self.warned.add((mark, ""))
            warnings.warn(text, kind, stacklevel=run_telling.outside())

    def decode(self, key: str | None, format: str, text: str, returns: Any = None, hint: Any = None) -> Any:
        """A stored text as a fresh value.

        Raises:
            StoredValueUnreadable: naming run and step.
        """
        try:
            return self.codec.decode(format, text, returns=returns, hint=hint)
        except errors.StoredValueUnreadable as error:
            raise error.located(self.run_id, key) from error

    # -- outcomes ------------------------------------------------------------------------------------------------

    def remember(self, spec: StepSpec, claim: Claim, encoded: Encoded) -> None:
        """A step was completed here: later calls find it in memory."""
        if spec.fleeting:
            return
        small = encoded.text if len(encoded.text) <= INDEX_OUTPUT_BYTES else None
        self.index[spec.key] = (
            spec.key, claim.step, claim.seq, spec.fingerprint, spec.code_hash, encoded.format, small,
        )  # fmt: skip
        self.use(spec.key)

    def remember_kept(self, spec: StepSpec, claim: Claim) -> None:
        """A failure became the step's outcome."""
        if spec.fleeting:
            return
        self.index[spec.key] = (
            spec.key, claim.step, claim.seq, spec.fingerprint, spec.code_hash, KEPT_ERROR, None,
        )  # fmt: skip
        self.use(spec.key)

    def meta_text(self, key: str, meta: dict[str, Any] | None) -> str | None:
        """A step's meta as JSON; None for nothing.

        Raises:
            OutputNotStorable: something in it cannot be stored.
        """
        try:
            return self.codec.encode_tagged(meta, key=key) if meta else None
        except errors.OutputNotStorable as error:
            error.about(f"the meta of step {key!r}")
            raise

    # -- skips ---------------------------------------------------------------------------------------------------

    def skipped(self, seq: int, key: str, again: Callable[[], Any] | None) -> None:
        """Note a skip; it is stored with the next write. ``again`` decodes its result once more."""
        self._skipped.append(seq)
        if self.tells:
            self.tell_result("skip", key, again)

    # -- telling -------------------------------------------------------------------------------------------------

    def tell(self, event: StepEvent) -> None:
        """Call ``on_step`` and print the progress line; neither can disturb the agent."""
        if self.shows and not self.bars:
            self.shows = run_telling.print_progress(event, self.store.redactor)
        if self._hook is not None:
            try:
                self._hook(event)
            except Exception:
                log.exception("on_step raised for step %r of run %r; the agent goes on", event.key, self.run_id)

    def tell_result(
        self, kind: Literal["done", "skip"], key: str, again: Callable[[], Any] | None, ms: int | None = None
    ) -> None:
        """Tell of a step's result. The hook gets one of its own: what it does to it must not reach the agent."""
        value = again() if again is not None and self._hook is not None else None
        self.tell(StepEvent(kind, self.run_id, key, duration_ms=ms, result=value))

    def failure_of(self, error: BaseException) -> dict[str, Any]:
        """An exception as it is stored: described as text, redacted."""
        described: dict[str, Any] = self.store.redactor.value(failure.describe(error))
        return described

    def whole(self, error: BaseException) -> str | None:
        """An exception as tagged JSON, when it can be kept with all that it holds and nothing in it is masked."""
        text: str | None = safely(lambda: self.codec.encode(error).text, None)
        if text is None or len(text) > EXCEPTION_LIMIT:
            return None
        if type(safely(lambda: self.codec.decode("tagged", text), None)) is not type(error):
            return None  # its text alone could be kept
        plain = json.loads(text)
        return text if self.store.redactor.value(plain) == plain else None
