"""The demo: starts demo_agent.py, kills it in the middle of a step, resumes it, and checks what really happened."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from demo_agent import files_of, shelves_of_the_library

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".demo"
LEDGER = FOLDER / "ledger.txt"
STORE = FOLDER / ".agent-resume" / "runs.db"
RUN = "stdlib-survey@latest"
TERMINAL = sys.stdout.isatty()
COLOUR = TERMINAL and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_RESUME_")}


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    shelves = shelves_of_the_library()
    files = sum(len(files_of(shelf)) for shelf in shelves)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    say(paint("agent-resume: an agent is killed and resumes", "1"))
    say(f"Its job: survey the {files:,} source files of Python {version}'s standard library, a step a package.")

    heading(1, "At work, and killed in the middle of a step")
    victim, begun, killed = run_and_kill(victim_among(shelves))
    stored = stored_steps()
    say(f"{len(stored)} steps were stored in {killed - begun:.1f} s.")
    say(f"Then kill -9, while {victim} was running.")

    heading(2, "What the store knows about it")
    show("list")
    say()
    show("show", RUN, keep=(6, 5))

    heading(3, "Resumed, by its own command in a new process")
    began = time.monotonic()
    code = show("resume", RUN, "--exec", meanwhile=progress, keep=(4, 4))
    took = time.monotonic() - began
    if code:
        sys.exit(f"demo: the resume ended with exit code {code}")
    say(f"It took {took:.1f} s.")

    heading(4, f"The report ({(FOLDER / 'report.md').relative_to(ROOT)})")
    excerpt((FOLDER / "report.md").read_text(encoding="utf-8").splitlines(), (14, 0))

    heading(5, "The timeline")
    show("show", RUN)

    heading(6, "What really happened, by the ledger that the functions write")
    prove(stored)


def victim_among(shelves: list[str]) -> str:
    """The largest shelf in the middle of the work: time enough to die in, and something left to do."""
    sizes = [sum(path.stat().st_size for path in files_of(shelf)) for shelf in shelves]
    middle = [at for at in range(len(shelves)) if 0.4 < sum(sizes[:at]) / sum(sizes) < 0.7] or [len(shelves) // 2]
    return f"survey:{shelves[max(middle, key=lambda at: sizes[at])]}"


def run_and_kill(victim: str) -> tuple[str, float, float]:
    """Starts the agent and kills it as soon as the victim's function was called."""
    agent = ROOT / "scripts" / "demo_agent.py"
    say(paint(f"$ python {os.path.relpath(agent, FOLDER)}", "2"))
    begun = time.monotonic()
    with (FOLDER / "agent.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, os.path.relpath(agent, FOLDER)],
            cwd=FOLDER,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        while f"called {victim}" not in ledger():
            if process.poll() is not None:
                sys.exit(f"demo: the agent ended by itself:\n{(FOLDER / 'agent.log').read_text(encoding='utf-8')}")
            progress()
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    clear_progress()
    return victim, begun, time.monotonic()


def ledger() -> list[str]:
    return LEDGER.read_text(encoding="utf-8").splitlines() if LEDGER.exists() else []


def stored_steps() -> dict[str, int]:
    """Completed steps and their milliseconds; the store is plain SQLite."""
    with sqlite3.connect(STORE) as database:
        rows = database.execute("SELECT key, duration_ms FROM step_timeline WHERE status = 'completed'").fetchall()
    database.close()
    return dict(rows)


def prove(stored: dict[str, int]) -> None:
    """Counts the calls that the functions noted, and says what the resume saved."""
    notes = [line.partition(" ")[::2] for line in ledger()]
    calls = Counter(step for what, step in notes if what == "called")
    skipped = [step for what, step in notes if what == "skip"]
    again = sorted(step for step, count in calls.items() if count > 1)
    wrong = sorted(set(again) & set(stored))
    say(f"{len(calls)} functions were called, {len(calls) - len(again)} of them once.")
    say(f"Called twice: {', '.join(again) or 'none'} (the one that was killed; a step runs at least once).")
    if wrong or set(skipped) != set(stored):
        sys.exit(f"demo: steps that were stored were called again, this is a fault: {wrong or skipped}")
    say("No step that was stored when the agent died was called again.")
    saved = sum(stored.values()) / 1000
    say()
    say(paint(f"The resume saved {len(skipped)} of {len(calls)} steps and {saved:.1f} s of work.", "1;32"))


def show(*arguments: str, keep: tuple[int, int] = (99, 99), meanwhile: Callable[[], None] | None = None) -> int:
    """Runs an agent-resume command in the demo's folder and prints what it printed, perhaps with the middle left out."""
    say(paint(f"$ agent-resume {' '.join(arguments)}", "2"))
    with (FOLDER / "command.log").open("w+", encoding="utf-8") as log:
        command = [Path(sys.executable).parent / "agent-resume", *arguments]
        process = subprocess.Popen(
            command, cwd=FOLDER, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        while process.poll() is None:
            if meanwhile:
                meanwhile()
            time.sleep(0.01)
        clear_progress()
        log.seek(0)
        excerpt(log.read().splitlines(), keep)
    return process.returncode


def excerpt(lines: list[str], keep: tuple[int, int]) -> None:
    """Prints the first and the last lines, and how many lie between."""
    head, tail = keep
    between = len(lines) - head - tail
    if between <= 1:
        head, tail, between = len(lines), 0, 0
    for line in lines[:head]:
        say(line)
    if between:
        say(paint(f"... {between} more lines", "2"))
    for line in lines[len(lines) - tail :]:
        say(line)


def progress() -> None:
    """One moving line on a terminal; nothing elsewhere."""
    if TERMINAL:
        notes = ledger()
        called = [line.partition(" ")[2] for line in notes if line.startswith("called ")]
        stored = len({line.partition(" ")[2] for line in notes if line.startswith("done ")})
        print(f"\r  {stored:3} steps stored   {called[-1] if called else '':40.40}", end="", flush=True)


def clear_progress() -> None:
    if TERMINAL:
        print(f"\r{'':64}\r", end="", flush=True)


def heading(number: int, title: str) -> None:
    say()
    print(paint(f"{number}  {title}", "1;36"))


def say(text: str = "") -> None:
    print(f"   {text}".rstrip(), flush=True)


def paint(text: str, code: str) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOUR else text


if __name__ == "__main__":
    main()
