"""A transformer's blocks timed one by one, on numbers that look like a run's: `h3runtime profile block`.

Loads the transformer alone, or makes the blocks that are asked for (`made_network`), and makes the rest up: a sequence
of unit normal numbers in the layout of a clip without conditions, modulation near the identity. Blocks are taken in
turn within each run, so that a clock that changes meets all of them. Does not judge. Fed by the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch

from h3runtime.backends.attention.base import AttentionBackend
from h3runtime.backends.attention.options import AttentionOptions
from h3runtime.backends.attention.select import Attentions
from h3runtime.backends.fused.select import choose_producers
from h3runtime.backends.linear.base import LinearBackend
from h3runtime.backends.linear.nvfp4_options import Nvfp4Options
from h3runtime.backends.linear.select import NativeLinear, choose_linear, linear_backends, native_linear
from h3runtime.checkpoint.load import load_module
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes
from h3runtime.core import PackedLayout
from h3runtime.denoiser.block_times import PARTS, Stopwatch, time_block
from h3runtime.denoiser.blocks import AttentionCall, Block
from h3runtime.denoiser.config import BLOCK_VECTORS, MODALITIES
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.schedule import timesteps
from h3runtime.denoiser.timeline import clock, runs
from h3runtime.engine import components, determinism
from h3runtime.engine.device import choose_device
from h3runtime.engine.gates import why_no_gates
from h3runtime.engine.made_network import made_network, made_weights
from h3runtime.engine.resident import COMPUTE_DTYPE
from h3runtime.errors import Offence, invalid
from h3runtime.packing.geometry import audio_latents, latent_frames, latent_side
from h3runtime.packing.layout import pack
from h3runtime.settings import Settings

MADE_UP: Final = "made up"
"""Stands for the name of a checkpoint."""
SIGMA, SHIFT, AUDIO_SHIFT = 0.9, 12.0, 3.0
"""A step in the middle of a run: text and video read one timestep, audio another."""
STEP: Final = 4
"""Of a run, one in which sparse attention is sparse."""
SPREAD: Final = 0.1
"""Of scales and shifts around 1 and 0."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The clip whose sequence is taken. text: rows of the prompt."""

    width: int
    height: int
    frames: int
    text: int

    def layout(self) -> PackedLayout:
        height, width = latent_side(self.height), latent_side(self.width)
        tags = np.ones(self.text, dtype=np.int64)
        return pack(latent_frames(self.frames), height, width, audio_latents(self.frames), tags, [], [])


@dataclass(frozen=True, slots=True)
class Profiled:
    """The network, ready to be timed, and what was chosen for it by name."""

    network: Dit
    call: AttentionCall
    chosen: dict[str, str]
    device: torch.device
    device_name: str


def profile(
    source: Path | TransformerSizes,
    settings: Settings,
    shape: Shape,
    blocks: Sequence[int],
    times: int,
    threads: int | None = None,
) -> dict[str, Any]:
    """Milliseconds of each part of each block, median, least and most of `times` runs after one that warms up.

    source: a checkpoint, or sizes of a transformer that is made up: its blocks of random BF16 weights, those asked for.
    blocks: numbers from 0; none: the first, the middle and the last. threads: of PyTorch; None leaves its own choice.
    CheckpointError, InvalidRequest and BackendUnavailable before anything is timed.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    determinism.pin()
    with torch.no_grad():
        layout = shape.layout()
        ready = _prepared(source, settings, layout, blocks)
        blocks = _numbers(blocks, len(ready.network.blocks))
        taken = _timed(ready, layout, blocks, times)
    return {
        "checkpoint": source.name if isinstance(source, Path) else MADE_UP,
        "device": ready.device_name,
        "width": shape.width,
        "height": shape.height,
        "frames": shape.frames,
        "packed_rows": layout.rows,
        "threads": torch.get_num_threads(),
        "runs": times,
        **ready.chosen,
        "blocks": [{"block": number, "parts": _parts(taken[number])} for number in blocks],
    }


def _prepared(
    source: Path | TransformerSizes, settings: Settings, layout: PackedLayout, blocks: Sequence[int]
) -> Profiled:
    place = choose_device(settings.device)
    options = Nvfp4Options.of(settings)
    linears = linear_backends(options)
    linear, _ = choose_linear(settings.linear, place.device, linears)
    native = native_linear(settings.linear, place.device, linears)
    producers, _ = choose_producers(settings.fused, place.device, options=options)
    attentions = Attentions(place.device, AttentionOptions.of(settings))
    if isinstance(source, Path):
        network, attention, linear = _loaded(source, settings, linear, native, attentions, place.device)
    else:
        network, attention = _made(source, settings, linear, attentions, place.device, blocks)
    rotary = producers.rotary(*network.rope(layout.position_ids, network.dtype))
    call = AttentionCall(attention, layout, STEP, producers, rotary)
    chosen = {"attention": attention.name, "linear": linear.name, "fused": producers.name}
    return Profiled(network, call, chosen, place.device, place.name)


def _loaded(
    path: Path,
    settings: Settings,
    linear: LinearBackend[Any],
    native: NativeLinear,
    attentions: Attentions,
    device: torch.device,
) -> tuple[Dit, AttentionBackend, LinearBackend[Any]]:
    """What the settings choose is chosen before weights are read; the linear by how they are stored, as by a server."""
    part = components.transformer(path, settings, COMPUTE_DTYPE)
    with part.open() as file:
        network = part.on_meta(file)
        assert isinstance(network, Dit)
        attentions.fit({network.config.head_dim}, why_no_gates([network]))
        attention, _ = attentions.choose(settings.attention)
        if native.backend is not None and native.serves([part.rule.formats(file)]):
            linear = native.backend
        load_module(network, file, linear=linear, device=device, rule=part.rule)
    return network.eval().requires_grad_(False), attention, linear


def _made(
    sizes: TransformerSizes,
    settings: Settings,
    linear: LinearBackend[Any],
    attentions: Attentions,
    device: torch.device,
    blocks: Sequence[int],
) -> tuple[Dit, AttentionBackend]:
    weights = made_weights(sizes, device, blocks=_numbers(blocks, sizes.layers))
    network = made_network(
        sizes, weights, linear=linear, device=device, dtype=COMPUTE_DTYPE, mlp_chunks=settings.mlp_chunks
    )
    attentions.fit({network.config.head_dim}, why_no_gates([network]))
    return network, attentions.choose(settings.attention)[0]


def _timed(
    ready: Profiled, layout: PackedLayout, blocks: Sequence[int], times: int
) -> dict[int, list[dict[str, float]]]:
    """Of each block, its runs in order."""
    config, watch = ready.network.config, Stopwatch(ready.device)
    time = clock(runs(layout), timesteps(SIGMA, SHIFT, AUDIO_SHIFT))
    source = torch.Generator().manual_seed(0)
    start = torch.randn(layout.rows, config.hidden, generator=source).to(ready.device, COMPUTE_DTYPE)
    rows = len(time.timeline) * MODALITIES
    table = torch.randn(rows, BLOCK_VECTORS * config.hidden, generator=source) * SPREAD
    table = table.to(ready.device, COMPUTE_DTYPE)
    taken: dict[int, list[dict[str, float]]] = {number: [] for number in blocks}
    for run in range(times + 1):
        for number in blocks:
            block = ready.network.blocks[number]
            assert isinstance(block, Block)
            call = replace(ready.call, block=number)
            found = time_block(block, start.clone(), table, time.rows, call, watch)
            if run:
                taken[number].append(found)
    return taken


def _numbers(blocks: Sequence[int], count: int) -> tuple[int, ...]:
    """Those asked for, once each; InvalidRequest for one that isn't there."""
    if wrong := [number for number in blocks if not 0 <= number < count]:
        told = f"there is no block {', '.join(map(str, wrong))}: the model has {count}"
        raise invalid([Offence("blocks", told, f"0..{count - 1}")])
    return tuple(dict.fromkeys(blocks or (0, (count - 1) // 2, count - 1)))


def _parts(taken: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """By part: median, least and most milliseconds, and the share of the block's median."""
    middle = {part: median(run[part] for run in taken) for part in PARTS}
    return {
        part: {
            "ms": middle[part],
            "least_ms": min(run[part] for run in taken),
            "most_ms": max(run[part] for run in taken),
            "share": middle[part] / max(middle["total"], 1e-9),
        }
        for part in PARTS
    }
