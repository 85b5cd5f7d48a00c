"""The command line: parse, open the store, one call, render, exit code. No logic lives here.

Nothing slow is imported before a command runs: ``--help`` and ``--version`` load neither SQLAlchemy nor rich.
"""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """The console script ``agent-resume``."""
    from . import app

    app.main()
