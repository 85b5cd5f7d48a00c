"""The Typer application: every command, in the order of ``--help``."""

from __future__ import annotations

import functools
import inspect
import sys
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

from . import completion, parameters, screen, session
from .options import Debug

_EPILOG = (
    "Exit codes: 0 fine, or run completed; 1 failed; 2 usage; 3 no such run; 4 owned by a live process; 5 run paused; "
    "6 store cannot be used; 7 run cancelled; 8 ambiguous run id; 130 run interrupted."
)


def _version(ctx: typer.Context, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:  # else the line is only being completed
        from agent_resume import __version__

        screen.line(f"agent-resume {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Look at the runs of agents, answer them, and resume them."""


# Name, module of its function, example.
_COMMANDS = (
    ("list", "listing", "agent-resume list --status interrupted --since 2d"),
    ("show", "show", "agent-resume show research@latest"),
    ("resume", "resume", "agent-resume resume research@latest --exec"),
    ("run", "supervise", "agent-resume run --max-restarts 3 -- python agent.py"),
    ("watch", "watch", "agent-resume watch research@latest"),
    ("events", "watch", "agent-resume events research@latest --type error --follow"),
    ("export", "transfer", "agent-resume export --all --out runs.json"),
    ("import", "transfer", "agent-resume import runs.json --on-conflict rename"),
    ("copy", "transfer", "agent-resume copy --to backup.db"),
    ("cancel", "manage", "agent-resume cancel research@latest"),
    ("rename", "manage", "agent-resume rename research@latest research-v2"),
    ("tag", "manage", "agent-resume tag research@latest reviewed env=prod --remove draft"),
    ("fork", "manage", "agent-resume fork research@latest --from write --set 'plan={\"depth\": 2}'"),
    ("rerun", "manage", "agent-resume rerun research@latest write --downstream"),
    ("prune", "prune", "agent-resume prune --older-than 30d --keep-last 3 --dry-run"),
    ("doctor", "doctor", "agent-resume doctor --full"),
    (
        "sql",
        "sql",
        'agent-resume sql "SELECT key, duration_ms FROM step_timeline WHERE run_id = :run" -p run=whales-1',
    ),
    ("connect", "connect", "agent-resume connect --json"),
)


def _register(app: typer.Typer, name: str, module: str, example: str) -> None:
    """Give a command ``--debug``, its example, and the handling of its errors."""
    command = getattr(import_module(f".{module}", __package__), f"{name}_command")
    signature = inspect.signature(command, eval_str=True)
    debug_option = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)

    @functools.wraps(command)
    def called(*, debug: bool = False, **given: Any) -> None:
        code = session.call(lambda: command(**given), debug)
        if code:
            raise typer.Exit(code)

    shown = [*signature.parameters.values(), debug_option]
    called.__signature__ = signature.replace(  # type: ignore[attr-defined]  # what Typer reads
        parameters=[p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in shown], return_annotation=None
    )
    called.__annotations__ = {p.name: p.annotation for p in shown}
    light = parameters.command_class(called.__annotations__)
    app.command(name, cls=light, epilog=f"Example: {example}")(called)


def build(only: str | None = None) -> typer.Typer:
    """The application with every command, or with no more than is called; to describe one takes time.

    Args:
        only: the first word of the command line.
    """
    app = typer.Typer(
        name="agent-resume",
        cls=parameters.Group,
        help="Look at the runs of agents, answer them, and resume them.",
        epilog=_EPILOG,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_options)
    known = only == "--version" or any(name == only for name, _, _ in _COMMANDS)
    for name, module, example in _COMMANDS:
        if name == only or not known:
            _register(app, name, module, example)
    return app


def main() -> NoReturn:
    """Parse, run, exit."""
    completion.script()
    bash = completion.prepare()
    app = build(next(iter(sys.argv[1:]), None) or completion.command())
    if bash:
        completion.answer(lambda: app(prog_name="agent-resume"))
    try:
        app(prog_name="agent-resume")
    finally:
        # Here, where a closed pipe can still be handled; at the interpreter's end it cannot.
        sys.stdout.flush()
    sys.exit(0)
