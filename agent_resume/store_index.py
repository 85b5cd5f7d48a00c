"""Reading the finished steps of a run: the index that an execution replays from, and single outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .database_sql import Row, Statement, Tx
from .sql import bindparam, case, events, func, or_, select, steps

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Select

#: ``output_format`` of a failure that ``keep_errors`` made the step's outcome.
KEPT_ERROR = "error"
#: Outputs up to this many bytes are loaded with the index; larger ones cost one read each.
INDEX_OUTPUT_BYTES = 1024
#: All outputs in one run's index together, in bytes.
INDEX_BYTES = 16 << 20

OUTPUT = Statement(
    lambda: select(steps.c.output_format, steps.c.output, steps.c.error).where(steps.c.id == bindparam("step"))
)


def _finished(*conditions: ColumnElement[bool]) -> Select[Any]:
    small = case((steps.c.output_bytes <= INDEX_OUTPUT_BYTES, steps.c.output))
    return select(
        steps.c.key, steps.c.id, steps.c.seq, steps.c.fingerprint, steps.c.code_hash, steps.c.output_format, small
    ).where(
        steps.c.run_id == bindparam("run"),
        *conditions,
        or_(steps.c.status == "completed", steps.c.output_format == KEPT_ERROR),
    )


_INDEX = Statement(lambda: _finished())
_INDEX_ONE = Statement(lambda: _finished(steps.c.key == bindparam("wanted")))
_REPEATED = Statement(
    lambda: select(steps.c.key, steps.c.attempts).where(
        steps.c.run_id == bindparam("run"),
        steps.c.attempts > 1,
        func.substr(steps.c.key, 1, bindparam("length")) == bindparam("prefix"),
    )
)
_DONE = Statement(
    lambda: select(events.c.id).where(
        events.c.run_id == bindparam("run"),
        events.c.type == "done",
        events.c.step_key == bindparam("wanted"),
        events.c.attempt == bindparam("number"),
    )
)


def load_index(tx: Tx, run: int) -> list[Row]:
    """Every finished step of a run: key, id, seq, fingerprint, code hash, format, and the output when it is small.

    Small outputs beyond ``INDEX_BYTES`` in all are left out, to be read when they are asked for.
    """
    shared: dict[str | None, str | None] = {}
    one_of_each, left, found = shared.setdefault, INDEX_BYTES, []
    for key, step, seq, fingerprint, code_hash, format, output in tx.each(_INDEX, {"run": run}):
        if output is not None:
            left -= len(output)
            if left < 0:
                output = None
        found.append(
            (key, step, seq, fingerprint, one_of_each(code_hash, code_hash), one_of_each(format, format), output)
        )
    return found


def load_index_entry(tx: Tx, run: int, key: str) -> Row | None:
    """One finished step, like a row of ``load_index``."""
    return tx.one(_INDEX_ONE, {"run": run, "wanted": key})


def load_output(tx: Tx, step: int) -> Row | None:
    """Format, output and error of a step."""
    return tx.one(OUTPUT, {"step": step})


def repeated_attempts(tx: Tx, run: int, prefix: str) -> list[Row]:
    """Key and number of attempts of the steps whose key begins so and that were attempted more than once."""
    return tx.all(_REPEATED, {"run": run, "length": len(prefix), "prefix": prefix})


def was_done(tx: Tx, run: int, key: str, attempt: int) -> bool:
    """Whether the result of this attempt was stored, though it may have been discarded since."""
    return tx.one(_DONE, {"run": run, "wanted": key, "number": attempt}) is not None
