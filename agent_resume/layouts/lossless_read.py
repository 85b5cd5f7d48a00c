"""Reading our own form back, line by line or as one document; nothing counts before its run is complete."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from agent_resume.layouts.flowcast_read import parse
from agent_resume.layouts.lossless import PARTS, VERSION
from agent_resume.layouts.lossless_rows import read_row
from agent_resume.layouts.lossless_sound import Siblings
from agent_resume.layouts.outcomes import Refused
from agent_resume.models import RunDump


class Lines:
    """The runs of a JSON-lines export, one after the other.

    Each dump streams from the file; ``find_run`` goes on to the next.
    """

    def __init__(self, file: BinaryIO, tick: Callable[[int], None]) -> None:
        self._file = file
        self._tick = tick
        self._number = 0
        self._ahead: tuple[str, Any] | None = None
        self._promised = self._found = 0
        #: Id of the run that is being read, for the row of a refusal.
        self.run_id: str | None = None

    def begin(self) -> None:
        """Read the header.

        Raises:
            Refused: the file is not such an export, or a newer version's.
        """
        kind, header = self._next()
        if kind != "agentResume":
            raise Refused("line 1 is not the header of an export")
        check_version(header)
        self._promise(header)

    def _promise(self, header: Any) -> None:
        given = header.get("runs") if isinstance(header, dict) else None
        self._promised += given if type(given) is int else 0

    def end(self) -> None:
        """Compare how many runs were found with what the header says.

        Raises:
            Refused: some are missing.
        """
        if self._found < self._promised:
            raise Refused(
                f"only {self._found} of its {self._promised} runs are there: it was cut short; export it again"
            )

    def find_run(self) -> bool:
        """Go to where the next run begins, past what is left of one that was refused; False at the end of the file."""
        while True:
            try:
                ahead = self._peek()
            except Refused:
                continue
            if ahead is None:
                return False
            kind, value = ahead
            if kind == "agentResume":  # two exports in one file
                self._promise(value)
            if kind == "run":
                self._found += 1
                given = value.get("id") if isinstance(value, dict) else None
                self.run_id = given if isinstance(given, str) else None
                return True
            self._ahead = None

    def read_run(self) -> RunDump:
        """The dump of the run that begins here; reading on in it may raise Refused.

        Raises:
            Refused: it is none.
        """
        run = read_row("run", self._next()[1], f"line {self._number}: run")
        siblings = Siblings(run, f"line {self._number}: run")
        counts: dict[str, int] = {}
        return RunDump(run, *(self._rows(part, counts, run["id"], siblings) for part in PARTS))

    def _rows(self, part: str, counts: dict[str, int], run_id: str, siblings: Siblings) -> Iterator[dict[str, Any]]:
        kind = part.removesuffix("s")
        counts[part] = 0
        while True:
            ahead = self._peek()
            if ahead is None:
                raise Refused(f"the file ends within run {run_id!r}; export it again")
            if ahead[0] != kind:
                break
            self._next()
            counts[part] += 1
            row = read_row(kind, ahead[1], f"line {self._number}: {kind}")
            siblings.check(kind, row, f"line {self._number}: {kind}")
            yield row
        if part == PARTS[-1]:
            kind, end = self._next()
            if kind != "end" or not isinstance(end, dict) or end != {"run": run_id, **counts}:
                raise Refused(f"line {self._number}: run {run_id!r} is not complete; export it again")

    def _peek(self) -> tuple[str, Any] | None:
        if self._ahead is None:
            self._ahead = self._read()
        return self._ahead

    def _next(self) -> tuple[str, Any]:
        ahead = self._peek()
        if ahead is None:
            raise Refused("the file is empty")
        self._ahead = None
        return ahead

    def _read(self) -> tuple[str, Any] | None:
        while line := self._file.readline():
            self._number += 1
            self._tick(len(line))
            if line.strip():
                break
        else:
            return None
        try:
            document = parse(line.decode("utf-8-sig" if self._number == 1 else "utf-8"))
        except ValueError as error:
            raise Refused(f"line {self._number} is not JSON ({error})") from None
        if not isinstance(document, dict) or not document:
            raise Refused(f"line {self._number} is not an object")
        if "agentResume" in document:
            return "agentResume", document
        return next(iter(document.items()))


def document_runs(document: dict[str, Any]) -> list[Any]:
    """The runs of a document, for ``document_dump``.

    Raises:
        Refused: it is not such an export.
    """
    check_version(document)
    if not isinstance(document.get("runs"), list):
        raise Refused("'runs' is not an array")
    runs: list[Any] = document["runs"]
    return runs


def document_dump(given: Any, index: int, tick: Callable[[], None]) -> RunDump:
    """The dump of one run of a document; reading on in it may raise Refused.

    Args:
        given: what stands for the run.
        index: its place among the runs, from 0.
        tick: called for every row.

    Raises:
        Refused: it is none.
    """
    place = f"runs[{index}]"
    if not isinstance(given, dict):
        raise Refused(f"{place}: not an object")
    run = read_row("run", {name: value for name, value in given.items() if name not in PARTS}, place)
    siblings = Siblings(run, place)
    parts = []
    for part in PARTS:
        rows = given.get(part, [])
        if not isinstance(rows, list):
            raise Refused(f"{place}.{part}: not an array")
        parts.append(_checked(part, rows, place, siblings, tick))
    return RunDump(run, *parts)


def row_count(given: Any) -> int:
    """How many rows one run of a document has, beside its own."""
    rows = [given.get(part) for part in PARTS] if isinstance(given, dict) else []
    return sum(len(part) for part in rows if isinstance(part, list))


def _checked(
    part: str, rows: list[Any], place: str, siblings: Siblings, tick: Callable[[], None]
) -> Iterator[dict[str, Any]]:
    kind = part.removesuffix("s")
    for number, given in enumerate(rows):
        row = read_row(kind, given, f"{place}.{part}[{number}]")
        siblings.check(kind, row, f"{place}.{part}[{number}]")
        tick()
        yield row


def check_version(header: dict[str, Any]) -> None:
    """Refuse what a newer version wrote.

    Raises:
        Refused: its version is another one.
    """
    version = header.get("version")
    if version != VERSION:
        raise Refused(f"version {json.dumps(version)} is not one that this agent-resume reads; upgrade it")


#: Said of a database that was given to an import.
IS_A_STORE = (
    "is a database, not an export; agent-resume copy --from STORE --to STORE takes the runs of one store into another"
)


def read_document(name: str, data: bytes) -> Any:
    """A whole JSON file.

    Raises:
        Refused: it is no JSON.
    """
    if data.startswith(b"SQLite format 3\0"):
        raise Refused(f"{name} {IS_A_STORE}")
    try:
        # Some shells write UTF-16 when a command's output is redirected.
        wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
        return parse(data.decode("utf-16" if wide else "utf-8-sig"))
    except ValueError as error:
        raise Refused(f"{name} cannot be read ({error})") from None
