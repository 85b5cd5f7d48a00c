"""The words that our statements are made of: SQLAlchemy's, and our tables. Each is imported when it is first used.

Importing SQLAlchemy takes longer than most commands, and on SQLite the texts of our statements are known without it
(``database_texts``). So a statement stands in a function, ``Statement(lambda: select(runs))``, and only in functions
may these words be used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = [
    "LargeBinary",
    "and_",
    "bindparam",
    "case",
    "cast",
    "delete",
    "events",
    "func",
    "insert",
    "one_of",
    "or_",
    "owners",
    "pauses",
    "runs",
    "select",
    "server_now",
    "steps",
    "text",
    "union",
    "update",
]

if TYPE_CHECKING:
    from sqlalchemy import (
        LargeBinary,
        and_,
        bindparam,
        case,
        cast,
        delete,
        func,
        insert,
        or_,
        select,
        text,
        union,
        update,
    )

    from .schema_tables import events, owners, pauses, runs, steps
    from .sql_elements import one_of, server_now
else:

    class _Word:
        """Stands for what SQLAlchemy or ``sql_elements`` calls so."""

        def __init__(self, name: str) -> None:
            self._name = name

        def _meant(self) -> Any:
            import sqlalchemy

            from . import sql_elements

            return getattr(sql_elements, self._name, None) or getattr(sqlalchemy, self._name)

        def __call__(self, *args: Any, **named: Any) -> Any:
            return self._meant()(*args, **named)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._meant(), name)

    class _Table:
        """Stands for one of our tables."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __clause_element__(self) -> Any:  # SQLAlchemy asks for it wherever a table can stand
            from . import schema_tables

            return getattr(schema_tables, self._name)

        @property
        def c(self) -> Any:
            return self.__clause_element__().c

    _TABLES = {"events", "owners", "pauses", "runs", "steps"}
    globals().update({name: _Table(name) if name in _TABLES else _Word(name) for name in __all__})
