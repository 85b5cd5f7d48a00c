"""Starting a run's recorded command again, so that the same run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

from agent_resume import errors
from agent_resume.database_location import DB, SUPERVISOR, resolve
from agent_resume.names import to_system

from . import exits, screen

if TYPE_CHECKING:
    from agent_resume.models import RunRow
    from agent_resume.store import Store
    from agent_resume.store_admin_command import RecordedCommand
    from agent_resume.store_admin_detail import RunDetail

#: How long an answer waits for the process that asked to end, in s.
PATIENCE = 10.0


def usable_command(row: RunRow) -> RecordedCommand:
    """The run's command.

    Raises:
        Usage: there is none that could be started; says why.
    """
    from agent_resume import store_admin_command

    command = store_admin_command.command_of(row)
    if isinstance(command, str):
        raise exits.Usage(f"run {row.id!r} cannot be resumed by --exec: {command}")
    if command.refusal is not None:
        raise exits.Usage(f"run {row.id!r} cannot be resumed by --exec: {command.refusal}")
    return command


def environment(store: Store, row: RunRow | None) -> dict[str, str]:
    """What tells the program which run to go on with (None: no certain one), and where those are that name no store.

    A store that nobody named stays the one of the program's own working folder, which it may change. What the user's
    environment says is left alone, but where it says this very store: by a path that holds in this folder only, maybe.
    """
    variables = dict(os.environ)
    if store.location.is_named and (not variables.get(DB) or _is_usual(store)):
        variables[DB] = store.location.target
    if row is None:
        return variables
    return {
        **variables,
        "AGENT_RESUME_RUN_ID": to_system(row.id),
        "AGENT_RESUME_RUN_NAME": to_system(row.name),
        "AGENT_RESUME_RUN_DB": store.location.target,
    }


def _is_usual(store: Store) -> bool:
    try:
        return resolve() == store.location
    except (ValueError, errors.StoreUnavailable):  # the variable is no place
        return False


def execute(store: Store, row: RunRow, *, aside: bool = False) -> int:
    """Run the recorded command to its end; the run's exit code after it.

    Args:
        aside: what it prints goes to stderr, since stdout is to hold a document of ours alone.

    Raises:
        Usage: no command that could be started.
        RunInUse: somebody else executes the run, or is just starting it.
    """
    from agent_resume import clock, store_admin
    from agent_resume.store_sql import Place

    command = usable_command(row)
    claim = store_admin.ExecClaim(store.owner.seed, store.owner.judge)
    claimed = store.direct(store_admin.claim_exec, Place(row.seq, row.id), claim)
    newest = store.ask(store_admin.newest_event)
    screen.note(f"resuming {row.id}: {command.text}")
    if os.environ.get(DB) and not _is_usual(store):
        screen.note(f"{DB} names another store: what the program begins there, and not {row.id}, is new to it")
    argv, folder = list(map(to_system, command.argv)), to_system(command.cwd)
    # Under an ``agent-resume run`` it stays the one that looks for its run by this.
    token = os.environ.get(SUPERVISOR) or clock.new_token()
    variables = environment(store, row) | {SUPERVISOR: token}
    # By its number: under a test or in a daemon sys.stderr need be no file.
    child = subprocess.Popen(argv, cwd=folder, env=variables, stdout=2 if aside else None)
    code = wait(child)
    begun = store.ask(store_admin.run_begun_under, token, newest)
    return after(store, claimed, code, begun)


def wait(child: subprocess.Popen[bytes]) -> int:
    """Wait for a child; Ctrl-C reaches it too, and its end is awaited, so that it can settle its run."""
    if threading.current_thread() is not threading.main_thread():
        return child.wait()  # handlers belong to the main thread
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        return child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def after(store: Store, row: RunRow, code: int, begun: str | None) -> int:
    """Say how the command and the run ended; the run's exit code.

    Args:
        row: the run as it was just before the command began.
        begun: the run that the command began or resumed first; None for none.
    """
    from agent_resume import store_admin_detail

    detail = store_admin_detail.detail(store, row)
    how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    screen.note(f"the command ended with {how}; run {row.id} is {status_after(detail)}")
    if begun != row.id and detail.run.last_seq == row.last_seq:
        # A Checkpoint that found every step done before it died has stored nothing either.
        untouched = f"the command stored nothing in run {row.id}: it never came to it, or to nothing new in it"
        instead = f"the command did not go on with run {row.id}: it worked on run {begun}"
        screen.note(untouched if begun is None else instead)
    tell_questions(store, detail)
    if detail.status in ("failed", "interrupted", "idle"):
        tell_doubts(store, detail)
    return exits.of_run(detail)


def tell_questions(store: Store, detail: RunDetail) -> None:
    """Say what a paused run asks, and how it is answered."""
    from . import resume_text, show_text

    if detail.status == "paused":
        for text in (*show_text.questions(store, detail.open_pauses), *resume_text.answering(store, detail)):
            screen.note(text)


def tell_doubts(store: Store, detail: RunDetail) -> None:
    """Say which steps are in doubt, and how that is decided."""
    from . import resume_text

    texts = resume_text.deciding(store, detail)
    for text in [*texts, f"then {resume_text.next_step(store, detail)}"] if texts else ():
        screen.note(text)


def status_after(detail: RunDetail) -> str:
    """The status of a run whose command has ended, in words: a Checkpoint's process may have died between two steps."""
    return "not ended, and no process is seen in it" if detail.is_unseen else detail.status


def wait_for_the_asker(store: Store, row: RunRow) -> None:
    """A paused run's process may still be on its way out; give it ``PATIENCE`` to end."""
    from agent_resume import clock, store_admin

    deadline = clock.monotonic() + PATIENCE
    while clock.monotonic() < deadline:
        if store.ask(store_admin.live_owner, store.owner.judge, row) is None:
            return
        clock.sleep(0.1)
