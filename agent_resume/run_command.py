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
    if not original or not sys.executable or hasattr(sys, "ps1"):
        return None
    program = _program(list(original))
    if program is None:
        return None
    argv, masked = redactor.argv([sys.executable, *original[1:]])
    try:
        command: dict[str, object] = {"argv": argv, "cwd": _folder(*program)}
    except OSError:
        return None  # the working folder was deleted
    if masked:
        command["masked"] = masked
    return json.dumps(command)


def _program(argv: list[str]) -> tuple[str, bool] | None:
    """What Python was told to run, and whether it is a module; its options are read as Python reads them."""
    if any("ipykernel" in argument or "colab_kernel" in argument for argument in argv[:4]):
        return None
    rest = iter(argv[1:])
    for argument in rest:
        if argument == "--check-hash-based-pycs":
            next(rest, None)
        elif argument == "-":
            return None
        elif not argument.startswith("-"):
            return argument, False
        elif not argument.startswith("--"):
            # Letters stand together up to one with a value, which is the rest of the word or the next word.
            letter, value = next(((c, argument[at:]) for at, c in enumerate(argument[1:], 2) if c in "cmWX"), ("", ""))
            if letter == "c":
                return None
            if letter and not value:
                value = next(rest, "")
            if letter == "m":
                return (value, True) if value else None
    return None


def _folder(program: str, is_module: bool) -> str:
    """The folder that the program was started in; it may have changed its working folder since."""
    here = os.getcwd()
    # Python makes a script's path absolute when it starts, and puts the folder of -m first on its path.
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(main, str) or not os.path.isabs(main):
        return here
    if is_module:
        first = sys.path[0] if sys.path else ""
        return first if os.path.isabs(first) and main.startswith(first.rstrip(os.sep) + os.sep) else here
    if not os.path.isabs(program) and main.endswith(os.sep + program):
        return main[: -len(program) - 1] or os.sep
    return here
