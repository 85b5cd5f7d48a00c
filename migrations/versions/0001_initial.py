"""The whole first schema: owners, runs, steps, events, pauses. The views are made anew after every upgrade.

Revision 0001. Its ``op`` is the operations of one connection; from Alembic's command line, the global one. Written out in full rather than taken from ``schema_tables.py``, which goes on changing.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

_RUN_STATUSES = "status IN ('running', 'paused', 'completed', 'failed', 'interrupted', 'cancelled')"
_STEP_STATUSES = "status IN ('running', 'completed', 'failed', 'interrupted', 'in_doubt')"


def upgrade(op=op) -> None:
    """Create the tables and their indexes."""
    op.create_table(
        "owners",
        sa.Column("token", _text, nullable=False),
        sa.Column("host", _text, nullable=False),
        sa.Column("pid", _id, nullable=False),
        sa.Column("started", _id),
        sa.Column("beats", _id, nullable=False, server_default="0"),
        sa.Column("beat_at", _text, nullable=False),
        sa.PrimaryKeyConstraint("token", name="pk_owners"),
    )
    _create_runs(op)
    _create_steps(op)
    op.create_table(
        "events",
        sa.Column("id", _id, nullable=False),
        sa.Column("run_id", _id, nullable=False),
        sa.Column("seq", _id, nullable=False),
        sa.Column("ts", _text, nullable=False),
        sa.Column("type", _text, nullable=False),
        sa.Column("step_key", _text),
        sa.Column("attempt", _id),
        sa.Column("data", _text),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.seq"], name="fk_events_run_id", ondelete="CASCADE"),
        sa.UniqueConstraint("run_id", "seq", name="uq_events_run_id_seq"),
    )
    op.create_table(
        "pauses",
        sa.Column("id", _id, nullable=False),
        sa.Column("run_id", _id, nullable=False),
        sa.Column("name", _text, nullable=False),
        sa.Column("kind", _text, nullable=False),
        sa.Column("reason", _text),
        sa.Column("context", _text),
        sa.Column("asked_at", _text),
        sa.Column("deadline", _text),
        sa.Column("value", _text),
        sa.Column("answered_at", _text),
        sa.Column("answered_by", _text),
        sa.PrimaryKeyConstraint("id", name="pk_pauses"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.seq"], name="fk_pauses_run_id", ondelete="CASCADE"),
        sa.UniqueConstraint("run_id", "name", name="uq_pauses_run_id_name"),
        sa.CheckConstraint("kind IN ('pause', 'wait', 'sleep')", name=op.f("ck_pauses_kind")),
    )


def _create_runs(op) -> None:
    op.create_table(
        "runs",
        sa.Column("seq", _id, nullable=False),
        sa.Column("last_seq", _id, nullable=False, server_default="0"),
        sa.Column("id", _text, nullable=False),
        sa.Column("name", _text, nullable=False),
        sa.Column("status", _text, nullable=False),
        sa.Column("input", _text),
        sa.Column("input_digest", _text),
        sa.Column("result", _text),
        sa.Column("result_format", _text),
        sa.Column("error", _text),
        sa.Column("summary", _text),
        sa.Column("loop_verdict", _text),
        sa.Column("loop_status", _text),
        sa.Column("loop_turns", _text),
        sa.Column("loop_reason", _text),
        sa.Column("expect_max_ms", _id),
        sa.Column("meta", _text),
        sa.Column("parent_run_id", _text),
        sa.Column("forked_from", _text),
        sa.Column("command", _text),
        sa.Column("created_at", _text, nullable=False),
        sa.Column("updated_at", _text, nullable=False),
        sa.Column("finished_at", _text),
        sa.Column("owner_token", _text),
        sa.Column("epoch", _id, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("seq", name="pk_runs"),
        sa.UniqueConstraint("id", name="uq_runs_id"),
        sa.CheckConstraint(_RUN_STATUSES, name=op.f("ck_runs_status")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_runs_name_status", "runs", ["name", "status"])
    op.create_index("ix_runs_status", "runs", ["status"])


def _create_steps(op) -> None:
    op.create_table(
        "steps",
        sa.Column("id", _id, nullable=False),
        sa.Column("run_id", _id, nullable=False),
        sa.Column("key", _text, nullable=False),
        sa.Column("seq", _id, nullable=False),
        sa.Column("status", _text, nullable=False),
        sa.Column("attempts", _id, nullable=False, server_default="1"),
        sa.Column("effect", _text, nullable=False, server_default="repeatable"),
        sa.Column("fingerprint", _text),
        sa.Column("code_hash", _text),
        sa.Column("meta", _text),
        sa.Column("started_at", _text),
        sa.Column("finished_at", _text),
        sa.Column("duration_ms", _id),
        sa.Column("error", _text),
        sa.Column("owner_token", _text),
        sa.Column("output_format", _text),
        sa.Column("output_bytes", _id),
        sa.Column("output", _text),
        sa.PrimaryKeyConstraint("id", name="pk_steps"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.seq"], name="fk_steps_run_id", ondelete="CASCADE"),
        sa.UniqueConstraint("run_id", "key", name="uq_steps_run_id_key"),
        sa.CheckConstraint(_STEP_STATUSES, name=op.f("ck_steps_status")),
        sa.CheckConstraint("effect IN ('repeatable', 'once')", name=op.f("ck_steps_effect")),
    )
