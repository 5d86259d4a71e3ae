"""How much a request asks of each stage, in operations: multiply and add are two (performance.md, work of a forward).

    conditioning   vision blocks, the text, and what the VAEs encode
    sampling       forwards times 2 S P + 4 S^2 inner a block, P its 4 matrices' weights; the text refiner once
    audio_decode   the decoder's convolutions
    video_decode   tiles times the ViT's linears and attention over a tile's tokens
    mux            pixels of all frames

Matrix products, convolutions and attention are counted, nothing else: the rest grows with them, and what predicts
seconds from this is fitted to seconds. Of several clips of one request all but the conditioning counts that many times.
Nothing is computed or allocated here. Fed by `estimating` with sizes that are known beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from h3runtime.conditioning.config import TextEncoderConfig, VisionConfig
from h3runtime.core import CHUNK_FRAMES, Work
from h3runtime.denoiser.config import DitConfig
from h3runtime.engine.demand import Demand
from h3runtime.engine.memory_estimate import ModelSizes
from h3runtime.engine.memory_formulas import STEREO, Shot
from h3runtime.media.vision_size import features_of
from h3runtime.packing.geometry import latent_frames
from h3runtime.vae.audio_config import UNIT_DILATIONS, AudioDecoderConfig, AudioEncoderConfig
from h3runtime.vae.chunks import FRAME_OVERLAP, PIECE_LATENTS, plan
from h3runtime.vae.tiling import ALIGNMENT, Tiling
from h3runtime.vae.video_config import DecoderConfig, EncoderConfig

UNIT_KERNEL = 7
"""Taps of the first convolution of an audio encoder's unit; the second has one (conditioning contract §5.2)."""


def work_of(models: ModelSizes, demand: Demand) -> Work:
    target = demand.target
    sampling = demand.steps.computed * forward_work(models.transformer, demand.rows) + refiner_work(
        models.transformer, demand
    )
    return Work(
        {
            "conditioning": float(conditioning_work(models, demand)),
            "sampling": float(demand.n * sampling),
            "audio_decode": float(demand.n * audio_decode_work(models.audio_decoder, demand.audio_latents)),
            "video_decode": float(demand.n * video_decode_work(models.video_decoder, models.tiling, target)),
            "mux": float(demand.n * target.frames * target.width * target.height),
        }
    )


def block_weights(config: DitConfig) -> int:
    """P: 385.35 million of the published model (performance.md)."""
    return config.hidden * (4 * config.inner + 3 * config.ffn)


def forward_work(config: DitConfig, rows: int) -> int:
    """Of one evaluation: 3.5 P operations at 37,810 rows and the published sizes."""
    return config.layers * (2 * rows * block_weights(config) + 4 * rows**2 * config.inner)


def refiner_work(config: DitConfig, demand: Demand) -> int:
    rows = demand.text_rows
    return config.refiner_layers * (2 * rows * block_weights(config) + 4 * rows**2 * config.inner)


def conditioning_work(models: ModelSizes, demand: Demand) -> int:
    vision = sum(vision_work(models.text_encoder.vision, height * width) for height, width in demand.vision)
    shots = sum(video_encode_work(models.video_encoder, models.tiling, shot) for shot in demand.shots)
    sounds = sum(audio_encode_work(models.audio_encoder, samples) for samples in demand.sounds)
    return text_work(models.text_encoder, demand.text_rows) + vision + shots + sounds


def text_work(config: TextEncoderConfig, rows: int) -> int:
    """A row sees those before it: half of the products."""
    inner = config.heads * config.head_dim
    weights = config.hidden * (2 * inner + 2 * config.kv_heads * config.head_dim + 3 * config.intermediate)
    return config.layers * (2 * rows * weights + 2 * rows**2 * inner)


def vision_work(config: VisionConfig, patches: int) -> int:
    weights = config.hidden * (4 * config.hidden + 2 * config.intermediate)
    blocks = config.depth * (2 * patches * weights + 4 * patches**2 * config.hidden)
    merged = 2 * features_of((patches, 1)) * config.merged * (config.merged + config.out_hidden)
    return blocks + (1 + len(config.taps)) * merged


def video_encode_work(config: EncoderConfig | None, tiling: Tiling, shot: Shot) -> int:
    """A picture's convolutions are of one frame; a clip's run on 17 frames at a time, on 5 for the last."""
    if config is None:
        return 0
    tiles = tiles_of(tiling, shot)
    edge = min(shot.width, tiling.size) * min(shot.height, tiling.size)
    if shot.frames == 1:
        return tiles * _encoder_work(config, 1, edge)
    pieces = -(-shot.frames // CHUNK_FRAMES) - 1
    whole = pieces * _encoder_work(config, CHUNK_FRAMES, edge) + _encoder_work(config, FRAME_OVERLAP, edge)
    return tiles * whole


def _encoder_work(config: EncoderConfig, frames: int, pixels: int) -> int:
    taps = 9 if frames == 1 else 27
    total, cells = 2 * taps * 3 * config.channels * frames * pixels, float(frames * pixels)
    for level in config.levels:
        pairs = level.in_channels * level.out_channels + (2 * level.blocks - 1) * level.out_channels**2
        total += int(2 * taps * cells * pairs)
        stride = level.stride or (1,)
        cells /= math.prod(stride[1:] if frames == 1 else stride)
    return total


def audio_encode_work(config: AudioEncoderConfig | None, samples: int) -> int:
    if config is None:
        return 0
    total, length = 0.0, float(samples)
    for (width, out_width), stride in zip(pairwise(config.widths), config.strides, strict=True):
        total += 2 * length * len(UNIT_DILATIONS) * (UNIT_KERNEL + 1) * width**2
        length /= stride
        total += 2 * length * 2 * stride * width * out_width
    return int(STEREO * total)


def audio_decode_work(config: AudioDecoderConfig | None, latents: int) -> int:
    if config is None:
        return 0
    taps = sum(2 * kernel * len(d) for kernel, d in zip(config.block_kernels, config.block_dilations, strict=True))
    total, length = 0, latents
    for (width, out_width), kernel, stride in zip(
        pairwise(config.widths), config.up_kernels, config.up_strides, strict=True
    ):
        total += 2 * length * kernel * width * out_width
        length *= stride
        total += 2 * length * taps * out_width**2
    return STEREO * total


def video_decode_work(config: DecoderConfig | None, tiling: Tiling, target: Shot) -> int:
    if config is None:
        return 0
    edge = min(target.width, tiling.size) * min(target.height, tiling.size) // ALIGNMENT**2
    tokens = PIECE_LATENTS * edge + config.registers + 1
    weights = config.layers * config.width * (4 * config.inner + 3 * config.feed_forward)
    tile = 2 * tokens * weights + 4 * tokens**2 * config.inner * config.layers
    return plan(latent_frames(target.frames)).chunks * tiles_of(tiling, target) * tile


def tiles_of(tiling: Tiling, shot: Shot) -> int:
    return math.prod(_tiles(tiling, (shot.width, shot.height)))


def _tiles(tiling: Tiling, sides: tuple[int, int]) -> Iterator[int]:
    for side in sides:
        yield len(tiling.split(side).starts)
