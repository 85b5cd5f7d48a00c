"""A pool of SQLAlchemy's for the one connection of ours that it is lent."""

from __future__ import annotations

from sqlalchemy.pool import StaticPool


class OwnPool(StaticPool):
    """What a program listens for on all of its engines (pragmas at each connect, say) does not reach our connection."""

    # SQLAlchemy's own switches: for that, and for whose logger its messages go to.
    _sa_propagate_class_events = False
    _sqla_logger_namespace = "sqlalchemy.pool.impl.StaticPool"
