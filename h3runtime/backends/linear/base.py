"""What a linear backend is, and the module that stands in a model for a linear with a backend behind it.

Model code writes `nn.Linear`; `install` swaps one for a `BackendLinear` once its stored weight is known.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch
from torch import nn

from h3runtime.quant.stored import StoredWeight

ResidentT = TypeVar("ResidentT")


class LinearBackend(Protocol[ResidentT]):
    """y = x W^T + b for a weight kept in some resident form."""

    name: str
    grade: str

    def why_unavailable(self, device: torch.device) -> str | None:
        """Why this backend can't run on `device`, or None if it can."""
        ...

    def prepare(self, stored: StoredWeight, device: torch.device) -> ResidentT:
        """Stored weight -> the form kept on `device`; once, at load."""
        ...

    def apply(self, x: torch.Tensor, resident: ResidentT) -> torch.Tensor:
        """x [..., K] -> [..., N] in x's dtype."""
        ...


class BackendLinear(nn.Module):
    """Stands where the model wrote `nn.Linear`. The resident form is no parameter: nothing may re-cast or save it."""

    def __init__(self, backend: LinearBackend[ResidentT], resident: ResidentT) -> None:
        super().__init__()
        self.backend = backend
        self.resident = resident

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.backend.apply(x, self.resident)


def install(
    model: nn.Module, name: str, backend: LinearBackend[ResidentT], stored: StoredWeight, device: torch.device
) -> None:
    """Replace the linear called `name` (dotted) inside `model` by `backend` holding `stored`."""
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, BackendLinear(backend, backend.prepare(stored, device)))
