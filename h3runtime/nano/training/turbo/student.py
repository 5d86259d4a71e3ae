"""What is distilled into: a copy of the teacher's DiT with pairs beside its weights, their running mean, and pieces.

Only the pairs move. They lie in one vector, as the joint training's weights do, which the optimiser steps and the mean
follows; so the joint training's loop runs this one. Fed by `distilling`; `adapter` writes and reads their file.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import torch
from torch import nn

from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.denoiser.dit import Dit
from h3runtime.nano.training.optimiser import Optimiser
from h3runtime.nano.training.pieces import load_pieces, save_pieces
from h3runtime.nano.training.pupil import Pupil
from h3runtime.nano.training.turbo.adapter import FILE, read_pairs, write_adapter
from h3runtime.nano.training.turbo.side import SideLinear, attach

PIECES: Final = "turbo"


@dataclass(slots=True, eq=False)
class Student(Pupil):
    """encoder: the teacher's own. sides: by the linears' names. masters: what the teacher's file is known by."""

    sides: dict[str, SideLinear]
    masters: str = ""

    @classmethod
    def beside(
        cls, dit: Dit, encoder: TextEncoder, rank: int, seed: int, start: Path | None = None, masters: str = ""
    ) -> Self:
        """Of a teacher, which is left alone; fresh, or with the pairs of a folder's pieces or of an adapter's file.
        RuntimeError for another rank's."""
        own = deepcopy(dit)
        device = own.device
        sides = attach(own, rank, seed)
        own.to(device)
        named = _pairs(sides)
        if start is not None:
            held = read_pairs(start) if start.is_file() else load_pieces(start, PIECES)
            for name, value in named:
                value.data.copy_(held[name])
        optimiser = Optimiser(named)
        mean = optimiser.weights.values.clone()
        made = cls(own, encoder, optimiser, mean, mean.clone(), sides, masters)
        # Without gradients: a graph that lives on from this stream would be waited for on the one that records steps.
        with torch.no_grad():
            made.merge()
        return made

    def named(self) -> list[tuple[str, nn.Parameter]]:
        return _pairs(self.sides)

    def merge(self) -> None:
        """After every change of the pairs, and before what is to be differentiated."""
        for side in self.sides.values():
            side.merge()

    def release(self) -> None:
        """After a backward pass."""
        for side in self.sides.values():
            side.release()

    @property
    def pairs(self) -> dict[str, torch.Tensor]:
        return dict(self.named())

    @property
    def rank(self) -> int:
        return next(iter(self.sides.values())).rank

    def save(self, folder: Path) -> None:
        """The mean, as pieces to go on from and as the adapter that it is by now."""
        mean = {name: value.clone() for name, value in self.optimiser.weights.named(self.mean.cpu()).items()}
        save_pieces(mean, folder, PIECES)
        write_adapter({name: mean[name] for name, _ in self.named()}, folder / FILE, self.masters)


def _pairs(sides: dict[str, SideLinear]) -> list[tuple[str, nn.Parameter]]:
    return [
        (f"{layer}.{name}", value)
        for layer, side in sides.items()
        for name, value in side.named_parameters()
        if name.startswith(("downs", "ups"))
    ]
