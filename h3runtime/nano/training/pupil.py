"""What the joint training trains: the DiT, the text encoder, the running mean of their weights, and pieces of it.

All weights lie in one vector (`flat`), which the optimiser steps and the mean follows. Fed by `joint`; `command` writes
masters from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.denoiser.dit import Dit
from h3runtime.nano import model
from h3runtime.nano.training import transformer
from h3runtime.nano.training.optimiser import Optimiser
from h3runtime.nano.training.pieces import load_pieces, save_pieces
from h3runtime.nano.training.text_master import initialise as initialise_text
from h3runtime.nano.vocabulary import Vocabulary

NAME = "joint"


@dataclass(slots=True, eq=False)
class Pupil:
    """mean, good: fp32 [N], as the optimiser's vector. good: what was finite when last looked at."""

    dit: Dit
    encoder: TextEncoder
    optimiser: Optimiser
    mean: torch.Tensor
    good: torch.Tensor

    @classmethod
    def begin(cls, vocabulary: Vocabulary, device: torch.device, seed: int, pieces: Path | None) -> Pupil:
        """Fresh, or from the pieces in a folder."""
        dit, encoder = model.transformer(), model.text_encoder(vocabulary.rows)
        transformer.initialise(dit, seed)
        initialise_text(encoder, seed)
        return cls.of(dit.to(device), encoder.to(device), pieces)

    @classmethod
    def of(cls, dit: Dit, encoder: TextEncoder, pieces: Path | None = None) -> Pupil:
        """These two, whose weights move together from then on."""
        named = named_parameters(dit, encoder)
        if pieces is not None:
            held = load_pieces(pieces, NAME)
            for name, value in named:
                value.data.copy_(held[name])
        optimiser = Optimiser(named)
        mean = optimiser.weights.values.clone()
        return cls(dit, encoder, optimiser, mean, mean.clone())

    def named(self) -> list[tuple[str, nn.Parameter]]:
        return named_parameters(self.dit, self.encoder)

    @torch.no_grad()
    def swap(self) -> None:
        """Weights and their mean change places."""
        values = self.optimiser.weights.values
        kept = values.clone()
        values.copy_(self.mean)
        self.mean.copy_(kept)

    @torch.no_grad()
    def guard(self, finite: bool) -> None:
        """Remember the mean, or go back to the last one remembered. In place: recorded steps read these tensors."""
        if finite:
            self.good.copy_(self.mean)
            return
        self.mean.copy_(self.good)
        self.optimiser.weights.values.copy_(self.good)
        self.optimiser.reset()

    def save(self, folder: Path) -> None:
        """The mean, fp32, as pieces that a later run goes on from."""
        mean = self.optimiser.weights.named(self.mean.cpu())
        save_pieces({name: value.clone() for name, value in mean.items()}, folder, NAME)


def named_parameters(dit: Dit, encoder: TextEncoder) -> list[tuple[str, nn.Parameter]]:
    named = [(f"dit.{name}", value) for name, value in dit.named_parameters()]
    return named + [(f"text.{name}", value) for name, value in encoder.named_parameters()]
