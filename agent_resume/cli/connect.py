"""``agent-resume connect``: how other tools reach this history."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from . import completion, screen, session
from .exits import Usage
from .options import Db, Json

if TYPE_CHECKING:
    from agent_resume.store import Store

_EXAMPLES = {
    "run_overview": "SELECT run_id, status, steps_completed, steps FROM run_overview ORDER BY created_at DESC LIMIT 10",
    "step_timeline": "SELECT key, status, duration_ms FROM step_timeline WHERE run_id = 'RUN' ORDER BY seq",
    "step_attempts": "SELECT key, attempt, outcome, error FROM step_attempts WHERE outcome <> 'done' LIMIT 10",
    "runs": "SELECT id, name, status, created_at FROM runs ORDER BY seq DESC LIMIT 10",
    "steps": "SELECT key, json_extract(output, '$') AS output FROM steps WHERE output_format = 'json' LIMIT 10",
    "events": "SELECT seq, ts, type, step_key FROM events ORDER BY id DESC LIMIT 10",
    "pauses": "SELECT name, reason, asked_at FROM pauses WHERE answered_at IS NULL",
    "owners": "SELECT host, pid, beat_at FROM owners",
}
# What a server spells differently; its tables are in a schema of our own.
_ON_A_SERVER = {"json_extract(output, '$')": "output::jsonb"}
_TEMPLATE = "AGENT_RESUME_HISTORY_URL"


def connect_command(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]", help="A run, for its link in a hosted history.", autocompletion=completion.run_ids
        ),
    ] = None,
    json: Json = False,
    db: Db = None,
) -> None:
    """Print how to reach this history from other tools."""
    with session.opened(db) as store:
        row = None if run is None else session.find(store, run)
        link = _link(None if row is None else row.id)
        if run is not None and link is None:
            raise Usage(
                f"no hosted history is known: set {_TEMPLATE}, for example https://history.example/runs/{{run_id}}"
            )
        if json:
            screen.document(_ways(store) | {"link": link})
            return
        _print(store, link)


def _link(run_id: str | None) -> str | None:
    template = os.environ.get(_TEMPLATE)
    if not template:
        return None
    if "{run_id}" not in template:
        raise Usage(f"{_TEMPLATE} holds {template!r}, which has no {{run_id}} in it")
    return template if run_id is None else template.replace("{run_id}", quote(run_id, safe=""))


def _exists(store: Store) -> bool:
    found = store.exists()
    if found:
        store.ask(lambda _: None)  # opened: what cannot be used is told from what is not there yet
    return found


def _ways(store: Store) -> dict[str, Any]:
    if store.location.kind != "sqlite":
        plain = store.display.replace("postgresql+psycopg://", "postgresql://")
        return {
            "database": store.display,
            "exists": _exists(store),
            "url": store.display,
            "psql": f"psql {shlex.quote(plain)}",
            "queries": {name: _on_a_server(name, query) for name, query in _EXAMPLES.items()},
        }
    path = store.location.target
    return {
        "database": path,
        "exists": _exists(store),
        "url": store.location.url,
        "sqlite3": f"sqlite3 -readonly {shlex.quote(path)}",
        "datasette": f"datasette serve {shlex.quote(path)}",
        "queries": _EXAMPLES,
    }


def _on_a_server(name: str, query: str) -> str:
    for ours, theirs in _ON_A_SERVER.items():
        query = query.replace(ours, theirs)
    return query.replace(f"FROM {name}", f"FROM agent_resume.{name}")


def _print(store: Store, link: str | None) -> None:
    from agent_resume import report
    from agent_resume.store_admin_sql import COMMENTS

    ways = _ways(store)
    queries = ways.pop("queries")
    if not ways.pop("exists"):
        screen.note("there is nothing yet; the first agent run makes the store")
    for name, text in {**ways, **({"link": link} if link else {})}.items():
        screen.line(f"{report.pad(name, 10)} {screen.fit(text)}")
    for name, query in queries.items():
        screen.line()
        screen.line(f"{screen.paint(name, 'bold')}: {COMMENTS[name]}")
        screen.line(f"  {query}")
