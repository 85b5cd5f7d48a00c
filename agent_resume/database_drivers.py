"""Which driver speaks to which kind of database."""

from __future__ import annotations

from typing import Any

from .database_location import Location
from .errors_store import StoreUnavailable


class DriverMissing(StoreUnavailable, ImportError):
    """What speaks to this kind of database is not installed."""

    path: str = ""  # ImportError's own would hide a StoreError's


def driver_of(location: Location) -> Any:
    """What speaks to the database at ``location``.

    Raises:
        DriverMissing: the extra for it was not installed.
    """
    if location.kind == "postgresql":
        try:
            from .database_postgres import PostgresDriver
        except ImportError as error:
            why, _, what_to_do = str(error).partition(": ")
            raise DriverMissing(location.display, why, what_to_do) from error

        return PostgresDriver(location)
    from .database_sqlite import SqliteDriver

    return SqliteDriver(location)
