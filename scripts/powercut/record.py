"""Recording programs under shim.c, and choosing the moments at which the power goes."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from powercut.disk import Disk, Record, read_journal, write_image

HERE = Path(__file__).parent


class CannotRecordError(Exception):
    """This machine cannot build or load the shim."""


def build_shim(folder: Path) -> Path:
    """Compile shim.c; the compiler is the only thing asked of the machine."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        raise CannotRecordError("needs Linux and a C compiler")
    shim = folder / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(shim), str(HERE / "shim.c"), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise CannotRecordError(f"{compiler} failed: {done.stderr.strip()}")
    return shim


@dataclass(frozen=True)
class Recording:
    """What happened to a folder while programs ran."""

    disk: Disk
    journal: list[Record]

    @property
    def acknowledged(self) -> int:
        return sum(record.kind == "A" for record in self.journal)

    @property
    def syncs(self) -> int:
        return sum(record.kind == "E" for record in self.journal)


def record(shim: Path, root: Path, log: Path, commands: Sequence[Sequence[str]], timeout: float = 300) -> Recording:
    """Run the commands side by side with their changes below ``root`` recorded; all of them must succeed."""
    disk = Disk(root)
    environment = {**os.environ, "LD_PRELOAD": str(shim), "POWERCUT_DIR": str(root), "POWERCUT_LOG": str(log)}
    children = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        for child in children:
            _, complaint = child.communicate(timeout=timeout)
            if child.returncode != 0:
                raise RuntimeError(f"a recorded program ended with {child.returncode}:\n{complaint}")
    finally:
        for child in children:
            child.kill()
            child.wait()
    journal = read_journal(log)
    if not journal:
        raise CannotRecordError("the shim saw nothing: these programs do not call the C library")
    return Recording(disk, journal)


@dataclass(frozen=True)
class Cut:
    """One power cut: the folder as it was found afterwards, and what had been acknowledged before."""

    folder: Path
    moment: int
    acknowledged: list[str]


def cuts(recording: Recording, count: int, chance: random.Random, folder: Path) -> Iterator[Cut]:
    """``count`` power cuts, half of them right after an acknowledgement; each folder lives until the next one."""
    journal = recording.journal
    notes = [place + 1 for place, entry in enumerate(journal) if entry.kind == "A"]
    moments = sorted(
        chance.choice(notes) if notes and number % 2 == 0 else chance.randint(1, len(journal))
        for number in range(count)
    )
    acknowledged: list[str] = []
    reached = 0
    for moment in moments:
        for entry in journal[reached:moment]:
            recording.disk.replay(entry)
            if entry.kind == "A":
                acknowledged.append(entry.data.decode())
        reached = moment
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_image(recording.disk.image(chance), folder)
        yield Cut(folder, moment, list(acknowledged))
