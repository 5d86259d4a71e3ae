"""The size of the clips that a level is measured with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """Pixels and frames."""

    width: int
    height: int
    frames: int

    @property
    def name(self) -> str:
        return f"{self.width}x{self.height}x{self.frames}"
