"""What agent-resume costs, in one run on one machine, as ratios to floors taken in the same minutes.

Every figure is the median of interleaved rounds. Nothing here passes or fails a test suite: a line that misses its
aim is marked, and the exit code says so.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import bench_parts as parts


@dataclass
class Line:
    """One measured figure.

    Attributes:
        aim: the limit; None for a figure that only informs.
        least: whether the figure has to be at least the aim.
    """

    part: str
    what: str
    figure: float
    unit: str
    aim: float | None = None
    least: bool = False
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether the aim is met."""
        if self.aim is None:
            return True
        return self.figure >= self.aim if self.least else self.figure <= self.aim

    def text(self) -> str:
        """The line as it is printed."""
        aim = "" if self.aim is None else f"{'≥' if self.least else '≤'} {self.aim:g}"
        mark = "" if self.aim is None else ("ok" if self.holds else "MISSED")
        return f"{self.part:9} {self.what:58} {self.figure:10.2f} {self.unit:4} {aim:9} {mark:6} {self.note}"


@contextmanager
def _folder(parent: str | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=parent, prefix="agent-resume-bench-") as name:
        yield Path(name)


def main() -> int:
    """Measure the parts that were asked for."""
    names = list(parts.PARTS)
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of: {', '.join(names)} (all of them when none)")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds of each comparison")
    parser.add_argument("--dir", help="a folder on the disk to measure; a temporary one when not given")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the table")
    options = parser.parse_args()
    unknown = set(options.parts) - set(names)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    lines: list[Line] = []

    def add(part: str, what: str, figure: float, unit: str, **more: object) -> None:
        line = Line(part, what, figure, unit, **more)  # type: ignore[arg-type]
        lines.append(line)
        if not options.json:
            print(line.text(), flush=True)

    if not options.json:
        print(_machine())
    begin = time.perf_counter()
    with _folder(options.dir) as folder:
        for name in options.parts or names:
            parts.PARTS[name](parts.Bench(folder, options.rounds, name, add))
    missed = [line for line in lines if not line.holds]
    if options.json:
        print(json.dumps({"machine": _machine(), "lines": [asdict(line) | {"holds": line.holds} for line in lines]}))
    else:
        print(f"{len(lines)} figures in {time.perf_counter() - begin:.0f} s, {len(missed)} missed their aim")
    return 1 if missed else 0


def _machine() -> str:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"{now}; {platform.system()} {platform.machine()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    )


if __name__ == "__main__":
    sys.exit(main())
