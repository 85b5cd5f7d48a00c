"""How the values of a command line are read: without pydantic, where nothing of it is needed.

Typer reads every value through pydantic, whose import takes longer than ``list`` works. Typer makes its parameters
itself and takes no class for them, so they change class here. Values that are not plain go Typer's way, for its
messages.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from agent_resume import names
from agent_resume.codec_plain import is_encodable

from . import exits, screen

# Typer exports no more of click's errors than this one's subclass.
_WrongUsage: Any = typer.BadParameter.__base__
_NOT_PLAIN = object()
_DIGITS = re.compile("[0-9]{1,18}")
# Files and programs are named by bytes, in no encoding.
_BYTES = frozenset({"command", "db", "out", "paths", "source", "to"})
# What is no text names none; that is said, with its exit code, where it is looked for.
_RUNS = frozenset({"run", "runs"})


def _plain(parameter: Any, value: Any) -> Any:
    """What Typer makes of ``value``, or ``_NOT_PLAIN`` where Typer has to say."""
    several = parameter.multiple or parameter.nargs != 1
    if value is None:
        return _NOT_PLAIN if parameter.required else () if several else None
    kind, least, most = parameter.agent_resume_kind
    if kind is str:
        texts = value if several else (value,)
        plain = isinstance(texts, tuple | list) and texts and all(map(_is_text, texts))
        return value if plain else _NOT_PLAIN
    if several or kind is None:
        return _NOT_PLAIN
    number = int(value) if kind is int and isinstance(value, str) and _DIGITS.fullmatch(value) else value
    fits = isinstance(number, kind) and (least is None or number >= least) and (most is None or number <= most)
    return number if fits else _NOT_PLAIN


def _is_text(value: Any) -> bool:
    # Bytes that are no text come as lone surrogates.
    return isinstance(value, str) and is_encodable(value)


def _decoded(parameter: Any, ctx: Any, value: Any) -> Any:
    """Texts that the locale could not decode, as the UTF-8 that they are.

    Raises:
        BadParameter: they are none.
    """
    if isinstance(value, tuple | list):
        return type(value)(_decoded(parameter, ctx, part) for part in value)
    if not isinstance(value, str):
        return value
    text = names.from_system(value)
    if not is_encodable(text) and parameter.name not in _RUNS:
        raise typer.BadParameter("bytes that are no UTF-8 text", ctx=ctx, param=parameter)
    return text


def _process(parameter: Any, ctx: Any, value: Any, theirs: Callable[[Any, Any], Any]) -> Any:
    if parameter.name not in _BYTES:
        value = _decoded(parameter, ctx, value)
    found = _plain(parameter, value)
    if found is _NOT_PLAIN and value is None and ctx.resilient_parsing:
        return None  # what is still to be typed is not missing yet
    if found is _NOT_PLAIN:
        return theirs(ctx, value)
    return found if parameter.callback is None else parameter.callback(ctx, parameter, found)


class _Option(TyperOption):
    def process_value(self, ctx: Any, value: Any) -> Any:
        return _process(self, ctx, value, super().process_value)


class _Argument(TyperArgument):
    def process_value(self, ctx: Any, value: Any) -> Any:
        return _process(self, ctx, value, super().process_value)


def _lightened(parameters: list[Any], annotations: Mapping[str, Any]) -> list[Any]:
    for parameter in parameters:
        if type(parameter) in (TyperOption, TyperArgument):
            parameter.__class__ = _Option if isinstance(parameter, TyperOption) else _Argument
            parameter.agent_resume_kind = _kind(annotations.get(parameter.name))
    return parameters


def _kind(annotation: Any) -> tuple[Any, Any, Any]:
    """The type and the bounds of an annotation; a type of None is Typer's to read."""
    base, *given = get_args(annotation) or (None,)
    # ``str``, ``str | None``, ``list[str]`` and ``list[str] | None`` are all of one kind.
    for kind in (str, int, float):
        if base in (kind, kind | None, list[kind], list[kind] | None):  # type: ignore[valid-type]
            info = given[0] if given else None
            return kind, getattr(info, "min", None), getattr(info, "max", None)
    return None, None, None


@contextlib.contextmanager
def _told_on_one_line() -> Iterator[None]:
    """What Typer has to say of a wrong command line, with the next step; it would use four lines."""
    try:
        yield
    except _WrongUsage as error:
        message = error.format_message().rstrip(".")
        if not message or type(error).__name__ == "NoArgsIsHelpError":
            raise
        ctx = error.ctx
        if ctx is not None and ctx.parent is None and message.startswith("No such option"):
            message += "; a command's options come behind it"
        screen.note(f"agent-resume: {message}; {'agent-resume' if ctx is None else ctx.command_path} -h says more")
        raise typer.Exit(exits.USAGE) from None


class Group(TyperGroup):
    """The application: with the options for completion, which Typer adds to it."""

    def make_context(self, *args: Any, **named: Any) -> Any:
        """As Typer's."""
        with _told_on_one_line():
            return super().make_context(*args, **named)

    def invoke(self, ctx: Any) -> Any:
        """As Typer's."""
        with _told_on_one_line():
            return super().invoke(ctx)

    def get_params(self, ctx: Any) -> list[Any]:
        """As Typer's."""
        return _lightened(super().get_params(ctx), {})


def command_class(annotations: Mapping[str, Any]) -> type[TyperCommand]:
    """The class of a command whose parameters are annotated so."""

    class Command(TyperCommand):
        def get_params(self, ctx: Any) -> list[Any]:
            return _lightened(super().get_params(ctx), annotations)

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            # A statement may begin with a comment of SQL's.
            if self.name == "sql":
                args = [f" {text}" if text[:2] == "--" and text[2:3].isspace() else text for text in args]
            return super().parse_args(ctx, args)

    return Command
