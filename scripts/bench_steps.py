"""The parts of ``scripts/bench`` about one writer: a step, its disk and CPU, long runs, large results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import bench_floors as floors
from bench_base import BATCH, HERE, SIZES, Bench, steps_of, steps_us

from agent_resume import Checkpoint, Store, agent_run

LEVELS = {"full": "FULL", "relaxed": "NORMAL"}


def step(bench: Bench) -> None:
    """A durable step against the raw driver, in runs of every length."""
    folder = bench.folder
    steps_us(folder, 50)
    for size in (size for size in SIZES if size <= bench.largest):
        for durability, level in LEVELS.items():
            ratio, ours, floor = _step_at(bench, size, durability)
            place = f"the steps of a run of {size:,}" if size <= 1_000 else f"a step after {size:,} others"
            limit = {"full": 1.3, "relaxed": 4.5}[durability] if size == 1_000 else None
            note = f"{ours:.0f} / {floor:.0f} µs"
            bench.line(f"{place}, {durability}, against raw {level} upserts", ratio, aim=limit, note=note)
    bench.line("a bare 4 KiB write and fdatasync", floors.fdatasync_us(folder), "µs")
    bench.line("json.dumps and json.loads of the result", floors.json_us(), "µs")
    ratio, ours, floor = bench.ratios(
        lambda: steps_us(folder, 25, neighbour=True), lambda: _raw_beside_spinner(folder, 25)
    )
    note = f"{ours / 1e3:.1f} / {floor / 1e3:.1f} ms"
    bench.line("a step, full, beside a computing thread, against raw there", ratio, aim=6, note=note)


def _step_at(bench: Bench, size: int, durability: str) -> tuple[float, float, float]:
    """A short run is measured whole; of a long one a batch at its end, a floor of the same length beside it."""
    level = LEVELS[durability]
    if size <= 1_000:
        return bench.ratios(
            lambda: steps_us(bench.folder, size, durability), lambda: floors.raw_step_us(bench.folder, size, level)
        )
    with steps_of(bench.filled(size), durability) as batch, floors.filled(bench.folder, size, level) as raw:
        return bench.ratios(batch, lambda: raw(BATCH))


def _raw_beside_spinner(folder: Path, count: int) -> float:
    with floors.Spinner():
        return floors.raw_step_us(folder, count, "FULL")


def cpu(bench: Bench) -> None:
    """CPU a step where the disk costs nothing."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        return
    folder = memory / f"agent-resume-bench-{os.getpid()}"
    folder.mkdir()
    try:
        steps_us(folder, 50)
        ratio, ours, floor = bench.ratios(
            lambda: steps_us(folder, 500, cpu=True), lambda: floors.raw_step_us(folder, 500, "FULL", cpu=True)
        )
    finally:
        shutil.rmtree(folder)
    note = f"{ours:.0f} / {floor:.0f} µs"
    bench.line("CPU of a step on tmpfs, full, against one raw upsert", ratio, aim=5, note=note)


def syncs(bench: Bench) -> None:
    """Syncs a step, counted by strace."""
    if shutil.which("strace") is None:
        return
    code = (
        "import sys; from pathlib import Path; import bench_base as b; "
        "b.steps_us(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])"
    )

    def count(number: int, durability: str) -> int:
        command = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync", sys.executable, "-c", code]
        command += [str(bench.folder), str(number), durability]
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True)
        return sum("sync(" in line for line in done.stderr.splitlines())

    # 80 steps stay below the log's limit, so no checkpoint adds syncs of its own.
    full = (count(80, "full") - count(10, "full")) / 70
    relaxed = (count(80, "relaxed") - count(10, "relaxed")) / 70
    bench.line("syncs a step, full", full, "", aim=1.05)
    bench.line("syncs a step, relaxed", relaxed, "", aim=0.05)


def growth(bench: Bench) -> None:
    """Whether a step costs more in a long run: a young and an old store, in turn; the file-based way beside it."""
    young = max(0, 1_000 - bench.rounds * BATCH // 2)  # in the middle of its rounds it has 1,000
    with (
        steps_of(bench.filled(bench.largest), "relaxed") as of_old,
        steps_of(bench.filled(young), "relaxed") as of_young,
    ):
        ratio, old, new = bench.ratios(of_old, of_young)
    what = f"a step after {bench.largest:,} others, relaxed, against one after 1,000"
    bench.line(what, ratio, aim=1.15, note=f"{old:.0f} / {new:.0f} µs")
    for size in (size for size in SIZES if size <= bench.largest):
        took = floors.json_file_step_us(bench.folder, size)
        bench.line(f"the file-rewriting way after {size:,} steps, not synced", took, "µs")


def resume(bench: Bench) -> None:
    """Opening a run of 10,000 small steps, and replaying it."""
    size = min(10_000, bench.largest)
    path = floors.remove(bench.folder / "resume.db")
    with Store(path, durability="relaxed") as store, Checkpoint("long", db=store, progress=False) as run:
        for number in range(size):
            run.step(f"s{number}", _work)
    times = [_replay(path, size) for _ in range(bench.rounds)]
    total = median(opened + replayed for opened, replayed in times)
    bench.line(f"opening and replaying {size:,} steps", total, "s", aim=0.25)
    bench.line("a skipped step, its share of opening included", total / size * 1e6, "µs", aim=10)
    bench.line(f"opening a run of {size:,} steps, to its first skipped step", median(a for a, _ in times) * 1e3, "ms")
    bench.line("a skipped step, opening left out", median(b for _, b in times) / (size - 1) * 1e6, "µs")
    _started(path)  # its bytecode
    started = [_started(path) for _ in range(bench.rounds)]
    bench.line("a new process that imports, opens it and reads one result", median(started) * 1e3, "ms")
    with Checkpoint("long", db=path, progress=False) as run:
        run.done("all of it")
    asked = [_asked_again(path) for _ in range(bench.rounds)]
    bench.line(f"a completed run of {size:,} steps, asked for its result again", median(asked) * 1e3, "ms")


def _replay(path: Path, size: int) -> tuple[float, float]:
    begin = time.perf_counter()
    with Checkpoint("long", db=path, progress=False) as run:
        run.step("s0", _work)
        opened = time.perf_counter()
        for number in range(1, size):
            run.step(f"s{number}", _work)
        return opened - begin, time.perf_counter() - opened


def _started(path: Path) -> float:
    code = (
        "import sys; from agent_resume import Checkpoint; "
        "run = Checkpoint('long', db=sys.argv[1], progress=False); assert run.get_step_result('s0'); run.close()"
    )
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    return time.perf_counter() - begin


def _asked_again(path: Path) -> float:
    begin = time.perf_counter()
    agent_run("long", lambda run: sys.exit("called again"), run_id="long", db=path, progress=False)
    return time.perf_counter() - begin


def _work() -> dict[str, object]:
    return floors.payload(1)  # called again, it would be seen in the time


def sizes(bench: Bench) -> None:
    """Large results: written, against a raw upsert of the same text, and read back by the run's next execution."""
    rounds = min(bench.rounds, 5)
    for size in (1 << 10, 1 << 15, 1 << 20, 10 << 20):
        text = "x" * size
        path = floors.remove(bench.folder / "size.db")
        connection = floors.connect(floors.remove(bench.folder / "size-raw.db"), "FULL")
        keys = iter(range(2 * rounds))
        with Checkpoint("s", db=path, progress=False) as run:
            run.step("warm", lambda: 1)
            ratio, ours, floor = bench.ratios(
                lambda text=text, run=run, keys=keys: _ms(lambda: run.step(f"s{next(keys)}", lambda: text)),
                lambda text=text, raw=connection, keys=keys: _ms(lambda: floors.upsert(raw, "r", f"s{next(keys)}", text)),
                rounds,
            )  # fmt: skip
        connection.close()
        label = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
        note = f"{ratio:.1f} × a raw upsert of it, {floor:.2f} ms"
        bench.line(f"a step, full, with a result of {label}", ours, "ms", note=note)
        with Checkpoint("s", db=path, progress=False) as run:
            run.has("warm")
            back = [_ms(lambda run=run, n=n: run.get_step_result(f"s{2 * n}")) for n in range(rounds)]
        bench.line(f"reading back {label}", median(back), "ms")


def _ms(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e3


def codec(bench: Bench) -> None:
    """Encoding and decoding plain values, against json."""
    from agent_resume.codec import DEFAULT

    small = {f"field_{number}": ["x" * 40, number, number / 7, None, {"deep": True}] for number in range(20)}
    large = [
        {"id": number, "text": "y" * 60, "parts": [number, str(number), {"a": number / 3}]} for number in range(80_000)
    ]

    def ours(value: Any, count: int) -> float:
        begin = time.process_time()
        for _ in range(count):
            encoded = DEFAULT.encode(value)
            DEFAULT.decode(encoded.format, encoded.text)
        return (time.process_time() - begin) / count * 1e6

    def floor(value: Any, count: int) -> float:
        begin = time.process_time()
        for _ in range(count):
            json.loads(json.dumps(value))
        return (time.process_time() - begin) / count * 1e6

    for what, value, count, aim in (("2 KB", small, 300, 3.0), ("10 MB", large, 1, 2.0)):
        size = len(json.dumps(value))
        ratio, a, b = bench.ratios(
            lambda value=value, count=count: ours(value, count), lambda value=value, count=count: floor(value, count)
        )
        bench.line(
            f"encode and decode {what} of plain values, against json", ratio, aim=aim,
            note=f"{a:.0f} / {b:.0f} µs, {size} bytes",
        )  # fmt: skip
