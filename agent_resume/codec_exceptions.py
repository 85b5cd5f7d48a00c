"""Exceptions as values: kept by class, arguments and attributes where that is possible, else as text."""

from __future__ import annotations

from agent_resume import failure
from agent_resume.codec_refusals import Refused
from agent_resume.codec_types import stored_class
from agent_resume.codec_writer import Writer
from agent_resume.errors import AgentResumeError


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


def encode(writer: Writer, value: BaseException) -> None:
    """Write an exception; it never refuses."""
    if writer.lenient:
        described = failure.describe(value)
        return writer.write_tag("exception", [described["type"], described["message"]])
    try:
        text = writer.aside(_as_object, writer, value)
    except Refused:
        described = failure.describe(value)
        return writer.write_tag("exception-text", [described["type"], described["message"], described.get("traceback")])
    return writer.write(text)


def _as_object(writer: Writer, value: BaseException) -> None:
    kind = type(value)
    args, held = value.args, dict(vars(value))
    writer.open_tag("exception", **{"class": stored_class(kind, writer.known, lenient=writer.lenient)})
    writer.sequence(args)
    if held:
        writer.member("attributes")
        writer.mapping(held)
    described = failure.describe(value)
    if described.get("traceback"):
        writer.member("traceback")
        writer.walk(described["traceback"], None)
    writer.write("}")
    # What comes back must say the same; a class that computes its text from what is not kept is kept as text.
    failure.instance(kind, args, {})
