"""What the rules have found so far, and which fields can't be judged any more."""

from __future__ import annotations

from h3runtime.api.request import ReadBody
from h3runtime.errors import Offence


class Verdict:
    """Collects offences and warnings while the rules run. `broken` names the fields that can't be judged any more."""

    def __init__(self, read: ReadBody) -> None:
        self.broken = read.broken
        self.offences: list[Offence] = []
        self.warnings: list[str] = []

    def refuse(self, field: str, message: str, legal: str = "") -> None:
        self.offences.append(Offence(field, message, legal))

    def give_up(self, field: str) -> None:
        """What depends on `field` is not judged from here on: it would only repeat what is wrong already."""
        self.broken |= {field}
