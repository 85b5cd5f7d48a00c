"""This process as an owner in one database: its token, its beats, and what it executes right now."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import weakref

from . import clock, errors, ownership, store_runs, store_sql
from .database import Database
from .database_location import Location
from .database_sql import Tx
from .models import OwnerRow
from .store_presence import Presence
from .threads import start_thread

log = logging.getLogger("agent_resume")
_owners: weakref.WeakKeyDictionary[Database, Owner] = weakref.WeakKeyDictionary()
# Those whose last run was closed while a thread was still inside a step; their store may be opened anew meanwhile.
_lingering: dict[Location, Owner] = {}
_guard = threading.RLock()


def of(database: Database) -> Owner:
    """The one ``Owner`` of this process in ``database``; after a fork the child gets its own token."""
    with _guard:
        owner = _owners.get(database)
        if owner is None or owner.generation != database.generation:
            owner = _lingering.get(database.location)
            if owner is None or owner.generation != database.generation:
                owner = Owner(database)
            else:
                owner.move_to(database)
            _owners[database] = owner
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
        lingers: the last run was closed, and a step is still being executed.
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
        self.lingers = False
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

    def move_to(self, database: Database) -> None:
        """The store was closed and opened again, while a step of before is still being executed."""
        self._database = weakref.ref(database)

    def leave(self) -> None:
        """A run was closed; after the last one, and the last step, nothing beats and the row is taken away."""
        with self._lock:
            self._users -= 1
        self._leave_if_idle()

    def step_ended(self) -> None:
        """The step that this owner lingered for may have been the last; its thread, or loop, is not held up."""
        if sys.is_finalizing():
            return  # a coroutine that is thrown away at the end: a thread that is started now never begins
        start_thread(self._leave_if_idle, "agent-resume-leave")

    def _leave_if_idle(self) -> None:
        database = self._database()
        with self._lock:
            if self._users:
                return
            self.lingers = any(True for _ in self.in_flight)
            # Others must see that its steps are being executed, until they are not.
            self._keep_for_its_store(database, wanted=self.lingers)
            if self.lingers:
                return
            self.heart.stop()
            registered, self.registered = self.registered, False
        self._drop_row(registered, database)

    def _keep_for_its_store(self, database: Database | None, *, wanted: bool) -> None:
        if database is None:
            return
        with _guard:
            if wanted:
                _lingering[database.location] = self
            elif _lingering.get(database.location) is self:
                del _lingering[database.location]

    def _drop_row(self, registered: bool, database: Database | None) -> None:
        if registered and database is not None and database.generation == self.generation:
            try:
                database.direct(self._drop, full=False)
            except errors.StoreError as trouble:
                # Nobody's work depends on it: a row that stays is found dead once this process has ended.
                log.warning("the row of this process in %s stays there: %s", database.display, trouble)
            if not database.users:  # a late step had opened it again
                database.close()

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
    _lingering.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
# Registered after the database's own hook, so it runs before that one closes the connections.
atexit.register(_leave_all)
