"""A survey of Python's own standard library: one step a package, then a report in report.md.

Everything the agent knows about resuming is in ``survey()`` below. The rest is the work: it reads some hundred thousand
lines of source. What it really did, it notes in ledger.txt, so that a reader can check.
"""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from agent_resume import Run, StepEvent, agent_run

LIBRARY = Path(sysconfig.get_path("stdlib"))
SKIPPED = {"__pycache__", "__phello__", "dist-packages", "idlelib", "lib-dynload", "site-packages", "test", "tests"}
LETTERS = ("a-b", "c", "d-f", "g-i", "j-o", "p", "q-s", "t-z")
Function = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHES = (ast.If, ast.For, ast.While, ast.IfExp, ast.ExceptHandler, ast.BoolOp, ast.comprehension, ast.match_case)


def survey(run: Run) -> str:
    shelves = run.step("list-packages", list_packages)
    facts = [run.step(f"survey:{shelf}", survey_shelf, shelf) for shelf in shelves]
    totals = run.step("aggregate", aggregate, facts)
    return run.step("write-report", write_report, facts, totals)


def list_packages() -> list[str]:
    """Names of the shelves: the packages, and the single modules by their first letter."""
    note("called", "list-packages")
    return shelves_of_the_library()


def survey_shelf(shelf: str) -> dict[str, Any]:
    """What is on one shelf: sizes, docstrings, the longest and the most branched function, imports."""
    note("called", f"survey:{shelf}")
    facts: Counter[str] = Counter()
    imports: Counter[str] = Counter()
    functions: list[tuple[int, int, str]] = []
    for path in files_of(shelf):
        try:
            source = path.read_bytes()
            tree = parse(source)
        except (SyntaxError, ValueError):
            facts["unreadable"] += 1
            continue
        facts["modules"] += 1
        facts["lines"] += source.count(b"\n")
        facts["comments"] += sum(line.lstrip().startswith(b"#") for line in source.splitlines())
        imports.update(imported_by(tree))
        for node in ast.walk(tree):
            facts["classes"] += isinstance(node, ast.ClassDef)
            if isinstance(node, Function):
                facts["functions"] += 1
                public = not node.name.startswith("_")
                facts["public"] += public
                facts["documented"] += public and ast.get_docstring(node, clean=False) is not None
                place = f"{path.relative_to(LIBRARY).as_posix()}: {node.name}"
                functions.append((node.end_lineno - node.lineno + 1, branches_in(node), place))
    longest = max(functions, default=(0, 0, ""))
    tangled = max(functions, key=lambda each: (each[1], each[2]), default=(0, 0, ""))
    return {
        "shelf": shelf,
        **facts,
        "longest": {"lines": longest[0], "where": longest[2]},
        "tangled": {"branches": tangled[1], "where": tangled[2]},
        "imports": dict(imports.most_common(40)),
    }


def aggregate(facts: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums and records over all shelves."""
    note("called", "aggregate")
    names = ("modules", "lines", "comments", "classes", "functions", "public", "documented")
    imports: Counter[str] = Counter()
    for each in facts:
        imports.update(each["imports"])
    return {
        **{name: sum(each.get(name, 0) for each in facts) for name in names},
        "longest": max((each["longest"] for each in facts), key=lambda record: record["lines"]),
        "tangled": max((each["tangled"] for each in facts), key=lambda record: record["branches"]),
        "imports": imports.most_common(6),
    }


def write_report(facts: list[dict[str, Any]], totals: dict[str, Any]) -> str:
    """Writes report.md and returns its path."""
    note("called", "write-report")
    longest, tangled = totals["longest"], totals["tangled"]
    lines = [
        "# Python's standard library, surveyed",
        "",
        f"- {totals['modules']:,} modules, {totals['lines']:,} lines, {totals['comments']:,} of them comments",
        f"- {totals['classes']:,} classes, {totals['functions']:,} functions",
        f"- {percent(totals)} of the public functions have a docstring",
        f"- longest function: {longest['where']}, {longest['lines']} lines",
        f"- most branches: {tangled['where']}, {tangled['branches']}",
        "- imported by most modules: " + ", ".join(f"{name} ({count})" for name, count in totals["imports"]),
        "",
        "| Package | Modules | Lines | Functions | Documented |",
        "|---|---:|---:|---:|---:|",
    ]
    for each in sorted(facts, key=lambda each: each.get("lines", 0), reverse=True):
        counts = [f"{each.get(name, 0):,}" for name in ("modules", "lines", "functions")]
        lines.append(f"| {each['shelf']} | {' | '.join(counts)} | {percent(each)} |")
    Path("report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return "report.md"


def shelves_of_the_library() -> list[str]:
    packages = [path.parent.name for path in LIBRARY.glob("*/__init__.py") if path.parent.name not in SKIPPED]
    return sorted(packages) + [f"modules-{letters}" for letters in LETTERS]


def files_of(shelf: str) -> list[Path]:
    """The source files of one shelf, in a fixed order, without tests."""
    if shelf.startswith("modules-"):
        pattern = f"[{shelf.removeprefix('modules-')}]*.py"
        return sorted(path for path in LIBRARY.glob("*.py") if fnmatchcase(path.name.lstrip("_").lower(), pattern))
    files = (LIBRARY / shelf).rglob("*.py")
    return sorted(path for path in files if SKIPPED.isdisjoint(path.relative_to(LIBRARY).parts))


def parse(source: bytes) -> ast.Module:
    """The syntax tree; old sources hold escapes that newer Pythons warn about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def imported_by(tree: ast.Module) -> set[str]:
    """Top-level names of the modules that one module imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def branches_in(function: Function) -> int:
    """How many ways the code of a function can turn."""
    return sum(isinstance(node, BRANCHES) for node in ast.walk(function))


def percent(facts: dict[str, Any]) -> str:
    """How many of the public functions are documented."""
    return f"{100 * facts.get('documented', 0) / max(facts.get('public', 0), 1):.0f} %"


def note(what: str, step: str) -> None:
    """Appends one line to the ledger; the demo reads it to see what really happened."""
    with Path("ledger.txt").open("a", encoding="utf-8") as ledger:
        ledger.write(f"{what} {step}\n")


def on_step(event: StepEvent) -> None:
    """Notes steps that were stored ("done") and steps whose stored result was used ("skip")."""
    if event.kind in {"done", "skip"}:
        note(event.kind, event.key)


if __name__ == "__main__":
    agent_run("stdlib-survey", survey, on_step=on_step)
