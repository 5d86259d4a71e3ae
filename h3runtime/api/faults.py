"""What is wrong with a request, gathered over all stages of its judgement, and the one error that tells all of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from h3runtime.errors import BadMedia, InvalidRequest, Offence, invalid


class Faults:
    """Offences in the order found, and whether all of them are about the content of media."""

    def __init__(self, offences: Iterable[Offence] = ()) -> None:
        self.offences = list(offences)
        self._media: list[Offence] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Take what is raised inside, and go on after it."""
        try:
            yield
        except InvalidRequest as error:
            self.add(error)

    def add(self, error: InvalidRequest) -> None:
        if isinstance(error, BadMedia):
            self._media += error.offences
        else:
            self.offences += error.offences

    def raise_any(self) -> None:
        """`InvalidRequest`, or `BadMedia` if nothing else is wrong."""
        if self.offences:
            raise invalid([*self.offences, *self._media])
        if self._media:
            raise BadMedia("; ".join(f"{o.field}: {o.message}" for o in self._media), self._media)
