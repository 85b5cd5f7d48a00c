"""Functions that a child process finds by name; see test_timeouts.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from agent_resume import current_step


class Failure(Exception):
    def __init__(self, *, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


def echo(value: object) -> object:
    return value


def seen_by_child() -> tuple[int, str, int]:
    step = current_step()
    return os.getpid(), step.key, step.attempt


def boom() -> None:
    raise Failure(status=500)


def leave(code: int) -> None:
    raise SystemExit(code)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang(mark: str) -> None:
    Path(mark).write_text(str(os.getpid()))
    time.sleep(600)


def child_and_grandchild(beat: str) -> None:
    code = f"import time\nwhile True:\n    open({beat!r}, 'a').write('x')\n    time.sleep(0.02)"
    subprocess.Popen([sys.executable, "-c", code])
    time.sleep(600)
