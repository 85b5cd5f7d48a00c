"""The parts of ``scripts/bench`` by name, each a function of a ``Bench``."""

from __future__ import annotations

from collections.abc import Callable

import bench_many
import bench_peers
import bench_programs
import bench_steps
from bench_base import Bench

PARTS: dict[str, Callable[[Bench], None]] = {
    "step": bench_steps.step,
    "cpu": bench_steps.cpu,
    "syncs": bench_steps.syncs,
    "growth": bench_steps.growth,
    "resume": bench_steps.resume,
    "processes": bench_many.processes,
    "threads": bench_many.threads,
    "sizes": bench_steps.sizes,
    "codec": bench_steps.codec,
    "command": bench_programs.command,
    "cli": bench_programs.cli,
    "memory": bench_programs.memory,
    "peers": bench_peers.measure,
}
