"""``agent-resume doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import exits, fold, screen, session
from .options import Db, Json

if TYPE_CHECKING:
    from agent_resume.store_admin_doctor import Finding

# What is to be copied from the screen.
_COMMANDS = ("agent-resume ", "chmod ")
_LITTLE = 2
_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "red"}


def doctor_command(
    full: Annotated[bool, typer.Option("--full", help="Also read every page of the file.")] = False,
    json: Json = False,
    db: Db = None,
) -> int:
    """Look a store over: library, file, schema, runs.

    Exit code 1 when there is a problem; warnings and notes are 0.
    """
    import dataclasses

    from agent_resume import store_admin_doctor

    with session.opened(db) as store:
        findings = []
        for finding in store_admin_doctor.examine(store, full=full):
            findings.append(finding)
            if json:
                continue
            for line in _lines(finding):
                screen.line(line)
        if json:
            screen.document([dataclasses.asdict(finding) for finding in findings])
    return exits.FAILED if any(finding.level == "problem" for finding in findings) else exits.OK


def _lines(finding: Finding) -> list[str]:
    from agent_resume import report

    level = screen.paint(report.pad(finding.level, 7), _STYLES[finding.level])
    head, text = f"{level}  {report.pad(finding.topic, 11)}  ", screen.fit(finding.text)
    indent = _LITTLE if fold.is_narrow() else screen.width(head)
    shown = [head.rstrip(), *fold.lines(text, " " * indent)] if fold.is_narrow() else fold.lines(text, head)
    if finding.mend is None:
        return shown
    mend, before = screen.fit(finding.mend), f"{'':{indent}}-> "
    if not mend.startswith(_COMMANDS):
        return [*shown, *fold.lines(mend, before)]
    return [*shown, *fold.command(mend, before if fold.fits(before + mend) else f"{'':{_LITTLE}}-> ")]
