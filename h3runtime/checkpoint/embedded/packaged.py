"""Where the masters and their adapters travel in the package: paths alone, so that `--help` can ask."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "nano" / "masters"
ADAPTERS = FOLDER.parent / "adapters"
NAME = "derived.json"
"""The list without which nothing is derived (see `listing`)."""
