"""The README is executed: what it shows is what happens."""

from __future__ import annotations

import ast
import doctest
import inspect
import os
import re
import subprocess
import sys
import sysconfig
from collections import defaultdict
from pathlib import Path

import pytest

import agent_resume

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _sections() -> dict[str, list[tuple[str, str]]]:
    """The python and console blocks by the heading they stand under; blocks of one heading share a folder."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    heading = "top"
    for match in re.finditer(r"^(#+ [^\n]*)$|^```(\w*)[^\n]*\n(.*?)^```$", README, re.MULTILINE | re.DOTALL):
        title, language, text = match.groups()
        if title:
            heading = title.lstrip("# ")
        elif language in {"python", "console"}:
            found[heading].append((language, text))
    return found


SECTIONS = _sections()


def _run_python(text: str, folder: Path) -> None:
    (folder / "agent.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "agent.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
    expected = "".join(re.findall(r"^# prints: (.*\n)", text, re.MULTILINE))
    if expected:
        assert done.stdout == expected


def _run_console(text: str, folder: Path) -> None:
    """Runs each ``$ …`` line; compares the lines below it, where ``...`` stands for anything.

    A comment ``# exit 5`` at the end of a command names the exit code it must have; without one it must be 0.
    """
    scripts = sysconfig.get_path("scripts")
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100"}
    for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
        done = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=50,
            check=False,
        )
        code = int(match[1]) if (match := re.search(r"# exit (\d+)$", command)) else 0
        assert done.returncode == code, f"$ {command}\n{done.stdout}{done.stderr}"
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        if expected and not doctest.OutputChecker().check_output(expected, done.stdout, flags):
            raise AssertionError(f"$ {command}\nREADME:\n{expected}\nnow:\n{done.stdout}{done.stderr}")


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_blocks_of_a_section_work_as_shown(heading, tmp_path):
    for language, text in SECTIONS[heading]:
        (_run_python if language == "python" else _run_console)(text, tmp_path)


def test_the_readme_has_blocks_to_run():
    languages = [language for blocks in SECTIONS.values() for language, _ in blocks]
    assert languages.count("python") >= 5
    assert languages.count("console") >= 2


@pytest.mark.timeout(120)
def test_the_command_line_reference_is_what_the_commands_say():
    command = [sys.executable, ROOT / "scripts" / "readme_cli.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_command_and_option_that_the_readme_mentions_exists(command):
    prose, _, _ = README.partition("## Command line")
    after = README.partition("## Coming from other systems")[2]
    # In code only: prose says "agent-resume wraps" as well.
    used = re.findall(r"(?:`|\$ |^    )agent-resume ([a-z]+)((?: [^`\n]*)?)", prose + after, re.MULTILINE)
    assert len(used) > 10
    for name, rest in used:
        code, text, _ = command(name, "--help")
        assert code == 0, name
        # Behind a bare -- stands somebody else's command.
        for option in re.findall(r"(?<= )--[a-z-]+", rest.partition(" -- ")[0]):
            assert re.search(rf"{option}\b", text), f"{name} {option}"


def test_every_public_name_is_in_the_readme():
    missing = [name for name in agent_resume.__all__ if not re.search(rf"\b{re.escape(name)}\b", README)]
    assert not missing


def test_every_name_of_the_readme_that_looks_imported_exists():
    names = re.findall(r"^from agent_resume import (.*)$", README, re.MULTILINE)
    for name in re.split(r",\s*", ", ".join(names)):
        assert hasattr(agent_resume, name.split(" as ")[0].strip("() "))


def test_every_test_named_in_the_readme_exists():
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("**/test_*.py"))
    named = set(re.findall(r"\b(test_\w+)(?:\.py)?\b", README))
    files = {path.stem for path in (ROOT / "tests").glob("**/test_*.py")}
    assert named
    assert not {name for name in named if name not in files and f"def {name}(" not in tests}


def _signatures() -> list[tuple[str, str]]:
    """The calls in the first column of the API tables, with their parameters."""
    part = README[README.index("\n## API") : README.index("\n## Command line")]
    cells = "".join(re.findall(r"^\| (`.*?) \| ", part, re.MULTILINE))
    return re.findall(r"`((?:run\.)?\w+)\(([^`]*)\)`", cells)


@pytest.mark.parametrize(("name", "written"), _signatures(), ids=lambda text: text if "(" not in text else None)
def test_a_call_is_written_with_the_parameters_that_it_has(name, written):
    owner, name = (agent_resume.Run, name[4:]) if name.startswith("run.") else (agent_resume, name)
    real = inspect.signature(getattr(owner, name)).parameters
    shown = ast.parse(f"def f({written.replace('=…', '=...')}): pass").body[0].args
    names = [argument.arg for argument in (*shown.posonlyargs, *shown.args, *shown.kwonlyargs)]
    assert names == [
        parameter
        for parameter, about in real.items()
        if parameter != "self" and about.kind not in (about.VAR_POSITIONAL, about.VAR_KEYWORD)
    ]
    assert [each.arg for each in shown.kwonlyargs] == [
        parameter for parameter, about in real.items() if about.kind is about.KEYWORD_ONLY
    ] or name == "Retry"
    for argument, default in zip(shown.kwonlyargs, shown.kw_defaults, strict=True):
        if default is not None and not (isinstance(default, ast.Constant) and default.value is ...):
            assert eval(ast.unparse(default)) == real[argument.arg].default
