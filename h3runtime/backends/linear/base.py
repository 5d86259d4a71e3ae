"""What a linear backend is, and the module that stands in a model for a linear with a backend behind it.

Model code writes `nn.Linear`; `install` swaps one for a `BackendLinear` once its stored weight is known. A layer that
follows the choice of backend is `switched`; `switching` may give it another backend that reads the same resident form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from h3runtime.quant.stored import StoredWeight

ResidentT = TypeVar("ResidentT")

STORED = "stored"
"""The form of a weight that is resident as its file has it."""


@dataclass(frozen=True, slots=True)
class CallBytes:
    """What a call takes beside its input and its result. held: until the end. before: given back before the result is
    allocated."""

    held: int = 0
    before: int = 0


class LinearBackend(Protocol[ResidentT]):
    """y = x W^T + b for a weight kept in some resident form.

    grade: `reference` (BF16 GEMM, exact), `validated` or `experimental`. reads: resident forms that it can multiply
    beside those that it makes. only: the stored format without which it has nothing to do; "" for none.
    """

    name: str
    grade: str
    reads: frozenset[str]
    only: str

    def why_unavailable(self, device: torch.device) -> str | None:
        """Why this backend can't run on `device`, or None if it can."""
        ...

    def why_unfit(self, stored: StoredWeight) -> str | None:
        """Why such a layer is left to the definition (`dequant`), or None if it isn't."""
        ...

    def form(self, stored: StoredWeight) -> str:
        """What `prepare` makes of it: `STORED`, or the name of a form. Equal forms are equal numbers."""
        ...

    def resident_bytes(self, stored_format: str, shape: tuple[int, int], stored_bytes: int) -> int:
        """Of a layer that isn't there yet: what its file tells of it -> bytes that `prepare` will keep."""
        ...

    def call_bytes(self, resident: ResidentT, rows: int, dtype: torch.dtype) -> CallBytes:
        """Of a call with `rows` rows of x in `dtype`."""
        ...

    def prepare(self, stored: StoredWeight, device: torch.device) -> ResidentT:
        """Stored weight -> the form kept on `device`; once, at load."""
        ...

    def apply(self, x: torch.Tensor, resident: ResidentT) -> torch.Tensor:
        """x [..., K] -> [..., N] in x's dtype."""
        ...


class BackendLinear(nn.Module):
    """Stands where the model wrote `nn.Linear`. The resident form is no parameter: nothing may re-cast or save it.

    backend: what multiplies now; loaded_for: what made `resident`. form: what that is, see `LinearBackend.form`.
    switched: follows the choice of backend. error: relative L2 that `prepare` cost the weight, fp32 [] on the device;
    None where it cost nothing.
    """

    def __init__(
        self,
        backend: LinearBackend[ResidentT],
        resident: ResidentT,
        *,
        form: str = STORED,
        switched: bool = False,
        error: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.backend: LinearBackend[Any] = backend
        self.loaded_for: LinearBackend[Any] = backend
        self.resident: Any = resident
        self.form, self.switched, self.error = form, switched, error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.backend.apply(x, self.resident)
        return y

    def each(self, several: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What `forward` gives of each, all of one dtype; by a backend that can, with the weight decoded once."""
        together: Any = getattr(self.backend, "apply_each", None)
        if together is None:
            return [self(x) for x in several]
        made: list[torch.Tensor] = together(several, self.resident)
        return made


def install(
    model: nn.Module,
    name: str,
    backend: LinearBackend[ResidentT],
    stored: StoredWeight,
    device: torch.device,
    *,
    switched: bool = False,
) -> None:
    """Replace the linear called `name` (dotted) inside `model` by `backend` holding `stored`."""
    parent, _, leaf = name.rpartition(".")
    resident = backend.prepare(stored, device)
    error = getattr(resident, "error", None)
    made = BackendLinear(backend, resident, form=backend.form(stored), switched=switched, error=error)
    setattr(model.get_submodule(parent), leaf, made)
