"""Every statement of the package, compiled for SQLite."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import agent_resume
from agent_resume.database_sql import Dialect, named_statements

TARGET = Path(__file__).resolve().parent.parent / "agent_resume" / "database_texts.py"
_HEAD = '''"""The text of each of our statements for SQLite; made by ``scripts/make-statements``, not by hand."""

'''


def compiled() -> dict[str, str]:
    """The texts, by the names that ``Statement`` looks for."""
    names = [f"agent_resume.{module.name}" for module in pkgutil.iter_modules(agent_resume.__path__)]
    modules = [importlib.import_module(name) for name in sorted(names) if not name.endswith("__main__")]
    sqlite = Dialect("sqlite")
    return {name: one.compiled(sqlite) for module in modules for name, one in named_statements(module)}


if __name__ == "__main__":
    TARGET.write_text(f"{_HEAD}TEXTS: dict[str, str] = {compiled()!r}\n", encoding="utf-8")
