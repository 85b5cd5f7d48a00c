"""The command line reference in README.md: every command's ``--help``, between two markers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- made by scripts/readme-cli -->", "<!-- end of scripts/readme-cli -->"


def help_of(*command: str) -> str:
    """What the command says about itself, as on a plain terminal of 100 columns."""
    code = "import sys; sys.argv[0] = 'agent-resume'; from agent_resume.cli import main; main()"
    plain = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1", "TERM": "dumb", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-c", code, *command, "--help"],
        env={**os.environ, **plain},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"agent-resume {' '.join(command)} --help failed:\n{done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


def commands() -> list[str]:
    """The commands, in the order of ``agent-resume --help``."""
    _, _, listed = help_of().partition("Commands:\n")
    return re.findall(r"^  ([a-z][a-z-]*)(?:  |$)", listed, re.MULTILINE)


def reference() -> str:
    """The whole reference as Markdown."""
    parts = [f"```text\n{help_of()}\n```"]
    parts += [f"#### agent-resume {name}\n\n```text\n{help_of(name)}\n```" for name in commands()]
    return "\n\n".join(parts)


def with_reference(readme: str) -> str:
    """The README's text with the reference put between its markers."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"README.md lacks the markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}"


if __name__ == "__main__":
    old = README.read_text(encoding="utf-8")
    new = with_reference(old)
    if "--check" not in sys.argv:
        README.write_text(new, encoding="utf-8")
    elif new != old:
        sys.exit("README.md's command line reference is not what the commands say; run scripts/readme-cli")
