"""What every command says with ``--help``: in README.md, between two markers, and in ``agent_resume/cli/help_texts.py``."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

from agent_resume.cli import app

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
TEXTS = ROOT / "agent_resume" / "cli" / "help_texts.py"
BEGIN, END = "<!-- made by scripts/readme-cli -->", "<!-- end of scripts/readme-cli -->"
#: Terminals that most have: what is not one, or has the usual 80 columns, and what has as many as help ever takes.
WIDTHS = (80, 100)
_HEAD = '''"""What ``--help`` prints, by command and columns, so that Typer need not be loaded; made by ``scripts/readme-cli``."""

'''


@functools.cache
def application() -> Any:
    """The whole application."""
    return app.build()


def help_of(*command: str, columns: int = 100) -> str:
    """What the command says about itself on a plain terminal."""
    os.environ["COLUMNS"] = str(columns)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        application()([*command, "--help"], prog_name="agent-resume", standalone_mode=False)
    return said.getvalue()


def commands() -> list[str]:
    """The commands, in the order of ``agent-resume --help``."""
    _, _, listed = help_of().partition("Commands:\n")
    return re.findall(r"^  ([a-z][a-z-]*)(?:  |$)", listed, re.MULTILINE)


def reference() -> str:
    """The whole reference as Markdown."""
    parts = [_block(help_of())]
    parts += [f"#### agent-resume {name}\n\n{_block(help_of(name))}" for name in commands()]
    return "\n\n".join(parts)


def _block(text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
    return f"```text\n{lines}\n```"


def texts() -> dict[tuple[str, int], str]:
    """What ``--help`` is printed from."""
    names = ["", *commands()]
    return {(name, width): help_of(*filter(None, [name]), columns=width) for name in names for width in WIDTHS}


def with_reference(readme: str) -> str:
    """The README's text with the reference put between its markers."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"README.md lacks the markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}"


def main() -> None:
    """Write both, or only compare."""
    old = README.read_text(encoding="utf-8")
    new, said = with_reference(old), texts()
    if "--check" not in sys.argv:
        README.write_text(new, encoding="utf-8")
        TEXTS.write_text(f"{_HEAD}TEXTS: dict[tuple[str, int], str] = {said!r}\n", encoding="utf-8")
    elif new != old:
        sys.exit("README.md's command line reference is not what the commands say; run scripts/readme-cli")
    elif said != importlib.import_module("agent_resume.cli.help_texts").TEXTS:
        sys.exit("agent_resume/cli/help_texts.py is not what the commands say; run scripts/readme-cli")


if __name__ == "__main__":
    main()
