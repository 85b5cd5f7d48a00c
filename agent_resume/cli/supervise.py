"""``agent-resume run -- COMMAND…``: start a command, and start it again after a crash until its run is done."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_resume import clock
from agent_resume.database_location import DB, SUPERVISOR

from . import exits, launch, screen, session
from .options import Db

if TYPE_CHECKING:
    from agent_resume.store import Store
    from agent_resume.store_admin_detail import RunDetail

_LONGEST = 60.0
# After these a restart would change nothing.
_ENDED = ("completed", "paused", "cancelled")


def run_command(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND…", help="The command, after --.")],
    max_restarts: Annotated[
        int, typer.Option("--max-restarts", min=0, help="Most restarts; then the run's exit code.")
    ] = 10,
    backoff: Annotated[
        float,
        typer.Option(
            "--backoff", min=0.0, metavar="SECONDS", help="First wait before a restart; doubled each time, up to 60 s."
        ),
    ] = 1.0,
    db: Db = None,
) -> int:
    """Run a command; restart it until its run is done or paused.

    It is not restarted when it ends at a step that is in doubt; how that is decided is said. The command's own exit
    code is shown; the exit code of this one is the run's status. A command that fails before it ever reached a run is
    not restarted; that is exit code 1. Its run is the first one in this store that it, or a program that it starts,
    begins or resumes; else the first one that it asks for. --db is handed on to it as AGENT_RESUME_DB.
    """
    with session.opened(db) as store, tempfile.TemporaryDirectory(prefix="agent-resume-") as folder:
        return _Supervisor(store, command, max_restarts, backoff, os.path.join(folder, "met")).run()


class _Supervisor:
    def __init__(self, store: Store, command: list[str], max_restarts: int, backoff: float, met: str) -> None:
        self._store = store
        self._command = command
        self._max_restarts = max_restarts
        self._backoff = backoff
        self._met = met
        self._run_id: str | None = None
        self._only_met = False
        self._token = clock.new_token()
        self._stopped: int | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._wake = threading.Event()

    def run(self) -> int:
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return self._loop()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stopped = number
        self._wake.set()
        # Ctrl-C reaches the child by itself; a SIGTERM to this process alone does not.
        if number == signal.SIGTERM and self._child is not None:
            self._child.terminate()

    def _loop(self) -> int:
        for restart in range(self._max_restarts + 1):
            if restart:
                wait = min(_LONGEST, self._backoff * 2 ** (restart - 1))
                screen.note(f"restart {restart} of at most {self._max_restarts} in {wait:g} s")
                self._wake.wait(wait)
            if self._stopped is not None:
                break
            code = self._once()
            if not self._may_help(code):
                break
        else:
            self._give_up()
        return self._exit_code(code if restart or self._child else 0)

    def _may_help(self, code: int) -> bool:
        """Say how the command ended; whether it is to be started again."""
        from . import show_text

        detail = self._detail()
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        which = "no run of it was seen" if detail is None else f"run {detail.run.id} is {launch.status_after(detail)}"
        screen.note(f"the command ended with {how}; {which}")
        if detail is None:
            if self._stopped is None and code != 0:
                screen.note("it never reached a run, and a restart would not help it; it is not started again")
            return False
        launch.tell_questions(self._store, detail)
        if self._stopped is not None or detail.status in _ENDED:
            return False
        if detail.is_held and detail.owner_verdict == "alive":
            screen.note(f"it is executed by {show_text.owner_text(detail)}; the command is not started again")
            return False
        if self._ended_in_doubt(detail, code):
            launch.tell_doubts(self._store, detail)
            screen.note("a restart cannot decide that; it is not started again")
            return False
        return True

    def _ended_in_doubt(self, detail: RunDetail, code: int) -> bool:
        """Whether it was a step in doubt that ended the command: it was told so, and began no step after that."""
        told = [last_seq for run_id, *doubt in self._met_here() if run_id == detail.run.id for last_seq in doubt]
        is_open = any(step.status == "in_doubt" for step in detail.steps)
        # A Checkpoint stores no failure of its program; one that a signal ended may be another matter.
        if not (told and is_open and (code >= 0 or detail.status == "failed")):
            return False
        return not any(event.type == "start" for event in self._store.events(detail.run.id, max(told)))

    def _give_up(self) -> None:
        from . import resume_text

        detail = self._detail()
        assert detail is not None  # without a run nothing is restarted
        screen.note(
            f"no restart is left (--max-restarts {self._max_restarts}); look at the run with: "
            f"{resume_text.typed(self._store, detail)}; then {resume_text.next_step(self._store, detail)}"
        )

    def _exit_code(self, code: int) -> int:
        detail = self._detail()
        if detail is not None:
            # It may have wanted an earlier run's result only, and failed at something of its own.
            failed = self._only_met and detail.status == "completed" and code != 0 and self._stopped is None
            return exits.FAILED if failed else exits.of_run(detail)
        if self._stopped is not None:
            return exits.INTERRUPTED
        return exits.OK if code == 0 else exits.FAILED

    def _once(self) -> int:
        """Start the command and wait for its end, learning meanwhile which run it executes."""
        from agent_resume import run_telling

        known = None if self._only_met else self._detail()
        environment = launch.environment(self._store, None if known is None else known.run)
        environment |= {run_telling.MET: self._met, SUPERVISOR: self._token}
        if self._store.location.is_named:
            environment[DB] = self._store.location.target  # an option of this very command
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._met)  # what an earlier start of the command met
        newest = self._newest()
        try:
            child = self._child = subprocess.Popen(self._command, env=environment)
        except OSError as error:
            raise exits.Usage(f"{error.strerror}: {self._command[0]}") from None
        while True:
            try:
                code = child.wait(0.2)
                break
            except subprocess.TimeoutExpired:
                self._learn(newest)
        self._learn(newest)
        if self._run_id is None:
            self._run_id = next((run_id for run_id, *_ in self._met_here()), None)
            self._only_met = self._run_id is not None
        return code

    def _met_here(self) -> list[list[Any]]:
        """The runs of this store that the command asked for, whatever it got; and the doubts that it met in them."""
        try:
            with open(self._met, encoding="utf-8") as file:
                met = [json.loads(line) for line in file]
        except FileNotFoundError:
            return []
        return [what for place, *what in met if place == self._store.display]

    def _learn(self, after: int) -> None:
        if (self._run_id is None or self._only_met) and self._store.exists():
            from agent_resume import store_admin

            begun = self._store.ask(store_admin.run_begun_under, self._token, after)
            if begun is not None:
                self._run_id, self._only_met = begun, False

    def _newest(self) -> int:
        from agent_resume import store_admin

        return self._store.ask(store_admin.newest_event) if self._store.exists() else 0

    def _detail(self) -> RunDetail | None:
        from agent_resume import store_admin_detail

        if self._run_id is None:
            return None
        return store_admin_detail.detail(self._store, self._store.find_run(self._run_id))
