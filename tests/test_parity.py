"""``AsyncRun`` is ``Run``, awaited: the same names, the same parameters."""

from __future__ import annotations

import inspect

import pytest

from agent_resume import AsyncCheckpoint, AsyncRun, Checkpoint, Run


def public(kind):
    return {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}


def parameters(member):
    return [(p.name, p.kind, p.default) for p in inspect.signature(member).parameters.values()]


@pytest.mark.parametrize(("sync", "awaited"), [(Run, AsyncRun), (Checkpoint, AsyncCheckpoint)])
def test_names_parameters_and_defaults_are_equal(sync, awaited):
    assert public(sync).keys() == public(awaited).keys()
    for name, member in public(sync).items():
        other = public(awaited)[name]
        assert type(member) is type(other), name  # a property is one in both
        if not isinstance(member, property):
            assert parameters(member) == parameters(other), name
    assert parameters(sync.__init__) == parameters(awaited.__init__) or sync is Run


#: What needs no awaiting, since it only hands out what is known, or begins what is awaited later.
AT_ONCE = {"id", "name", "input", "loop", "map"}


def test_everything_else_is_awaited():
    for name, member in public(AsyncRun).items():
        fn = member.fget if isinstance(member, property) else member
        awaited = inspect.iscoroutinefunction(fn) or "Coroutine" in str(inspect.signature(fn).return_annotation)
        assert awaited == (name not in AT_ONCE), name


def test_both_say_what_they_do():
    for kind in (Run, AsyncRun):
        for name, member in public(kind).items():
            assert (member.__doc__ or "").strip(), f"{kind.__name__}.{name}"
