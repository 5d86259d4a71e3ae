"""Names that the command and its work share."""

from __future__ import annotations

from typing import Final

FILM: Final = "side-by-side.mp4"
PLOT: Final = "plot.png"
REPORT: Final = "report.json"
AUTO: Final = "auto"
NONE: Final = "none"
BLOCKS_LEGAL: Final = "steps from 0, comma-separated, auto for the first, the middle and the last, or none"
