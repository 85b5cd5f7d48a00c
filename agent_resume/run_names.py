"""Which step names one execution has used, under which numbers, and what an attempt that was given up may not do."""

from __future__ import annotations

import threading
import warnings

from . import errors, run_context, run_telling
from .names import LONGEST, check_name
from .run_context import StepContext
from .run_options import OnDuplicate
from .run_pending import Pending


class Names(Pending):
    """The names of one execution.

    Attributes:
        given_up: attempts of this execution that went past their time limit, in a thread that goes on.
    """

    def __init__(self, run_id: str, *, strict: bool, on_duplicate: OnDuplicate) -> None:
        super().__init__()
        if on_duplicate not in ("error", "return", "number"):
            raise ValueError(f"on_duplicate is 'error', 'return' or 'number', not {on_duplicate!r}")
        self.run_id = run_id
        self.strict = strict
        self.on_duplicate = on_duplicate
        self.given_up: set[StepContext] = set()
        # A use is the step inside which it was made; outside one, and in a thread that does not know it, how many
        # names had been used before.
        self._used: dict[str, StepContext | int] = {}
        self._failed: dict[str, tuple[int, int]] = {}
        self._numbers: dict[tuple[StepContext | None, str], tuple[int, int]] = {}

    def is_in_flight(self, key: str) -> bool:
        """Whether this process is executing the step; known to the subclass, which has an owner."""
        return False

    # -- keys ----------------------------------------------------------------------------------------------------

    def check_key(self, name: object) -> str:
        """A step's key when it can be one."""
        return check_name("step key", name, empty=True)

    def key_for(self, name: object, *, repeat: bool) -> str:
        """The key that this call of ``step`` means."""
        if type(name) is str and len(name) <= LONGEST and name.isascii() and "\0" not in name:
            key = name  # as nearly always
        else:
            key = self.check_key(name)
        return self.numbered(key) if repeat or self.on_duplicate == "number" else key

    def numbered(self, name: str) -> str:
        """The key of the next repeat of ``name``: ``name``, ``name#2``, … fixed at call time.

        Inside a step it is ``outer/name``, numbered anew in each attempt: a resume that skips the outer step must not
        give its numbers to the calls after it.

        Raises:
            StepInFlight: a repeat of that name is in flight in another thread, so its number could be either.
            InvalidName: it is too long with what was added to it.
        """
        outer = run_context.active.get()
        if outer is not None and outer.run_id != self.run_id:
            outer = None
        base = name if outer is None else f"{outer.key}/{name}"
        me = threading.get_ident()
        with self.lock:
            count, thread = self._numbers.get((outer, name), (0, me))
            last = base if count == 1 else f"{base}#{count}"
            if thread != me and self.is_in_flight(last):
                raise errors.StepInFlight(self.run_id, last)
            key = self.check_key(base if count == 0 else f"{base}#{count + 1}")
            self._numbers[outer, name] = (count + 1, me)
        return key

    # -- uses ----------------------------------------------------------------------------------------------------

    @property
    def uses(self) -> int:
        """How many names have been used."""
        return len(self._used)

    def use(self, key: str) -> None:
        """A step was completed here, and its outcome is handed out."""
        outer = run_context.active.get()
        self._used[key] = outer if outer is not None else len(self._used)

    def note_use(self, key: str) -> None:
        """A step's outcome is handed out: the second time in one execution is a duplicate.

        The same inner step of another attempt of an outer step is not: that attempt simply replays it.

        Raises:
            DuplicateStep: with ``on_duplicate="error"`` or ``strict``.
            InvalidTransition: by an attempt that was given up.
        """
        if self.given_up:
            self.refuse_if_given_up(key)
        used = self._used
        if key in used and self.was_used(key):
            self.refuse_duplicate(key)
        outer = run_context.active.get()
        used[key] = outer if outer is not None else len(used)

    def was_used(self, key: str) -> bool:
        """Whether a name was used before in this execution, other than by an earlier attempt of the same outer step."""
        if key not in self._used:
            return False
        before, outer = self._used[key], run_context.active.get()
        if isinstance(before, StepContext):
            if outer is not None:
                return outer.key != before.key or outer.attempt == before.attempt
            return not (before.key in self._failed and self.is_in_flight(before.key))
        # A thread of the caller's own does not say which step it works for: one that was executed then and is again.
        for step, (first, last) in list(self._failed.items()):
            if first <= before <= last and (outer is None or outer.key == step) and self.is_in_flight(step):
                return False
        return True

    def note_failure(self, context: StepContext, error: BaseException, before: int | None) -> None:
        """An attempt failed; what was used since ``before`` (``uses`` then) may be replayed by the next one."""
        if issubclass(type(error), errors.StepTimeout) and error.key == context.key:  # type: ignore[attr-defined]  # one
            self.given_up.add(context)
        if before is not None:
            first, _ = self._failed.get(context.key, (before, before))
            self._failed[context.key] = (first, len(self._used))

    def refuse_duplicate(self, key: str, hint: str | None = None) -> None:
        """A name was used before in this execution: an error or a warning, as ``on_duplicate`` says.

        Args:
            key: the name.
            hint: what to do about it, where that is not what a single step needs.

        Raises:
            DuplicateStep: with ``on_duplicate="error"`` or ``strict``.
        """
        self.mark("duplicate", key)
        if self.on_duplicate == "error" or self.strict:
            raise errors.DuplicateStep(self.run_id, key, hint=hint)
        warnings.warn(
            f"step {key!r} of run {self.run_id!r} was already used in this execution: its stored result is returned; "
            f"{hint or 'give each step its own name, or pass repeat=True'}",
            errors.DuplicateStepWarning,
            stacklevel=run_telling.outside(),
        )

    def forget_use(self, key: str) -> None:
        """The outcome was not handed out after all."""
        self._used.pop(key, None)

    # -- attempts that were given up -----------------------------------------------------------------------------

    def refuse_if_given_up(self, key: str) -> None:
        """No step is begun by an attempt that its caller has given up.

        Raises:
            InvalidTransition: this is one.
        """
        outer = run_context.active.get()
        if outer in self.given_up:
            raise errors.InvalidTransition(
                self.run_id, status=f"past attempt {outer.attempt} of step {outer.key!r}",
                action=f"start step {key!r}", hint="that attempt was given up at its timeout",
            )  # fmt: skip

    def outlasts_late_call(self) -> bool:
        """Whether an earlier attempt of the step executed here was given up: what it began may be in flight still."""
        outer = run_context.active.get()
        return outer is not None and any(
            late.key == outer.key and late.attempt < outer.attempt and late.run_id == outer.run_id
            for late in self.given_up
        )
