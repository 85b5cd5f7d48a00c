"""Alembic's entry for developers, on the ini file's URL. At run time ``agent_resume.migrate`` runs the revisions itself.

It configures no logging.
"""

from alembic import context
from sqlalchemy import create_engine

from agent_resume import schema, schema_tables

OPTIONS = {
    "target_metadata": schema_tables.metadata,
    "version_table": schema.VERSION_TABLE,
    "render_as_batch": True,
}


def run() -> None:
    """Upgrade on a new engine."""
    engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
    with engine.begin() as connection:
        context.configure(connection=connection, **OPTIONS)
        context.run_migrations()


run()
