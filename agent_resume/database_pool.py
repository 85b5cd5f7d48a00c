"""A pool of SQLAlchemy's for the one connection of ours that it is lent."""

from __future__ import annotations

from sqlalchemy.pool import StaticPool


class OwnPool(StaticPool):
    """What a program listens for on all of its engines (pragmas at each connect, say) does not reach our connection."""

    _sa_propagate_class_events = False  # SQLAlchemy's own switch for that
