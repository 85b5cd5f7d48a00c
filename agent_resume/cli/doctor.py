"""``agent-resume doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

from . import exits, screen, session
from .options import Db, Json

_INDENT = 22
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

    from agent_resume import report, store_admin_doctor

    with session.opened(db) as store:
        findings = []
        for finding in store_admin_doctor.examine(store, full=full):
            findings.append(finding)
            if json:
                continue
            topic, level = report.pad(finding.topic, 11), report.pad(finding.level, 7)
            first, *rest = screen.wrap(screen.fit(finding.text), _INDENT)
            screen.line(f"{screen.paint(level, _STYLES[finding.level])}  {topic}  {first}")
            for text in rest:
                screen.line(f"{'':{_INDENT}}{text}")
            if finding.mend is not None:
                first, *rest = _mending(screen.fit(finding.mend))
                screen.line(f"{'':{_INDENT}}-> {first}")
                for text in rest:
                    screen.line(f"{'':{_INDENT}}   {text}")
        if json:
            screen.document([dataclasses.asdict(finding) for finding in findings])
    return exits.FAILED if any(finding.level == "problem" for finding in findings) else exits.OK


def _mending(text: str) -> list[str]:
    # A command is copied from the screen: no line break of ours in it.
    return [text] if text.startswith("agent-resume ") else screen.wrap(text, _INDENT + 3)
