"""What the second pass of a request adds to what it takes of memory and work: closed formulas, nothing is run.

    memory   of each part the larger pass's; the upscaler's own widest place beside the sampling
    work     the sampling of both passes and the upscaler's convolutions; the conditions of both, for guides and a
             source are encoded at both sizes, while text alone, references and sounds are remembered from the first
    decode   of the clip, which is the second pass's

Fed by `estimating` with a demand for each pass (`refine_passes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from h3runtime.conditioning.layers import FP32
from h3runtime.core import GenerateSpec, Work
from h3runtime.engine.demand import Demand, Rows, demand_of
from h3runtime.engine.memory_estimate import Conditioning, MemoryEstimate, ModelSizes, estimate
from h3runtime.engine.memory_formulas import Shot, heap_bytes
from h3runtime.engine.refine_passes import passes_of
from h3runtime.engine.work import work_of
from h3runtime.packing.geometry import latent_frames, latent_side
from h3runtime.vae.upscaler import CHUNK
from h3runtime.vae.upscaler_config import UpscalerConfig

HOST_COPIES, DEVICE_COPIES = 31, 4
"""Of a chunk at the new size and the upscaler's width: a block's input, its norm, what is made of that, and a product
on the way. A CPU's convolution unfolds its input besides, 27 times: 28 to 31 counted by PyTorch's allocator."""
DEVICE_WORKSPACE = 32 * 2**20
"""Of a device's convolutions. With it and the latents that come out 0.97 to 1.05 of what an H200's allocator counted:
88 MiB for 7 latents of 24x40, 642 for 37 of 48x84, 678 for 107."""
TAPS = 27
RESIDUAL_CONVOLUTIONS = 2


def demands_of(spec: GenerateSpec, rows: Sequence[Rows]) -> tuple[Demand, ...]:
    """Of each pass. rows: of each."""
    first, *others = (demand_of(each, found) for each, found in zip(passes_of(spec), rows, strict=True))
    return first, *map(_deaf, others)


def _deaf(demand: Demand) -> Demand:
    """A run whose sound is kept by a mask: rows of it have timesteps of their own, and nothing is made ahead."""
    if not demand.steps.ahead:
        return demand
    return replace(demand, steps=replace(demand.steps, clocks=demand.steps.clocks + 2, ahead=False))


def memory_of(models: ModelSizes, upscaler: UpscalerConfig | None, demands: Sequence[Demand]) -> MemoryEstimate:
    """Of a request of one pass or two."""
    each = [estimate(models, demand) for demand in demands]
    if len(each) == 1:
        return each[0]
    widest = {part.name: max(getattr(e.conditioning, part.name) for e in each) for part in fields(Conditioning)}
    sampling = [found.sampling for found in each]
    if upscaler is not None:
        on_host = models.computing.on_host
        sampling.append(heap_bytes(upscaling_bytes(upscaler, demands[-1], on_host=on_host), on_host=on_host))
    return replace(each[-1], conditioning=Conditioning(**widest), sampling=max(sampling))


def upscaling_bytes(config: UpscalerConfig, demand: Demand, *, on_host: bool) -> int:
    """At the widest place of a chunk and of what it sees of its neighbours, beside all latents that come out."""
    target, frames = demand.target, latent_frames(demand.target.frames)
    cells = latent_side(target.width) * latent_side(target.height)
    seen = min(frames, CHUNK + 2 * (config.kernel // 2))
    copies, workspace = (HOST_COPIES, 0) if on_host else (DEVICE_COPIES, DEVICE_WORKSPACE)
    latents = config.latent_channels * frames * cells
    return FP32 * (copies * config.channels * seen * cells + latents) + workspace


def work_of_passes(models: ModelSizes, upscaler: UpscalerConfig | None, demands: Sequence[Demand]) -> Work:
    each = [dict(work_of(models, demand).stages) for demand in demands]
    if len(each) == 1:
        return Work(each[0])
    found = dict(each[-1])
    found["sampling"] += each[0]["sampling"] + demands[-1].n * _upscaling_work(upscaler, demands)
    found["conditioning"] = each[0]["conditioning"] + (found["conditioning"] if _reads_again(demands) else 0.0)
    return Work(found)


def _reads_again(demands: Sequence[Demand]) -> bool:
    """Whether anything is encoded at both sizes."""
    return any(demand.shots != demands[0].shots for demand in demands[1:])


def _upscaling_work(config: UpscalerConfig | None, demands: Sequence[Demand]) -> float:
    """The residual blocks' convolutions, those ahead of the resize at the first pass's size."""
    if config is None:
        return 0.0
    block = 2 * TAPS * RESIDUAL_CONVOLUTIONS * config.channels**2
    cells = [_cells(demand.target) for demand in demands]
    sides = (config.inner, config.outer)
    return float(sum(block * side.count("residual") * count for side, count in zip(sides, cells, strict=True)))


def _cells(target: Shot) -> int:
    return latent_frames(target.frames) * latent_side(target.width) * latent_side(target.height)
