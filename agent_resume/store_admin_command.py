"""The command that a run was started with, read back: what it is, and whether it can be started again."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import dataclass

from .models import RunRow
from .names import to_system


@dataclass(frozen=True, slots=True)
class RecordedCommand:
    """The command of a run.

    Attributes:
        argv: its arguments, the program first.
        cwd: the folder it was started in.
        masked: positions where a secret was taken out.
        refusal: why it cannot be started again; None when it can.
    """

    argv: tuple[str, ...]
    cwd: str
    masked: tuple[int, ...]
    refusal: str | None

    @property
    def text(self) -> str:
        """As it is typed into a shell, from any folder."""
        return f"cd {shlex.quote(self.cwd)} && {shlex.join(self.argv)}"


_NONE = "no command was recorded (an interactive session, a notebook or -c); start the program again by hand"


def command_of(row: RunRow) -> RecordedCommand | str:
    """A run's command, or why there is none."""
    if row.command is None:
        return _NONE
    try:
        stored = json.loads(row.command)
        argv, cwd = tuple(map(str, stored["argv"])), str(stored["cwd"])
        masked = tuple(int(place) for place in stored.get("masked", ()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return "the recorded command cannot be read; start the program again by hand"
    if not argv:
        return _NONE
    return RecordedCommand(argv, cwd, masked, _refusal(tuple(map(to_system, argv)), to_system(cwd), masked))


def _refusal(argv: tuple[str, ...], cwd: str, masked: tuple[int, ...]) -> str | None:
    if masked:
        places = ", ".join(f"{place} ({argv[place]})" for place in masked if place < len(argv))
        return f"a secret was taken out of argument {places}; type the command with it, by hand"
    if not os.path.isdir(cwd):
        return f"its folder {cwd} does not exist here; start the program again by hand"
    if shutil.which(argv[0], path=None if os.sep not in argv[0] else "") is None and not os.path.exists(argv[0]):
        return f"{argv[0]} does not exist here; start the program again by hand"
    return None
