"""The power goes at random moments: the model of a disk, and a bounded share of ``scripts/power-cut``."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not (shutil.which("cc") or shutil.which("gcc")),
    reason="the recorder is a preloaded library: it needs Linux and a C compiler",
)


@pytest.fixture
def powercut(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(SCRIPTS), os.environ.get("PYTHONPATH")])))
    import powercut.record

    return powercut.record


Images = Callable[[str], set[tuple[tuple[str, bytes | None], ...]]]


@pytest.fixture
def images(powercut: ModuleType, tmp_path: Path) -> Images:
    """All images that 200 cuts at the very end of a recorded script leave."""
    root = tmp_path / "disk"
    root.mkdir()
    (root / "old").write_bytes(b"o" * 1024)

    def left(script: str) -> set[tuple[tuple[str, bytes | None], ...]]:
        shim = powercut.build_shim(tmp_path)
        program = f"import os; os.chdir({str(root)!r})\n{script}"
        recording = powercut.record(shim, root, tmp_path / "journal", [[sys.executable, "-c", program]])
        for entry in recording.journal:
            recording.disk.replay(entry)
        chance = random.Random(1)
        return {tuple(sorted(recording.disk.image(chance).items())) for _ in range(200)}

    return left


def contents(found: set[tuple[tuple[str, bytes | None], ...]], name: str) -> set[Any]:
    return {dict(image).get(name, "gone") for image in found}


FOLDER = "folder = os.open('.', os.O_RDONLY)\n"


def test_what_was_synced_is_there(images: Images) -> None:
    found = images("f = os.open('old', os.O_WRONLY); os.write(f, b'n' * 700); os.fdatasync(f)")
    assert contents(found, "old") == {b"n" * 700 + b"o" * 324}


def test_what_was_not_synced_may_be_there_by_sectors(images: Images) -> None:
    found = images("f = os.open('old', os.O_WRONLY); os.pwrite(f, b'n' * 700, 0)")
    assert contents(found, "old") == {
        b"o" * 1024,
        b"n" * 512 + b"o" * 512,
        b"o" * 512 + b"n" * 188 + b"o" * 324,
        b"n" * 700 + b"o" * 324,
    }


def test_a_write_after_the_sync_is_not_synced(images: Images) -> None:
    found = images("f = os.open('old', os.O_WRONLY); os.fsync(f); os.ftruncate(f, 3); os.write(f, b'x')")
    assert {b"o" * 1024, b"ooo", b"xoo"} <= contents(found, "old")


def test_a_new_name_is_there_only_when_its_folder_was_synced(images: Images) -> None:
    script = "f = os.open('new', os.O_CREAT | os.O_WRONLY); os.write(f, b'x'); os.fsync(f)\n"
    assert contents(images(script), "new") == {"gone", b"x"}


def test_a_synced_folder_keeps_its_new_names(images: Images) -> None:
    script = "f = os.open('new', os.O_CREAT | os.O_WRONLY); os.write(f, b'x'); os.fsync(f)\n"
    assert contents(images(f"{script}{FOLDER}os.fsync(folder)"), "new") == {b"x"}


def test_a_removed_name_may_come_back(images: Images) -> None:
    assert contents(images("os.unlink('old')"), "old") == {"gone", b"o" * 1024}


def test_a_rename_is_both_or_neither(images: Images) -> None:
    script = "f = os.open('new', os.O_CREAT | os.O_WRONLY); os.write(f, b'x'); os.fsync(f)\n"
    found = images(f"{script}{FOLDER}os.fsync(folder); os.rename('new', 'old')")
    assert {(dict(image).get("new"), dict(image)["old"]) for image in found} == {(b"x", b"o" * 1024), (None, b"x")}


def test_a_folder_whose_parent_was_not_synced_takes_everything_with_it(images: Images) -> None:
    script = (
        "os.mkdir('sub'); f = os.open('sub/new', os.O_CREAT | os.O_WRONLY); os.write(f, b'x'); os.fsync(f)\n"
        "os.fsync(os.open('sub', os.O_RDONLY))\n"
    )
    assert contents(images(script), "sub/new") == {"gone", b"x"}


def test_a_folder_that_several_processes_make_at_once_comes_before_what_they_put_in_it(
    powercut: ModuleType, tmp_path: Path
) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    program = (
        f"import os; os.chdir({str(root)!r})\n"
        "for number in range(300):\n"
        "    os.makedirs(f'd{number}', exist_ok=True)\n"
        "    f = os.open(f'd{number}/shared', os.O_CREAT | os.O_WRONLY | os.O_APPEND); os.write(f, b'x'); os.close(f)\n"
    )
    commands = [[sys.executable, "-c", program]] * 4
    recording = powercut.record(powercut.build_shim(tmp_path), root, tmp_path / "journal", commands)
    for entry in recording.journal:
        recording.disk.replay(entry)
    image = recording.disk.image(random.Random(1), "kept")
    assert {image[f"d{number}/shared"] for number in range(300)} == {b"xxxx"}


def test_a_change_that_the_model_does_not_know_is_refused(powercut: ModuleType, images: Images) -> None:
    from powercut.disk import UnmodelledError

    with pytest.raises(UnmodelledError, match="writev"):
        images("f = os.open('old', os.O_WRONLY); os.write(f, b'n'); os.writev(f, [b'x'])")


def power_cuts(powercut: ModuleType, *arguments: str) -> str:
    command = [sys.executable, "-m", "powercut", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_sqlite_itself_keeps_what_the_design_relies_on(powercut: ModuleType) -> None:
    verdict = power_cuts(powercut, "--only", "plain", "--cuts", "40", "--seed", "7")
    assert "power-cut: ok, seed 7: 240 power cuts in 6 scenarios" in verdict


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_agent_loses_nothing_that_it_was_told_is_stored(powercut: ModuleType) -> None:
    verdict = power_cuts(powercut, "--only", "agent", "--cuts", "20", "--seed", "7")
    assert "power-cut: ok, seed 7: 80 power cuts in 4 scenarios" in verdict
    assert "where nothing may be lost, 0 cuts lost something acknowledged" in verdict
