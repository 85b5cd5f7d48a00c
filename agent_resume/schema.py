"""What is in a store beside its tables (``schema_tables``): its names, marks and views. All of it is an interface."""

from __future__ import annotations

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
