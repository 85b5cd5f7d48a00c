"""Who is alive: verdicts on real processes, watching beats, and the thread that beats."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent_resume import clock, ownership
from agent_resume.ownership import BeatWatch, Heart, host_identity, host_name, judge, process_start, wait_until_decided

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into Linux's /proc")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A child that sleeps until it is killed."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    yield child
    child.kill()
    child.wait()


def owner_row(pid: int, *, token: str = "t", host: str | None = None, **more: Any) -> dict[str, Any]:
    row = {
        "token": token,
        "host": host or host_identity(),
        "pid": pid,
        "started": process_start(pid),
        "beats": 0,
        "beat_at": "2026-01-31T09:08:07.006Z",
    }
    return {**row, **more}


def verdict(row: dict[str, Any], **more: Any) -> str:
    return judge(row, **{"my_host": host_identity(), "open_tokens": (), **more})


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Wait for a condition; the bound only ends a hopeless wait."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


# Hosts.


def test_the_identity_is_the_same_in_every_process_of_a_host() -> None:
    script = "from agent_resume.ownership import host_identity; print(host_identity())"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == host_identity()


def test_the_identity_begins_with_the_name_that_people_know() -> None:
    import socket

    assert host_name(host_identity()) == socket.gethostname()


def test_the_environment_overrides_the_identity_wholly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_RESUME_HOST", "worker/7")
    assert host_identity() == "worker/7"
    assert host_name("worker/7") == "worker/7"


def test_an_empty_override_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = host_identity()
    monkeypatch.setenv("AGENT_RESUME_HOST", "")
    assert host_identity() == plain


@linux
def test_a_machine_id_that_was_never_set_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "_first_line", lambda _: "uninitialized")
    assert ownership._machine_id("/etc/machine-id") == ""
    monkeypatch.setattr(ownership, "_first_line", lambda _: "3d1219c7c4c5404aaa1f6d2a48adfda4")
    assert ownership._machine_id("/etc/machine-id") == "3d1219c7c4c5404aaa1f6d2a48adfda4"


def test_the_machine_id_itself_is_not_shown() -> None:
    machine = ownership._machine_id("/etc/machine-id")
    assert not machine or machine[:8] not in host_identity()


@pytest.mark.parametrize(
    ("mine", "other", "same", "rebooted"),
    [
        ("a/11111111/22222222/40", "a/11111111/22222222/40", True, False),
        ("a/11111111/22222222/40", "renamed/11111111/22222222/40", True, False),
        ("a/b/11111111/22222222/40", "a/11111111/22222222/40", True, False),
        ("a/11111111/22222222/40", "a/11111111/22222222/41", False, False),
        ("a/11111111/22222222/40", "a/11111111/33333333/40", False, True),
        ("a/11111111/22222222/40", "a/44444444/33333333/40", False, False),
        ("a/11111111/22222222/?", "a/11111111/22222222/?", False, False),
        ("mac/11111111/-/-", "mac/11111111/-/-", True, False),
        ("mac/11111111/-/-", "mac/11111111/22222222/-", False, False),
        ("mine", "mine", True, False),
        ("mine", "yours", False, False),
        ("mine", "a/11111111/22222222/40", False, False),
    ],
)
def test_hosts_compare_by_machine_boot_and_namespace(mine: str, other: str, same: bool, rebooted: bool) -> None:
    assert ownership.same_host(mine, other) is same
    assert ownership.rebooted(mine, other) is rebooted


# Processes.


def test_a_process_has_one_start_and_another_process_another(sleeper: subprocess.Popen[bytes]) -> None:
    mine = process_start(os.getpid())
    assert mine is not None
    assert mine == process_start(os.getpid())
    assert mine != process_start(sleeper.pid)


@linux
def test_the_start_is_field_22_even_when_the_name_has_brackets_and_blanks() -> None:
    script = (
        "import ctypes, sys; ctypes.CDLL(None).prctl(15, b') R 1 (x', 0, 0, 0)\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True) as child:
        assert child.stdout is not None
        before = process_start(child.pid)
        child.stdout.readline()
        with open(f"/proc/{child.pid}/stat") as file:
            assert ") R 1 (x" in file.read()
        assert process_start(child.pid) == before
        child.communicate("")


def test_no_process_has_no_start(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    assert process_start(sleeper.pid) is None


# Verdicts.


def test_a_live_process_is_alive(sleeper: subprocess.Popen[bytes]) -> None:
    assert verdict(owner_row(sleeper.pid)) == "alive"


def test_a_stopped_process_is_alive(sleeper: subprocess.Popen[bytes]) -> None:
    row = owner_row(sleeper.pid)
    sleeper.send_signal(signal.SIGSTOP)
    try:
        assert verdict(row) == "alive"
    finally:
        sleeper.send_signal(signal.SIGCONT)


def test_an_ended_process_is_dead(sleeper: subprocess.Popen[bytes]) -> None:
    row = owner_row(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    assert verdict(row) == "dead"


@linux
def test_a_killed_child_that_nobody_reaped_is_dead(sleeper: subprocess.Popen[bytes]) -> None:
    row = owner_row(sleeper.pid)
    sleeper.kill()
    assert until(lambda: ownership._stat(str(sleeper.pid))[0] == "Z")  # type: ignore[index]
    assert verdict(row) == "dead"


@linux
def test_a_process_whose_first_thread_has_ended_is_not_dead() -> None:
    script = (
        "import ctypes, sys, threading\n"
        "threading.Thread(target=sys.stdin.read).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1) as child:
        row = owner_row(child.pid)
        assert until(lambda: ownership._stat(str(child.pid))[0] == "Z")  # type: ignore[index]
        assert verdict(row) == "unknown"
        child.kill()
        child.wait()
        assert verdict(row) == "dead"


@linux
def test_a_number_that_another_process_has_now_is_dead(sleeper: subprocess.Popen[bytes]) -> None:
    row = owner_row(sleeper.pid)
    assert verdict({**row, "started": row["started"] - 1}) == "dead"


def test_a_process_of_unknown_start_is_left_to_its_beats(sleeper: subprocess.Popen[bytes]) -> None:
    assert verdict(owner_row(sleeper.pid, started=None)) == "unknown"
    sleeper.kill()
    sleeper.wait()
    assert verdict(owner_row(sleeper.pid, started=None)) == "dead"


def test_my_own_number_under_a_token_that_is_not_open_here_is_dead() -> None:
    assert verdict(owner_row(os.getpid(), token="old"), open_tokens={"new"}) == "dead"


def test_my_own_open_token_is_alive_under_any_host_name() -> None:
    assert verdict(owner_row(os.getpid(), token="new", host="before"), open_tokens={"new"}) == "alive"


@pytest.mark.parametrize("pid", [0, -1, 2**63 - 1, 2**40])
def test_a_number_that_no_process_can_have_ends_no_verdict(pid: int) -> None:
    row = {**owner_row(os.getpid()), "pid": pid}
    assert verdict(row) in ("dead", "unknown")


def test_another_host_is_left_to_its_beats() -> None:
    assert verdict(owner_row(1, host="elsewhere")) == "unknown"


def test_the_same_machine_before_its_last_start_is_dead_where_all_share_one_kernel() -> None:
    mine, before = "a/11111111/22222222/40", "a/11111111/33333333/40"
    row = owner_row(os.getpid(), host=before)
    assert verdict(row, my_host=mine) == "dead"
    assert verdict(row, my_host=mine, one_kernel=False) == "unknown"


@linux
def test_a_hidden_process_is_not_taken_for_dead(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = owner_row(sleeper.pid)
    monkeypatch.setattr(ownership, "_stat", lambda _: None)
    assert verdict(row) == "unknown"
    sleeper.kill()
    sleeper.wait()
    assert verdict(row) == "dead"


def may_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-p", "-f", "true"], capture_output=True).returncode == 0


namespaces = pytest.mark.skipif(not may_unshare(), reason="needs unshare and the right to make a pid namespace")

JUDGE = """
import json, sys
from agent_resume.ownership import host_identity, judge, process_start
import os
row = json.loads(sys.argv[1])
own = {"token": "gone", "host": host_identity(), "pid": os.getpid() + 1, "started": 1}
print(json.dumps({
    "row": judge(row, my_host=host_identity(), open_tokens=()),
    "same host": judge({**row, "host": host_identity()}, my_host=host_identity(), open_tokens=()),
    "nobody": judge({**own, "pid": 4000000}, my_host=host_identity(), open_tokens=()),
    "pid": os.getpid(), "start": process_start(os.getpid()),
}))
"""


@namespaces
@pytest.mark.parametrize("own_proc", [[], ["--mount-proc"]], ids=["foreign /proc", "own /proc"])
def test_from_another_pid_namespace_a_live_owner_is_not_dead(
    sleeper: subprocess.Popen[bytes], own_proc: list[str]
) -> None:
    row = json.dumps(owner_row(sleeper.pid))
    command = ["unshare", "-p", "-f", *own_proc, sys.executable, "-c", JUDGE, row]
    seen = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert seen["row"] == "unknown"
    # Where /proc is a stranger's only the kernel is asked, so that even an equal identity could not mislead.
    assert seen["nobody"] == "dead"
    assert seen["pid"] == 1
    assert seen["start"] is not None


@namespaces
def test_an_owner_in_another_pid_namespace_is_not_dead_for_us() -> None:
    script = (
        "import json, os, sys\n"
        "from agent_resume.ownership import host_identity, process_start\n"
        "print(json.dumps([host_identity(), os.getpid(), process_start(os.getpid())]), flush=True)\n"
        "sys.stdin.read()"
    )
    command = ["unshare", "-p", "-f", sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as child:
        assert child.stdout is not None
        host, pid, started = json.loads(child.stdout.readline())
        assert verdict({"token": "t", "host": host, "pid": pid, "started": started}) == "unknown"
        child.communicate("")


# Watching beats.


class Watched:
    """An owner and a clock that moves only by sleeping."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, beats: Callable[[float], int | None]) -> None:
        self.now = 0.0
        self.beats = beats
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)
        monkeypatch.setattr(clock, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def read(self) -> dict[str, Any] | None:
        beats = self.beats(self.now)
        return None if beats is None else {"token": "t", "beats": beats}


def test_a_counter_that_moves_means_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, lambda now: int(now // 5))
    assert wait_until_decided(watched.read, lambda _: "unknown") == "alive"
    assert watched.now <= 6


def test_a_counter_that_stands_still_for_a_lease_means_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, lambda _: 7)
    assert wait_until_decided(watched.read, lambda _: "unknown") == "dead"
    assert 30 <= watched.now <= 31


def test_an_owner_that_goes_while_it_is_watched_means_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, lambda now: 7 if now < 3 else None)
    assert wait_until_decided(watched.read, lambda _: "unknown") == "dead"
    assert watched.now < 4


def test_a_process_that_dies_while_it_is_watched_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, lambda _: 7)
    assert wait_until_decided(watched.read, lambda _: "dead" if watched.now > 2 else "unknown") == "dead"
    assert watched.now < 4


def test_another_owner_begins_a_watch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, lambda _: 7)
    tokens = lambda: {"token": "a" if watched.now < 29 else "b", "beats": 7}  # noqa: E731
    assert wait_until_decided(tokens, lambda _: "unknown") == "dead"
    assert watched.now > 58


def test_a_pause_of_the_observer_does_not_count_against_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, lambda _: 7)
    watch = BeatWatch(lease=30)
    assert watch.observe("t", 7) is False
    watched.now += 3600
    assert watch.observe("t", 7) is False
    watched.now += 10
    assert watch.observe("t", 7) is False
    watched.now += 10
    assert watch.observe("t", 7) is True


# Beating.


def test_a_heart_beats_until_it_is_stopped() -> None:
    beats: list[float] = []
    heart = Heart(lambda: beats.append(1), interval=0.01)
    before = {thread for thread in threading.enumerate() if thread.name == "agent-resume-beat"}
    assert not heart.beating
    heart.start()
    heart.start()
    hearts = {thread for thread in threading.enumerate() if thread.name == "agent-resume-beat"}
    assert len(hearts - before) == 1
    assert until(lambda: len(beats) >= 3)
    assert heart.stop()
    seen = len(beats)
    time.sleep(0.05)
    assert len(beats) == seen
    assert not heart.beating


def test_a_stopped_heart_starts_again() -> None:
    beats: list[float] = []
    heart = Heart(lambda: beats.append(1), interval=0.01)
    heart.start()
    heart.stop()
    seen = len(beats)
    heart.start()
    assert until(lambda: len(beats) > seen)
    heart.stop()


def test_a_heart_survives_a_store_that_fails_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    broken = True
    tries: list[bool] = []

    def write() -> None:
        tries.append(broken)
        if broken:
            raise OSError("no space")

    heart = Heart(write, interval=0.01)
    heart.start()
    assert until(lambda: len(tries) >= 3)
    broken = False
    assert until(lambda: tries[-1] is False)
    heart.stop()
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [record.getMessage() for record in warnings] == ["agent-resume could not beat: no space"]


def test_a_heart_that_could_not_beat_for_a_lease_is_late_until_it_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    broken = True

    def write() -> None:
        if broken:
            raise OSError("gone")

    heart = Heart(write, interval=3600, lease=30)
    now = 100.0
    assert not heart.late, "a heart that was not started is not late"
    heart.start()
    now = 130.0
    assert not heart.late
    now = 131.0
    assert heart.late
    assert heart.beat() is False
    assert heart.late
    broken = False
    assert heart.beat() is True
    assert not heart.late
    heart.stop()


def test_stopping_does_not_wait_for_a_write_that_hangs() -> None:
    entered, release = threading.Event(), threading.Event()

    def write() -> None:
        entered.set()
        release.wait()

    heart = Heart(write, interval=0.001)
    heart.start()
    entered.wait()
    assert heart.stop(timeout=0.01) is False
    release.set()


def test_a_heart_keeps_no_process_alive() -> None:
    script = "from agent_resume.ownership import Heart\nHeart(lambda: None, interval=0.01).start()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=20)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_beats_with_a_thread_of_its_own() -> None:
    script = """
import os, sys, time
from agent_resume.ownership import Heart
beats = []
heart = Heart(lambda: beats.append(os.getpid()), interval=0.01)
heart.start()
pid = os.fork()
if pid == 0:
    assert not heart.beating and not heart.late
    beats.clear()
    heart.start()
    while os.getpid() not in beats: time.sleep(0.01)
    heart.stop()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert heart.beating
heart.stop()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=20)


def test_importing_ownership_brings_in_neither_psutil_nor_sqlalchemy() -> None:
    script = "import sys, agent_resume.ownership; print({'psutil', 'sqlalchemy', 'sqlite3'} & set(sys.modules))"
    seen = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "set()"
