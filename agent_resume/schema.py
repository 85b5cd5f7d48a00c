"""The tables, indexes and views. They are an interface: SQL over them keeps working across releases.

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

#: Newest schema revision that this version knows; the name of the last file in ``migrations/versions``.
HEAD = "0001"
#: Every revision this version can open or upgrade, oldest first.
REVISIONS = ("0001",)
#: Alembic's version table, under a name of our own so that it never meets a host application's.
VERSION_TABLE = "agent_resume_schema"
#: ``PRAGMA application_id`` of our files: the letters "agrs".
APPLICATION_ID = 0x61677273
#: The PostgreSQL schema that holds everything.
PG_SCHEMA = "agent_resume"

RUN_STATUSES = ("running", "paused", "completed", "failed", "interrupted", "cancelled")
STEP_STATUSES = ("running", "completed", "failed", "interrupted", "in_doubt")
EFFECTS = ("repeatable", "once")
PAUSE_KINDS = ("pause", "wait", "sleep")

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

#: Types of the events that begin and end an attempt of a step.
START_EVENT = "start"
OUTCOME_EVENTS = ("done", "error", "interrupted", "in_doubt", "unknown")

VIEW_NAMES = ("run_overview", "step_timeline", "step_attempts")


def view_statements(dialect: str) -> tuple[str, ...]:
    """CREATE VIEW statements for ``"sqlite"`` or ``"postgresql"``, where a function comes first."""
    views = tuple(text.format(**_SPELLINGS[dialect]) for text in (_RUN_OVERVIEW, _STEP_TIMELINE, _STEP_ATTEMPTS))
    return views if dialect == "sqlite" else (_AS_JSON, *views)


def drop_view_statements() -> tuple[str, ...]:
    """DROP VIEW statements, harmless where a view is missing."""
    return tuple(f"DROP VIEW IF EXISTS {name}" for name in reversed(VIEW_NAMES))


# PostgreSQL takes apart no JSON that holds an escaped NUL or half a surrogate pair: those become U+FFFD, for display.
_AS_JSON = r"""
CREATE OR REPLACE FUNCTION as_json(value text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN value::jsonb;
EXCEPTION WHEN OTHERS THEN
    BEGIN
        RETURN regexp_replace(value, '\\u(0000|[dD][89a-fA-F][0-9a-fA-F]{2})', '\\ufffd', 'g')::jsonb;
    EXCEPTION WHEN OTHERS THEN
        RETURN NULL;
    END;
END $$
"""

# What the two dialects spell differently. Tokens that are no numbers count as none, so that one odd row cannot
# break an aggregate.
_SPELLINGS = {
    "sqlite": {
        "input_tokens": "CASE WHEN json_type(s.meta, '$.inputTokens') IN ('integer', 'real') "
        "THEN json_extract(s.meta, '$.inputTokens') END",
        "output_tokens": "CASE WHEN json_type(s.meta, '$.outputTokens') IN ('integer', 'real') "
        "THEN json_extract(s.meta, '$.outputTokens') END",
        "cli": "json_extract(s.meta, '$.cli')",
        "model": "json_extract(s.meta, '$.model')",
        "error_message": "json_extract(s.error, '$.message')",
        "event_ms": "json_extract(e.data, '$.durationMs')",
        "event_error": "json_extract(e.data, '$.error.message')",
        "run_ms": "CAST(round((julianday(coalesce(r.finished_at, r.updated_at)) - julianday(r.created_at)) * 86400000) "
        "AS INTEGER)",
    },
    "postgresql": {
        "input_tokens": "CASE WHEN jsonb_typeof(as_json(s.meta) -> 'inputTokens') = 'number' "
        "THEN (as_json(s.meta) ->> 'inputTokens')::numeric END",
        "output_tokens": "CASE WHEN jsonb_typeof(as_json(s.meta) -> 'outputTokens') = 'number' "
        "THEN (as_json(s.meta) ->> 'outputTokens')::numeric END",
        "cli": "as_json(s.meta) ->> 'cli'",
        "model": "as_json(s.meta) ->> 'model'",
        "error_message": "as_json(s.error) ->> 'message'",
        "event_ms": "CASE WHEN jsonb_typeof(as_json(e.data) -> 'durationMs') = 'number' "
        "THEN (as_json(e.data) ->> 'durationMs')::numeric END",
        "event_error": "as_json(e.data) -> 'error' ->> 'message'",
        "run_ms": "round(extract(epoch FROM (coalesce(r.finished_at, r.updated_at)::timestamptz "
        "- r.created_at::timestamptz)) * 1000)::bigint",
    },
}

# Subqueries rather than a GROUP BY: a condition on the run reaches its indexes, and only the columns that are asked
# for are computed.
_RUN_OVERVIEW = """
CREATE VIEW run_overview AS
SELECT r.id AS run_id, r.name AS name, r.status AS status,
       (SELECT count(*) FROM steps s WHERE s.run_id = r.seq) AS steps,
       (SELECT count(*) FROM steps s WHERE s.run_id = r.seq AND s.status = 'completed') AS steps_completed,
       (SELECT count(*) FROM steps s WHERE s.run_id = r.seq AND s.status = 'running') AS steps_running,
       (SELECT count(*) FROM steps s WHERE s.run_id = r.seq AND s.status = 'failed') AS steps_failed,
       (SELECT count(*) FROM steps s WHERE s.run_id = r.seq AND s.status = 'interrupted') AS steps_interrupted,
       (SELECT count(*) FROM steps s WHERE s.run_id = r.seq AND s.status = 'in_doubt') AS steps_in_doubt,
       (SELECT CAST(sum(s.duration_ms) AS BIGINT) FROM steps s WHERE s.run_id = r.seq) AS step_ms,
       {run_ms} AS duration_ms,
       (SELECT sum({input_tokens}) FROM steps s WHERE s.run_id = r.seq) AS input_tokens,
       (SELECT sum({output_tokens}) FROM steps s WHERE s.run_id = r.seq) AS output_tokens,
       r.created_at AS created_at, r.updated_at AS updated_at, r.finished_at AS finished_at,
       o.host AS owner_host, o.pid AS owner_pid, o.beat_at AS owner_beat_at
FROM runs r
LEFT JOIN owners o ON o.token = r.owner_token
"""

_STEP_TIMELINE = """
CREATE VIEW step_timeline AS
SELECT r.id AS run_id, r.name AS run_name, s.seq AS seq, s.key AS key, s.status AS status, s.attempts AS attempts,
       s.started_at AS started_at, s.finished_at AS finished_at, s.duration_ms AS duration_ms,
       {cli} AS cli, {model} AS model, {input_tokens} AS input_tokens, {output_tokens} AS output_tokens,
       {error_message} AS error
FROM runs r
JOIN steps s ON s.run_id = r.seq
"""

_STEP_ATTEMPTS = """
CREATE VIEW step_attempts AS
SELECT r.id AS run_id, e.step_key AS key, e.attempt AS attempt,
       min(CASE WHEN e.type = 'start' THEN e.ts END) AS started_at,
       max(CASE WHEN e.type <> 'start' THEN e.ts END) AS ended_at,
       coalesce(max(CASE WHEN e.type <> 'start' THEN e.type END), 'open') AS outcome,
       max(CASE WHEN e.type <> 'start' THEN {event_ms} END) AS duration_ms,
       max(CASE WHEN e.type <> 'start' THEN {event_error} END) AS error
FROM runs r
JOIN events e ON e.run_id = r.seq
WHERE e.step_key IS NOT NULL AND e.attempt IS NOT NULL
  AND e.type IN ('start', 'done', 'error', 'interrupted', 'in_doubt', 'unknown')
GROUP BY r.id, e.step_key, e.attempt
"""
