"""Which driver speaks to which kind of database."""

from __future__ import annotations

from typing import Any

from .database_location import Location


def driver_of(location: Location) -> Any:
    """What speaks to the database at ``location``."""
    if location.kind == "postgresql":
        from .database_postgres import PostgresDriver

        return PostgresDriver(location)
    from .database_sqlite import SqliteDriver

    return SqliteDriver(location)
