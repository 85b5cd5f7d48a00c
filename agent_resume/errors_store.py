"""Errors that say that the store cannot be used; part of the tree that ``errors.py`` draws."""

from __future__ import annotations

from typing import Any

from .errors_base import NO_RESULT, AgentResumeError


class StoreError(AgentResumeError):
    """The store cannot be used.

    Attributes:
        path: the database file, or the URL without its password.
        result: what a step's function had returned when storing it failed; else ``NO_RESULT``.
    """

    path: str
    result: Any = NO_RESULT


class StoreBusy(StoreError):
    """Somebody else held the store for longer than we wait.

    Attributes:
        seconds: how long we waited.
        holder: the process that holds it, where known.
    """

    seconds: float
    holder: str | None

    def __init__(
        self, path: str, *, seconds: float, holder: str | None = None, why: str = "another writer holds it"
    ) -> None:
        known = f" (probably {holder})" if holder else ""
        super().__init__(
            f"{path}: still busy after {seconds:.1f} s, {why}{known}; end that process or try again",
            path=path,
            seconds=seconds,
            holder=holder,
        )


class StoreUnavailable(StoreError):
    """The store cannot be opened, reached, read or written."""

    def __init__(self, path: str, why: str, hint: str = "mend that, then resume the run") -> None:
        super().__init__(f"{path}: {why}; {hint}", path=path)


class StoreDamaged(StoreError):
    """The file is no database of ours, or a broken one. It was left as it is."""

    def __init__(
        self,
        path: str,
        why: str,
        hint: str = "the file was left as it is; restore a copy or name another with db= (or --db)",
    ) -> None:
        super().__init__(f"{path}: {why}; {hint}", path=path)


class StoreNewer(StoreError):
    """The file was written by a newer agent-resume. It was left as it is.

    Attributes:
        found: the file's schema revision.
        known: the newest revision that this version knows.
    """

    found: str
    known: str

    def __init__(self, path: str, *, found: str, known: str) -> None:
        super().__init__(
            f"{path}: made by a newer agent-resume (schema {found}, this one knows up to {known}); "
            f"pip install --upgrade agent-resume",
            path=path,
            found=found,
            known=known,
        )


class StoreReadOnly(StoreError):
    """The store may be read but not written."""

    def __init__(
        self,
        path: str,
        why: str,
        hint: str = "make the file and its folder writable, or name another store with db= (or --db)",
    ) -> None:
        super().__init__(f"{path}: {why}; {hint}", path=path)


class StoreFull(StoreError):
    """No space left for the store, or a quota or size limit was met."""

    def __init__(
        self, path: str, why: str = "no space left", hint: str = "free some space, then resume the run"
    ) -> None:
        super().__init__(f"{path}: {why}; {hint}", path=path)


class StoreMoved(StoreError):
    """The database file was deleted or replaced while it was open; on a server: tables of ours."""

    def __init__(
        self,
        path: str,
        why: str = "the database file was replaced or removed while it was open; nothing was written. "
        "Put the file back, or start the program again to begin a new one",
    ) -> None:
        super().__init__(f"{path}: {why}", path=path)


class StoreForked(StoreError):
    """This process was forked while its parent's connections could not be closed."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path}: forked while a transaction was open, so this child cannot use the store safely; "
            f"fork outside run.transaction, or start the child with multiprocessing's 'spawn'",
            path=path,
        )
