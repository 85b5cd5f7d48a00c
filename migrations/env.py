"""Alembic's entry: on the connection it is given (at run time), or on the ini file's URL (for developers).

It configures no logging: a library must leave its host's loggers alone.
"""

from alembic import context
from sqlalchemy import create_engine

from agent_resume import schema

OPTIONS = {
    "target_metadata": schema.metadata,
    "version_table": schema.VERSION_TABLE,
    "render_as_batch": True,
}


def run() -> None:
    """Upgrade on the given connection inside its own transaction, or on a new engine."""
    given = context.config.attributes.get("connection")
    if given is not None:
        context.configure(connection=given, transactional_ddl=False, **OPTIONS)
        context.run_migrations()
        return
    engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
    with engine.begin() as connection:
        context.configure(connection=connection, **OPTIONS)
        context.run_migrations()


run()
