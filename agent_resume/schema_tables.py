"""The tables and indexes. They are an interface, as the views are: SQL over them keeps working across releases.

Times are TEXT, UTC, ``2026-01-31T09:08:07.006Z``. Values are JSON TEXT. Order is an integer, never a time.
``migrations/`` creates all of this; a test holds the two equal.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from .schema import EFFECTS, PAUSE_KINDS, RUN_STATUSES, STEP_STATUSES

# SQLite gives a rowid only to INTEGER; PostgreSQL wants 64 bits. Names compare code point by code point.
_Id = BigInteger().with_variant(Integer(), "sqlite")
_Text = Text().with_variant(Text(collation="C"), "postgresql")

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


def _one_of(column: str, values: tuple[str, ...]) -> CheckConstraint:
    quoted = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({quoted})", name=column)


owners = Table(
    "owners",
    metadata,
    Column("token", _Text, primary_key=True),
    Column("host", _Text, nullable=False),
    Column("pid", _Id, nullable=False),
    Column("started", _Id),
    Column("beats", _Id, nullable=False, server_default="0"),
    Column("beat_at", _Text, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("seq", _Id, primary_key=True),
    Column("last_seq", _Id, nullable=False, server_default="0"),
    Column("id", _Text, nullable=False, unique=True),
    Column("name", _Text, nullable=False),
    Column("status", _Text, nullable=False),
    Column("input", _Text),
    Column("input_digest", _Text),
    Column("result", _Text),
    Column("result_format", _Text),
    Column("error", _Text),
    Column("summary", _Text),
    Column("loop_verdict", _Text),
    Column("loop_status", _Text),
    Column("loop_turns", _Text),
    Column("loop_reason", _Text),
    Column("expect_max_ms", _Id),
    Column("meta", _Text),
    Column("parent_run_id", _Text),
    Column("forked_from", _Text),
    Column("command", _Text),
    Column("created_at", _Text, nullable=False),
    Column("updated_at", _Text, nullable=False),
    Column("finished_at", _Text),
    Column("owner_token", _Text),
    Column("epoch", _Id, nullable=False, server_default="0"),
    _one_of("status", RUN_STATUSES),
    Index(None, "name", "status"),
    Index(None, "status"),
    # A stale process must never find its run's number on a stranger: numbers of deleted runs are not given again.
    sqlite_autoincrement=True,
)

steps = Table(
    "steps",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("run_id", _Id, ForeignKey("runs.seq", ondelete="CASCADE"), nullable=False),
    Column("key", _Text, nullable=False),
    Column("seq", _Id, nullable=False),
    Column("status", _Text, nullable=False),
    Column("attempts", _Id, nullable=False, server_default="1"),
    Column("effect", _Text, nullable=False, server_default="repeatable"),
    Column("fingerprint", _Text),
    Column("code_hash", _Text),
    Column("meta", _Text),
    Column("started_at", _Text),
    Column("finished_at", _Text),
    Column("duration_ms", _Id),
    Column("error", _Text),
    Column("owner_token", _Text),
    Column("output_format", _Text),
    # Known without reading the output: SQLite walks all pages of a text to tell its length.
    Column("output_bytes", _Id),
    # Last, so that listing a run never reads through large outputs.
    Column("output", _Text),
    UniqueConstraint("run_id", "key"),
    _one_of("status", STEP_STATUSES),
    _one_of("effect", EFFECTS),
)

events = Table(
    "events",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("run_id", _Id, ForeignKey("runs.seq", ondelete="CASCADE"), nullable=False),
    Column("seq", _Id, nullable=False),
    Column("ts", _Text, nullable=False),
    Column("type", _Text, nullable=False),
    Column("step_key", _Text),
    Column("attempt", _Id),
    Column("data", _Text),
    UniqueConstraint("run_id", "seq"),
)

pauses = Table(
    "pauses",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("run_id", _Id, ForeignKey("runs.seq", ondelete="CASCADE"), nullable=False),
    Column("name", _Text, nullable=False),
    Column("kind", _Text, nullable=False),
    Column("reason", _Text),
    Column("context", _Text),
    Column("asked_at", _Text),
    Column("deadline", _Text),
    Column("value", _Text),
    Column("answered_at", _Text),
    Column("answered_by", _Text),
    UniqueConstraint("run_id", "name"),
    _one_of("kind", PAUSE_KINDS),
)
