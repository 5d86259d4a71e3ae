"""The text encoder: a presentation -> the features that the DiT reads (conditioning contract §1.2, §1.7).

    ids -> embeddings (fp32), vision features in place of the pads -> language layers -> hidden [1, L, hidden]

Activations are fp32 whatever dtype the weights are stored in. Every presentation row is kept: no template is dropped,
nothing is padded or masked. Parameter names are those of a ComfyUI file. Fed by `presentation`; read by `packing` for
the tags and by `denoiser` for the hidden states.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from h3runtime.conditioning.config import TextEncoderConfig
from h3runtime.conditioning.language_model import LanguageModel
from h3runtime.conditioning.mrope import position_ids, rotary_angles
from h3runtime.conditioning.presentation import Presentation
from h3runtime.conditioning.vision_preprocess import patch_rows
from h3runtime.conditioning.vision_tower import VisionTower
from h3runtime.core import ShouldStop, TextFeatures
from h3runtime.errors import JobCancelled


@dataclass(frozen=True, slots=True, eq=False)
class LanguageInput:
    """What the language layers start from.

    embeds: fp32 [1, L, hidden], vision features in place; the language layers work in its memory.
    vision_rows: int64 [V], their rows in order. deepstack: per tap fp32 [V, hidden]; none without a vision block.
    """

    embeds: torch.Tensor
    vision_rows: torch.Tensor
    deepstack: tuple[torch.Tensor, ...]


class Lodging(Protocol):
    """Where an encoder's weights are between encodings, if not where it computes. device: where that is."""

    device: torch.device

    def visit(self, *, tower: bool, poll: Callable[[], None]) -> AbstractContextManager[None]:
        """Around one encoding: every module's weights are on the device while it runs. tower: the vision tower will."""
        ...

    @property
    def host_bytes(self) -> int:
        """Of the host's memory, page-locked, that they take between encodings."""
        ...

    def close(self) -> None:
        """Give that back; nothing can be encoded any more."""
        ...


class TextEncoder(nn.Module):
    """lodging: of one whose weights come to the device only while it encodes."""

    lodging: Lodging | None = None

    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = LanguageModel(config)
        self.visual = VisionTower(config.vision)

    @torch.no_grad()
    def encode(self, presentation: Presentation, should_stop: ShouldStop | None = None) -> TextFeatures:
        """hidden fp32 [1, L, hidden] on the model's device, tags int64 [L].

        `should_stop` is asked before every vision block and language layer; if true, raises JobCancelled.
        """
        poll = _poll(should_stop)
        with nullcontext() if self.lodging is None else self.lodging.visit(tower=bool(presentation.blocks), poll=poll):
            return self._encode(presentation, poll)

    def _encode(self, presentation: Presentation, poll: Callable[[], None]) -> TextFeatures:
        given = self.language_input(presentation, poll)
        config, device = self.config, given.embeds.device
        positions = position_ids(presentation.rows, [(b.start, b.grid) for b in presentation.blocks])
        cos, sin = rotary_angles(positions, config.head_dim, config.rope_theta, config.mrope_section)
        rotary = cos.to(device), sin.to(device)
        hidden = self.model(given.embeds, rotary, given.vision_rows, given.deepstack, poll)
        return TextFeatures(hidden, presentation.tags)

    @torch.no_grad()
    def language_input(self, presentation: Presentation, poll: Callable[[], None] | None = None) -> LanguageInput:
        """Look up the text rows and compute the vision rows, one block at a time, each written where it belongs."""
        poll = poll or _poll(None)
        device = self.visual.pos_embed.weight.device if self.lodging is None else self.lodging.device
        is_vision = torch.zeros(presentation.rows, dtype=torch.bool)
        for block in presentation.blocks:
            is_vision[block.start : block.stop] = True
        vision_rows = is_vision.nonzero().flatten().to(device)
        embeds = self._embeddings(presentation, is_vision, device)
        taps = self.config.vision.taps if presentation.blocks else ()
        deepstack = tuple(embeds.new_empty(len(vision_rows), self.config.hidden) for _ in taps)
        first = 0
        for block in presentation.blocks:
            main, tapped = self.visual(patch_rows(block.pixels).to(device), block.grid, poll)
            embeds[block.start : block.stop] = main
            for feature, rows in zip(deepstack, tapped, strict=True):
                feature[first : first + len(main)] = rows
            first += len(main)
        return LanguageInput(embeds.unsqueeze(0), vision_rows, deepstack)

    def _embeddings(self, presentation: Presentation, is_vision: torch.Tensor, device: torch.device) -> torch.Tensor:
        """fp32 [L, hidden]; vision rows hold the row of some text, to be replaced, since a pad's id need not exist."""
        ids = torch.from_numpy(presentation.ids).masked_fill(is_vision, 0).to(device)
        # `float` returns the looked-up rows themselves if they are fp32 already; they are a fresh tensor either way.
        embeds: torch.Tensor = self.model.embed_tokens(ids).float()
        return embeds


def _poll(should_stop: ShouldStop | None) -> Callable[[], None]:
    def poll() -> None:
        if should_stop is not None and should_stop():
            raise JobCancelled("The job was cancelled", stage="conditioning")

    return poll
