"""Children that start warm: a process that has imported everything forks them, in 20 ms rather than 500.

They are what ``python -c`` or ``python file`` would be, with a process number, signals and an exit of their own. What the
interpreter reads only once, at its start, they cannot have: ``can_be_warm`` tells.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Settings of the interpreter that a child can take on after its start.
_LATE = ("PYTHONUNBUFFERED", "PYTHONWARNINGS")
#: Settings that need a nursery of their own.
_EARLY = ("PYTHONIOENCODING", "PYTHONUTF8", "PYTHONCOERCECLOCALE", "LC_ALL", "LANG")
#: What each kind of process imports before it forks; nothing that a program would not have imported by itself.
_IMPORTS = {
    "library": (
        "agent_resume.agent", "agent_resume.checkpoint", "agent_resume.aio", "agent_resume.codec_flat",
        "agent_resume.database_sqlite", "agent_resume.migrate", "alembic.command", "alembic.runtime.migration",
        "asyncio", "zoneinfo",
    ),
    "command": (
        "agent_resume.cli.app", "agent_resume.top_level", "agent_resume.migrate", "agent_resume.database_sqlite",
        "agent_resume.layouts.render", "tabulate", "zoneinfo", "pydantic.types", "pydantic.main", "pydantic.json_schema",
    ),
}  # fmt: skip


def can_be_warm(environment: dict[str, str]) -> bool:
    """Whether a child with this environment can be forked."""
    changed = (name for name, value in environment.items() if os.environ.get(name) != value)
    return hasattr(os, "fork") and not any(
        name.startswith(("PYTHON", "LC_", "LANG", "LD_")) and name not in _LATE + _EARLY for name in changed
    )


# -- asking ----------------------------------------------------------------------------------------------------------


class Warm:
    """A forked child: the part of ``subprocess.Popen`` that tests use."""

    def __init__(self, kind: str, argv: list[str], cwd: Path, env: dict[str, str], *, stdin: int, both: bool) -> None:
        early = tuple((name, env[name]) for name in _EARLY if env.get(name) != os.environ.get(name))
        out, out_end = os.pipe()
        err, err_end = (None, out_end) if both else os.pipe()
        status, status_end = os.pipe()
        request = {"argv": argv, "cwd": str(cwd), "env": env}
        try:
            self.pid = _nursery(kind, early).fork(request, [stdin, out_end, err_end, status_end])
        finally:
            for end in {out_end, err_end, status_end}:
                os.close(end)
        self.args = argv
        self.returncode: int | None = None
        self.stdout = open(out, encoding="utf-8", errors="replace")  # noqa: SIM115 - closed by who reads it
        self.stderr = None if err is None else open(err, encoding="utf-8", errors="replace")  # noqa: SIM115
        self._status = status

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once there is one."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            told = os.read(self._status, 4)
            # Nothing told: the nursery is gone, and its children with it.
            self.returncode = struct.unpack("i", told)[0] if told else -signal.SIGKILL
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run(
    kind: str, argv: list[str], cwd: Path, env: dict[str, str], stdin: str, timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a child to its end, as ``subprocess.run`` does."""
    with _input(stdin) as source:
        child = Warm(kind, argv, cwd, env, stdin=source, both=False)
    assert child.stderr is not None
    said = {child.stdout: b"", child.stderr: b""}
    deadline = time.monotonic() + timeout
    open_ends = list(said)
    with child.stdout, child.stderr:
        while open_ends:
            ready = select.select(open_ends, [], [], max(0.0, deadline - time.monotonic()))[0]
            if not ready:
                child.kill()
                raise subprocess.TimeoutExpired(argv, timeout)
            for end in ready:
                read = os.read(end.fileno(), 1 << 20)
                said[end] += read
                if not read:
                    open_ends.remove(end)
        code = child.wait(max(0.1, deadline - time.monotonic()))
    return subprocess.CompletedProcess(argv, code, *said.values())


@contextlib.contextmanager
def _input(text: str) -> Any:
    with open(os.devnull) if not text else _written(text) as file:
        yield file.fileno()


def _written(text: str) -> Any:
    import tempfile

    file = tempfile.TemporaryFile("w+")  # noqa: SIM115 - _input closes it
    file.write(text)
    file.seek(0)
    return file


class _Nursery:
    """The process that forks."""

    def __init__(self, kind: str, early: tuple[tuple[str, str], ...]) -> None:
        self._line, end = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, __file__, kind, str(end.fileno())],
            env={**os.environ, **dict(early)},
            pass_fds=[end.fileno()],
            stdin=subprocess.DEVNULL,
        )
        end.close()
        atexit.register(self._close)

    def _close(self) -> None:
        self._line.close()
        self._process.wait(20)

    def fork(self, request: dict[str, Any], ends: list[int]) -> int:
        body = json.dumps(request).encode()
        socket.send_fds(self._line, [struct.pack("q", len(body))], ends)
        self._line.sendall(body)
        return int(struct.unpack("i", self._line.recv(4))[0])


@functools.cache
def _nursery(kind: str, early: tuple[tuple[str, str], ...]) -> _Nursery:
    return _Nursery(kind, early)


# -- forking ---------------------------------------------------------------------------------------------------------


def _serve(line: socket.socket) -> dict[str, Any]:
    """Fork a child for each request; in a child, the request comes back."""
    children: dict[int, int] = {}
    news, news_end = os.pipe()
    os.set_blocking(news_end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(news_end)
    while True:
        ready = select.select([line, news], [], [])[0]
        if news in ready:
            os.read(news, 1 << 10)
            _reap(children)
        if line in ready:
            head, ends, _, _ = socket.recv_fds(line, 8, 4)
            if not head:
                os._exit(0)
            (size,) = struct.unpack("q", head)
            request = json.loads(line.recv(size, socket.MSG_WAITALL))
            status = ends.pop()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for end in (news, news_end, status, *children.values()):
                    os.close(end)
                line.close()
                return {**request, "ends": ends}
            children[pid] = status
            for end in ends:
                os.close(end)
            line.sendall(struct.pack("i", pid))


def _reap(children: dict[int, int]) -> None:
    for pid in list(children):
        found, how = os.waitpid(pid, os.WNOHANG)
        if found:
            end = children.pop(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(end, struct.pack("i", os.waitstatus_to_exitcode(how)))
            os.close(end)


def _become(request: dict[str, Any]) -> Callable[[], object]:
    """Take on what the request says; what is to be run comes back."""
    ends = request["ends"]
    for number, end in enumerate(ends):
        os.dup2(end, number)
    for end in set(ends) - {0, 1, 2}:
        os.close(end)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    _open_streams(unbuffered="PYTHONUNBUFFERED" in os.environ)
    # What the interpreter itself calls at its start.
    warnings._processoptions(filter(None, os.environ.get("PYTHONWARNINGS", "").split(",")))  # type: ignore[attr-defined]
    if "AGENT_RESUME_FAULTS" in os.environ:
        from agent_resume import faults

        importlib.reload(faults)
    return _program(request["argv"])


def _open_streams(*, unbuffered: bool) -> None:
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    for name, number in (("stdout", 1), ("stderr", 2)):
        at_start = getattr(sys, name)
        raw = open(number, "wb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(
            raw, at_start.encoding, at_start.errors, write_through=unbuffered, line_buffering=number == 2
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _program(argv: list[str]) -> Callable[[], object]:
    sys.orig_argv = argv
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if argv[1] == "-c":
        sys.argv, sys.path[0], name, source = ["-c", *argv[3:]], "", "<string>", argv[2]
    else:
        sys.argv, sys.path[0], name = argv[1:], os.path.dirname(argv[1]), argv[1]
        source = Path(name).read_text(encoding="utf-8")
        main.__file__ = name
    code = compile(source, name, "exec")
    return lambda: exec(code, main.__dict__)


def _main() -> Callable[[], object]:
    kind, number = sys.argv[1:]
    line = socket.socket(fileno=int(number))
    for name in _IMPORTS[kind]:
        importlib.import_module(name)
    if kind == "command":
        for command in pkgutil.iter_modules(sys.modules["agent_resume.cli"].__path__):
            importlib.import_module(f"agent_resume.cli.{command.name}")
    return _become(_serve(line))


if __name__ == "__main__":
    _main()()
