"""Reading the finished steps of a run: the index that an execution replays from, and single outputs."""

from __future__ import annotations

from sqlalchemy import bindparam, case, or_, select

from .database_sql import Row, Statement, Tx
from .schema import steps

#: ``output_format`` of a failure that ``keep_errors`` made the step's outcome.
KEPT_ERROR = "error"
#: Outputs up to this many bytes are loaded with the index; larger ones cost one read each.
INDEX_OUTPUT_BYTES = 1024
#: All outputs in one run's index together, in bytes.
INDEX_BYTES = 32 << 20

OUTPUT = Statement(select(steps.c.output_format, steps.c.output, steps.c.error).where(steps.c.id == bindparam("step")))
_finished = or_(steps.c.status == "completed", steps.c.output_format == KEPT_ERROR)
_small = case((steps.c.output_bytes <= INDEX_OUTPUT_BYTES, steps.c.output))
_INDEX = Statement(
    select(
        steps.c.key, steps.c.id, steps.c.seq, steps.c.fingerprint, steps.c.code_hash, steps.c.output_format, _small
    ).where(steps.c.run_id == bindparam("run"), _finished)
)
_INDEX_ONE = Statement(
    select(
        steps.c.key, steps.c.id, steps.c.seq, steps.c.fingerprint, steps.c.code_hash, steps.c.output_format, _small
    ).where(steps.c.run_id == bindparam("run"), steps.c.key == bindparam("wanted"), _finished)
)


def load_index(tx: Tx, run: int) -> list[Row]:
    """Every finished step of a run: key, id, seq, fingerprint, code hash, format, and the output when it is small."""
    return tx.all(_INDEX, {"run": run})


def load_index_entry(tx: Tx, run: int, key: str) -> Row | None:
    """One finished step, like a row of ``load_index``."""
    return tx.one(_INDEX_ONE, {"run": run, "wanted": key})


def load_output(tx: Tx, step: int) -> Row | None:
    """Format, output and error of a step."""
    return tx.one(OUTPUT, {"step": step})
