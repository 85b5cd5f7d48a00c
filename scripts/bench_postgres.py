"""Records per second of several processes on PostgreSQL, ours against psycopg by hand; row sizes as well.

First all of them write to one run, then each to its own. The hand-written rivals do the same work, or less: ``transaction`` the same three rows in five statements, ``one
statement`` the same in one, ``bare`` only the upsert of the step, without the event and its number.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

VALUE = {"answer": "x" * 200, "tokens": 123}
NOW = "2026-01-31T09:08:07.006Z"
RAISE = "UPDATE runs SET last_seq = last_seq + 1, updated_at = %(now)s WHERE seq = %(run)s AND status = 'running' RETURNING last_seq"
STEP = (
    "INSERT INTO steps (run_id, key, seq, status, attempts, meta, started_at, finished_at, output_format, output_bytes, "
    "output) VALUES (%(run)s, %(key)s, %(seq)s, 'completed', 1, NULL, %(now)s, %(now)s, 'json', %(bytes)s, %(text)s) "
    "ON CONFLICT (run_id, key) DO UPDATE SET output = excluded.output RETURNING id"
)
EVENT = "INSERT INTO events (run_id, seq, ts, type, step_key) VALUES (%(run)s, %(seq)s, %(now)s, 'record', %(key)s)"
ALL = f"""
WITH raised AS ({RAISE}),
     step AS ({STEP.replace("VALUES (", "SELECT ").replace("%(text)s)", "%(text)s FROM raised").replace("%(seq)s", "raised.last_seq").replace("RETURNING id", "RETURNING id, seq")})
INSERT INTO events (run_id, seq, ts, type, step_key) SELECT %(run)s, step.seq, %(now)s, 'record', %(key)s FROM step
"""


def transaction(cursor: Any, values: dict[str, Any]) -> None:
    cursor.execute("BEGIN")
    values["seq"] = cursor.execute(RAISE, values).fetchone()[0]
    cursor.execute(STEP, values)
    cursor.execute(EVENT, values)
    cursor.execute("COMMIT")


def one_statement(cursor: Any, values: dict[str, Any]) -> None:
    cursor.execute(ALL, values)


def bare(cursor: Any, values: dict[str, Any]) -> None:
    cursor.execute(STEP, values | {"seq": 0})


def by_hand(
    url: str, write: Callable[[Any, dict[str, Any]], None], run_id: str, name: str, gate: Any, seconds: float, out: Any
) -> None:
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        cursor = connection.cursor()
        cursor.execute("SET search_path TO agent_resume")
        run = cursor.execute("SELECT seq FROM runs WHERE id = %s", (run_id,)).fetchone()[0]
        gate.wait()
        end, count = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            text = json.dumps(VALUE)
            write(cursor, {"run": run, "key": f"{name}-{count}", "now": NOW, "bytes": len(text), "text": text})
            count += 1
    out.put(count)


def ours(url: str, write: object, run_id: str, name: str, gate: Any, seconds: float, out: Any) -> None:
    from agent_resume import Checkpoint

    with Checkpoint(run_id, db=url) as run:
        run.record(f"{name}-first", VALUE)
        gate.wait()
        end, count = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            run.record(f"{name}-{count}", VALUE)
            count += 1
    out.put(count)


def measure(url: str, target: Any, write: Any, label: str, runs: list[str], seconds: float) -> float:
    context = multiprocessing.get_context("spawn")
    gate, out = context.Barrier(len(runs)), context.Queue()
    children = [
        context.Process(
            target=target, args=(url, write, run_id, f"{label}-{time.time_ns()}-{number}", gate, seconds, out)
        )
        for number, run_id in enumerate(runs)
    ]
    for child in children:
        child.start()
    total = sum(out.get() for _ in children)
    for child in children:
        child.join()
    return total / seconds


def sizes(server: Any) -> None:
    server.execute("VACUUM ANALYZE", "bench")
    for table in ("steps", "events"):
        ((rows, heap, whole),) = server.execute(
            f"SELECT count(*), pg_relation_size('agent_resume.{table}'), pg_total_relation_size('agent_resume.{table}') "
            f"FROM agent_resume.{table}",
            "bench",
        )
        print(f"{table}: {rows} rows, {heap / rows:.0f} bytes a row, {whole / rows:.0f} with its indexes")


def main() -> None:
    from postgres_server import Server

    from agent_resume import Checkpoint

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    rivals = [("ours", ours, None), ("transaction", by_hand, transaction), ("one statement", by_hand, one_statement),
              ("bare", by_hand, bare)]  # fmt: skip
    with Server(durable=True) as server:
        url = server.create_database("bench")
        own = [f"bench-{number}" for number in range(wanted.processes)]
        for run_id in own:
            with Checkpoint(run_id, db=url) as run:
                run.record("first", 0)
        for where, runs in (("one run", own[:1] * wanted.processes), ("a run for each process", own)):
            best: dict[str, float] = {}
            for _ in range(wanted.rounds):
                for label, target, write in rivals:
                    rate = measure(url, target, write, label, runs, wanted.seconds)
                    best[label] = max(best.get(label, 0.0), rate)
            print(f"{wanted.processes} processes, {where}:")
            for label, rate in best.items():
                print(f"  {label:14} {rate:8.0f} records/s   ours is {best['ours'] / rate:.2f} x")
        sizes(server)


if __name__ == "__main__":
    main()
