"""What an attention backend is. The reference is `sdpa`; every other one is compared with it.

Model code calls `attend` and knows nothing of devices or kernels; what chooses among backends (`select`) also asks a
candidate why it can't run, from facts alone, and calls its kernel once before it is used (`probe`). The text encoder
and the VAEs never use this choice.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch

from h3runtime.backends.attention.facts import DeviceFacts
from h3runtime.core import PackedLayout, SegmentKind


class AttentionBackend(Protocol):
    """softmax(q k^T / sqrt(D)) v over all S rows, no mask (dit-contract §2, §4.3)."""

    name: str
    grade: str

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, layout: PackedLayout | None, step: int
    ) -> torch.Tensor:
        """q, k, v [B, S, H, D] (strided views welcome, never written to) -> [B, S, H, D], same dtype.

        `layout` names the rows that an approximation must keep exact (None: all of one kind, as in the token refiner;
        see `exact_rows`); `step` counts sampler steps from 0.
        """
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the network a call is made, for the backends that ask (`attend_at`).

    block: counted from 0. gate: makes [B, S, H, D] of what q, k and v were made of, by the block's `to_gate_compress`;
    None where the block has none.
    """

    block: int
    gate: Callable[[], torch.Tensor] | None = None


def attend_at(
    backend: AttentionBackend,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    layout: PackedLayout | None,
    step: int,
    place: Place | None,
) -> torch.Tensor:
    """`attend`, telling a backend that has a method `attend_at` where it is called."""
    asks: Any = getattr(backend, "attend_at", None)
    if asks is None:
        return backend.attend(q, k, v, layout=layout, step=step)
    attended: torch.Tensor = asks(q, k, v, layout=layout, step=step, place=place)
    return attended


class Candidate(AttentionBackend, Protocol):
    """A backend that can be chosen by name.

    exact: only the order of additions and where BF16 rounds may differ from the reference, so that `quality: exact`
    takes it. tolerance: relative L2 error against fp32 within which its probe has to lie.
    """

    exact: bool
    tolerance: float

    def why_unavailable(self, device: DeviceFacts) -> str | None:
        """Why it can't run there, or None if it should."""
        ...

    def why_unfit(self, head_dim: int) -> str | None:
        """Why it can't run a model with heads of this size, or None if it can."""
        ...

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Its kernel itself on [B, S, H, D], whatever `attend` would do with so small a call."""
        ...

    def workspace_bytes(self, rows: int, heads: int, head_dim: int) -> int:
        """Most that a call of BF16 holds beside q, k, v and its result; by its source, for what is admitted."""
        ...


class Kernel(ABC):
    """What most candidates share: one call for every layout and step, any head size that is a multiple of 8."""

    name: str
    grade: str = "validated"
    exact: bool = False
    tolerance: float = 0.1
    head_dims: ClassVar[tuple[int, ...]] = ()
    """Sizes that it takes; () for multiples of 8 up to 128."""
    copies: float = 0.0
    """Bytes of `workspace_bytes` for each of S*H*D values."""

    def why_unfit(self, head_dim: int) -> str | None:
        if head_dim in self.head_dims or (not self.head_dims and head_dim % 8 == 0 and 0 < head_dim <= 128):
            return None
        legal = ", ".join(map(str, self.head_dims)) or "a multiple of 8 up to 128"
        return f"takes heads of {legal}, and this model's have {head_dim}"

    def workspace_bytes(self, rows: int, heads: int, head_dim: int) -> int:
        return math.ceil(self.copies * rows * heads * head_dim)

    @abstractmethod
    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """BF16, [B, S, H, D] each -> [B, S, H, D]."""

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        layout: PackedLayout | None,  # noqa: ARG002  # part of the interface
        step: int,  # noqa: ARG002
    ) -> torch.Tensor:
        return self.call(q, k, v)


def exact_rows(layout: PackedLayout) -> int:
    """Rows [0, n) whose keys every query reads and whose queries read every key, whatever is approximated: text,
    guides, references and the target's sound, which all come before the target's pictures (dit-contract §2.1)."""
    last = layout.segments[-1]
    assert last.kind is SegmentKind.VIDEO
    return last.start
