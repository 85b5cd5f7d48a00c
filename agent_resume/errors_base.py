"""The base of the error tree that ``errors.py`` draws."""

from __future__ import annotations

import re
from typing import Any

#: What ``result`` holds on errors that carry none; a stored None is a result too.
NO_RESULT: Any = type("NoResult", (), {"__repr__": lambda _: "NO_RESULT", "__bool__": lambda _: False})()


# Commands of ours in a message that do not name the store yet.
_COMMAND = re.compile(r"\bagent-resume (?:list|show|resume|rerun|sql|doctor)\b(?! --db )")


def name_store(error: BaseException, option: str) -> None:
    """Make the commands in an error's message name the store; ``option`` is how, with a space before it."""
    text = error.args[0] if error.args else None
    if option and isinstance(text, str):
        error.args = (_COMMAND.sub(lambda found: found[0] + option, text), *error.args[1:])


def _rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class Picklable(BaseException):
    """Makes exceptions with keyword-only constructors survive pickling, which rebuilds from ``args`` alone."""

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: value for name, value in self.__dict__.items() if value is not NO_RESULT}
        return _rebuild, (type(self), self.args, state)


class AgentResumeError(Picklable, Exception):
    """Base of everything that agent-resume raises as an error.

    Attributes are keyword arguments of the constructor, kept under the same names.
    """

    def __init__(self, message: str, **attributes: Any) -> None:
        super().__init__(message)
        self.__dict__.update(attributes)
