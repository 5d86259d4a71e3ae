"""The DiT: latents of both streams at one sigma in, their velocities out.

Wires patch projections, refined text, conditions, blocks and heads together; the arithmetic is in the modules it names.
Does not sample, carry audio on the video's sigma, or pool masks (`sampler`, `carry`, `masks`). Fed by `denoise` (and by
`engine`, which refines the text); built on the meta device from a `DitConfig` and filled by `checkpoint`, parameter
names being the file's.

    refine   text [1, L, text_dim] -> [1, L, hidden]         once per prompt, no timestep in it
    prepare  layout, refined text, conditions -> Prepared    once per run: rows that never change, rotary tables,
                                                             the modulation of every step's timesteps
    forward  video [1, C, T, h, w], audio [1, 32, 2, A], sigma -> velocities of the same shapes

Rounding is ComfyUI's (dit-contract §4.1): the caller's latents are rounded to the compute dtype, projected and headed
in fp32, carried through the blocks in the compute dtype; conditions are never rounded before their projection. The
sign is ComfyUI's too: x0 = x - sigma*velocity, the negative of what the network predicts (§4.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

import torch
from torch import nn
from torch.nn import functional as F

from h3runtime.backends.attention.base import AttentionBackend
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.backends.fused.base import Producers, Rotary
from h3runtime.backends.fused.definition import DEFINITION
from h3runtime.core import Keyframe, PackedLayout, Reference
from h3runtime.denoiser.blocks import AttentionCall, Block
from h3runtime.denoiser.conditions import condition_rows, is_sound
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.heads import FinalLayer, Window, next_sigma, window
from h3runtime.denoiser.masks import TokenMasks
from h3runtime.denoiser.modulation import TimeEmbedder, curve
from h3runtime.denoiser.plan import WINDOW_BYTES, Modulation, Plan, Projector, Tables
from h3runtime.denoiser.refiner import TokenRefiner
from h3runtime.denoiser.rope import Rope
from h3runtime.denoiser.rows import (
    audio_latent,
    audio_mask_rows,
    audio_rows,
    pad_to_even,
    patchify,
    unpatchify,
    video_mask_rows,
)
from h3runtime.denoiser.schedule import timesteps
from h3runtime.denoiser.timeline import Clock, Run, Timeline, clock, masked_clock, runs

PROJECTED_ROWS: Final = 8192
"""Latent rows projected at once in fp32: bounds the wide copy at 176 MB for the real model."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the forwards of one run share.

    prefix: [P, hidden] compute dtype, text and conditions: the packed rows before the target's.
    rotary: of all S rows. runs: the sequence by kind and modality. modulation: AdaLN tables by timesteps.
    sigmas: the run's schedule with its final 0, or empty.
    """

    layout: PackedLayout
    prefix: torch.Tensor
    rotary: Rotary
    runs: tuple[Run, ...]
    modulation: Modulation
    attention: AttentionBackend
    shift: float
    audio_shift: float
    sigmas: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    """A forward on its way: h [S, hidden] behind the first `blocks` blocks; the next ones update it in place."""

    h: torch.Tensor
    tables: Tables
    time: Clock
    call: AttentionCall
    blocks: int = 0


class Dit(nn.Module):
    """dtype: the compute dtype, bf16 or fp32 (fp16 overflows, dit-contract §10). attention: unless a run names one.
    mlp_chunks: of each block's MLP (`blocks.Mlp`). producers: who makes what lies between its matrix products; no run
    may be in hand when they change."""

    adaln_t_table: torch.Tensor

    def __init__(
        self,
        config: DitConfig,
        *,
        dtype: torch.dtype = torch.bfloat16,
        attention: AttentionBackend | None = None,
        mlp_chunks: int = 1,
    ) -> None:
        super().__init__()
        if dtype not in (torch.bfloat16, torch.float32):
            raise ValueError(f"dtype: {dtype} (want torch.bfloat16 or torch.float32)")
        self.config = config
        self.dtype = dtype
        self.attention = attention or SdpaAttention()
        self.mlp_chunks = mlp_chunks
        self.producers: Producers = DEFINITION
        self.video_patch_proj = nn.Linear(config.video_row, config.hidden)
        self.audio_patch_proj = nn.Linear(config.audio_channels, config.hidden)
        self.condition_proj = nn.Linear(config.text_dim, config.hidden)
        self.rope = Rope(config.rope_freqs)
        if config.curve_grid is not None:
            self.register_buffer("adaln_t_table", torch.empty(config.curve_grid, config.time_dim))
        else:
            assert config.sinusoid is not None and config.time_hidden is not None
            self.time_embedder = TimeEmbedder(config.sinusoid, config.time_hidden, config.time_dim)
        self.token_refiner = TokenRefiner(config)
        self.blocks = nn.ModuleList(Block(config, mlp_chunks) for _ in range(config.layers))
        self.final_layer = FinalLayer(config)

    @property
    def device(self) -> torch.device:
        return self.rope.inv_freq.device

    @torch.no_grad()
    def refine(self, text_hidden: torch.Tensor, attention: AttentionBackend | None = None) -> torch.Tensor:
        """Encoder output [1, L, text_dim], any float dtype -> text rows [1, L, hidden], compute dtype."""
        projected = self.condition_proj(text_hidden.to(self.device, self.dtype))
        call = AttentionCall(attention or self.attention, None, 0, self.producers)
        refined: torch.Tensor = self.token_refiner(projected[0], call)
        return refined.unsqueeze(0)

    @torch.no_grad()
    def prepare(
        self,
        layout: PackedLayout,
        refined: torch.Tensor,
        keyframes: Sequence[Keyframe],
        references: Sequence[Reference],
        noise_seed: int,
        sigmas: Sequence[float] | None = None,
        *,
        shift: float = 12.0,
        audio_shift: float = 3.0,
        attention: AttentionBackend | None = None,
        modulation_budget: int = WINDOW_BYTES,
    ) -> Prepared:
        """Everything of a run that no step changes.

        refined [1, L, hidden] from `refine`. `sigmas`: the schedule, for modulation ahead of the loop and for stacked
        heads; without it (masked runs, whose timesteps are their own) each forward makes its modulation.
        """
        sequence = runs(layout)
        visited = tuple(sigmas or ())
        timelines = [clock(sequence, timesteps(s, shift, audio_shift)).timeline for s in visited if s > 0]
        return Prepared(
            layout=layout,
            prefix=self._prefix(layout, refined, keyframes, references, noise_seed),
            rotary=self.producers.rotary(*self.rope(layout.position_ids, self.dtype)),
            runs=sequence,
            modulation=Plan(self._projector(), timelines, self.config.hidden, modulation_budget),
            attention=attention or self.attention,
            shift=shift,
            audio_shift=audio_shift,
            sigmas=visited,
        )

    @torch.no_grad()
    def forward(
        self,
        prepared: Prepared,
        video: torch.Tensor,
        audio: torch.Tensor,
        sigma: float,
        *,
        step: int = 0,
        masks: TokenMasks | None = None,
        sigma_next: float | None = None,
        begun: Passage | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Velocities of both streams at the video's `sigma`; audio goes in and comes out as its own stream's.

        video [1, C, T, h, w], audio [1, 32, 2, A] -> the same shapes in the compute dtype, or in the masks' dtype where
        that is wider: masked velocities come multiplied by their mask (dit-contract §8). h, w may be odd. `step` counts
        from 0, for the attention backend; `sigma_next` is for stacked heads, found in the schedule if not given.
        `begun`: this same forward, as far as somebody has taken it.
        """
        way = begun or self.begin(prepared, video, audio, sigma, step=step, masks=masks)
        return self.finish(prepared, self.advance(way), video, sigma, masks=masks, sigma_next=sigma_next)

    @torch.no_grad()
    def begin(
        self,
        prepared: Prepared,
        video: torch.Tensor,
        audio: torch.Tensor,
        sigma: float,
        *,
        step: int = 0,
        masks: TokenMasks | None = None,
    ) -> Passage:
        """A forward ahead of its first block; arguments as for `forward`."""
        time = self.clock(prepared, sigma, masks)
        tables = prepared.modulation.at(time.timeline)
        call = AttentionCall(prepared.attention, prepared.layout, step, self.producers, prepared.rotary)
        return Passage(self._embed(prepared, video, audio), tables, time, call)

    @torch.no_grad()
    def advance(self, way: Passage, stop: int | None = None) -> Passage:
        """Through the blocks before `stop`, by default all that are left; what `way` holds is overwritten."""
        stop = len(self.blocks) if stop is None else stop
        h = way.h
        for index in range(way.blocks, stop):
            h = self.blocks[index](h, way.tables.block(index), way.time.rows, replace(way.call, block=index))
        return replace(way, h=h, blocks=stop)

    @torch.no_grad()
    def finish(
        self,
        prepared: Prepared,
        way: Passage,
        video: torch.Tensor,
        sigma: float,
        *,
        masks: TokenMasks | None = None,
        sigma_next: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The velocities that `way` is headed to, whatever blocks it went through."""
        heads = self._windows(prepared, sigma, sigma_next)
        return self._velocities(prepared, way.h, way.tables, way.time, heads, video, masks)

    def clock(self, prepared: Prepared, sigma: float, masks: TokenMasks | None = None) -> Clock:
        """The distinct timesteps of one forward and which packed row reads which."""
        times = timesteps(sigma, prepared.shift, prepared.audio_shift)
        if masks is None:
            return clock(prepared.runs, times)
        video = None if masks.video is None else video_mask_rows(masks.video)
        audio = None if masks.audio is None else audio_mask_rows(masks.audio)
        return masked_clock(prepared.runs, times, video, audio)

    def embed_timesteps(self, timeline: Timeline) -> torch.Tensor:
        """Distinct timesteps -> [M, time_dim] before SiLU: compute dtype; fp32 in curve form (dit-contract §4.5)."""
        t = torch.tensor(timeline, dtype=torch.float32, device=self.device)
        if self.config.curve_grid is not None:
            return curve(self.adaln_t_table, t)
        embedded: torch.Tensor = self.time_embedder(t)
        return embedded.to(self.dtype)

    def _activated(self, timeline: Timeline) -> torch.Tensor:
        """What the AdaLN projections read. SiLU follows the rounding (dit-contract §10, row 1)."""
        e = self.embed_timesteps(timeline)
        return e if self.config.curve_grid is not None else F.silu(e)

    def _projector(self) -> Projector:
        blocks = [cast(Block, block).adaln_proj for block in self.blocks]
        return Projector(self._activated, blocks, self.final_layer.adaln_proj, self.dtype)

    def _prefix(
        self,
        layout: PackedLayout,
        refined: torch.Tensor,
        keyframes: Sequence[Keyframe],
        references: Sequence[Reference],
        seed: int,
    ) -> torch.Tensor:
        """Text and condition rows, embedded: [P, hidden]."""
        start = layout.segments[-2].start
        prefix = torch.empty(start, self.config.hidden, dtype=self.dtype, device=self.device)
        prefix[: layout.text_rows] = refined[0]
        for segment, rows in condition_rows(layout, keyframes, references, seed):
            projection = self.audio_patch_proj if is_sound(segment) else self.video_patch_proj
            _project(projection, rows.to(self.device), prefix[segment.start : segment.stop])
        return prefix

    def _embed(self, prepared: Prepared, video: torch.Tensor, audio: torch.Tensor) -> torch.Tensor:
        """The sequence that enters block 0: [S, hidden]. The target's audio and video are its last two segments."""
        sound, picture = prepared.layout.segments[-2:]
        h = torch.empty(prepared.layout.rows, self.config.hidden, dtype=self.dtype, device=self.device)
        h[: sound.start] = prepared.prefix
        _project(self.audio_patch_proj, audio_rows(audio.to(self.dtype)), h[sound.start : sound.stop])
        _project(self.video_patch_proj, patchify(pad_to_even(video.to(self.dtype))), h[picture.start : picture.stop])
        return h

    def _windows(
        self, prepared: Prepared, sigma: float, sigma_next: float | None
    ) -> tuple[Window | None, Window | None]:
        """Which stacked heads (video's, audio's) the step reads; nothing for an ordinary model."""
        bank, shift = self.final_layer.video_out.bank, prepared.shift
        if bank == 1:
            return None, None
        if sigma_next is None:
            if not prepared.sigmas:
                raise ValueError("stacked heads need `sigma_next`, or `sigmas` in `prepare`")
            sigma_next = next_sigma(prepared.sigmas, sigma)
        return (
            window(bank, sigma, sigma_next, shift, shift),
            window(bank, sigma, sigma_next, shift, prepared.audio_shift),
        )

    def _velocities(
        self,
        prepared: Prepared,
        h: torch.Tensor,
        tables: Tables,
        time: Clock,
        heads: tuple[Window | None, Window | None],
        video: torch.Tensor,
        masks: TokenMasks | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The last block's output -> both velocities, rounded to the compute dtype, sign turned, masked."""
        sound, picture = prepared.layout.segments[-2:]
        layout, final = prepared.layout, self.final_layer
        y = final(
            h[picture.start : picture.stop], tables.final, time.rows.final(picture.start, picture.stop), self.producers
        )
        rows = final.video_out(y, heads[0]).to(self.dtype)
        velocity = -unpatchify(rows, layout.latent_frames, layout.height, layout.width)
        velocity = velocity[..., : video.shape[-2], : video.shape[-1]]
        y = final(h[sound.start : sound.stop], tables.final, time.rows.final(sound.start, sound.stop), self.producers)
        audio_velocity = -audio_latent(final.audio_out(y, heads[1]).to(self.dtype))
        if masks is not None:
            velocity = velocity if masks.video is None else velocity * masks.video
            audio_velocity = audio_velocity if masks.audio is None else audio_velocity * masks.audio
        return velocity, audio_velocity


def _project(projection: nn.Module, rows: torch.Tensor, out: torch.Tensor) -> None:
    """Rows [n, c] through a patch projection in fp32, rounded into `out` [n, hidden]."""
    for start in range(0, rows.shape[0], PROJECTED_ROWS):
        piece = slice(start, start + PROJECTED_ROWS)
        out[piece] = projection(rows[piece].float())
