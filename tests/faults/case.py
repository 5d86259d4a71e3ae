"""What a case is. A family is cases by name, in the order in which they share a place and, where they can, a server."""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.place import Place

Case = Callable[[Place], None]


def named(*cases: Case) -> dict[str, Case]:
    return {case.__name__: case for case in cases}  # type: ignore[attr-defined]
