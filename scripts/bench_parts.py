"""The parts of ``scripts/bench``, each a function of a ``Bench``."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench_floors as floors

from agent_resume import Checkpoint, Run, Store, agent_run

HERE = Path(__file__).parent


@dataclass
class Bench:
    """Where to measure, how often, and where figures go."""

    folder: Path
    rounds: int
    name: str
    add: Callable[..., None]

    def line(self, what: str, figure: float, unit: str = "×", **more: object) -> None:
        """Report a figure."""
        self.add(self.name, what, figure, unit, **more)

    def ratios(self, ours: Callable[[], float], floor: Callable[[], float]) -> tuple[float, float, float]:
        """Medians of interleaved rounds: the ratio, ours, the floor."""
        pairs = [(ours(), floor()) for _ in range(self.rounds)]
        return (
            statistics.median(a / b for a, b in pairs),
            statistics.median(a for a, _ in pairs),
            statistics.median(b for _, b in pairs),
        )


def steps_us(
    folder: Path, count: int, durability: Any = "full", *, cpu: bool = False, before: int = 0, neighbour: bool = False
) -> float:
    """µs a step inside ``agent_run``, ``before`` steps of warm-up not counted."""
    path = floors.remove(folder / "ours.db")
    clock = time.process_time if cpu else time.perf_counter
    took = 0.0

    def body(run: Run) -> None:
        nonlocal took
        for number in range(before):
            run.step(f"w{number}", lambda number=number: floors.payload(number))
        begin = clock()
        for number in range(count):
            run.step(f"s{number}", lambda number=number: floors.payload(number))
        took = (clock() - begin) / count * 1e6

    if neighbour:
        with floors.Spinner():
            agent_run("bench", body, db=path, durability=durability, progress=False)
    else:
        agent_run("bench", body, db=path, durability=durability, progress=False)
    return took


def step(bench: Bench) -> None:
    """A durable step against the raw driver."""
    folder = bench.folder
    steps_us(folder, 50)
    ratio, ours, floor = bench.ratios(lambda: steps_us(folder, 1000), lambda: floors.raw_step_us(folder, 1000, "FULL"))
    bench.line("a step, full, against one raw FULL upsert", ratio, aim=1.3, note=f"{ours:.0f} / {floor:.0f} µs")
    ratio, ours, floor = bench.ratios(
        lambda: steps_us(folder, 1000, "relaxed"), lambda: floors.raw_step_us(folder, 1000, "NORMAL")
    )
    bench.line("a step, relaxed, against one raw NORMAL upsert", ratio, aim=4.5, note=f"{ours:.0f} / {floor:.0f} µs")
    bench.line("a bare 4 KiB write and fdatasync", floors.fdatasync_us(folder), "µs")
    bench.line("json.dumps and json.loads of the result", floors.json_us(), "µs")
    with_spinner, ours, floor = bench.ratios(
        lambda: steps_us(folder, 100, neighbour=True), lambda: _raw_beside_spinner(folder, 100)
    )
    bench.line(
        "a step beside a computing thread, against raw there", with_spinner, aim=6, note=f"{ours:.0f} / {floor:.0f} µs"
    )


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
    bench.line("CPU of a step on tmpfs, against one raw upsert", ratio, aim=5, note=f"{ours:.0f} / {floor:.0f} µs")


def syncs(bench: Bench) -> None:
    """Syncs a step, counted by strace."""
    if shutil.which("strace") is None:
        return
    code = (
        "import sys; from pathlib import Path; import bench_parts as p; "
        "p.steps_us(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])"
    )

    def count(number: int, durability: str) -> int:
        command = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync", sys.executable, "-c", code]
        command += [str(bench.folder), str(number), durability]
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True)
        return sum("sync(" in line for line in done.stderr.splitlines())

    # 100 steps stay below the log's limit, so no checkpoint adds syncs of its own.
    full = (count(110, "full") - count(10, "full")) / 100
    relaxed = (count(110, "relaxed") - count(10, "relaxed")) / 100
    bench.line("syncs a step, full", full, "", aim=1.05)
    bench.line("syncs a step, relaxed", relaxed, "", aim=0.05)


def growth(bench: Bench) -> None:
    """Whether a step costs more in a long run."""
    path = floors.remove(bench.folder / "long.db")
    small, large = [], []

    def body(run: Run) -> None:
        done = 0
        for target, samples in ((1_000, small), (100_000, large)):
            while done < target - 2_000 * (target > 1_000):
                run.record(f"r{done}", floors.payload(done))
                done += 1
            for _ in range(bench.rounds):
                begin = time.perf_counter()
                for _ in range(250):
                    run.step(f"s{done}", lambda: floors.payload(1))
                    done += 1
                samples.append((time.perf_counter() - begin) / 250 * 1e6)

    agent_run("bench", body, db=path, durability="relaxed", progress=False)
    a, b = statistics.median(small), statistics.median(large)
    bench.line(
        "a step at N = 100,000 against one at N = 1,000 (relaxed)", b / a, aim=1.15, note=f"{b:.0f} / {a:.0f} µs"
    )
    bench.line("the file-rewriting way at 100 steps", floors.json_file_step_us(bench.folder, 100), "µs")
    bench.line("the file-rewriting way at 1,000 steps", floors.json_file_step_us(bench.folder, 1000), "µs")
    _memory(bench, path)


def _memory(bench: Bench, path: Path) -> None:
    code = (
        "import resource, sys; from agent_resume import Checkpoint; import agent_resume.agent\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "before = peak(); run = Checkpoint(sys.argv[1], db=sys.argv[2]); run.get_step_result('r0'); print(peak() - before); run.close()"
    )
    with Store(path) as store:
        run_id = next(iter(store.list_runs())).id
    done = subprocess.run([sys.executable, "-c", code, run_id, str(path)], capture_output=True, text=True, check=True)
    bench.line("memory of opening a run of 100,000 steps", float(done.stdout), "MiB", aim=60)


def resume(bench: Bench) -> None:
    """Replaying a run of 10,000 small steps."""
    path = floors.remove(bench.folder / "resume.db")
    with Checkpoint("long", db=Store(path, durability="relaxed"), progress=False) as run:
        for number in range(10_000):
            run.step(f"s{number}", _work)
    took = []
    for _ in range(bench.rounds):
        begin = time.perf_counter()
        with Checkpoint("long", db=path, progress=False) as run:
            for number in range(10_000):
                run.step(f"s{number}", _work)
            took.append(time.perf_counter() - begin)
    middle = statistics.median(took)
    bench.line("opening and replaying 10,000 steps", middle, "s", aim=0.25)
    bench.line("a skipped step", middle / 10_000 * 1e6, "µs", aim=10)


def _work() -> dict[str, object]:
    return floors.payload(1)  # called again, it would be seen in the time


def _together(bench: Bench, kind: str, processes: int, count: int) -> tuple[float, float]:
    """Work of several processes at once: operations a second, and the longest single call in s."""
    db = floors.remove(bench.folder / f"{kind}.db")
    command = [sys.executable, str(HERE / "bench_workers.py"), kind, str(db), str(count)]
    workers = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(processes)
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    begin = time.perf_counter()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    ended = [worker.communicate()[0].split() for worker in workers]
    took = time.perf_counter() - begin
    if any(worker.returncode for worker in workers):
        raise RuntimeError(f"a worker of {kind} failed")
    return processes * count / took, max(float(longest) for _, longest in ended)


def processes(bench: Bench) -> None:
    """Several processes on one file."""
    for kind, floor, aim in (
        ("records-full", "raw-full", 0.8),
        ("records-relaxed", "raw-relaxed", 0.45),
        ("steps-full", "raw-full", 0.5),
    ):
        pairs = [(_together(bench, kind, 4, 250)[0], _together(bench, floor, 4, 250)[0]) for _ in range(3)]
        rate = statistics.median(a for a, _ in pairs)
        middle = statistics.median(a / b for a, b in pairs)
        bench.line(f"4 processes, {kind}, against 4 raw writers", middle, aim=aim, least=True, note=f"{rate:.0f}/s")
    for number in (1, 4, 8):
        rate, longest = _together(bench, "shared-full", number, 200)
        more = {"aim": 250.0} if number == 8 else {}
        bench.line(
            f"longest record() of {number} processes in one run", longest * 1e3, "ms", note=f"{rate:.0f}/s", **more
        )


def threads(bench: Bench) -> None:
    """Threads of one process, and the batch door."""

    def rate(workers: int) -> float:
        per = 600 // workers
        with Checkpoint("t", db=floors.remove(bench.folder / "threads.db"), progress=False) as run:

            def work(worker: int) -> None:
                for number in range(per):
                    run.step(f"{worker}-{number}", lambda: floors.payload(1))

            work(-1)
            started = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
            begin = time.perf_counter()
            for thread in started:
                thread.start()
            for thread in started:
                thread.join()
            return per * workers / (time.perf_counter() - begin)

    for workers in (4, 64):
        bench.line(f"{workers} threads, against one", rate(workers) / rate(1))
    ratio, _, _ = bench.ratios(lambda: rate(32), lambda: rate(1))
    bench.line("32 threads, against one", ratio, aim=0.9, least=True)
    mapped, ours, floor = bench.ratios(lambda: _mapped(bench), lambda: rate(1))
    bench.line("run.map with concurrency 32, against one thread", mapped, aim=2.5, least=True, note=f"{ours:.0f}/s")
    together, ours, floor = bench.ratios(lambda: _coroutines(bench, 1000), lambda: rate(1))
    bench.line(
        "1,000 coroutines, against one thread", together, aim=5, least=True, note=f"{ours:.0f} / {floor:.0f} a s"
    )
    single, ours, floor = bench.ratios(lambda: 1 / _coroutines(bench, 300, at_once=False), lambda: 1 / rate(1))
    bench.line("awaited one after another, against synchronous steps", single, aim=2.2)


def _mapped(bench: Bench) -> float:
    with Checkpoint("m", db=floors.remove(bench.folder / "map.db"), progress=False) as run:
        begin = time.perf_counter()
        for _ in run.map("item", floors.payload, range(600), concurrency=32):
            pass
        return 600 / (time.perf_counter() - begin)


def _coroutines(bench: Bench, count: int, *, at_once: bool = True) -> float:
    took = 0.0

    async def work(number: int) -> dict[str, object]:
        return floors.payload(number)

    async def body(run: Any) -> None:
        nonlocal took
        await run.step("warm", work, 0)
        begin = time.perf_counter()
        if at_once:
            await asyncio.gather(*(run.step(f"s{number}", work, number) for number in range(count)))
        else:
            for number in range(count):
                await run.step(f"s{number}", work, number)
        took = time.perf_counter() - begin

    asyncio.run(agent_run("bench", body, db=floors.remove(bench.folder / "async.db"), progress=False))
    return count / took


def sizes(bench: Bench) -> None:
    """Large results."""
    for size in (1 << 10, 1 << 15, 1 << 20, 10 << 20):
        with Checkpoint("s", db=floors.remove(bench.folder / "size.db"), progress=False) as run:
            text = "x" * size
            run.step("warm", lambda: 1)
            begin = time.perf_counter()
            run.step("large", lambda text=text: text)
            bench.line(f"a result of {size >> 10} KiB", (time.perf_counter() - begin) * 1e3, "ms")


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


def command(bench: Bench) -> None:
    """Start-up of the library and the command line."""

    def seconds(*arguments: str) -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - begin

    everything = "import agent_resume as a; [getattr(a, name) for name in a.__all__]"
    ratio, ours, floor = bench.ratios(lambda: seconds("-c", everything), lambda: seconds("-c", "import sqlalchemy"))
    bench.line(
        "import of every public name, against import sqlalchemy",
        ratio,
        aim=1.25,
        note=f"{ours * 1e3:.0f} / {floor * 1e3:.0f} ms",
    )
    ratio, ours, floor = bench.ratios(
        lambda: seconds("-c", "import agent_resume"), lambda: seconds("-c", "import sqlalchemy")
    )
    bench.line(
        "import agent_resume, against import sqlalchemy",
        ratio,
        aim=1.25,
        note=f"{ours * 1e3:.0f} / {floor * 1e3:.0f} ms",
    )
    for option in ("--version", "--help"):
        _, ours, floor = bench.ratios(
            lambda option=option: seconds("-m", "agent_resume", option), lambda: seconds("-c", "pass")
        )
        bench.line(f"agent-resume {option}, above python -c pass", (ours - floor) * 1e3, "ms", aim=150)


def peers(bench: Bench) -> None:
    """Others on the same disk in the same minutes."""
    import bench_peers

    bench_peers.measure(bench)


PARTS: dict[str, Callable[[Bench], None]] = {
    "step": step,
    "cpu": cpu,
    "syncs": syncs,
    "growth": growth,
    "resume": resume,
    "processes": processes,
    "threads": threads,
    "sizes": sizes,
    "codec": codec,
    "command": command,
    "peers": peers,
}
