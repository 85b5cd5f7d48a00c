"""The base of the error tree that ``errors.py`` draws."""

from __future__ import annotations

from typing import Any

#: What ``result`` holds on errors that carry none; a stored None is a result too.
NO_RESULT: Any = type("NoResult", (), {"__repr__": lambda _: "NO_RESULT", "__bool__": lambda _: False})()


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
