"""Where a store is: one resolved file, or one URL."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import errors

#: Folder and file used when nobody names a store.
DEFAULT_FOLDER = ".agent-resume"
DEFAULT_FILE = "runs.db"
#: Names the store of whoever names none.
DB = "AGENT_RESUME_DB"
#: Set by what starts programs, ``agent-resume run`` and ``resume --exec``: by it they find the runs of those.
SUPERVISOR = "AGENT_RESUME_SUPERVISOR"
#: A URL that lost a slash or two; pathlib.Path takes one away.
_NEARLY_URL = re.compile(
    r"((?:sqlite|postgres(?:ql)?|mysql|mariadb|oracle|mssql)(?:\+\w+)?)(?::(?!//)|//)", re.IGNORECASE
)

#: What is in the names of those parameters of a URL that are secrets: libpq's, and what else may come to be called so.
_SECRET = ("password", "passwd", "secret", "scram_client_key", "scram_server_key")


@dataclass(frozen=True, slots=True)
class Location:
    """A resolved place of a store.

    Attributes:
        kind: ``"sqlite"`` or ``"postgresql"``.
        target: the absolute file path, or the full URL.
        display: what messages show; a URL without its password.
        option: what a command line of ours must say to mean this store, with a space before it; empty where it need not.
        is_named: whether somebody named it, on a command line, in a program or in ``AGENT_RESUME_DB``.
    """

    kind: str
    target: str
    display: str
    option: str = field(default="", compare=False)
    is_named: bool = field(default=False, compare=False)

    @property
    def url(self) -> str:
        """What SQLAlchemy opens it by; a server's without its password."""
        if self.kind != "sqlite":
            return self.display
        from sqlalchemy import URL

        return URL.create("sqlite", database=self.target).render_as_string()

    def is_same(self, other: Location) -> bool:
        """Whether both are one place; a file may have several names."""
        if self == other or (self.kind, other.kind) != ("sqlite", "sqlite"):
            return self == other
        try:
            return os.path.samefile(self.target, other.target)
        except OSError:  # not there
            return False


def resolve(db: str | os.PathLike[str] | None = None, state_dir: str | os.PathLike[str] | None = None) -> Location:
    """Turn what the user gave into one place, once.

    Precedence: ``db``, ``state_dir`` (its ``runs.db``), ``AGENT_RESUME_DB``, ``.agent-resume/runs.db`` in the working
    folder. A str with ``://`` is a URL, anything else a path; ``~`` is expanded.

    Raises:
        ValueError: a URL of a database we do not know, or one without its slashes; or ``:memory:``, which nothing can
            resume from.
    """
    found = _resolve(db, state_dir)
    by_caller, by_environment = db is not None or state_dir is not None, bool(os.environ.get(DB))
    # In a program that was started so the variable may be the starter's, and the user's shell is without it.
    is_handed_on = by_environment and SUPERVISOR in os.environ
    needed = is_handed_on or (by_caller and found != _named_by_nobody())
    option = f" --db {shlex.quote(found.display)}" if needed else ""
    return replace(found, option=option, is_named=by_caller or by_environment)


def _named_by_nobody() -> Location | None:
    try:
        return _resolve(None, None)
    except (ValueError, errors.StoreUnavailable):  # AGENT_RESUME_DB is no place, or the working folder is gone
        return None


def _resolve(db: str | os.PathLike[str] | None, state_dir: str | os.PathLike[str] | None) -> Location:
    if db is None and state_dir is not None:
        return _file(Path(os.fspath(state_dir)) / DEFAULT_FILE)
    if db is None:
        db = os.environ.get(DB) or Path(DEFAULT_FOLDER) / DEFAULT_FILE
    text = os.fspath(db)
    nearly = _NEARLY_URL.match(text)
    if nearly is not None:  # as a path it would be a new store, with the password in a folder's name
        name = nearly[1]
        raise ValueError(f"not a place for a store: a URL begins with {name}://; a file of such a name is ./{name}…")
    if "://" in text:
        return _url(text)
    if text in ("", ":memory:"):
        raise ValueError(f"not a place for a store: {text!r}; name a file that outlives the process")
    return _file(Path(text))


def _file(path: Path) -> Location:
    # realpath, so that two names of one file share one set of connections and locks.
    try:
        target = os.path.realpath(path.expanduser())
    except OSError as error:
        raise errors.StoreUnavailable(str(path), "the working folder is gone", "name an absolute path") from error
    except (ValueError, RuntimeError) as error:  # a NUL in it; a ~ without a home
        raise ValueError(f"not a place for a store: {str(path)!r} ({error})") from error
    return Location("sqlite", target, target)


def make_folders(folder: Path) -> bool:
    """Make the folders that are missing, for their owner alone; whether ``folder`` itself was made."""
    if folder.is_dir():
        return False
    make_folders(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        _keep_name(folder)
        return True
    return False


def size_of(path: str) -> int:
    """A file's size; 0 where there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _url(url: str) -> Location:
    scheme, rest = url.split("://", 1)
    if scheme.split("+")[0] == "sqlite":
        # sqlite:///relative, sqlite:////absolute
        if not rest.startswith("/") or rest in ("/", "/:memory:"):
            raise ValueError(f"not a place for a store: {url!r}; write sqlite:///FILE, or just the path")
        return _file(Path(_path_in(url)))
    if scheme.split("+")[0] in ("postgresql", "postgres"):
        return Location("postgresql", url, _without_secrets(url))
    raise ValueError(f"no such kind of store: {scheme}://; use a file path or postgresql+psycopg://…")


def _without_secrets(url: str) -> str:
    """A server's URL as it may be shown.

    Raises:
        ValueError: it is none.
    """
    # SQLAlchemy's own reading: what it takes for a password is what must not be seen.
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # Not quoted: wherever its password is, it may be in there.
        raise ValueError("not a database URL; write postgresql+psycopg://USER@HOST/DATABASE") from None
    if "@" in (parsed.host or ""):
        raise ValueError("not a database URL: an @ in a user's name or password is written %40")
    secret = [name for name, value in parsed.query.items() if _is_secret(name, value)]
    if parsed.password is None and not secret:
        return url
    # Left out rather than masked: a command that names the store by this asks for it, or finds it where libpq looks.
    shown = parsed._replace(password=None).difference_update_query(secret)
    return shown.render_as_string(hide_password=False).replace("%2F", "/")


def _is_secret(name: str, value: str | tuple[str, ...]) -> bool:
    words = name.lower()
    if words == "options":  # settings of the server, among which may be an extension's password
        words = (value if isinstance(value, str) else " ".join(value)).lower()
    return any(word in words for word in _SECRET)


def _path_in(url: str) -> str:
    # SQLAlchemy's own reading: how a ? or % in a path is written has changed between its versions.
    from sqlalchemy import make_url

    return make_url(url).database or ""


def _keep_name(folder: Path) -> None:
    # SQLite syncs the folder of its files, not the parents: after a power cut a new folder could be gone, and with it
    # everything that was synced into it. Where folders cannot be opened (Windows) or synced, the file system decides.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
