"""Long runs: exports and imports stream, so memory follows the largest value and not the run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak of memory from /proc"),
]

# Each part is a process of its own, whose peak of memory is its own too. Rows go through the store's own import.
_CODE = """
import json, sys
from agent_resume import Store
from agent_resume.layouts import export_runs, import_paths
from agent_resume.models import RunDump
from agent_resume.layouts.lossless_rows import read_row

what, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
TIME = "2026-01-31T09:08:07.006Z"

def rows():
    run = read_row("run", {"id": "big", "name": "big", "status": "completed", "created_at": TIME, "updated_at": TIME,
                           "finished_at": TIME, "last_seq": 2 * count}, "run")
    def steps():
        for number in range(count):
            yield read_row("step", {"key": f"step-{number}", "seq": 2 * number + 1, "status": "completed",
                "started_at": TIME, "finished_at": TIME, "duration_ms": 5, "output_format": "json",
                "output": {"n": number, "text": "x" * size}}, "step")
    def events():
        for number in range(count):
            key = f"step-{number}"
            yield read_row("event", {"seq": 2 * number + 1, "ts": TIME, "type": "start", "step_key": key, "attempt": 1}, "event")
            yield read_row("event", {"seq": 2 * number + 2, "ts": TIME, "type": "done", "step_key": key, "attempt": 1,
                "data": {"durationMs": 5}}, "event")
    return RunDump(run, steps(), events(), iter(()))

if what == "fill":
    with Store("runs.db") as store:
        store.import_run(rows())
elif what == "import":
    with Store(sys.argv[5]) as store:
        (row,) = import_paths(store, [sys.argv[4]]).rows
        assert row.action == "imported", row.reason
else:
    with Store("runs.db") as store:
        (row,) = export_runs(store, ["big"], format=what, out=sys.argv[4]).rows
        assert row.action == "exported", row.reason
# Not ru_maxrss: that begins with what the parent had when it forked.
(peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("peak", int(peak) // 1024)
"""


@pytest.fixture
def peak(tmp_path: Path) -> Callable[..., int]:
    """Runs a part in tmp_path; the most memory it had, in MiB."""

    def run(*args: object) -> int:
        command = [sys.executable, "-c", _CODE, *map(str, args)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        return int(done.stdout.split()[-1])

    return run


@pytest.fixture
def everything(request: pytest.FixtureRequest) -> bool:
    """Whether the whole size is wanted; else a share of it, with limits as much lower."""
    return bool(request.config.getoption("--all"))


@pytest.mark.timeout(900)
def test_a_run_of_a_hundred_thousand_steps_fits_into_little_memory(peak, everything):
    count, size = (100_000, 20) if everything else (10_000, 20)
    most, most_jsonl = (400, 200) if everything else (100, 70)
    peak("fill", count, size)
    assert peak("flowcast", count, size, "out") < most
    assert peak("import", count, size, "out/big", "flowcast.db") < most
    assert peak("jsonl", count, size, "e.jsonl") < most_jsonl
    assert peak("import", count, size, "e.jsonl", "jsonl.db") < most_jsonl


@pytest.mark.timeout(300)
def test_memory_follows_the_largest_value_and_not_the_size_of_the_run(peak, everything):
    count = 300 if everything else 100  # 150 or 50 MB of results
    peak("fill", count, 500_000)
    assert peak("jsonl", count, 500_000, "e.jsonl") < 120
    assert peak("import", count, 500_000, "e.jsonl", "jsonl.db") < 120
    assert peak("flowcast", count, 500_000, "out") < 120
    assert peak("import", count, 500_000, "out/big", "flowcast.db") < 120
