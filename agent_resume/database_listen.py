"""News of runs from a PostgreSQL server: one connection and one thread a process, whoever waits for what.

A writer notifies only where somebody listens, since every NOTIFY takes a lock of the whole server at its COMMIT. Both
meet at advisory locks: runs fall into ``SLOTS`` by their number, a listener shares the lock of its run's slot, and a
writer that cannot have that lock for itself knows that it is to be heard (``TELL``).
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from . import clock
from .threads import start_thread

if TYPE_CHECKING:
    import psycopg

    from .database_postgres import PostgresDriver

CHANNEL: Final = "agent_resume"
SLOTS: Final = 64
#: First number of our advisory locks, apart from a host application's.
LOCK_SPACE: Final = 0x61677273
#: What an UPDATE of ``runs`` has at its end to wake those who wait for news of the run.
TELL: Final = (
    f"RETURNING CASE WHEN pg_try_advisory_xact_lock({LOCK_SPACE}, (seq % {SLOTS})::int) THEN NULL "
    f"ELSE pg_notify('{CHANNEL}', seq::text)::text END"
)
#: Stands for every run.
ALL: Final = 0
#: A subscription that nobody waits on for this long is given up, in s.
_IDLE: Final = 60.0


class Listener:
    """Counts the news of each run that somebody asked for.

    A count only tells that something happened since another count; what it was, the tables say. A broken connection
    counts as news for everybody, since something may have been missed.
    """

    def __init__(self, driver: PostgresDriver) -> None:
        self._driver = driver
        self._changed = threading.Condition()
        self._counts: dict[int, int] = {}
        self._asked: dict[int, float] = {}
        self._callbacks: list[tuple[int, int, Callable[[], object]]] = []
        self._locked: set[int] = set()
        self._closing = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)  # an event loop writes to it
        self._thread = start_thread(self._work, "agent-resume-news")

    @property
    def closed(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._closing

    def wait(self, run: int, seen: int, seconds: float) -> int:
        """Until there is news of ``run`` beyond the count ``seen``, or ``seconds`` are over; the count now.

        Ask with -1 first: that answers as soon as nothing can be missed any more. Then look, then wait.
        """
        deadline = clock.monotonic() + seconds
        with self._changed:
            self._ask(run)
            while self._counts.get(run, -1) <= seen and not self._closing:
                left = deadline - clock.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return self._counts.get(run, -1)

    def tell(self, run: int, seen: int, callback: Callable[[], object]) -> None:
        """The same for those who cannot block: ``callback`` is called once, on the listening thread or here."""
        with self._changed:
            self._ask(run)
            if self._counts.get(run, -1) <= seen and not self._closing:
                self._callbacks.append((run, seen, callback))
                return
        callback()

    def count(self, run: int) -> int:
        """The count now; -1 while it is not listened to."""
        with self._changed:
            return self._counts.get(run, -1)

    def forget(self, callback: Callable[[], object]) -> None:
        """Nobody waits for this callback any more."""
        with self._changed:
            self._callbacks = [item for item in self._callbacks if item[2] is not callback]

    def close(self) -> None:
        """End the thread and its connection; whoever waits looks again."""
        with self._changed:
            self._closing = True
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b".")
        if self._thread is not threading.current_thread():
            self._thread.join(5)

    def _ask(self, run: int) -> None:
        new = run not in self._asked
        self._asked[run] = clock.monotonic()
        if new and not self._closing:
            with contextlib.suppress(OSError):
                os.write(self._wake_write, b".")

    # -- the thread ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        pause = 0.05
        try:
            while not self._closing:
                try:
                    with contextlib.closing(self._driver.plain()) as connection:
                        pause = 0.05
                        self._listen(connection)
                except Exception:  # noqa: BLE001 - whatever broke the line, those who wait look for themselves
                    self._locked.clear()
                    self._news(None)
                    select.select([self._wake_read], [], [], pause)
                    pause = min(2.0, pause * 2)
        finally:
            self._closing = True
            self._news(None)
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        # For those that arrive with the answer to a statement of ours.
        connection.add_notify_handler(lambda note: self._news(int(note.payload)))
        connection.execute(f"LISTEN {CHANNEL}".encode())
        self._locked.clear()
        line = connection.fileno()
        while not self._closing:
            self._subscribe(connection)
            ready, _, _ = select.select([line, self._wake_read], [], [], _IDLE / 4)
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            if line in ready:
                connection.pgconn.consume_input()  # fails when the line is broken
                while (note := connection.pgconn.notifies()) is not None:
                    self._news(int(note.extra))

    def _subscribe(self, connection: psycopg.Connection[Any]) -> None:
        with self._changed:
            self._drop_idle()
            runs = list(self._asked)
        wanted: set[int] = set()
        for run in runs:
            wanted |= set(range(SLOTS)) if run == ALL else {run % SLOTS}
        for slot in wanted - self._locked:
            connection.execute("SELECT pg_advisory_lock_shared(%s::int, %s::int)", (LOCK_SPACE, slot))
        for slot in self._locked - wanted:
            connection.execute("SELECT pg_advisory_unlock_shared(%s::int, %s::int)", (LOCK_SPACE, slot))
        self._locked = wanted
        for run in runs:
            if run not in self._counts:
                self._news(run)

    def _drop_idle(self) -> None:
        now = clock.monotonic()
        waited_for = {run for run, _, _ in self._callbacks}
        for run, asked in list(self._asked.items()):
            if now - asked > _IDLE and run not in waited_for:
                del self._asked[run]
                self._counts.pop(run, None)

    def _news(self, run: int | None) -> None:
        """Count news of one run, or of every one; wake and call whom it concerns."""
        with self._changed:
            if run is None:
                concerned = list(self._asked)
            elif run == ALL:
                concerned = [ALL]
            else:
                concerned = [known for known in (run, ALL) if known in self._asked]
            for known in concerned:
                self._counts[known] = self._counts.get(known, -1) + 1
            due = [item for item in self._callbacks if self._closing or self._counts.get(item[0], -1) > item[1]]
            self._callbacks = [item for item in self._callbacks if item not in due]
            self._changed.notify_all()
        for _, _, callback in due:
            callback()
