"""The command that started this program, recorded with a new run so that ``resume --exec`` can start it again."""

from __future__ import annotations

import json
import os
import sys

from .redact import Redactor


def recorded_command(redactor: Redactor) -> str | None:
    """``{"argv", "cwd"}`` as JSON, with ``masked`` (positions) where a secret was taken out.

    None where there is nothing to start again: an interactive session, a notebook, ``-c``, standard input.
    """
    original = getattr(sys, "orig_argv", None)
    if not original or not sys.executable or hasattr(sys, "ps1") or not _has_script(list(original)):
        return None
    argv, masked = redactor.argv([sys.executable, *original[1:]])
    try:
        command: dict[str, object] = {"argv": argv, "cwd": os.getcwd()}
    except OSError:
        return None  # the working folder was deleted
    if masked:
        command["masked"] = masked
    return json.dumps(command)


def _has_script(argv: list[str]) -> bool:
    if any("ipykernel" in argument or "colab_kernel" in argument for argument in argv[:4]):
        return False
    rest = iter(argv[1:])
    for argument in rest:
        if argument in ("-W", "-X", "--check-hash-based-pycs"):
            next(rest, None)
        elif argument == "-m":
            return next(rest, None) is not None
        elif argument == "-" or (argument.startswith("-") and not argument.startswith("--") and "c" in argument):
            return False
        elif not argument.startswith("-"):
            return True
    return False
