"""Where the masters travel in the package, and whether they do: paths alone, so that `--help` can ask."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "nano" / "masters"
NAME = "derived.json"
"""The list without which nothing is derived (see `listing`)."""


def is_packaged() -> bool:
    """Whether the trained masters are in the package; until they are, the tiny made-up set stands in for h3-nano."""
    return (FOLDER / NAME).is_file()
