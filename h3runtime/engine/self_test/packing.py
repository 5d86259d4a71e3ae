"""Activations as NVFP4, byte for byte: who packs here beside comfy-kitchen's packer and beside the definition.

The error is the share of codes and block scales that are other bytes. Beside the library, by x's own scale, none may
be. The definition (`quant.nvfp4_cuda`) has rounded reciprocals, and a GPU's are within an ulp of them; so that no value
lies an ulp from a midpoint between two codes, the tensor scale is a power of two there, whose products with the eight
mantissas of E4M3 an H200 inverts exactly, and none differed. Other GPUs may, but for few of them. The scale that the
packer finds itself is held to the definition's within two ulps: a CPU divides where a GPU multiplies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from h3runtime.backends.linear.facts import LinearFacts
from h3runtime.backends.linear.nvfp4_packing import ScaleBackend, packed, why_no_packer
from h3runtime.engine.self_test.check import Check
from h3runtime.quant import nvfp4, nvfp4_cuda, tiles
from h3runtime.quant.nvfp4_rows import Nvfp4Rows

FAMILY: Final = "nvfp4_packing"
ROWS: Final = 129
"""One more than a tile of scales has, and no multiple of what comfy-kitchen packs at a time."""
TOLERANCE: Final = 1e-4
SCALE_ULPS: Final = 2.0**-22


def packing_checks(by: ScaleBackend, width: int, facts: LinearFacts, device: torch.device) -> Iterator[Check]:
    """width: of the activations, a multiple of 16."""
    told = f"share of other bytes of {ROWS} rows of {width}"
    yield Check(FAMILY, by, f"{told}, beside the definition", TOLERANCE, lambda: _beside_definition(by, width, device))
    if by != "kitchen" and why_no_packer("kitchen", facts) is None:
        yield Check(FAMILY, by, f"{told}, beside comfy-kitchen", 0.0, lambda: _beside_kitchen(by, width, device))


def given(width: int, device: torch.device) -> torch.Tensor:
    """Blocks of 16 of every size that has codes, some of them zeros, some values halfway between two codes."""
    source = torch.Generator().manual_seed(0)
    blocks = torch.randn(ROWS, width // 16, 16, generator=source)
    powers = torch.randint(-14, 3, (ROWS, width // 16, 1), generator=source).float()
    halfway = torch.randint(-24, 25, blocks.shape, generator=source) * 0.125
    kind = torch.rand(powers.shape, generator=source)
    x = torch.where(kind > 0.9, halfway, blocks * torch.exp2(powers))
    return torch.where(kind < 0.02, torch.zeros_like(x), x).flatten(1).to(device, torch.bfloat16)


def _beside_definition(by: ScaleBackend, width: int, device: torch.device) -> float:
    x = given(width, device)
    own = nvfp4.activation_scale(x.cpu())
    off = float((packed(x, None, by).tensor_scale.cpu() / own - 1).abs())
    scale = own.log2().ceil().exp2()
    codes, block_scale = nvfp4_cuda.pack(x.cpu(), scale)
    got = packed(x, scale.to(device), by)
    return _share(got, codes, block_scale, ROWS) if off <= SCALE_ULPS else 1.0


def _beside_kitchen(by: ScaleBackend, width: int, device: torch.device) -> float:
    x = given(width, device)
    return other_bytes(packed(x, None, by), packed(x, None, "kitchen"), ROWS)


def other_bytes(got: Nvfp4Rows, wanted: Nvfp4Rows, rows: int) -> float:
    """Share of codes and block scales of `rows` rows that differ; 1 for another tensor scale."""
    same_scale = bool(got.tensor_scale == wanted.tensor_scale)
    return _share(got, wanted.codes, wanted.block_scale, rows) if same_scale else 1.0


def _share(got: Nvfp4Rows, codes: torch.Tensor, block_scale: torch.Tensor, rows: int) -> float:
    """Of bytes that differ, padding left out."""
    pairs = ((got.codes[:rows], codes[:rows]), (_natural(got.block_scale, rows), _natural(block_scale, rows)))
    off = [(one.cpu() != other.cpu()).flatten() for one, other in pairs]
    return float(torch.cat(off).float().mean())


def _natural(block_scale: torch.Tensor, rows: int) -> torch.Tensor:
    return tiles.unswizzle(block_scale, rows, block_scale.shape[1]).view(torch.uint8)
