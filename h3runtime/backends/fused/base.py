"""What a family of fused producers is: everything a DiT block does between its matrix products and attention.

A producer reads what one GEMM left and writes what the next one reads, in as few passes over memory as it can. `torch`
(`definition`) is the definition of correct; every other one says how far from it it may be. Model code calls these and
knows nothing of devices or kernels; weights and tables are handed in, so a family holds no model.

    norm            x / sqrt(mean(x^2) + eps) * weight          over the last dim, inside fp32 (dit-contract §4.2)
    norm_modulate   norm(x) * (1 + scale) + shift               each operation rounds (§4.2)
    norm_rotate_    q and k: norm per head, then rotation       in place in the projection's output (§3.1, §4.3)
    swiglu          silu(gate) * value                          two roundings (§4.4)
    add_gated_      x + update * gate                           rounded once (§4.2)
    encode          E4M3 codes and a scale a row, or one        the linear's own rule (`quant.fp8`)

    What a linear would round by itself a producer may hand it rounded (`Form`): one pass over memory less or two, and
    the same numbers.

    add_gated_norm_modulate is add_gated_ and then norm_modulate of what it made, so that x is read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from h3runtime.backends.linear.nvfp4_packing import Nvfp4Form
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.row_codes import RowCodes

Activation = torch.Tensor | RowCodes | Nvfp4Rows
"""What a linear reads."""


@dataclass(frozen=True, slots=True)
class Fp8Form:
    """E4M3 codes with a scale a row (`quant.fp8.quantize_rows`)."""


FP8: Final = Fp8Form()
Form = Fp8Form | Nvfp4Form
"""What a linear rounds its input to, where a producer may do that for it."""


class TableRows(Protocol):
    """Which row of a modulation table each packed row reads; the DiT's `RowMap`.

    segments: (start, stop, table row), contiguous and ascending. index: int32 [S] instead, and then no segments.
    """

    @property
    def segments(self) -> tuple[tuple[int, int, int], ...]: ...

    @property
    def index(self) -> torch.Tensor | None: ...

    def pieces(self) -> Iterator[tuple[slice, int | torch.Tensor]]:
        """(packed rows, table row or rows [n]) that cover the sequence."""
        ...


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotation of a run's rows, from `Producers.rotary`. cos, sin [S, 3n] in the compute dtype.

    both, signed: [S, 6n], (cos | cos) and (-sin | sin), where the family asked for them.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    both: torch.Tensor | None = None
    signed: torch.Tensor | None = None

    def rows(self, piece: slice) -> Rotary:
        """The rotation of some of the rows."""
        both, signed = (None if t is None else t[piece] for t in (self.both, self.signed))
        return Rotary(self.cos[piece], self.sin[piece], both, signed)


@dataclass(frozen=True, slots=True)
class NormWeight:
    """Of an RMSNorm: weight [dim] in the dtype that it is stored in, eps."""

    weight: torch.Tensor
    eps: float


MODULATED: Final = "modulated"
"""What `norm_modulate` and `add_gated_norm_modulate` make."""
GATED: Final = "gated"
"""What `swiglu` makes."""


class Producers(Protocol):
    """x, h [S, hidden]; tables [N, hidden], views of wider ones welcome; all of one dtype, bf16 or fp32.

    gives_codes: whether a result in FP8 costs less here than the linear's own rounding of it would. packs: which of
    these hand NVFP4 on (`MODULATED`, `GATED`). A block asks for `codes` only then, and only for a linear that reads
    them. Codes or not, the numbers are the same.
    """

    name: str
    grade: str
    gives_codes: bool
    packs: frozenset[str]

    def why_unavailable(self, device: torch.device) -> str | None:
        """Why these can't run on `device`, or None if they can."""
        ...

    def rotary(self, cos: torch.Tensor, sin: torch.Tensor) -> Rotary:
        """cos, sin [S, 3n] -> what `norm_rotate_` reads; once per run."""
        ...

    def norm(self, x: torch.Tensor, norm: NormWeight) -> torch.Tensor:
        """[S, hidden] -> the same."""
        ...

    def norm_modulate(
        self,
        x: torch.Tensor,
        norm: NormWeight,
        shift: torch.Tensor,
        scale: torch.Tensor,
        rows: TableRows,
        *,
        codes: Form | None = None,
    ) -> Activation:
        """[S, hidden] -> the same; shift, scale [N, hidden] read by `rows`."""
        ...

    def norm_rotate_(self, qkv: torch.Tensor, q_norm: NormWeight, k_norm: NormWeight, rotary: Rotary | None) -> None:
        """qkv [S, 3, H, D], a view of the projection's output: q and k in place, v untouched. None: no rotation."""
        ...

    def swiglu(self, x: torch.Tensor, *, codes: Form | None = None) -> Activation:
        """[S, 2*ffn], gate then value -> [S, ffn], a view of x maybe; x is spent."""
        ...

    def add_gated_(self, x: torch.Tensor, update: torch.Tensor, gate: torch.Tensor, rows: TableRows) -> torch.Tensor:
        """x [S, hidden], in place and returned; gate [N, hidden] read by `rows`."""
        ...

    def add_gated_norm_modulate(
        self,
        x: torch.Tensor,
        update: torch.Tensor,
        gate: torch.Tensor,
        norm: NormWeight,
        shift: torch.Tensor,
        scale: torch.Tensor,
        rows: TableRows,
        *,
        codes: Form | None = None,
    ) -> Activation:
        """`add_gated_` on x, in place, and `norm_modulate` of it, bit for bit the two one after the other."""
        ...

    def encode(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> Activation:
        """x [S, K] as a linear that rounds its input reads it, by rows or by `scale`, fp32 []; of use where
        `gives_codes`."""
        ...

    def held_for(self, rows: TableRows, x: torch.Tensor) -> object:
        """What calls with `rows` read on the device that no argument of theirs holds, for x [S, hidden]: whoever
        records calls and repeats them keeps it alive. None: nothing."""
        ...
