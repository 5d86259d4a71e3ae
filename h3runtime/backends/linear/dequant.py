"""The reference linear: whatever the storage, cast or dequantise to the activation's dtype, then one plain matmul."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from h3runtime.backends.linear.base import install
from h3runtime.quant.stored import PlainWeight, StoredWeight


class DequantLinear:
    name = "dequant"
    grade = "reference"

    def why_unavailable(self, device: torch.device) -> str | None:  # noqa: ARG002  # part of the interface
        return None

    def prepare(self, stored: StoredWeight, device: torch.device) -> StoredWeight:
        if not isinstance(stored, PlainWeight):
            raise TypeError(type(stored))
        return PlainWeight(stored.weight.to(device), None if stored.bias is None else stored.bias.to(device))

    def apply(self, x: torch.Tensor, resident: StoredWeight) -> torch.Tensor:
        assert isinstance(resident, PlainWeight)
        bias = None if resident.bias is None else resident.bias.to(x.dtype)
        return F.linear(x, resident.weight.to(x.dtype), bias)


def install_plain(model: nn.Module) -> None:
    """Give every `nn.Linear` of a loaded model the cast-per-call rule: weights stay as stored, x's dtype decides."""
    backend = DequantLinear()
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            bias = None if module.bias is None else module.bias.detach()
            install(model, name, backend, PlainWeight(module.weight.detach(), bias), module.weight.device)
