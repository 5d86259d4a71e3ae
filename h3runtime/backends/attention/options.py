"""What an operator says of the attention backends, as `settings` have judged it; read by those backends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from h3runtime.backends.policy import QkvLayout, Row
from h3runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class SolOptions:
    """`H3_SOL_*`, whose words are in `settings`."""

    tau: float = 1.3
    min_tokens: int = 4096
    thresh_type: str = "diag"
    int8_qk: bool = True
    int8_pv: bool = True
    fallback: str = "sage2"
    strict: bool = False


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """sage_layout: `H3_SAGE_QKV_LAYOUT`, which `on` settles. slice_backend, slice_size: `H3_HEAD_SLICE_*`."""

    sage_layout: QkvLayout | Literal["auto"] = "strided_nhd"
    slice_backend: str = "sage2"
    slice_size: int = 8
    sol: SolOptions = SolOptions()

    @classmethod
    def of(cls, settings: Settings) -> AttentionOptions:
        return cls(
            sage_layout=settings.sage_qkv_layout,
            slice_backend=settings.head_slice_backend,
            slice_size=settings.head_slice_size,
            sol=SolOptions(
                tau=settings.sol_tau,
                min_tokens=settings.sol_min_tokens,
                thresh_type=settings.sol_thresh_type,
                int8_qk=settings.sol_int8_qk,
                int8_pv=settings.sol_int8_pv,
                fallback=settings.sol_fallback,
                strict=settings.sol_strict,
            ),
        )

    def on(self, row: Row) -> AttentionOptions:
        """As they are on an architecture; nothing is `auto` any more."""
        return replace(self, sage_layout=row.sage_layout.value) if self.sage_layout == "auto" else self
