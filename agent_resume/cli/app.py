"""The Typer application: every command, in the order of ``--help``."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from . import (
    connect,
    doctor,
    listing,
    manage,
    prune,
    resume,
    screen,
    session,
    show,
    sql,
    supervise,
    transfer,
    watch,
)
from .options import Debug

_EPILOG = (
    "Exit codes: 0 fine, or run completed; 1 failed; 2 usage; 3 no such run; 4 owned by a live process; 5 run paused; "
    "6 store cannot be used; 7 run cancelled; 8 ambiguous run id; 130 run interrupted."
)

app = typer.Typer(
    name="agent-resume",
    help="Look at the runs of agents, answer them, and resume them.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        from agent_resume import __version__

        screen.line(f"agent-resume {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Look at the runs of agents, answer them, and resume them."""


_COMMANDS: tuple[tuple[str, Callable[..., int | None], str], ...] = (
    ("list", listing.list_command, "agent-resume list --status interrupted --since 2d"),
    ("show", show.show_command, "agent-resume show research@latest"),
    ("resume", resume.resume_command, "agent-resume resume research@latest --exec"),
    ("run", supervise.run_command, "agent-resume run --max-restarts 3 -- python agent.py"),
    ("watch", watch.watch_command, "agent-resume watch research@latest"),
    ("events", watch.events_command, "agent-resume events research@latest --type error --follow"),
    ("export", transfer.export_command, "agent-resume export --all --out runs.json"),
    ("import", transfer.import_command, "agent-resume import runs.json --on-conflict rename"),
    ("copy", transfer.copy_command, "agent-resume copy --to backup.db"),
    ("cancel", manage.cancel_command, "agent-resume cancel research@latest"),
    ("rename", manage.rename_command, "agent-resume rename research@latest research-v2"),
    ("tag", manage.tag_command, "agent-resume tag research@latest reviewed env=prod --remove draft"),
    ("fork", manage.fork_command, "agent-resume fork research@latest --from write --set 'plan={\"depth\": 2}'"),
    ("rerun", manage.rerun_command, "agent-resume rerun research@latest write --downstream"),
    ("prune", prune.prune_command, "agent-resume prune --older-than 30d --keep-last 3 --dry-run"),
    ("doctor", doctor.doctor_command, "agent-resume doctor --full"),
    (
        "sql",
        sql.sql_command,
        'agent-resume sql "SELECT key, duration_ms FROM step_timeline WHERE run_id = :run" -p run=whales-1',
    ),
    ("connect", connect.connect_command, "agent-resume connect --json"),
)


def _register(name: str, command: Callable[..., int | None], example: str) -> None:
    """Give a command ``--debug``, its example, and the handling of its errors."""
    signature = inspect.signature(command, eval_str=True)
    debug_option = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)

    @functools.wraps(command)
    def called(*, debug: bool = False, **given: Any) -> None:
        code = session.call(lambda: command(**given), debug)
        if code:
            raise typer.Exit(code)

    parameters = [*signature.parameters.values(), debug_option]
    called.__signature__ = signature.replace(  # type: ignore[attr-defined]  # what Typer reads
        parameters=[p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters], return_annotation=None
    )
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    app.command(name, epilog=f"Example: {example}")(called)


for _entry in _COMMANDS:
    _register(*_entry)


def main() -> NoReturn:
    """Parse, run, exit."""
    screen.prepare()
    try:
        app(prog_name="agent-resume")
    finally:
        # Here, where a closed pipe can still be handled; at the interpreter's end it cannot.
        sys.stdout.flush()
    sys.exit(0)
