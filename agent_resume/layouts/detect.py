"""Which layout a file or folder has."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_resume.layouts import files
from agent_resume.layouts.flowcast_names import BACKUP, STATE
from agent_resume.layouts.outcomes import Refused

Format = Literal["json", "jsonl", "flowcast", "badgr"]
FORMATS: tuple[Format, ...] = ("json", "jsonl", "flowcast", "badgr")
# Where flowcast keeps its runs below a repository.
_STATE_DIRS = (".flowcast/runs", ".flowx/runs")
_FIRST_LINE = 4096


@dataclass(frozen=True, slots=True)
class Found:
    """Something to import: a folder of flowcast's, or a file of one of the other layouts.

    Attributes:
        kind: ``flowcast``, ``jsonl``, or ``document`` (a file that is one JSON document: ours or badgr's).
        is_guess: it was only found beside others, and may be something else altogether.
    """

    path: Path
    kind: Literal["flowcast", "jsonl", "document"]
    is_guess: bool = False


def look(path: Path, wanted: str) -> Iterator[Found]:
    """What there is to import at a path.

    Args:
        path: a run's folder or one of its parents, or a file.
        wanted: a format, or ``auto``.

    Raises:
        Refused: nothing is there, or nothing of that format.
    """
    path = Path(os.path.abspath(path.expanduser()))
    if path.is_dir():
        yield from _in_folder(path, wanted)
    elif not path.exists():
        raise Refused("no such file or folder; check the path")
    else:
        yield _file(path, wanted)


def _in_folder(path: Path, wanted: str) -> Iterator[Found]:
    if wanted in ("auto", "flowcast"):
        if is_flowcast_run(path):
            yield Found(path, "flowcast")
            return
        for folder in (path, *(path / name for name in _STATE_DIRS)):
            if folder.is_dir():
                runs = (entry for entry in sorted(folder.iterdir()) if not entry.name.startswith("."))
                yield from (Found(run, "flowcast") for run in runs if run.is_dir() and is_flowcast_run(run))
    if wanted != "flowcast":
        for entry in sorted(path.iterdir()):
            ours = entry.suffix == ".jsonl" if wanted == "jsonl" else entry.suffix in (".json", ".jsonl")
            if ours and entry.is_file() and not entry.name.startswith("."):
                found = _file(entry, wanted)
                yield Found(found.path, found.kind, is_guess=wanted == "auto")


def is_flowcast_run(path: Path) -> bool:
    """Whether flowcast's dashboard would look into this folder."""
    return os.path.lexists(path / STATE) or os.path.lexists(path / BACKUP)


def _file(path: Path, wanted: str) -> Found:
    if path.name in (STATE, BACKUP) and wanted in ("auto", "flowcast"):
        return Found(path.parent, "flowcast")
    if wanted == "flowcast":
        raise Refused("flowcast's runs are folders; give the folder that holds state.json")
    if wanted == "jsonl" or (wanted == "auto" and _has_header(path)):
        return Found(path, "jsonl")
    return Found(path, "document")


def _has_header(path: Path) -> bool:
    with files.open_regular(path) as file:
        return file.readline(_FIRST_LINE).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b'{"agentResume"')
