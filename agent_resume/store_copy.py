"""A whole store into another one, whatever databases they are: run by run, lossless, and begun again at any point."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from . import errors, store_dump
from .database_sql import Statement, Tx
from .models import OwnerRow, RunDump
from .sql import bindparam, one_of, runs, select
from .store_sql import owner_row

if TYPE_CHECKING:
    from .store import Store

_PAGE = Statement(
    lambda: (
        select(runs.c.seq, runs.c.id, runs.c.owner_token)
        .where(runs.c.seq > bindparam("after"))
        .order_by(runs.c.seq)
        .limit(500)
    )
)
_KNOWN = Statement(lambda: select(runs.c.id).where(one_of(runs.c.id, bindparam("ids"))))
#: How often one run is begun again, after a broken connection or when another process has just stored it.
_TRIES = 3


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What was copied, and what stands in the target now.

    Attributes:
        copied: runs stored by this call.
        present: runs that were there already, equal in everything.
        steps, events, pauses: rows of all of these runs together.
        checksum: SHA-256 over every run's id and content, read back from the target.
        live: ids of the runs that somebody was executing: their copies are of that moment.
        refused: ids of the runs that were not copied, each with why and what to do.
    """

    copied: int
    present: int
    steps: int
    events: int
    pauses: int
    checksum: str
    live: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]

    @property
    def runs(self) -> int:
        """All that are in the target as they are in the source."""
        return self.copied + self.present


class _Counted:
    """A dump that counts and digests its rows while they stream by."""

    def __init__(self, dumped: RunDump) -> None:
        self._parts = {"run": [dumped.run], "step": dumped.steps, "event": dumped.events, "pause": dumped.pauses}
        self._total = hashlib.sha256()
        self.rows = {"run": 0, "step": 0, "event": 0, "pause": 0}

    def part(self, kind: str) -> Iterator[dict[str, Any]]:
        for row in self._parts[kind]:
            self.rows[kind] += 1
            # A replaced run gets another fencing number; it says nothing about the content.
            content = sorted(item for item in row.items() if item[0] != "epoch")
            self._total.update(repr((kind, content)).encode("utf-8", "surrogatepass"))
            yield row

    def dump(self) -> RunDump:
        """To be read once, in the order of its fields."""
        (run,) = self.part("run")
        return RunDump(run, self.part("step"), self.part("event"), self.part("pause"))

    def read(self) -> _Counted:
        """Read it to its end."""
        dumped = self.dump()
        for rows in (dumped.steps, dumped.events, dumped.pauses):
            for _ in rows:
                pass
        return self

    def digest(self) -> str:
        return self._total.hexdigest()


class _Sums:
    """Rows and digests of many runs; the order in which they are added counts."""

    def __init__(self) -> None:
        self.rows = {"run": 0, "step": 0, "event": 0, "pause": 0}
        self._total = hashlib.sha256()

    def add(self, counted: _Counted) -> None:
        for kind, number in counted.rows.items():
            self.rows[kind] += number
        self._total.update(counted.digest().encode())

    def checksum(self) -> str:
        return self._total.hexdigest()


def copy(
    source: Store,
    target: Store,
    *,
    on_conflict: Literal["fail", "replace"] = "fail",
    tell: Callable[[str, str], object] | None = None,
) -> CopyReport:
    """Copy every run of ``source`` that ``target`` has not got yet; both may be SQLite or PostgreSQL.

    One transaction a run, so an interrupted copy has whole runs only, and doing it again goes on where it stopped.
    Owners are not copied: nobody executes a copy. A run is refused when the target has another one of its id, or another
    state of it, and when an earlier version stored it with a name too long, or with a NUL; that stops no other.

    Args:
        on_conflict: what to do when the target has another run of the same id: ``"fail"``, or ``"replace"`` it.
        tell: called with each run's id and ``"copied"`` or ``"present"``.

    Raises:
        StoreDamaged: what was read back is not what was copied.
        StoreError: one of the two cannot be used.
    """
    sums = _Sums()
    done = {"copied": 0, "present": 0}
    live: list[str] = []
    ids: list[str] = []
    refused: list[tuple[str, str]] = []
    for run_id, owner, known in _runs(source, target):
        is_live = owner is not None and source.owner.judge(owner) != "dead"
        try:
            counted, what = _copy_run(source, target, run_id, on_conflict, known)
        except (errors.ImportConflict, errors.InvalidName) as error:
            refused.append((run_id, str(error).replace("was not imported", "was not copied", 1)))
            continue
        if is_live:
            live.append(run_id)
        sums.add(counted)
        done[what] += 1
        ids.append(run_id)
        if tell is not None:
            tell(run_id, what)
    _verify(target, ids, sums)
    rows = sums.rows
    return CopyReport(
        **done,
        steps=rows["step"],
        events=rows["event"],
        pauses=rows["pause"],
        checksum=sums.checksum(),
        live=tuple(live),
        refused=tuple(refused),
    )


def _runs(source: Store, target: Store) -> Iterator[tuple[str, OwnerRow | None, bool]]:
    """Ids in the order of creation, who owns them, and whether the target knows them; in pages, each a short read."""
    after = 0
    while page := source.ask(_page, after):
        known = target.ask(_known, [run_id for _, run_id, _ in page]) if target.exists() else set()
        yield from ((run_id, owner, run_id in known) for _, run_id, owner in page)
        after = page[-1][0]


def _known(tx: Tx, ids: list[str]) -> set[str]:
    return {row[0] for row in tx.all(_KNOWN, {"ids": json.dumps(ids)})}


def _page(tx: Tx, after: int) -> list[tuple[int, str, OwnerRow | None]]:
    rows = tx.all(_PAGE, {"after": after})
    return [(seq, run_id, None if token is None else owner_row(tx, token)) for seq, run_id, token in rows]


def _copy_run(
    source: Store, target: Store, run_id: str, on_conflict: Literal["fail", "replace"], known: bool
) -> tuple[_Counted, str]:
    for left in reversed(range(_TRIES)):
        present = _read(target, run_id) if known else None
        known = True  # a second try may find what the first one stored
        if present is not None:
            found = _read(source, run_id)
            if found is not None and found.digest() == present.digest():
                return found, "present"
            if on_conflict == "fail":
                hint = "to have the source's in its place: --on-conflict replace"
                raise store_dump.conflict(run_id, (target.ask, run_id), (source.ask, run_id), hint=hint)
        try:
            return _store_run(source, target, run_id, on_conflict)
        except errors.StoreUnavailable:
            if not left:
                raise
        except errors.ImportConflict:
            if not left or on_conflict == "replace":
                raise
    raise AssertionError("the last try returns or raises")


def _store_run(
    source: Store, target: Store, run_id: str, on_conflict: Literal["fail", "replace"]
) -> tuple[_Counted, str]:
    with store_dump.snapshot(source.database) as tx:
        counted = _Counted(store_dump.dump(tx, run_id))
        outcome = target.import_run(counted.dump(), on_conflict=on_conflict)
        return counted, "present" if outcome.action == "identical" else "copied"


def _read(store: Store, run_id: str) -> _Counted | None:
    """Read a run to its end, again from its beginning while a server that was reached before does not answer."""
    if not store.exists():
        return None
    persist = store.database.driver.persist
    found: _Counted | None = (
        _read_once(store, run_id) if persist is None else persist(lambda: _read_once(store, run_id))
    )
    return found


def _read_once(store: Store, run_id: str) -> _Counted | None:
    try:
        with store.database.snapshot() as tx:
            return _Counted(store_dump.dump(tx, run_id)).read()
    except errors.RunNotFound:
        return None


def _verify(target: Store, ids: list[str], wanted: _Sums) -> None:
    """Read everything back.

    Raises:
        StoreDamaged: something is missing, or another than was copied.
    """
    found = _Sums()
    for run_id in ids:
        counted = _read(target, run_id)
        if counted is None:
            raise errors.StoreDamaged(target.display, f"run {run_id!r} is missing after it was copied", "copy again")
        found.add(counted)
    if (found.rows, found.checksum()) != (wanted.rows, wanted.checksum()):
        raise errors.StoreDamaged(
            target.display, "the copy is not what was copied", "was a copied run continued meanwhile? then copy again"
        )
