"""``resume --all-interrupted --exec``: every interrupted run goes on, so many at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from json import loads
from typing import TYPE_CHECKING, Any

from agent_resume import errors

from . import exits, launch, screen, session, show_text, tables

if TYPE_CHECKING:
    from agent_resume.models import RunSummary
    from agent_resume.store import Store


def all_interrupted(db: str | None, at_once: int, *, json: bool) -> int:
    """Resume every run that is shown as interrupted, but for new forks; what is left out is named.

    Returns:
        0 when each is completed or paused after it, 6 when the store could not be used, else 1.
    """
    from agent_resume import store_admin_fork
    from agent_resume.top_level import list_runs

    with session.opened(db) as store:
        found = list(list_runs(db=store, status="interrupted", sort="created"))
        new = store.ask(store_admin_fork.fresh, [run.id for run in found]) if found else set()
        found = [run for run in found if run.id not in new]
        if not found:
            screen.note("no run is interrupted")
        for why, ids in (("nobody has begun it", sorted(new)), ("no process is seen in it", unseen(store))):
            if ids:
                screen.note(f"left out, since {why}: {', '.join(ids)}; such a run is resumed by its id")
        pool = ThreadPoolExecutor(at_once)
        try:
            results, stopped = _resume_all(pool, store, found, aside=json)
        finally:
            pool.shutdown(cancel_futures=True)
    if json:
        screen.document(results)
    else:
        rows = [[screen.fit(r["id"]), screen.paint_status(r["status"]), screen.fit(r["error"] or "")] for r in results]
        tables.print_table(("ID", "STATUS", "ERROR"), rows, None, cut="ERROR")
    if stopped:
        return exits.INTERRUPTED
    codes = {result["exitCode"] for result in results} - {exits.OK, exits.PAUSED}
    if exits.STORE in codes:
        return exits.STORE
    return exits.FAILED if codes else exits.OK


def unseen(store: Store) -> list[str]:
    """Runs of a ``Checkpoint`` between two steps, or whose process died there: nobody can tell which."""
    from agent_resume import store_admin_detail
    from agent_resume.top_level import list_runs

    free = [
        run for status in ("running", "idle") for run in list_runs(db=store, status=status) if run.owner_pid is None
    ]
    return [run.id for run in free if store_admin_detail.detail(store, store.find_run(run.id)).is_unseen]


def _resume_all(
    pool: ThreadPoolExecutor, store: Store, found: list[RunSummary], *, aside: bool
) -> tuple[list[dict[str, Any]], bool]:
    """What became of each run that was begun, and whether Ctrl-C ended it."""
    begun = [pool.submit(_resume, store, run, aside=aside) for run in found]
    try:
        return [future.result() for future in begun], False
    except KeyboardInterrupt:
        pool.shutdown(cancel_futures=True)  # the commands have got it too, and end
        left = ", ".join(run.id for run, future in zip(found, begun, strict=True) if future.cancelled())
        screen.note(f"stopped by Ctrl-C; not begun: {left or 'none'}")
        return [future.result() for future in begun if not future.cancelled()], True


def _resume(store: Store, run: RunSummary, *, aside: bool) -> dict[str, Any]:
    error: str | None = None
    try:
        code = launch.execute(store, store.find_run(run.id), aside=aside)
    except (errors.AgentResumeError, errors.RunCancelled, exits.Usage, OSError) as trouble:
        code = exits.USAGE if isinstance(trouble, exits.Usage) else exits.of_error(trouble)
        error = str(trouble)
        screen.note(f"agent-resume: {error}")
    after = store.find_run(run.id)
    if error is None and after.status == "failed" and after.error is not None:
        error = show_text.error_text(store, loads(after.error))
    return {
        "id": run.id, "name": run.name, "status": store.shown_status(after), "exitCode": code, "error": error,
    }  # fmt: skip
