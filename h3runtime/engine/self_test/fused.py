"""What lies between the products: each step of a family beside the definition's, on the same random numbers.

The error is that of the worst row of the worst step, relative L2. Norms may differ from the definition in the order of
a sum, which moves one element in a thousand by an ulp of BF16 at most, 2^-8: 2.5e-4 of a row that is long enough to
have one. FP8 codes are compared as the numbers that they stand for; one that an ulp of the norm moves is a step of E4M3
away, 2^-4. NVFP4 must be, byte for byte, what the family's own values are when they are packed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from h3runtime.backends.fused.base import (
    FP8,
    GATED,
    MODULATED,
    Activation,
    Form,
    NormWeight,
    Producers,
    TableRows,
)
from h3runtime.backends.fused.definition import TorchProducers
from h3runtime.backends.linear.facts import linear_facts
from h3runtime.backends.linear.nvfp4_packing import Nvfp4Form, ScaleBackend, packed, why_no_packer
from h3runtime.denoiser.config import AXES, DitConfig
from h3runtime.denoiser.timeline import RowMap
from h3runtime.engine.self_test.check import Check, worst_row
from h3runtime.engine.self_test.packing import other_bytes
from h3runtime.quant import nvfp4
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.row_codes import RowCodes

FAMILY: Final = "fused"
PACKING: Final = "nvfp4_producers"
ROWS: Final = 257
EPS: Final = 1e-5
TOLERANCE: Final = 2e-3
CODES_TOLERANCE: Final = 1e-2
TABLE: Final = 5


@dataclass(frozen=True, slots=True)
class Given:
    """What a block of these sizes hands its producers; tables are thirds of a wider one, as in the model."""

    x: torch.Tensor
    update: torch.Tensor
    table: torch.Tensor
    weight: NormWeight
    qkv: torch.Tensor
    q_norm: NormWeight
    k_norm: NormWeight
    cos: torch.Tensor
    sin: torch.Tensor
    halves: torch.Tensor
    rows: TableRows


def fused_checks(producers: Producers, config: DitConfig, device: torch.device) -> Iterator[Check]:
    """None for the definition itself."""
    if type(producers) is TorchProducers:
        return
    told = f"{ROWS} rows of {config.hidden} and {config.ffn}"
    yield Check(FAMILY, producers.name, told, TOLERANCE, lambda: _error(producers, config, device, STEPS))
    if producers.gives_codes:
        asked = f"{told}, in FP8"
        yield Check(FAMILY, producers.name, asked, CODES_TOLERANCE, lambda: _error(producers, config, device, IN_CODES))
    if producers.packs:
        asked = f"share of other bytes of {told}, in NVFP4"
        yield Check(PACKING, producers.name, asked, 0.0, lambda: _other_bytes(producers, config, device))


def given(config: DitConfig, device: torch.device) -> Given:
    source = torch.Generator().manual_seed(0)

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, generator=source) * scale).to(device, torch.bfloat16)

    def weight(width: int) -> NormWeight:
        return NormWeight(1 + random(width, scale=0.1), EPS)

    angles = torch.rand(ROWS, AXES * config.rope_freqs, generator=source) * 6.3
    cuts = (0, ROWS // 3, ROWS // 2, ROWS)
    return Given(
        x=random(ROWS, config.hidden, scale=3.0),
        update=random(ROWS, config.hidden),
        table=random(TABLE, 3 * config.hidden, scale=0.3),
        weight=weight(config.hidden),
        qkv=random(ROWS, 3, config.heads, config.head_dim, scale=2.0),
        q_norm=weight(config.head_dim),
        k_norm=weight(config.head_dim),
        cos=angles.cos().to(device, torch.bfloat16),
        sin=angles.sin().to(device, torch.bfloat16),
        halves=random(ROWS, 2 * config.ffn, scale=3.0),
        rows=RowMap(tuple(zip(cuts, cuts[1:], (2, 0, 4), strict=False))),
    )


Step = Callable[[Producers, Given], Activation]
"""Makes one result, in copies of what it may spend."""


def _norm(of: Producers, one: Given) -> Activation:
    return of.norm(one.x, one.weight)


def _modulated(of: Producers, one: Given, *, codes: Form | None = None) -> Activation:
    shift, scale, _ = one.table.chunk(3, -1)
    return of.norm_modulate(one.x, one.weight, shift, scale, one.rows, codes=codes)


def _rotated(of: Producers, one: Given) -> Activation:
    qkv = one.qkv.clone()
    of.norm_rotate_(qkv, one.q_norm, one.k_norm, of.rotary(one.cos, one.sin))
    return qkv


def _gated(of: Producers, one: Given, *, codes: Form | None = None) -> Activation:
    return of.swiglu(one.halves.clone(), codes=codes)


def _added(of: Producers, one: Given) -> Activation:
    return of.add_gated_(one.x.clone(), one.update, one.table.chunk(3, -1)[2], one.rows)


def _added_and_modulated(of: Producers, one: Given, *, codes: Form | None = None) -> Activation:
    shift, scale, gate = one.table.chunk(3, -1)
    return of.add_gated_norm_modulate(one.x.clone(), one.update, gate, one.weight, shift, scale, one.rows, codes=codes)


STEPS: Final[tuple[Step, ...]] = (_norm, _modulated, _rotated, _gated, _added, _added_and_modulated)
IN_CODES: Final[tuple[Step, ...]] = (
    lambda of, one: _modulated(of, one, codes=FP8),
    lambda of, one: _gated(of, one, codes=FP8),
    lambda of, one: _added_and_modulated(of, one, codes=FP8),
    lambda of, one: of.encode(one.update),
)


PACKED: Final[Mapping[str, tuple[Callable[[Producers, Given, Form | None], Activation], ...]]] = {
    MODULATED: (
        lambda of, one, form: _modulated(of, one, codes=form),
        lambda of, one, form: _added_and_modulated(of, one, codes=form),
    ),
    GATED: (lambda of, one, form: _gated(of, one, codes=form),),
}


def _error(producers: Producers, config: DitConfig, device: torch.device, steps: tuple[Step, ...]) -> float:
    one, definition = given(config, device), TorchProducers()
    errors = [worst_row(_numbers(step(producers, one)), _numbers(step(definition, one))) for step in steps]
    return float(torch.tensor(errors).max())


def _other_bytes(producers: Producers, config: DitConfig, device: torch.device) -> float:
    """Beside the family's own values, packed afterwards; by the activation's own scale."""
    one, shares = given(config, device), []
    has_kitchen = device.type == "cpu" or why_no_packer("kitchen", linear_facts(device)) is None
    by: ScaleBackend = "kitchen" if has_kitchen else "vortex_native"
    for what, steps in PACKED.items():
        for step in steps if what in producers.packs else ():
            got = step(producers, one, Nvfp4Form())
            values = step(producers, one, None)
            assert isinstance(got, Nvfp4Rows) and isinstance(values, torch.Tensor)
            shares.append(other_bytes(got, packed(values.contiguous(), None, by), ROWS))
    return max(shares)


def _numbers(made: Activation) -> torch.Tensor:
    if isinstance(made, Nvfp4Rows):
        return nvfp4.dequantize_fp32(made.as_weight)[: made.rows]
    if isinstance(made, RowCodes):
        return made.codes.float() * made.scale
    assert isinstance(made, torch.Tensor)
    return made
