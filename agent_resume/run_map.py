"""``run.map``: a step an item, several at a time, with outcomes in the order of the items.

Only a window of items is in memory at once, however many there are; a finished item is answered from what is stored,
without a worker. Workers are daemon threads whose writes go through the batch door, where they share their syncs.
"""

from __future__ import annotations

import contextvars
import os
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

from . import errors, run_context, run_flows, run_steps, store_index
from .database_batch import Latch
from .names import check_name
from .run_core import MISS, RunCore
from .run_effects import Flow, Read
from .run_map_workers import Workers
from .run_options import StepSpec

if TYPE_CHECKING:
    from .database_sql import Row
    from .run_map_bar import Bar

OnError = Literal["raise", "collect"]

#: Items handed out and not yet collected, as a multiple of the concurrency: one slow item holds up no more than that.
AHEAD = 4
#: Skips are stored after so many at the latest, since they are kept in memory until then.
MOST_SKIPS = 4096


@dataclass(frozen=True, slots=True)
class MapOutcome:
    """What became of one item of ``run.map``.

    Attributes:
        key: the step's key: ``name[item's key]``.
        ok: whether there is a value.
        value: what the function returned, decoded from the store; None for a failure.
        error: the item's exception, or None.
        attempts: how often the function was called for this item, in all executions, as far as known.
        cached: it was finished before, and nothing was called.
    """

    key: str
    ok: bool
    value: Any = None
    error: BaseException | None = None
    attempts: int = 0
    cached: bool = False


class Wanted:
    """What ``map`` was asked for, checked.

    Raises:
        TypeError, ValueError, InvalidName: something that cannot be meant.
    """

    def __init__(
        self,
        name: object,
        fn: Callable[[Any], Any],
        key: Callable[[Any], str | int] | None,
        concurrency: int,
        on_error: OnError,
        returns: Any,
    ) -> None:
        self.name = check_name("step key", name)
        if not callable(fn):
            raise TypeError(f"map wants a function of an item, got a {type(fn).__name__}")
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise ValueError(f"concurrency is a number from 1, not {concurrency!r}")
        if on_error not in ("raise", "collect"):
            raise ValueError(f"on_error is 'raise' or 'collect', not {on_error!r}")
        self.fn = fn
        self.key = key
        self.concurrency = concurrency
        self.collects = on_error == "collect"
        self.returns = returns


class KeySet:
    """Which keys were used, at eight bytes each: hashes of 64 bits, sorted, with the newest ones apart."""

    def __init__(self) -> None:
        self._old = array("Q")
        self._new: set[int] = set()

    def add(self, key: str) -> bool:
        """Note a key; False when it was there already."""
        digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        number = int.from_bytes(digest, "big")
        at = bisect_left(self._old, number)
        if number in self._new or (at < len(self._old) and self._old[at] == number):
            return False
        self._new.add(number)
        if len(self._new) >= 1 << 16:
            self._old = array("Q", sorted([*self._old, *self._new]))
            self._new.clear()
        return True


class Slot:
    """One item on its way: its outcome, once there is one."""

    __slots__ = ("done", "fatal", "outcome", "spec")

    def __init__(self, spec: StepSpec) -> None:
        self.spec = spec
        self.outcome: MapOutcome | None = None
        self.fatal: BaseException | None = None
        self.done = Latch()

    def settle(self, value: Any, error: BaseException | None, earlier: int) -> None:
        """Note how the item ended."""
        called = self.spec.attempt
        if error is None:
            self.outcome = MapOutcome(self.spec.key, True, value, None, called or max(earlier, 1), not called)
            return
        if not isinstance(error, Exception) or isinstance(error, _ENDS):
            self.fatal = error
        self.outcome = MapOutcome(self.spec.key, False, None, error, called or earlier)

    @property
    def over(self) -> bool:
        """Whether the map ends here: the run cannot go on, or the item was not begun after another one's failure."""
        return self.outcome is None or self.fatal is not None

    @property
    def failed(self) -> bool:
        """Whether it ended without a value."""
        return self.outcome is not None and not self.outcome.ok


# These are no item's failure: the run, or its store, cannot go on.
_ENDS = (errors.RunLost, errors.StoreError, errors.InvalidTransition, errors.DuplicateStep)


class MapCore:
    """What the synchronous and the asynchronous form share: keys, finished items, the order of outcomes."""

    def __init__(self, core: RunCore, wanted: Wanted) -> None:
        self.core = core
        self.wanted = wanted
        self._outer = run_context.active.get()
        before = core.mapped.get(wanted.name)
        if before is not None and _is_another_attempt(self._outer, before[0]):
            before = None
        self._before = None if before is None else before[1]
        self._keys = KeySet()
        self.window: deque[Slot] = deque()
        self._attempts: dict[str, int] = {}
        self._told = False
        self._trouble: Exception | None = None
        self.more = True
        self.stopped = False

    def begin_flow(self) -> Flow:
        """What comes before the first item."""
        self.core.refuse_if_stopped(f"map {self.wanted.name!r}")
        yield from run_steps.enter(self.core)
        prefix = f"{self.wanted.name}["
        self._attempts = dict((yield Read(store_index.repeated_attempts, (self.core.where.seq, prefix))))

    def take(self, item: Any) -> Slot | None:
        """Take the next item into the window; its slot has its outcome when it is finished. None: it cannot be taken."""
        try:
            return self._take(item)
        except Exception as error:  # noqa: BLE001 - raised after the outcomes of the items before it
            self.give_up(error)
            return None

    def _take(self, item: Any) -> Slot:
        core, wanted = self.core, self.wanted
        key = f"{wanted.name}[{self._key_of(item)}]"
        core.check_key(key)
        if not self._keys.add(key):
            raise errors.DuplicateStep(core.run_id, key, hint="give the items different keys with key=")
        if self._before is not None and not self._before.add(key):
            core.refuse_duplicate(key, "give each map a name of its own, or its items other keys with key=")
        spec = StepSpec(key, wanted.fn, (item,), returns=wanted.returns, fleeting=True)
        slot = Slot(spec)
        entry = core.index.get(key)
        if entry is not None:
            value = MISS if self._is_news(spec, entry) else core.replay(spec, entry)
            if value is not MISS:
                slot.settle(value, None, self._attempts.get(key, 0))
        self.window.append(slot)
        return slot

    def give_up(self, trouble: Exception) -> None:
        """The items, or one's key, raised: no further one is taken, and it is raised after the outcomes before it."""
        self._trouble = trouble
        self.more = False

    def _is_news(self, spec: StepSpec, entry: Row) -> bool:
        """Whether this is the first item seen whose code is not what was recorded: a worker tells that, for them all."""
        if self._told or not self.core.code_changed(spec, entry):
            return False
        self._told = True
        return True

    def _key_of(self, item: Any) -> str:
        wanted = self.wanted
        if wanted.key is not None:
            found = wanted.key(item)
            if type(found) is str or type(found) is int:
                return str(found)
            raise TypeError(
                f"key= gives a str or an int for each item of {wanted.name!r}, not a {type(found).__name__}"
            )
        if type(item) is str or type(item) is int:
            return str(item)
        return self.core.codec.digest(item)

    @property
    def room(self) -> bool:
        """Whether another item may be taken."""
        return self.more and not self.stopped and len(self.window) < self.wanted.concurrency * AHEAD

    def flow(self, slot: Slot) -> Flow:
        """The step of one item."""
        return run_steps.step_flow(self.core, slot.spec)

    def ended(self, slot: Slot, value: Any, error: BaseException | None) -> None:
        """An item's step ended; after a failure that is raised no further item is begun."""
        slot.settle(value, error, self._attempts.get(slot.spec.key, 0))
        if slot.fatal is not None or (slot.failed and not self.wanted.collects):
            self.stopped = True

    def finish(self) -> None:
        """What comes after the last outcome; everything that was begun has ended.

        The failure that stopped the map may be that of a later item: the first one in their order is raised. A map
        that ended well has used its keys; one that did not, or was left early, may be begun again.
        """
        for slot in self.window:
            if isinstance(slot.fatal, errors.RunPaused | errors.RunCancelled):
                raise slot.fatal  # whatever it was that other items met because of it
        for slot in self.window:
            if slot.failed:
                self.result(slot)
        if self._trouble is not None:
            raise self._trouble
        self.core.mapped[self.wanted.name] = (self._outer, self._before or self._keys)

    def result(self, slot: Slot) -> MapOutcome:
        """The outcome to hand out.

        Raises:
            BaseException: the item's own, when failures are raised or it is none that can be collected.
        """
        outcome = slot.outcome
        assert outcome is not None  # whoever calls this has waited for it
        if outcome.error is not None and (slot.fatal is not None or not self.wanted.collects):
            raise outcome.error
        return outcome


def _is_another_attempt(now: run_context.StepContext | None, then: run_context.StepContext | None) -> bool:
    """Whether an outer step that mapped in an earlier attempt does so again."""
    return now is not None and then is not None and now.key == then.key and now.attempt != then.attempt


def outcomes(core: RunCore, wanted: Wanted, items: Iterable[Any], drive: Callable[[Flow], Any]) -> Iterator[MapOutcome]:
    """The outcomes, in the order of the items; work begins with the first ``next``."""
    from .run_map_bar import Bar

    mapping = MapCore(core, wanted)
    drive(mapping.begin_flow())
    workers = Workers(mapping)
    context = contextvars.copy_context()
    wait = True
    with Bar(core, wanted.name, items) as bar:
        try:
            yield from _collect(mapping, workers, context, iter(items), drive, bar)
        except (KeyboardInterrupt, SystemExit):
            wait = False  # whoever presses Ctrl-C does not want to wait for eight models to answer
            raise
        finally:
            mapping.stopped = True
            workers.end(wait=wait)


def _collect(
    mapping: MapCore,
    workers: Workers,
    context: contextvars.Context,
    items: Iterator[Any],
    drive: Callable[[Flow], Any],
    bar: Bar,
) -> Iterator[MapOutcome]:
    window = mapping.window
    while True:
        _fill(mapping, workers, context, items)
        if not window:
            break
        slot = window.popleft()
        _wait(mapping, workers, slot)
        if slot.over:
            window.appendleft(slot)
            break
        bar.advance()
        yield mapping.result(slot)
        if mapping.core.skips_kept > MOST_SKIPS:
            drive(run_flows.flush_log_flow(mapping.core))
    for slot in window:
        _wait(mapping, workers, slot)
    mapping.finish()


def _fill(mapping: MapCore, workers: Workers, context: contextvars.Context, items: Iterator[Any]) -> None:
    while mapping.room:
        try:
            item = next(items)
        except StopIteration:
            mapping.more = False
            return
        except Exception as error:  # noqa: BLE001 - raised after the outcomes of the items before it
            mapping.give_up(error)
            return
        slot = mapping.take(item)
        if slot is not None and slot.outcome is None:
            workers.submit(context, slot)


def _wait(mapping: MapCore, workers: Workers, slot: Slot) -> None:
    if slot.outcome is not None:
        return
    if os.getpid() != workers.pid:
        raise errors.StoreForked(mapping.core.store.display)  # the threads are the parent's: nobody would ever answer
    slot.done.wait()
