"""The only source of time and of ids; tests freeze it by replacing its functions."""

from __future__ import annotations

import datetime as _dt
import math
import random
import secrets
import time


def now_ms() -> int:
    """Milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000


_second: tuple[int, str] = (-1, "")


def iso(ms: int) -> str:
    """``ms`` since 1970 as ``2026-01-31T09:08:07.006Z``."""
    global _second
    second, rest = divmod(ms, 1000)
    # One strftime a second; the pair is replaced as one object, so threads cannot see half of it.
    known, text = _second
    if second != known:
        # Some systems write a year before 1000 in fewer digits.
        text = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second)).zfill(20)
        _second = (second, text)
    return f"{text}{rest:03d}Z"


def now_iso() -> str:
    """The current time as ``2026-01-31T09:08:07.006Z``."""
    ms = now_ms()
    second, text = _second
    rest = ms - second * 1000
    return f"{text}{rest:03d}Z" if 0 <= rest < 1000 else iso(ms)


def parse_iso(text: str) -> int:
    """Milliseconds since 1970 of an ISO time; one without a zone is taken as UTC.

    Raises:
        ValueError: not an ISO time, or in UTC none of the years 1 to 9999.
    """
    moment = _dt.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=_dt.UTC)
    ms = round((moment - _EPOCH) / _MS)
    if not _FIRST <= ms < _END:
        raise ValueError(f"{text!r} is beyond the years 1 to 9999 in UTC")
    return ms


_MS = _dt.timedelta(milliseconds=1)
_EPOCH = _dt.datetime(1970, 1, 1, tzinfo=_dt.UTC)
_FIRST = (_dt.datetime.min.replace(tzinfo=_dt.UTC) - _EPOCH) // _MS
_END = (_dt.datetime.max.replace(tzinfo=_dt.UTC) - _EPOCH) // _MS + 1


def monotonic() -> float:
    """Seconds on a clock that never goes back; only differences mean something."""
    return time.monotonic()


def sleep(seconds: float) -> None:
    """Sleep; negative means not at all."""
    if seconds > 0:
        time.sleep(seconds)


def let_others_run() -> None:
    """Give every other thread that is ready its turn."""
    time.sleep(0)


class Rest:
    """What is left until a stored deadline, never more than was asked for: the clock may be set back meanwhile."""

    def __init__(self, deadline: str | None, asked: float | None) -> None:
        self._deadline = None if deadline is None else parse_iso(deadline)
        self._end = math.inf if asked is None else monotonic() + max(0.0, asked)

    def left(self) -> float:
        """In s."""
        if self._deadline is None:
            return math.inf
        return min((self._deadline - now_ms()) / 1000, self._end - monotonic())


#: Spreads waits. Its own generator: a program that seeded the global one counts on drawing from it alone.
jitter = random.Random()


def new_mark() -> int:
    """A number that no other store is likely to have, from 1 to 2**31 - 1."""
    return secrets.randbelow(2**31 - 1) + 1


def new_token() -> str:
    """A token that no other owner has."""
    return secrets.token_hex(12)
