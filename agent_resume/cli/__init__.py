"""The command line: parse, open the store, one call, render, exit code. No logic lives here.

Nothing slow is imported before a command runs: ``--help`` and ``--version`` load neither SQLAlchemy nor rich.
"""

from __future__ import annotations

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
    from . import app

    app.main()
