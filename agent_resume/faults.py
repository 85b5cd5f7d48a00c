"""Named places where a test may kill this process; they do nothing unless ``AGENT_RESUME_FAULTS`` is set.

The variable holds ``POINT``, or ``POINT:N`` for the Nth time that the point is passed, or ``POINT:N:ACTION``;
several are separated by commas. Actions: ``kill`` (the default), ``stop`` (SIGSTOP), ``interrupt`` (SIGINT),
``raise`` (``FaultError``). It is read once, when this module is imported.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

#: Every place that calls ``at``; the crash test kills at each of them.
POINTS = (
    "before-claim",
    "after-claim",
    "in-function",
    "after-return",
    "before-commit",
    "after-commit",
    "while-settling",
)


class FaultError(Exception):
    """What the action ``raise`` raises."""


def _nothing(point: str) -> None:
    """Stands in for ``at`` when no fault is wanted: one call, no look at anything."""


def _act(action: str, point: str) -> None:
    if action == "raise":
        raise FaultError(point)
    # By name: Windows has no SIGSTOP, and its SIGTERM ends a process like SIGKILL.
    names = {"stop": "SIGSTOP", "interrupt": "SIGINT"}
    number = getattr(signal, names.get(action, "SIGKILL"), signal.SIGTERM)
    os.kill(os.getpid(), number)


def parse(text: str) -> Callable[[str], None]:
    """The function that acts on the faults named by ``text``."""
    plan: dict[str, list[tuple[int, str]]] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        point, _, rest = item.partition(":")
        number, _, action = rest.partition(":")
        plan.setdefault(point, []).append((int(number or 1), action or "kill"))
    if not plan:
        return _nothing
    passed: dict[str, int] = {}
    lock = threading.Lock()

    def armed(point: str) -> None:
        wanted = plan.get(point)
        if wanted is None:
            return
        with lock:
            passed[point] = count = passed.get(point, 0) + 1
        for number, action in wanted:
            if number == count:
                _act(action, point)

    return armed


#: ``faults.at("after-claim")``: pass a named point. Call it through the module, since tests replace it.
at: Callable[[str], None] = parse(os.environ.get("AGENT_RESUME_FAULTS", ""))
