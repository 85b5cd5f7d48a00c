"""``record`` in one statement, for databases where every statement is a journey.

PostgreSQL alone can write to three tables in one. The run's row is locked until the commit is on disk, so writers to
one run queue for that long: what else they do meanwhile adds up.
"""

from __future__ import annotations

from .codec import Encoded
from .database_listen import TELL
from .database_sql import Statement, Tx
from .sql import text
from .store_sql import Place

_RECORD = Statement(
    lambda: text(
        f"""
WITH raised AS (
    UPDATE runs SET last_seq = last_seq + 1, updated_at = :now
    WHERE seq = :run AND status = 'running' AND epoch = coalesce(CAST(:fence AS BIGINT), epoch)
      AND NOT EXISTS (SELECT 1 FROM steps WHERE run_id = :run AND key = :wanted)
    {TELL}, last_seq AS number
), added AS (
    INSERT INTO steps (run_id, key, seq, status, meta, started_at, finished_at, output_format, output_bytes, output)
    SELECT :run, :wanted, number, 'completed', CAST(:meta AS TEXT), :now, :now, :format, :bytes, :text FROM raised
    ON CONFLICT (run_id, key) DO NOTHING
    RETURNING id, seq
), told AS (
    INSERT INTO events (run_id, seq, ts, type, step_key) SELECT :run, seq, :now, 'record', :wanted FROM added
)
SELECT id, seq FROM added
"""  # noqa: S608 - constants of ours; values are bound
    )
)


def record_at_once(
    tx: Tx, place: Place, key: str, encoded: Encoded, size: int, meta: str | None, now: str
) -> tuple[int, int] | None:
    """Store a value under a key that nobody used; its step's id and number, or None when a look is needed.

    Its own transaction, and safe to execute again when its answer never came: the key is there then, with this value.
    A number may be given in vain, when two record one key in the same instant.
    """
    values = {
        "run": place.seq, "fence": place.epoch, "wanted": key, "now": now, "meta": meta, "format": encoded.format,
        "bytes": size, "text": encoded.text,
    }  # fmt: skip
    row = tx.one_alone(_RECORD, values)
    if row is None:
        return None
    if place.known is not None:
        place.known.last = row[1]
    return row[0], row[1]
