"""One run's rows out of a store and into one, faithfully: numbers, attempts, formats and times are kept."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

from . import errors, ownership
from .database import Database
from .database_sql import Statement, Tx
from .models import EventRow, ImportOutcome, OwnerRow, PauseRow, RunDump, RunRow, StepRow
from .names import LONGEST, check_name, check_text, shortened
from .sql import bindparam, delete, events, insert, pauses, runs, select, steps, update
from .store_admin import live_owner
from .store_sql import NOBODY, RUN_BY_ID, columns_of, owner_row, run_row

OnConflict = Literal["fail", "skip", "replace", "rename"]

_LEFT_OUT = {"id", "run_id", "owner_token"}
RUN_COLUMNS = columns_of(RunRow, {"seq", "owner_token"})
STEP_COLUMNS = (*columns_of(StepRow, _LEFT_OUT), "output")
EVENT_COLUMNS = columns_of(EventRow, _LEFT_OUT)
PAUSE_COLUMNS = columns_of(PauseRow, _LEFT_OUT)

_DUMP_STEPS = Statement(
    lambda: (
        select(*(steps.c[n] for n in STEP_COLUMNS))
        .where(steps.c.run_id == bindparam("run"))
        .order_by(steps.c.seq, steps.c.id)
    )
)
_DUMP_EVENTS = Statement(
    lambda: (
        select(*(events.c[n] for n in EVENT_COLUMNS)).where(events.c.run_id == bindparam("run")).order_by(events.c.seq)
    )
)
_DUMP_PAUSES = Statement(
    lambda: (
        select(*(pauses.c[n] for n in PAUSE_COLUMNS)).where(pauses.c.run_id == bindparam("run")).order_by(pauses.c.id)
    )
)
# Without a lock, which a reading connection may not take.
_RUN = Statement(lambda: select(runs).where(runs.c.id == bindparam("wanted")))
_ADD_RUN = Statement(lambda: insert(runs), (*RUN_COLUMNS, "owner_token"))
_ADD_STEP = Statement(lambda: insert(steps), ("run_id", *STEP_COLUMNS))
_ADD_EVENT = Statement(lambda: insert(events), ("run_id", *EVENT_COLUMNS))
_ADD_PAUSE = Statement(lambda: insert(pauses), ("run_id", *PAUSE_COLUMNS))
_RENAME = Statement(
    lambda: update(runs).where(runs.c.seq == bindparam("run")).values(id=bindparam("wanted"), epoch=bindparam("fence"))
)
_LAST_EVENT = Statement(
    lambda: (
        select(events.c.id, events.c.run_id, events.c.seq, events.c.ts)
        .where(events.c.run_id == bindparam("run"))
        .order_by(events.c.seq.desc())
        .limit(1)
    )
)
_EVENT = Statement(
    lambda: select(*(events.c[n] for n in EVENT_COLUMNS)).where(
        events.c.run_id == bindparam("run"), events.c.seq == bindparam("number")
    )
)
#: About how many bytes of rows are handed to the database at once.
_AT_ONCE = 1 << 19
_DELETE = Statement(lambda: delete(runs).where(runs.c.seq == bindparam("run")))


#: What executes a reading operation: ``Store.ask``, or one's own transaction.
Ask = Callable[..., Any]


@contextmanager
def snapshot(database: Database) -> Iterator[Tx]:
    """One unchanging state to read; a server that was reached before is waited for, as long as nothing was read."""
    with ExitStack() as stack:

        def begin() -> Tx:
            return stack.enter_context(database.snapshot())

        persist = database.driver.persist
        yield begin() if persist is None else persist(begin)


def dump(tx: Tx, run_id: str) -> RunDump:
    """The rows of a run; its iterators live as long as the snapshot ``tx``.

    Raises:
        RunNotFound: no such run.
    """
    row = run_row(tx, _RUN, {"wanted": run_id})
    if row is None:
        raise errors.RunNotFound(run_id)

    def rows(statement: Statement, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        # One at a time: a row may hold a hundred megabytes, and an export's memory must not be a multiple of that.
        for chunk in tx.chunks(statement, {"run": row.seq}, size=1):
            for values in chunk:
                yield dict(zip(names, values, strict=True))

    return RunDump(
        run={name: getattr(row, name) for name in RUN_COLUMNS},
        steps=rows(_DUMP_STEPS, STEP_COLUMNS),
        events=rows(_DUMP_EVENTS, EVENT_COLUMNS),
        pauses=rows(_DUMP_PAUSES, PAUSE_COLUMNS),
    )


class _Digest:
    """A running digest of a dump, taken while its rows stream by."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, kind: str, row: Mapping[str, Any], names: Iterable[str]) -> None:
        self._hash.update(repr((kind, [row.get(name) for name in names])).encode("utf-8", "surrogatepass"))

    def value(self) -> str:
        return self._hash.hexdigest()


# A run that was stored again under its own id is the same run: its fencing number says nothing about its content.
_CONTENT = tuple(name for name in RUN_COLUMNS if name not in ("id", "epoch"))


def digest(dumped: RunDump) -> str:
    """Digest of a run's content; equal for a run and its faithful copy, whatever its id and fencing number."""
    total = _Digest()
    total.add("run", dumped.run, _CONTENT)
    for kind, rows, names in (
        ("step", dumped.steps, STEP_COLUMNS),
        ("event", dumped.events, EVENT_COLUMNS),
        ("pause", dumped.pauses, PAUSE_COLUMNS),
    ):
        for row in rows:
            total.add(kind, row, names)
    return total.value()


def conflict(
    run_id: str,
    old: tuple[Ask, str],
    new: tuple[Ask, str],
    *,
    hint: str = "choose --on-conflict skip, replace or rename",
) -> errors.ImportConflict:
    """The error for a stored run, ``old``, that differs from the one that is to be stored; it says which went on further.

    Args:
        run_id: the id that both have.
        old: what asks the store that holds it, and the id that it has there.
        new: the same of the other.
        hint: what to do when neither is a later state of the other.
    """
    (ask_old, old_id), (ask_new, new_id) = old, new
    is_there, comes = ask_old(_run_of, old_id), ask_new(_run_of, new_id)
    lasts = [0 if row is None else row.last_seq for row in (is_there, comes)]
    counts = f"it has {lasts[0]} events, and this one {lasts[1]}"
    both = min(lasts)
    # Events are only ever added: a run that went on has the other's last one in its place.
    if not both or ask_old(_event_of, is_there.seq, both) != ask_new(_event_of, comes.seq, both):
        why = "a different run has this id, or each of the two went on by itself"
    elif lasts[0] > lasts[1]:
        why = f"the one that is there went on further: {counts}"
        hint = "leave it: --on-conflict replace would throw away what it has done since"
    elif lasts[0] < lasts[1]:
        why = f"the one that is there is an earlier state of it: {counts}"
        hint = "--on-conflict replace brings it up to date"
    else:
        why = "the one that is there has the same events, and differs in something else"
    return errors.ImportConflict(run_id, why=why, hint=hint)


def _run_of(tx: Tx, run_id: str) -> RunRow | None:
    return run_row(tx, _RUN, {"wanted": run_id})


def _event_of(tx: Tx, run: int, number: int) -> tuple[Any, ...] | None:
    return tx.one(_EVENT, {"run": run, "number": number})


class _WouldChange(Exception):
    """Ends a dry run: the transaction is rolled back."""


def import_run(
    database: Database,
    judge: Callable[[OwnerRow], ownership.Verdict],
    dumped: RunDump,
    *,
    on_conflict: OnConflict,
    dry_run: bool,
) -> ImportOutcome:
    """Store a dumped run in one transaction; see ``Store.import_run``."""
    if dry_run and not database.exists():
        for rows in (dumped.steps, dumped.events, dumped.pauses):
            for _ in rows:  # a file that ends too early says so only here
                pass
        return ImportOutcome(str(dumped.run["id"]), "imported")
    outcome: list[ImportOutcome] = []
    began = False

    def operation(tx: Tx) -> None:
        nonlocal began
        if began:  # tried again after a broken connection, but the rows have streamed by
            why = "the connection broke while a run was being stored"
            raise errors.StoreUnavailable(database.display, why, "do it again; what is there already is recognised")
        old = run_row(tx, RUN_BY_ID, {"wanted": str(dumped.run["id"])})
        began = True
        outcome[:] = [_import(tx, judge, dumped, on_conflict, old)]
        if dry_run:
            raise _WouldChange

    try:
        database.direct(operation)
    except _WouldChange:
        pass
    return outcome[0]


def _import(
    tx: Tx,
    judge: Callable[[OwnerRow], ownership.Verdict],
    dumped: RunDump,
    on_conflict: OnConflict,
    old: RunRow | None,
) -> ImportOutcome:
    run_id = str(dumped.run["id"])
    if old is None:
        _insert(tx, dumped, run_id)
        return ImportOutcome(run_id, "imported")
    known = digest(dump(tx, run_id))
    # The rows come as a stream that can be read once: they are stored first, under a free id, and compared while
    # they pass; what was not wanted is taken away again in this same transaction.
    taken, free = _renamed_ids(tx, run_id)
    new_seq, new_digest = _insert(tx, dumped, free)
    if new_digest == known:
        tx.execute(_DELETE, {"run": new_seq})
        return ImportOutcome(run_id, "identical")
    if on_conflict == "rename":
        for other in taken:
            if digest(dump(tx, other)) == new_digest:
                tx.execute(_DELETE, {"run": new_seq})
                return ImportOutcome(other, "identical")
        return ImportOutcome(free, "renamed")
    if on_conflict == "skip":
        tx.execute(_DELETE, {"run": new_seq})
        return ImportOutcome(run_id, "skipped")
    if on_conflict == "fail":
        raise conflict(run_id, (partial(_call, tx), run_id), (partial(_call, tx), free))
    _refuse_while_executed(tx, judge, old)
    tx.execute(_DELETE, {"run": old.seq})
    tx.execute(_RENAME, {"run": new_seq, "wanted": run_id, "fence": old.epoch + 1})
    return ImportOutcome(run_id, "replaced")


def _call(tx: Tx, operation: Callable[..., Any], *arguments: Any) -> Any:
    return operation(tx, *arguments)


def _refuse_while_executed(tx: Tx, judge: Callable[[OwnerRow], ownership.Verdict], run: RunRow) -> None:
    owner = owner_row(tx, run.owner_token) if run.owner_token is not None else None
    if owner is None or judge(owner) == "dead":
        owner = live_owner(tx, judge, run)
    if owner is not None:
        option = "--take-over --force" if run.status == "cancelled" else "--take-over"
        raise errors.ImportConflict(
            run.id,
            why=f"it is being executed by process {owner.pid} on {ownership.host_name(owner.host)}",
            hint=f"wait for it, or if it hangs: agent-resume resume {option} -- {run.id!r}",
        )


def _renamed_ids(tx: Tx, run_id: str) -> tuple[list[str], str]:
    """The ids that earlier renaming gave to runs of this id, and the next one."""
    taken: list[str] = []
    for number in itertools.count(2):
        candidate = f"{shortened(run_id, LONGEST - 20)}~{number}"
        if run_row(tx, RUN_BY_ID, {"wanted": candidate}) is None:
            return taken, candidate
        taken.append(candidate)
    raise AssertionError("count() does not end")


def _check_pause(row: dict[str, Any], where: str) -> None:
    check_name(f"pause name {where}", row["name"])
    for column in ("reason", "answered_by"):
        if row.get(column) is not None:
            check_text(f"pause {column} {where}", row[column])


def _insert(tx: Tx, dumped: RunDump, run_id: str) -> tuple[int, str]:
    total = _Digest()
    total.add("run", dumped.run, _CONTENT)
    where = f"of run {run_id!r}"
    check_name("run id", run_id)
    check_name(f"name {where}", dumped.run["name"])
    row = {name: dumped.run.get(name) for name in RUN_COLUMNS} | {"id": run_id}
    # Whoever executes the original does not execute this one: it is to be seen, and resumed, as left behind.
    row["owner_token"] = NOBODY if row["status"] == "running" else None
    seq = tx.insert(_ADD_RUN, row)
    for kind, rows, statement, names in (
        ("step", dumped.steps, _ADD_STEP, STEP_COLUMNS),
        ("event", dumped.events, _ADD_EVENT, EVENT_COLUMNS),
        ("pause", dumped.pauses, _ADD_PAUSE, PAUSE_COLUMNS),
    ):
        waiting: list[dict[str, Any]] = []
        size = 0
        for row in rows:
            if kind == "step":
                check_name(f"step key {where}", row["key"], empty=True)
            elif kind == "pause":
                _check_pause(row, where)
            total.add(kind, row, names)
            waiting.append({name: row.get(name) for name in names} | {"run_id": seq})
            size += 1000 + len(row.get("output") or "") + len(row.get("data") or "")
            if size > _AT_ONCE:
                tx.many(statement, waiting)
                waiting, size = [], 0
        tx.many(statement, waiting)
    tx.weight += 1 << 22
    last = tx.one(_LAST_EVENT, {"run": seq})
    if last is not None:
        tx.mark = (last[0], last[1], last[2], last[3])  # how a COMMIT whose answer is lost is settled
    return seq, total.value()
