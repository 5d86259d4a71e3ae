"""Bytes that one stage of a request takes at its widest place, by its sizes alone: closed formulas, nothing is run.

Each counts what is alive at once, weights left out. How often a tensor is held (`*_COPIES`) is fitted to what an
allocator counts; all else is shapes. `memory_estimate` puts them together; a change of a model's chunks or of what it
keeps must be followed here, and tests/engine/test_memory_estimate.py tells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

import torch

from h3runtime.conditioning import language_model, vision_tower
from h3runtime.conditioning.config import TextEncoderConfig, VisionConfig
from h3runtime.conditioning.layers import FP32, chunk_bytes
from h3runtime.conditioning.vision_tower import patch_values
from h3runtime.core import CHUNK_FRAMES
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.plan import WINDOW_BYTES
from h3runtime.engine import room
from h3runtime.media.vision_size import features_of
from h3runtime.vae.audio_config import AudioDecoderConfig, AudioEncoderConfig
from h3runtime.vae.chunks import FRAME_OVERLAP, PIECE_LATENTS, TIME_PATCH
from h3runtime.vae.tiling import ALIGNMENT
from h3runtime.vae.video_config import DecoderConfig, EncoderConfig
from h3runtime.vae.video_encoder import FRONT_FRAMES

STEREO = 2
ENCODER_COPIES = 6
"""Tensors of the video encoder's widest level that are alive at once, with a convolution's workspace."""
PADDED_COPIES = 2
"""And, of a clip, with two frames of zeros in front. Together 8.2 for 17 frames and 8 for a picture: a CPU takes 6.2
and 6.1 in fp32. An H200 took 9.2 of a clip in fp16 while the sides were padded first, which kept one more alive."""
SOUND_COPIES = 5
"""Of the audio encoder's first stage: a unit's input, and Snake's product, sine, square and sum. 4.6 on a CPU, 5.0 on
an H200."""
WAVE_COPIES = 18
"""Of the audio decoder's widest stage: three kernels' sums, and activations at twice the rate. 17.8 on a CPU, 11.3 on
an H200."""
PIECE_FRAMES = PIECE_LATENTS * TIME_PATCH
"""Frames that the video decoder makes at once: 28."""


@dataclass(frozen=True, slots=True)
class Shot:
    """Pictures that the video VAE encodes as one: a picture, or a clip on its canvas."""

    frames: int
    width: int
    height: int


def text_bytes(config: TextEncoderConfig, rows: int, vision_rows: int, *, widened: bool) -> int:
    """The residual stream, keys and values, cos and sin of all rows, the deepstack features, the wider of the two kinds
    of chunk, and the widest weight in fp32."""
    whole = rows * (config.hidden + 2 * config.kv_heads * config.head_dim + config.head_dim)
    deepstack = len(config.vision.taps) * vision_rows * config.hidden
    mlp = chunk_bytes(rows, language_model.mlp_row_bytes(config))
    chunk = max(mlp, language_model.attention_chunk_bytes(config, rows))
    widest = config.hidden * max(config.intermediate, config.heads * config.head_dim) if widened else 0
    return FP32 * (whole + deepstack + widest) + chunk


def vision_bytes(config: TextEncoderConfig, rows: int, vision_rows: int, patches: int) -> int:
    """What the text's rows have already, the block's patches, x, q, k, v, cos and sin, its features, and a chunk."""
    if not patches:
        return 0
    vision = config.vision
    text = rows * config.hidden + len(vision.taps) * vision_rows * config.hidden
    whole = patches * (patch_values(vision) + 4 * vision.hidden + vision.hidden // vision.heads)
    features = features_of_patches(patches) * vision.out_hidden * (1 + len(vision.taps))
    return FP32 * (text + whole + features) + _vision_chunk(vision, patches)


def features_of_patches(patches: int) -> int:
    return features_of((patches, 1))


def _vision_chunk(vision: VisionConfig, patches: int) -> int:
    by_patch = (vision_tower.qkv_row_bytes, vision_tower.attention_row_bytes, vision_tower.mlp_row_bytes)
    widest = max(chunk_bytes(patches, row_bytes(vision)) for row_bytes in by_patch)
    return max(widest, chunk_bytes(features_of_patches(patches), vision_tower.merger_row_bytes(vision)))


def video_encode_bytes(config: EncoderConfig | None, dtype: torch.dtype, tile: int, shot: Shot) -> int:
    """17 frames as bytes and twice normalised, and a tile's widest level, as often as it is held at once. A clip's last
    5 frames are encoded by themselves, and a shorter clip has no others."""
    if config is None:
        return 0
    frames = CHUNK_FRAMES if shot.frames > CHUNK_FRAMES else min(shot.frames, FRAME_OVERLAP)
    pixels = 3 * frames * shot.width * shot.height
    padded = frames + FRONT_FRAMES if frames > 1 else 1
    copies = ENCODER_COPIES * frames + PADDED_COPIES * padded
    widest = int(copies * min(shot.width, tile) * min(shot.height, tile) * _widest_level(config))
    return pixels * (1 + FP32 + 2 * dtype.itemsize) + widest * dtype.itemsize


def _widest_level(config: EncoderConfig) -> float:
    """Most channels that a pixel of the input has at any level: fewer pixels are left below."""
    widest, left = 0.0, 1.0
    for level in config.levels:
        widest = max(widest, max(level.in_channels, level.out_channels) * left)
        left /= math.prod(level.stride or (1,))
    return widest


def audio_encode_bytes(config: AudioEncoderConfig | None, samples: int) -> int:
    """Both channels at the first stage's width, as often as it is held at once."""
    return 0 if config is None else SOUND_COPIES * FP32 * STEREO * config.widths[0] * samples


def sampling_bytes(config: DitConfig, dtype: torch.dtype, rows: int) -> int:
    """The widest place of a block for all rows, and the modulation of a window of steps."""
    return room.working_bytes(config, dtype, rows) + WINDOW_BYTES


def audio_decode_bytes(config: AudioDecoderConfig | None, latents: int) -> int:
    """Both channels at the widest stage, as often as it is held at once."""
    if config is None:
        return 0
    lengths = accumulate(config.up_strides, lambda a, b: a * b)
    widest: int = max(width * length for width, length in zip(config.widths[1:], lengths, strict=True))
    return WAVE_COPIES * FP32 * STEREO * widest * latents


def video_decode_bytes(config: DecoderConfig | None, dtype: torch.dtype, tile: int, target: Shot) -> int:
    """A piece of 28 frames beside the rows of tiles that it is joined from, 17 of its frames in fp32 twice, and the
    tokens of a tile: gate and value, their product, five widths."""
    if config is None:
        return 0
    pixels = 3 * target.width * target.height
    tokens = PIECE_LATENTS * min(target.width, tile) * min(target.height, tile) // ALIGNMENT**2
    widest = tokens * (3 * config.feed_forward + 5 * config.width)
    return pixels * (2 * PIECE_FRAMES * dtype.itemsize + 2 * CHUNK_FRAMES * FP32) + widest * dtype.itemsize
