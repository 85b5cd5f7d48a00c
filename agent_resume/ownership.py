"""Who is alive: the identity of a host, the verdict on an owner, and the thread that beats.

An owner is a process with a row in ``owners``. It is judged by its process where that can be seen, and by its beats
where not. Nothing here knows the store: rows come in as mappings, and the write of a beat as a callable.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, Literal

from agent_resume import clock

from .threads import begin

if TYPE_CHECKING:
    import psutil

#: How often an owner beats, in seconds.
BEAT_INTERVAL = 5.0
#: An owner that is seen not to beat for this long is dead to those who cannot see its process.
LEASE = 30.0

Verdict = Literal["alive", "dead", "unknown"]

_log = logging.getLogger("agent_resume")


# "?" stands for a namespace that could not be read: it equals nothing, not even itself.
_IDENTITY = re.compile(
    r"(?P<name>.*)/(?P<machine>[0-9a-f]{8})/(?P<boot>[0-9a-f]{8}|-)/(?P<space>[0-9.]+|-|\?)", re.DOTALL
)


def host_identity() -> str:
    """Where this process runs: ``hostname/machine/boot/namespaces``, or ``AGENT_RESUME_HOST`` as it stands.

    Two processes of equal identity see each other's process ids.
    """
    override = os.environ.get("AGENT_RESUME_HOST")
    if override:
        return override.encode("utf-8", "backslashreplace").decode()  # it may hold bytes that are no text
    name = socket.gethostname()
    machine = _machine_id("/etc/machine-id") or _machine_id("/var/lib/dbus/machine-id") or _machine_elsewhere(name)
    # The machine id is not for others to see (man 5 machine-id), so only a digest of it is kept.
    digest = hashlib.blake2s(machine.encode("utf-8", "surrogateescape"), person=b"agntrsum").hexdigest()[:8]
    return f"{name}/{digest}/{_boot()}/{_pid_namespace()}"


def host_name(identity: str) -> str:
    """The plain host name of an identity, for people."""
    known = _IDENTITY.fullmatch(identity)
    return known["name"] if known else identity


def same_host(mine: str, other: str) -> bool:
    """Whether process ids mean the same under both identities; a renamed host stays the same."""
    a, b = _IDENTITY.fullmatch(mine), _IDENTITY.fullmatch(other)
    if a is None or b is None:
        return mine == other
    return a["space"] != "?" and a.group("machine", "boot", "space") == b.group("machine", "boot", "space")


def rebooted(mine: str, other: str) -> bool:
    """Whether ``other`` is this machine before its last start."""
    a, b = _IDENTITY.fullmatch(mine), _IDENTITY.fullmatch(other)
    if a is None or b is None or "-" in (a["boot"], b["boot"]):
        return False
    return a["machine"] == b["machine"] and a["boot"] != b["boot"]


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # a codec that is loaded: see databases on forks
            return file.readline().strip()
    except OSError:
        return ""


def _machine_id(path: str) -> str:
    # The file may be empty or say "uninitialized", the same on every machine of one image.
    text = _first_line(path)
    return text if re.fullmatch(r"[0-9a-f]{32}", text) else ""


def _machine_elsewhere(name: str) -> str:
    import uuid

    node = uuid.getnode()
    # The multicast bit marks a made-up number: another one in the next process.
    return name if node >> 40 & 1 else f"{name}/{node:012x}"


def _boot() -> str:
    # Elsewhere the time of the start moves with the clock, and a moved one would declare live owners dead.
    text = _first_line("/proc/sys/kernel/random/boot_id")
    return text[:8] if re.fullmatch(r"[0-9a-f]{8}-.*", text) else "-"


def _pid_namespace() -> str:
    if not sys.platform.startswith("linux"):
        return "-"
    space = _namespace("pid")
    # In another time namespace the same process shows another start.
    return f"{space}.{_namespace('time')}" if space else "?"


def _namespace(kind: str) -> str:
    with contextlib.suppress(OSError):
        found = re.search(r"\d+", os.readlink(f"/proc/self/ns/{kind}"))
        if found:
            return found.group()
    return ""


def process_start(pid: int) -> int | None:
    """When process ``pid`` started, in ticks since the boot of the machine; None when that cannot be seen.

    Ticks since boot, because start times on the wall clock move when that is set.
    """
    if not sys.platform.startswith("linux"):
        return _start_elsewhere(pid)
    if not _proc_is_ours():
        # /proc/self is this very process in any namespace; other numbers belong to strangers there.
        seen = _stat("self") if pid == os.getpid() else None
    else:
        seen = _stat(str(pid))
    return None if seen is None else seen[2]


def _start_elsewhere(pid: int) -> int | None:
    import psutil

    try:
        return _hundredths(psutil.Process(pid))
    except (psutil.Error, OSError, OverflowError, ValueError):
        return None


def _hundredths(process: psutil.Process) -> int:
    return round(process.create_time() * 100)


def _proc_is_ours() -> bool:
    # A new pid namespace without a /proc of its own shows another namespace's processes.
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def _stat(entry: str) -> tuple[str, int, int] | None:
    """State, number of threads and start of a process; None when there is none to be seen."""
    try:
        with open(f"/proc/{entry}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The command's name may hold anything, blanks and brackets included; the numbers follow its last bracket.
    fields = text[text.rfind(b")") + 2 :].split()
    try:
        return fields[0].decode("ascii"), int(fields[17]), int(fields[19])
    except (IndexError, ValueError):
        return None


def _judge_process(pid: int, started: int | None) -> Verdict:
    """Whether the process of that number and start lives; its number means something here."""
    if pid <= 0:
        return "unknown"
    if not sys.platform.startswith("linux"):
        return _judge_elsewhere(pid, started)
    seen = _stat(str(pid)) if _proc_is_ours() else None
    if seen is None:
        # Hidden (hidepid) is not gone, and neither is a process in a /proc that is not ours: ask the kernel.
        return "dead" if _no_such_process(pid) else "unknown"
    state, threads, start = seen
    if started is not None and start != started:
        return "dead"
    if state in "ZXx":
        # A first thread that has ended shows as a zombie while others still run.
        return "dead" if threads <= 1 else "unknown"
    return "unknown" if started is None else "alive"


def _no_such_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _judge_elsewhere(pid: int, started: int | None) -> Verdict:
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return "dead"
        # Start times move with the clock here: another one proves nothing, the beats decide.
        return "alive" if started is not None and _hundredths(process) == started else "unknown"
    except psutil.NoSuchProcess:  # of which ZombieProcess is one
        return "dead"
    except (psutil.Error, OSError, OverflowError):
        return "unknown"


def judge(owner: Mapping[str, Any], *, my_host: str, open_tokens: Container[str], one_kernel: bool = True) -> Verdict:
    """Whether an owner lives, as far as it can be told at once.

    Args:
        owner: its row (``token``, ``host``, ``pid``, ``started``).
        my_host: ``host_identity()`` of this process.
        open_tokens: the tokens under which this process owns something now, in any store.
        one_kernel: all owners of this store share one kernel, as SQLite's log demands. Where that is not so, two
            machines may have come from one image, and another boot of the same machine id proves nothing.

    Returns:
        ``"unknown"`` when only its beats can tell; see ``BeatWatch``.
    """
    if owner["token"] in open_tokens:
        return "alive"
    host = owner["host"]
    if same_host(my_host, host):
        if owner["pid"] == os.getpid():
            return "dead"
        return _judge_process(owner["pid"], owner["started"])
    return "dead" if one_kernel and rebooted(my_host, host) else "unknown"


class BeatWatch:
    """Decides by watching: an owner whose counter stands still for a lease is dead.

    Time is the observer's own monotonic clock, since clocks of other hosts, and of the past, say nothing. Only time
    during which somebody looked counts: after a pause of the observer (SIGSTOP, a suspended machine) the owner may
    have slept as well.
    """

    def __init__(self, *, lease: float = LEASE) -> None:
        self._lease = lease
        self._seen: dict[str, tuple[int, float, float]] = {}

    def observe(self, token: str, beats: int) -> bool:
        """Take note of a counter; True when it has stood still for a lease."""
        now = clock.monotonic()
        known = self._seen.get(token)
        if known is None or known[0] != beats:
            self._seen[token] = (beats, 0.0, now)
            return False
        still = known[1] + min(now - known[2], self._lease / 3)
        self._seen[token] = (beats, still, now)
        return still >= self._lease

    def look(self, owner: Mapping[str, Any]) -> Verdict:
        """Take note of an owner that ``judge`` could not decide; ``"unknown"`` means look again later."""
        known = self._seen.get(owner["token"])
        if self.observe(owner["token"], owner["beats"]):
            return "dead"
        return "alive" if known is not None and known[0] != owner["beats"] else "unknown"


def wait_until_decided(
    read_owner: Callable[[], Mapping[str, Any] | None],
    decide: Callable[[Mapping[str, Any]], Verdict],
    *,
    announce: Callable[[], None] | None = None,
    lease: float = LEASE,
    poll: float = 0.5,
) -> Verdict:
    """Watch an owner until it is known to be alive or dead; at most about a lease.

    Args:
        read_owner: its row as it is now; None when there is no owner any more, which counts as dead.
        decide: ``judge`` with everything but the owner filled in; asked again each time, because the owner may change
            and a process may die while we watch.
        announce: called once when this takes longer than ``poll``. A process that was just killed is seen dead before
            that, as soon as the last of its threads is gone.
        lease: see ``LEASE``.
        poll: seconds between looks.
    """
    watch = BeatWatch(lease=lease)
    begin = clock.monotonic()
    while True:
        owner = read_owner()
        if owner is None:
            return "dead"
        verdict = decide(owner)
        if verdict == "unknown":
            verdict = watch.look(owner)
        if verdict != "unknown":
            return verdict
        if clock.monotonic() - begin < poll:
            clock.sleep(poll / 10)
            continue
        if announce is not None:
            announce()
            announce = None
        clock.sleep(poll)


class Heart:
    """Calls ``write`` again and again on a thread of its own, so that others see this process live.

    One a process and store. The thread keeps no process alive. Errors of ``write`` are logged, not raised: a busy
    disk must not end a run; ``late`` says when it has lasted too long.
    """

    def __init__(self, write: Callable[[], None], *, interval: float = BEAT_INTERVAL, lease: float = LEASE) -> None:
        self._write = write
        self._interval = interval
        self._lease = lease
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget the thread, which a forked child does not have; ``start`` begins anew."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._last = clock.monotonic()
        self._failing = False
        self._pid = os.getpid()

    @property
    def beating(self) -> bool:
        """Whether the thread runs, in this process."""
        return self._pid == os.getpid() and self._thread is not None and self._thread.is_alive()

    @property
    def late(self) -> bool:
        """No beat got through for a lease: others may take this process for dead, so start no further step.

        ``beat()`` is the way back.
        """
        if self._thread is None:
            return False
        return clock.monotonic() - self._last > self._lease

    def start(self) -> None:
        """Begin to beat; nothing when it beats already. The owner's row has just been written."""
        if self._pid != os.getpid():
            self.reset_after_fork()
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            self._last = clock.monotonic()
            stopped = self._stopped = threading.Event()
            thread = threading.Thread(target=self._run, args=(stopped,), name="agent-resume-beat", daemon=True)
            self._thread = thread  # before it begins: one that Ctrl-C leaves half started is ended by `stop`
            try:
                begin(thread)
            except RuntimeError as error:
                # No thread to be had (a limit, or the interpreter is going down): `late` will tell in time.
                _log.warning("agent-resume cannot start its beating thread: %s", error)

    def stop(self, timeout: float = 1.0) -> bool:
        """End the thread; True when it has ended, False when a write still holds it after ``timeout`` seconds."""
        if self._pid != os.getpid():
            self.reset_after_fork()
        with self._lock:
            thread, self._thread = self._thread, None
            self._stopped.set()
        if thread is None or not thread.is_alive():
            return True
        if thread is threading.current_thread():
            return False
        thread.join(timeout)
        return not thread.is_alive()

    def beat(self) -> bool:
        """Beat once, now, on the caller's thread; False when that failed."""
        try:
            self._write()
        except Exception as error:  # noqa: BLE001 - whatever the store raises, the beat goes on
            # Once a row of failures: a full disk would fill the log as well.
            _log.log(logging.DEBUG if self._failing else logging.WARNING, "agent-resume could not beat: %s", error)
            self._failing = True
            return False
        self._last = clock.monotonic()
        self._failing = False
        return True

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(self._interval):
            self.beat()
