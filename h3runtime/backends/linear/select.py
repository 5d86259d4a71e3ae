"""The linear backends and the choice among them. Read by `engine`, which loads a transformer with the one chosen.

`auto` is exact: BF16 GEMM on weights that are decoded once, or at every call where memory is too short for that
(`spare_linear`; whether it is, `engine.load` knows once it has read the headers). Anything else must be asked for.
"""

from __future__ import annotations

from typing import Any

import torch

from h3runtime.backends.linear.base import LinearBackend
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.backends.linear.facts import LinearFacts, linear_facts
from h3runtime.backends.linear.fp8 import Fp8Linear
from h3runtime.backends.linear.int8 import Int8Linear
from h3runtime.backends.linear.nvfp4 import Nvfp4Linear
from h3runtime.backends.linear.nvfp4_cutlass import Nvfp4CutlassLinear
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear
from h3runtime.backends.linear.nvfp4_te import Nvfp4TeLinear
from h3runtime.backends.linear.resident import Fp32Linear, ResidentBf16Linear
from h3runtime.backends.select import AUTO, choose, listing
from h3runtime.core import BackendChoice


def linear_backends() -> tuple[LinearBackend[Any], ...]:
    """All there are, the one that `auto` prefers first."""
    return (
        ResidentBf16Linear(),
        DequantLinear(),
        Fp32Linear(),
        Fp8Linear(),
        Int8Linear(),
        Nvfp4Linear(),
        Nvfp4CutlassLinear(),
        Nvfp4TeLinear(),
        Nvfp4EmulatedLinear(),
    )


def choose_linear(name: str, device: torch.device) -> tuple[LinearBackend[Any], str]:
    """The backend called `name` (or `auto`) and why; InvalidRequest or BackendUnavailable, see `backends.select`."""
    chosen, why = choose("linear", linear_backends(), name, device)
    return chosen, why_auto(linear_facts(device)) if name == AUTO else why


def why_auto(facts: LinearFacts) -> str:
    """Why `auto` takes weights that are decoded once."""
    why = f"auto: BF16 GEMM on weights decoded once, the fastest exact way on {facts.kind}"
    if facts.bf16_units:
        return why
    return f"{why}; this CPU multiplies BF16 in software, so fp32 is faster, with sums in another order"


def vae_linear_backends() -> tuple[LinearBackend[Any], ...]:
    """Of the video decoder's blocks, in FP16 or FP32: as stored, which is what `auto` takes, or in 8 bits."""
    return (DequantLinear(), Fp8Linear(), Int8Linear())


def choose_vae_linear(name: str, device: torch.device) -> tuple[LinearBackend[Any], str]:
    """As `choose_linear`."""
    chosen, why = choose("vae_linear", vae_linear_backends(), name, device)
    return chosen, "auto: exact, weights as they are stored" if name == AUTO else why


def vae_linear_choice(chosen: LinearBackend[Any], why: str, device: torch.device) -> BackendChoice:
    """What `/ready` shows."""
    return listing(vae_linear_backends(), chosen.name, why, device)


def spare_linear(name: str) -> LinearBackend[Any] | None:
    """What takes the place of the one that `name` chose where its weights don't fit into memory; only of `auto`'s."""
    return DequantLinear() if name == AUTO else None


def linear_choice(chosen: LinearBackend[Any], why: str, device: torch.device) -> BackendChoice:
    """The family as it is before anything is loaded; `switching` tells what of it loaded weights serve."""
    return listing(linear_backends(), chosen.name, why, device)
