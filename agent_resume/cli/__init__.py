"""The command line: parse, open the store, one call, render, exit code. No logic lives here.

Nothing slow is imported before a command runs: ``--help`` and ``--version`` load neither SQLAlchemy nor rich.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import NoReturn


def main() -> NoReturn:
    """The console script ``agent-resume``."""
    from . import screen

    screen.prepare()
    try:
        _main()
    except OSError as error:  # a full disk under what is printed before a command runs: --help, --version
        from . import session

        screen.forget()
        sys.exit(session.told(error))


def _main() -> NoReturn:
    if sys.argv[1:] == ["--version"]:
        # Typer takes far longer to load than this to be said.
        from agent_resume import __version__

        from . import screen

        screen.line(f"agent-resume {__version__}")
        screen.flush()
        sys.exit(0)
    known = _known_help(sys.argv[1:]) if "_AGENT_RESUME_COMPLETE" not in os.environ else _known_commands()
    if known is not None:
        from . import screen

        screen.line(known)
        screen.flush()
        sys.exit(0)
    from . import app

    app.main()


# What Typer would say, made beforehand: it takes longer to load than a hand on the Tab key waits for.


def _known_help(words: list[str]) -> str | None:
    """What ``--help`` says on terminals of the usual widths; the others are wrapped by Typer."""
    if not 0 < len(words) < 3 or words[-1] not in ("--help", "-h"):
        return None
    from .help_texts import TEXTS

    command = words[0] if len(words) > 1 else ""
    text = TEXTS.get((command, min(shutil.get_terminal_size().columns, 100)))
    return None if text is None else text.removesuffix("\n")


def _known_commands() -> str | None:
    """What bash completes the first word to."""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    asked = os.environ["_AGENT_RESUME_COMPLETE"] == "complete_bash" and os.environ.get("COMP_CWORD") == "1"
    if not asked or len(words) != 2 or not (words[1] == "" or words[1].isalpha()):
        return None
    from .help_texts import TEXTS

    names = [name for name, _ in TEXTS if name and name.startswith(words[1])]
    return "\n".join(dict.fromkeys(names)) or None
