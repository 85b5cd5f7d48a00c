"""The parts of ``scripts/bench`` about many writers at once: processes, threads, coroutines."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from statistics import median
from typing import Any

import bench_floors as floors
from bench_base import HERE, Bench

from agent_resume import Checkpoint, agent_run


def processes(bench: Bench) -> None:
    """Several processes on one file."""
    rounds = min(bench.rounds, 3)
    for kind, floor, aim in (
        ("records-full", "raw-full", 0.8),
        ("records-relaxed", "raw-relaxed", 0.45),
        ("steps-full", "raw-full", 0.5),
    ):
        ratio, ours, theirs = bench.ratios(
            lambda kind=kind: _together(bench, kind, 4, 250)[0],
            lambda floor=floor: _together(bench, floor, 4, 250)[0],
            rounds,
        )
        note = f"{ours:.0f} / {theirs:.0f} a s"
        bench.line(f"4 processes, {kind}, against 4 raw writers", ratio, aim=aim, least=True, note=note)
    for durability in ("full", "relaxed"):
        for number in (1, 4, 8):
            found = [_together(bench, f"shared-{durability}", number, 200) for _ in range(rounds)]
            what = f"{number} process{'es' * (number > 1)} recording into one run, {durability}"
            bench.line(what, median(rate for rate, _ in found), "/s")
            limit = 250.0 if number == 8 else None
            bench.line("  their longest record() in all rounds", max(wait for _, wait in found) * 1e3, "ms", aim=limit)


def _together(bench: Bench, kind: str, number: int, count: int) -> tuple[float, float]:
    """Work of several processes at once: operations a second from the first's begin to the last's end, and the
    longest single call in s."""
    db = floors.remove(bench.folder / f"{kind}.db")
    if kind.startswith("raw-"):
        floors.connect(db, "FULL").close()  # several that switch a new file to WAL are busy, whatever their timeout
    command = [sys.executable, str(HERE / "bench_workers.py"), kind, str(db), str(count)]
    workers = [
        subprocess.Popen([*command, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for place in range(number)
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    said = [worker.communicate()[0].split() for worker in workers]
    if any(worker.returncode for worker in workers):
        raise RuntimeError(f"a worker of {kind} failed")
    begins, ends, waits = zip(*(map(float, words) for words in said), strict=True)
    return number * count / (max(ends) - min(begins)), max(waits)


def threads(bench: Bench) -> None:
    """Threads of one process, and the batch door."""
    few = min(bench.rounds, 3)
    bench.line("one thread, full", median(_threads(bench, 1) for _ in range(few)), "/s")
    for workers in (4, 16, 32, 64):
        ratio, ours, floor = bench.ratios(
            lambda workers=workers: _threads(bench, workers),
            lambda: _threads(bench, 1),
            bench.rounds if workers == 32 else few,
        )
        more = {"aim": 0.9, "least": True} if workers == 32 else {}
        bench.line(f"{workers} threads, full, against one", ratio, note=f"{ours:.0f} / {floor:.0f} a s", **more)
    for what, work, aim in (
        ("run.map with concurrency 32", _mapped, 2.5),
        ("1,000 coroutines", _coroutines, 5),
    ):
        ratio, ours, floor = bench.ratios(lambda work=work: work(bench), lambda: _threads(bench, 1))
        note = f"{ours:.0f} / {floor:.0f} a s"
        bench.line(f"{what}, full, against one thread", ratio, aim=aim, least=True, note=note)
    ratio, ours, floor = bench.ratios(
        lambda: 1e6 / _coroutines(bench, 300, at_once=False), lambda: 1e6 / _threads(bench, 1)
    )
    note = f"{ours:.0f} / {floor:.0f} µs"
    bench.line("awaited one after another, full, against synchronous", ratio, aim=2.2, note=note)


def _threads(bench: Bench, workers: int) -> float:
    per = 600 // workers
    with Checkpoint("t", db=floors.remove(bench.folder / "threads.db"), progress=False) as run:

        def work(worker: int) -> None:
            for number in range(per):
                run.step(f"{worker}-{number}", lambda: floors.payload(1))

        run.step("warm", floors.payload, 1)
        started = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
        begin = time.perf_counter()
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        return per * workers / (time.perf_counter() - begin)


def _mapped(bench: Bench) -> float:
    with Checkpoint("m", db=floors.remove(bench.folder / "map.db"), progress=False) as run:
        run.step("warm", floors.payload, 1)
        begin = time.perf_counter()
        for _ in run.map("item", floors.payload, range(600), concurrency=32):
            pass
        return 600 / (time.perf_counter() - begin)


def _coroutines(bench: Bench, count: int = 1000, *, at_once: bool = True) -> float:
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
