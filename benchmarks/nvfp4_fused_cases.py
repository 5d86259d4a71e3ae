"""Producers that end in NVFP4 beside the same in steps: the cases of `nvfp4_producers.py` for them.

    kitchen   our BF16 producer, torch's aminmax, comfy-kitchen's packer, as the baseline linear calls them
    native    our BF16 producer, and the fastest scale discovery and packer of `h3_kernels`
    fused     one call

Each by a scale that is found (dynamic) and by one that is given. The tables have six rows, of which whole segments of
rows read one, as in the model. The residual's x and SwiGLU's input are put back before every call, three times over: so
the device is busy while a call is being queued, and of that nothing is timed; the others' inputs too, to be alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.elementwise import AUDIO_ROWS, EPS, FFN, TABLE_ROWS, TEXT_ROWS, WIDTH
from benchmarks.nvfp4_case import Case, Made, kitchen_pack, native_module, packed_parts, random_normal
from h3runtime.quant import nvfp4

Bf16 = Callable[[], torch.Tensor]
Fused = Callable[[torch.Tensor | None], Any]


def fused(rows: int, device: torch.device) -> Iterator[Case]:
    """Norm and modulation, the same after the gated residual, SwiGLU; nothing where our kernels can't run."""
    if native_module(device) is not None:
        yield from _norms(rows, device)
        yield from _swiglu(rows, device)


def _norms(rows: int, device: torch.device) -> Iterator[Case]:
    from h3_kernels import nvfp4_fused, producers

    first, update = (random_normal((rows, WIDTH), device) * factor for factor in (3.0, 1.0))
    x, values = first.clone(), rows * WIDTH
    shift, scale, gate = (random_normal((TABLE_ROWS, 3 * WIDTH), device) * 0.1).chunk(3, -1)
    weight = 1 + random_normal((WIDTH,), device) * 0.1
    index = torch.zeros(rows, dtype=torch.int32, device=device)
    index[: TEXT_ROWS + AUDIO_ROWS] = 5
    index[:TEXT_ROWS] = 1
    by, residual = producers.Modulation(shift, scale, index), producers.Residual(update, gate)
    native = native_module(device)
    yield from _cases(
        "norm + modulation",
        native,
        lambda: producers.norm_modulate(x, weight, EPS, by),
        lambda s: nvfp4_fused.norm_modulate_pack(x, weight, EPS, by, s),
        (2 * values, 2 * values),
        values,
        lambda: [x.copy_(first) for _ in range(3)],
    )
    yield from _cases(
        "gate + norm + modulation",
        native,
        lambda: producers.add_gated_norm_modulate(x, residual, weight, EPS, by),
        lambda s: nvfp4_fused.add_gated_norm_modulate_pack(x, residual, weight, EPS, by, s),
        (6 * values, 2 * values),
        values,
        lambda: [x.copy_(first) for _ in range(3)],
    )


def _swiglu(rows: int, device: torch.device) -> Iterator[Case]:
    from h3_kernels import nvfp4_fused, producers

    first = random_normal((rows, 2 * FFN), device)
    x, values = first.clone(), rows * FFN
    yield from _cases(
        "SwiGLU",
        native_module(device),
        lambda: producers.swiglu_(x),
        lambda s: nvfp4_fused.swiglu_pack(x, s),
        (4 * values, 4 * values),
        values,
        lambda: [x.copy_(first) for _ in range(3)],
    )


def _cases(
    name: str,
    native: Any,
    bf16: Bf16,
    call: Fused,
    bytes_of: tuple[int, int],
    values: int,
    before: Callable[[], object],
) -> Iterator[Case]:
    """bytes_of: read in a pass that packs, more where the scale has to be found first."""
    once, more = bytes_of
    packed = values * 9 // 16

    def kitchen(scale: torch.Tensor | None) -> Made:
        x = bf16().contiguous()
        return kitchen_pack(x, nvfp4.activation_scale(x) if scale is None else scale)

    def steps(scale: torch.Tensor | None) -> Made:
        x = bf16()
        return packed_parts(native.pack(x, native.tensor_scale(x) if scale is None else scale))

    before()
    known = nvfp4.activation_scale(bf16().contiguous())
    for kind, scale in (("dynamic", None), ("static", known)):
        made: dict[str, Callable[[], Made]] = {
            "kitchen": lambda scale=scale: kitchen(scale),  # type: ignore[misc]
            "native": lambda scale=scale: steps(scale),  # type: ignore[misc]
            "fused": lambda scale=scale: packed_parts(call(scale)),  # type: ignore[misc]
        }
        yield Case(f"{name}, {kind}", made, once + packed + (more if scale is None else 0), before)
