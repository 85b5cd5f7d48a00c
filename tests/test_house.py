"""The house: sizes, floors, lazy imports, exported names, what is in the wheel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import agent_resume

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("alembic", "pydantic", "rich", "sqlalchemy", "tabulate", "typer")


def _loaded(run_python: Callable[..., subprocess.CompletedProcess[str]], statement: str) -> set[str]:
    done = run_python(
        f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})", fresh=True
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy(run_python):
    assert not _loaded(run_python, "import agent_resume").intersection(HEAVY)


def test_importing_everything_public_loads_no_command_line_and_no_alembic(run_python):
    heavy = _loaded(run_python, "from agent_resume import *")
    assert not heavy.intersection({"alembic", "rich", "tabulate", "typer"})


def test_opening_a_current_store_never_imports_alembic(run_python, db):
    agent = f"from agent_resume import Checkpoint\nwith Checkpoint('r', db={db!r}) as run: run.step('s', int)"
    assert "alembic" in _loaded(run_python, agent)
    assert "alembic" not in _loaded(run_python, agent)


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_of_the_command_line_load_no_sqlalchemy(run_python, argument):
    loaded = _loaded(
        run_python,
        "import sys, contextlib, io\n"
        f"sys.argv = ['agent-resume', {argument!r}]\n"
        "from agent_resume.cli import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main()",
    )
    assert not loaded.intersection({"alembic", "pydantic", "sqlalchemy"})


def test_public_names_are_sorted_and_every_one_resolves():
    names = agent_resume.__all__
    assert list(names) == sorted(names, key=str)
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(agent_resume, name) is not None
        assert name in dir(agent_resume)


def test_there_are_no_public_names_besides_the_listed_ones():
    for name in agent_resume.__all__:
        getattr(agent_resume, name)
    ours = {
        name
        for name, value in vars(agent_resume).items()
        if not name.startswith("_") and (getattr(value, "__module__", None) or "").startswith("agent_resume")
    }
    assert ours <= set(agent_resume.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        agent_resume.nonsense


def test_every_public_name_has_a_docstring():
    undocumented = [
        name
        for name in agent_resume.__all__
        if callable(value := getattr(agent_resume, name)) and not (value.__doc__ or "").strip()
    ]
    assert not undocumented


def _script(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, ROOT / "scripts" / name], capture_output=True, text=True, check=False)


def test_modules_and_functions_keep_to_their_caps():
    done = _script("check_sizes.py")
    assert done.returncode == 0, done.stderr


def test_each_module_imports_only_from_its_own_floor_and_below():
    command = [str(Path(sysconfig.get_path("scripts")) / "lint-imports"), "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_nothing_in_the_tree_is_left_undone_or_tied_to_a_machine():
    # Spelled so that this file does not find itself.
    undone = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b|NotImplemented" r"Error\b|/(ho" r"me|ro" r"ot|wo" r"rk)/\w")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder in ("agent_resume", "migrations", "scripts", "tests", ".ci")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix in {"", ".py", ".md", ".mako", ".c"}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if undone.search(line)
    ]
    assert not found


def test_the_top_level_is_as_agreed():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(ROOT.parent)},
    )
    top = {line.split("/")[0] for line in listed.stdout.splitlines()}
    agreed = {"README.md", "agent_resume", "alembic.ini", "migrations", "pyproject.toml", "scripts", "tests"}
    # A copy without its .git says nothing, and then there is nothing to hold.
    assert {name for name in top if not name.startswith(".")} <= agreed


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def test_the_wheel_brings_the_migrations_and_the_type_marker(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for needed in ("_migrations/env.py", "_migrations/script.py.mako", "py.typed", "cli/__init__.py"):
        assert f"agent_resume/{needed}" in names
    assert any(re.fullmatch(r"agent_resume/_migrations/versions/0001\w*\.py", name) for name in names)
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"agent_resume"}


def test_the_wheel_has_every_module_of_the_package_and_no_litter(built):
    (wheel,) = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py") and "_migrations" not in name}
    here = {path.relative_to(ROOT).as_posix() for path in (ROOT / "agent_resume").rglob("*.py")}
    assert names == here
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if "__pycache__" in name]
