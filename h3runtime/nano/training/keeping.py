"""Encoded clips kept on the machine, so that a training that is called again there goes on within seconds.

One file: shelves and references as they are in memory, named by what they were made of (sizes, seed, both VAEs, and the
code that draws the world). Written whole or not at all; nothing that leaves the machine. Fed and read by `command`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from h3runtime.nano import captions, pictures, sounds, world
from h3runtime.nano.training import clips, tasks

Kept = tuple[list[clips.Shelf], clips.References]
SOURCES = (world, captions, pictures, sounds, clips, tasks)


def place(folder: Path, sizes: Sequence[clips.Size], seed: int, masters: Sequence[Path]) -> Path:
    """Where the clips of these sizes and this seed, encoded by these VAEs, are kept."""
    digest = hashlib.sha256(repr((tuple(sizes), seed)).encode())
    for path in (*masters, *(Path(str(module.__file__)) for module in SOURCES)):
        digest.update(path.read_bytes())
    return folder / f"clips-{digest.hexdigest()[:16]}.pt"


def keep(path: Path, shelves: Sequence[clips.Shelf], references: clips.References) -> None:
    """Write them, from whatever device they are on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial")
    torch.save(([_on(shelf, torch.device("cpu")) for shelf in shelves], _referred(references, "cpu")), temporary)
    temporary.replace(path)


def taken(path: Path, device: torch.device) -> Kept | None:
    """What was kept there, on the device; None if nothing was."""
    if not path.exists():
        return None
    # The project's own file on its own machine: scenes and captions are classes, not weights.
    shelves, references = torch.load(path, weights_only=False, mmap=True)
    return [_on(shelf, device) for shelf in shelves], _referred(references, device)


def _on(shelf: clips.Shelf, device: torch.device) -> clips.Shelf:
    names = ("video", "audio", "stills", "frames")
    return replace(shelf, **{name: getattr(shelf, name).to(device) for name in names})


def _referred(references: clips.References, device: torch.device | str) -> clips.References:
    portraits, pixels = (
        {side: table.to(device) for side, table in tables.items()}
        for tables in (references.portraits, references.pixels)
    )
    return clips.References(portraits, pixels, references.voices.to(device))
