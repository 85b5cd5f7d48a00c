"""What agent-resume costs, in one run on one machine, as ratios to floors taken in the same minutes.

Nothing here passes or fails a test suite: a line that misses its aim is marked, and the exit code says so. All parts
together take some six minutes on two processors.
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

from bench_base import SIZES, Bench
from bench_parts import PARTS

RATIOS = (
    "A ratio (×) is the median of the ratios of interleaved rounds, so it need not be the quotient of the two figures "
    "beside it (ours / the floor), which are medians of their own. What is not called relaxed is full."
)


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
        return f"{self.part:9} {self.what:64} {self.figure:10.2f} {self.unit:4} {aim:9} {mark:6} {self.note}"


@contextmanager
def _folder(parent: str | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=parent, prefix="agent-resume-bench-") as name:
        yield Path(name)


def main() -> int:
    """Measure the parts that were asked for."""
    options = _options()
    lines: list[Line] = []

    def add(part: str, what: str, figure: float, unit: str, **more: object) -> None:
        line = Line(part, what, figure, unit, **more)  # type: ignore[arg-type]
        lines.append(line)
        if not options.json:
            print(line.text(), flush=True)

    machine = _machine()
    if not options.json:
        print(machine, RATIOS, sep="\n")
    begin = time.perf_counter()
    with _folder(options.dir) as folder:
        # Where the environment keeps Python from storing bytecode, `import sqlalchemy` would be compiled at each start.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        for name in options.parts:
            PARTS[name](Bench(folder, options.rounds, options.largest, options.big, name, add))
    missed = [line for line in lines if not line.holds]
    if options.json:
        found = [asdict(line) | {"holds": line.holds} for line in lines]
        print(json.dumps({"machine": machine, "ratios": RATIOS, "lines": found}))
    else:
        print(f"{len(lines)} figures in {time.perf_counter() - begin:.0f} s, {len(missed)} missed their aim")
    return 1 if missed else 0


def _options() -> argparse.Namespace:
    names = ", ".join(PARTS)
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of: {names} (all of them when none)")
    parser.add_argument("--part", action="append", default=[], metavar="PART", help="the same, as an option")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds of each comparison")
    parser.add_argument("--largest", type=int, default=SIZES[-1], choices=SIZES, help="the longest run to make")
    parser.add_argument("--big", type=Path, metavar="PATH", help="a store of many runs to read; one is made without it")
    parser.add_argument("--dir", help="a folder on the disk to measure; a temporary one when not given")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the table")
    options = parser.parse_args()
    options.parts = [*options.parts, *options.part] or list(PARTS)
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {names}")
    if options.rounds < 1:
        parser.error("--rounds has to be 1 or more")
    if options.big is not None and not options.big.is_file():
        parser.error(f"no such file: {options.big}")
    return options


def _machine() -> str:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"{now}; {platform.system()} {platform.machine()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    )


if __name__ == "__main__":
    sys.exit(main())
