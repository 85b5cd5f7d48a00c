"""Agents on command, for the model test: forked from one warm process, so that a new one costs milliseconds.

As a program: listens on the Unix socket named by its argument. Each connection is served by a forked process, which
reads commands as JSON lines and answers each with one. The first one is ``[db, run id]``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
from typing import Any

import agent_resume


class FailureError(Exception):
    """What a failing step raises."""


def step(how: str, value: Any) -> Any:
    """A step's function."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        raise SystemExit(3)
    if how == "fail":
        raise FailureError(value)
    return value


def say(channel: Any, words: Any) -> None:
    """One answer."""
    channel.write(json.dumps(words) + "\n")
    channel.flush()


def obey(run: Any, words: list[Any]) -> list[Any]:
    """One command of a body that goes on."""
    kind, *rest = words
    if kind == "step":
        key, how, value = rest
        called: list[Any] = []
        got = run.step(key, lambda: (called.append(1), step(how, value))[1])
        return ["value", got, bool(called)]
    if kind == "record":
        return ["value", run.record(*rest), False]
    return ["value", run.pause("because", name=rest[0]), False]


def serve(channel: Any) -> None:
    """Execute one run as its commands say."""

    def body(run: Any) -> Any:
        say(channel, ["in"])
        while True:
            words = json.loads(channel.readline())
            if words[0] == "return":
                return words[1]
            if words[0] == "raise":
                raise FailureError("body")
            try:
                said = obey(run, words)
            except Exception as error:
                said = ["error", type(error).__name__]
            say(channel, said)

    db, run_id = json.loads(channel.readline())
    options: dict[str, Any] = {"on_duplicate": "return", "on_pause": "raise"}
    try:
        said = ["result", agent_resume.agent_run("model", body, run_id=run_id, db=db, **options)]
    except BaseException as error:
        said = ["left", type(error).__name__]
    say(channel, said)


def main() -> None:
    """Fork a process for each connection."""
    with tempfile.TemporaryDirectory() as folder, agent_resume.Store(f"{folder}/warm.db") as store:
        agent_resume.agent_run("warm", lambda run: run.step("s", str), db=store)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(sys.argv[1])
        server.listen()
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                try:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    channel = connection.makefile("rw")
                    say(channel, os.getpid())
                    serve(channel)
                finally:
                    os._exit(0)
            connection.close()


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    main()
