"""Files of other tools, and our own lossless form: runs go out to them and come in from them.

``export_runs(store, run_ids, format=…, out=…)`` and ``import_paths(store, paths, …)`` are all that the command line needs.
"""

from __future__ import annotations

from agent_resume.layouts.detect import FORMATS, Format
from agent_resume.layouts.exports import export_runs
from agent_resume.layouts.imports import OnConflict, import_paths
from agent_resume.layouts.outcomes import Bend, ExportRow, ExportSummary, ImportRow, ImportSummary, Progress

__all__ = [
    "FORMATS",
    "Bend",
    "ExportRow",
    "ExportSummary",
    "Format",
    "ImportRow",
    "ImportSummary",
    "OnConflict",
    "Progress",
    "export_runs",
    "import_paths",
]
