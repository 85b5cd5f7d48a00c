"""Holds modules and functions to the caps in pyproject.toml."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Function = ast.FunctionDef | ast.AsyncFunctionDef


def body_lines(function: Function) -> int:
    """Lines from ``def`` to the end, without the docstring."""
    total = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function, clean=False) is not None:
        total -= function.body[0].end_lineno - function.body[0].lineno + 1
    return total


def too_large(caps: dict[str, int]) -> list[str]:
    """One line for each module and function above its cap."""
    found = []
    for path in sorted(
        p for folder in ("agent_resume", "migrations", "scripts") for p in (ROOT / folder).rglob("*.py")
    ):
        place, text = path.relative_to(ROOT), path.read_text(encoding="utf-8")
        if (lines := text.count("\n")) > caps["module_lines"]:
            found.append(f"{place}: {lines} lines, at most {caps['module_lines']}")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, Function) and (lines := body_lines(node)) > caps["function_lines"]:
                found.append(f"{place}:{node.lineno}: {node.name} has {lines} lines, at most {caps['function_lines']}")
    return found


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    sys.exit("\n".join(too_large(project["tool"]["agent-resume"]["caps"])) or None)
