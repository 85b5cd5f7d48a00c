"""Files of other tools, and our own lossless form: runs go out to them and come in from them.

``export_runs(store, run_ids, format=…, out=…)`` and ``import_paths(store, paths, …)`` are all that the command line needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_resume.layouts.detect import FORMATS, Format
    from agent_resume.layouts.exports import export_runs
    from agent_resume.layouts.imports import OnConflict, import_paths
    from agent_resume.layouts.outcomes import Bend, ExportRow, ExportSummary, ImportRow, ImportSummary, Progress

# Resolved at first use: the command line makes tables in this package far more often than it exports.
_HOMES = {
    "detect": ("FORMATS", "Format"),
    "exports": ("export_runs",),
    "imports": ("OnConflict", "import_paths"),
    "outcomes": ("Bend", "ExportRow", "ExportSummary", "ImportRow", "ImportSummary", "Progress"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

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


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{home}", __name__), name)
    return value
