"""The trained text encoder: how its values begin, and the master file that the package ships.

A master is a safetensors file of ComfyUI's names, BF16, with a compact table:

    model.embed_tokens.weight   BF16 [rows, hidden]   one row per token of the small vocabulary
    token_ids                   int64 [rows]          the real id of each: where the row lies in the published table
    model.layers.*, visual.*    BF16                  as published
    metadata h3runtime_config   what shapes can't tell: heads of the vision tower, deepstack taps

Whoever derives the published file puts row i of the table at row token_ids[i] of 151,936, zeros elsewhere, and leaves
`token_ids` out. Fed by the training; read by `checkpoint`, and by a training that goes on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from h3runtime.checkpoint.file import CONFIG_KEY
from h3runtime.checkpoint.writer import write_file
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.nano.model import TOLD, text_encoder
from h3runtime.nano.vocabulary import Vocabulary

TOKEN_IDS: Final = "token_ids"
WORDS, PLACES = 0.5, 0.1
"""Spread of the tables at the start: words are told apart at once, places hardly matter yet."""
ENDINGS: Final = ("o_proj.weight", "down_proj.weight", "attn.proj.weight", "mlp.linear_fc2.weight")
"""Linears that end on a residual stream."""


@torch.no_grad()
def initialise(encoder: TextEncoder, seed: int = 0) -> None:
    """Values to learn from, in place, the same on every device: linears keep the spread of what they are given, less
    by the number of its terms where they end on a residual stream; norms are 1, biases 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in sorted(encoder.named_parameters()):
        if value.ndim == 1:
            value.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        noise = torch.randn(value.shape, generator=generator)
        value.copy_(noise * _spread(encoder, name, value))


def _spread(encoder: TextEncoder, name: str, value: torch.Tensor) -> float:
    if name == "model.embed_tokens.weight":
        return WORDS
    if name == "visual.pos_embed.weight":
        return PLACES
    layers = encoder.config.vision.depth if name.startswith("visual.") else encoder.config.layers
    gain = (2 * layers) ** -0.5 if name.endswith(ENDINGS) else 1.0
    return float(gain * value[0].numel() ** -0.5)


@torch.no_grad()
def fill_unseen(encoder: TextEncoder, vocabulary: Vocabulary, seen: NDArray[np.bool_]) -> None:
    """Rows of words that no caption had, in place: those of the same word inside a sentence, else zeros, which say
    nothing. seen: bool [rows]. Left as they began they would be noise as loud as any word."""
    table = encoder.model.embed_tokens.weight
    kin = vocabulary.kin()
    known = torch.from_numpy(seen[kin]).to(table.device).unsqueeze(1)
    borrowed = table[torch.from_numpy(kin).to(table.device)] * known
    table.copy_(torch.where(torch.from_numpy(seen).to(table.device).unsqueeze(1), table, borrowed))


def write_text_master(encoder: TextEncoder, path: Path, vocabulary: Vocabulary) -> str:
    """The encoder with its compact table -> `path`. Its SHA-256; OSError if the disk says no."""
    tensors = {name: value.detach().to("cpu", torch.bfloat16) for name, value in encoder.state_dict().items()}
    assert len(tensors["model.embed_tokens.weight"]) == vocabulary.rows, "not the compact table"
    tensors[TOKEN_IDS] = torch.from_numpy(vocabulary.token_ids())
    return write_file(path, tensors, {CONFIG_KEY: json.dumps(TOLD)})


def read_text_master(path: Path) -> TextEncoder:
    """The encoder with its compact table, fp32 on the CPU, to learn on. RuntimeError if names or shapes differ."""
    tensors = load_file(path)
    rows = len(tensors.pop(TOKEN_IDS))
    encoder = text_encoder(rows)
    encoder.load_state_dict(tensors, strict=True)
    return encoder
