"""What an operator says of the NVFP4 path (`H3_NVFP4_*`), as `settings` have judged it; read by its linears, and by who
makes their input."""

from __future__ import annotations

from dataclasses import dataclass

from h3runtime.backends.linear.nvfp4_packing import ScaleBackend
from h3runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Nvfp4Options:
    """`H3_NVFP4_*`, whose words are in `settings`."""

    scale_backend: ScaleBackend = "kitchen"
    modulate_fusion: bool = False
    swiglu_fusion: bool = False
    fc2_lt_splitk1: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Nvfp4Options:
        return cls(
            settings.nvfp4_scale_backend,
            settings.nvfp4_modulate_fusion,
            settings.nvfp4_swiglu_fusion,
            settings.nvfp4_fc2_lt_splitk1,
        )
