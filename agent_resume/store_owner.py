"""This process as an owner in one database: its token, its beats, and what it executes right now."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import weakref

from . import clock, errors, ownership, store_runs, store_sql
from .database import Database
from .database_sql import Tx
from .models import OwnerRow
from .store_presence import Presence

log = logging.getLogger("agent_resume")
_owners: weakref.WeakKeyDictionary[Database, Owner] = weakref.WeakKeyDictionary()
_guard = threading.RLock()


def of(database: Database) -> Owner:
    """The one ``Owner`` of this process in ``database``; after a fork the child gets its own token."""
    with _guard:
        owner = _owners.get(database)
        if owner is None or owner.generation != database.generation:
            owner = _owners[database] = Owner(database)
        return owner


class Owner:
    """A process that executes runs or steps of one database.

    Attributes:
        token: names this process in ``owners``, ``runs`` and ``steps``.
        executing: numbers of the runs that ``agent_run`` executes in this process.
        in_flight: (run number, step key) of the steps being executed here, each with the caller that holds it.
        unsettled: steps whose function was called here and whose outcome is not stored, or could not be.
        registered: this process has its row in ``owners``.
        decided_dead: tokens whose owners were watched and found dead.
    """

    def __init__(self, database: Database) -> None:
        self._database = weakref.ref(database)
        self.generation = database.generation
        self.token = clock.new_token()
        self.executing: Presence[int] = Presence()
        self.in_flight: Presence[tuple[int, str]] = Presence()
        self.unsettled: set[tuple[int, str]] = set()
        self.decided_dead: set[str] = set()
        self.registered = False
        self._host = ownership.host_identity()
        self._one_kernel = database.location.kind == "sqlite"
        self._lock = threading.Lock()
        self._users = 0
        self.heart = ownership.Heart(self._beat)

    @property
    def seed(self) -> store_runs.OwnerSeed:
        """What is written of this process when it first owns something."""
        pid = os.getpid()
        return store_runs.OwnerSeed(self.token, self._host, pid, ownership.process_start(pid))

    def judge(self, row: OwnerRow) -> ownership.Verdict:
        """Whether another owner lives."""
        if row.token in self.decided_dead:
            return "dead"
        return ownership.judge(
            row.to_mapping(), my_host=self._host, open_tokens=(self.token,), one_kernel=self._one_kernel
        )

    def executes(self, tx: Tx, run: int, key: str, token: str) -> bool:
        """Whether a step stored as running under ``token`` is really being executed by somebody."""
        if token == self.token:
            return (run, key) in self.in_flight
        row = store_sql.owner_row(tx, token)
        return row is not None and self.judge(row) == "alive"

    def join(self) -> None:
        """A run is about to be opened: beat. Before the row is written, so that nobody's ``leave`` takes it away after."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self.heart.start()

    def leave(self) -> None:
        """A run was closed; after the last one nothing beats and the row is taken away."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            self.heart.stop()
            registered, self.registered = self.registered, False
        database = self._database()
        if registered and database is not None and database.generation == self.generation:
            try:
                database.direct(self._drop, full=False)
            except errors.StoreError as trouble:
                # Nobody's work depends on it: a row that stays is found dead once this process has ended.
                log.warning("the row of this process in %s stays there: %s", database.display, trouble)

    def _drop(self, tx: Tx) -> None:
        # Another thread may have joined since, and its run may be this token's already.
        if not self._users:
            store_runs.drop_owner(tx, self.token)

    def _beat(self) -> None:
        database = self._database()
        if database is None or database.generation != self.generation:
            return
        database.direct(_beat_or_register, self.seed, full=False)


def _beat_or_register(tx: Tx, seed: store_runs.OwnerSeed) -> None:
    if not store_runs.beat(tx, seed.token):
        store_runs.register_owner(tx, seed)


def _leave_all() -> None:
    # A process that ends in good order leaves no row behind; one that is killed does, and is found dead.
    for owner in list(_owners.values()):
        database = owner._database()
        if owner.registered and database is not None and database.generation == owner.generation:
            owner.heart.stop()
            with contextlib.suppress(Exception):
                database.direct(store_runs.drop_owner, owner.token, full=False)


def _after_fork_in_child() -> None:
    global _guard
    _guard = threading.RLock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
# Registered after the database's own hook, so it runs before that one closes the connections.
atexit.register(_leave_all)
