"""Exceptions as values: kept by class, arguments and attributes where that is possible, else as text."""

from __future__ import annotations

import re

from agent_resume import failure
from agent_resume.codec_classes import attributes
from agent_resume.codec_types import stored_class
from agent_resume.codec_writer import Steps, Writer
from agent_resume.errors import AgentResumeError

_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")


class StoredException(AgentResumeError):
    """An exception that was a value, or part of one, and whose object could not be kept: its text.

    Attributes:
        type: qualified name of its class.
        text: its message.
        traceback: where it had been raised, or None.
    """

    type: str
    text: str
    traceback: str | None

    def __init__(self, type: str, text: str, traceback: str | None = None) -> None:
        super().__init__(f"{type}: {text}", type=type, text=text, traceback=traceback)


def encode(writer: Writer, value: BaseException) -> Steps:
    """Write an exception by its class, arguments and attributes.

    Raises:
        Refused: something in it cannot be kept.
    """
    if writer.lenient:
        yield from as_text(writer, value)
        return
    kind = type(value)
    args, held = value.args, {**failure.built_in_state(value), **attributes(value, kind)}
    # A class whose built-in part wants other arguments is no use as an object.
    failure.instance(kind, args, {})
    writer.open_tag("exception", **{"class": stored_class(kind, writer.known, lenient=False)})
    yield from writer.sequence(args)
    if held:
        writer.member("attributes")
        yield from writer.mapping(held)
    trace = failure.describe(value).get("traceback")
    if trace:
        writer.member("traceback")
        writer.write_text(trace)
    writer.write("}")


def as_text(writer: Writer, value: BaseException) -> Steps:
    """Write an exception as what can be said about it; nothing in it is refused."""
    described = failure.describe(value)
    text = [described["type"], described["message"]]
    if writer.lenient:
        # Where something lies in memory is another place at each start; the digest must not be.
        text[1] = _ADDRESS.sub(" at …", text[1])
    writer.write_tag("exception-text", text if writer.lenient else [*text, described.get("traceback")])
    return iter(())
