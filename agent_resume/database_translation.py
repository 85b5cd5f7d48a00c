"""Whose an error is: what statements of ours raised is the store's and typed; a function's own comes out as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

from .errors_base import Picklable, name_store


class Translation:
    """What becomes of the errors of one database.

    Args:
        driver: knows what its errors mean.
        option: what a command line of ours must say to mean this store (``Location.option``).
    """

    def __init__(self, driver: Any, option: str) -> None:
        self._driver = driver
        self._option = option

    def reraise(self, error: BaseException) -> NoReturn:
        """Raise the typed error for one that a statement of ours raised, or the error itself."""
        translated = self._driver.translate(error)
        if translated is error:
            translated = self._driver.blame_the_schema(error)
        if isinstance(translated, Picklable):
            name_store(translated, self._option)
        if translated is error:
            raise error
        raise translated from error

    @contextlib.contextmanager
    def of_ours(self, *, commit: bool = False) -> Iterator[None]:
        """Around statements of ours in a transaction that a function of the user's is part of.

        Args:
            commit: it is the COMMIT: constraints and triggers of the user's may have waited for it.
        """
        try:
            yield
        except BaseException as error:
            if commit and self._driver.is_refusal(error):
                raise
            self.reraise(error)
