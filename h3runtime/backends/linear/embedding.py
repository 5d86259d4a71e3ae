"""The module that stands for an `nn.Embedding` whose table is stored as INT8 rows.

Fed by the checkpoint loader; called by the text encoder exactly like the embedding it replaces. Only looked-up rows are
decoded, so the table stays at one byte a value.
"""

from __future__ import annotations

import torch
from torch import nn

from h3runtime.quant.int8 import dequantize_rows
from h3runtime.quant.stored import Int8Weight


class Int8Embedding(nn.Module):
    """ids int64 [...] -> fp32 [..., K]."""

    def __init__(self, table: Int8Weight) -> None:
        super().__init__()
        self.table = table

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return dequantize_rows(self.table, ids)


def install_embedding(model: nn.Module, name: str, table: Int8Weight) -> None:
    """Replace the embedding called `name` (dotted) inside `model`."""
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, Int8Embedding(table))
