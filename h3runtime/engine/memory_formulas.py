"""Bytes that one stage of a request takes at its widest place, by its sizes alone: closed formulas, nothing is run.

Each counts what is alive at once, weights left out. How often a tensor is held (`*_COPIES`) is fitted to what an
allocator counts; all else is shapes. `memory_estimate` puts them together; a change of a model's chunks or of what it
keeps must be followed here, and tests/engine/test_memory_estimate.py tells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch

from h3runtime.backends.fused.definition import QK_ROWS
from h3runtime.backends.linear.base import CallBytes
from h3runtime.backends.linear.dequant import DECODING_BYTES
from h3runtime.conditioning import language_model, vision_tower
from h3runtime.conditioning.config import TextEncoderConfig, VisionConfig
from h3runtime.conditioning.layers import FP32, chunk_bytes
from h3runtime.conditioning.vision_tower import patch_values
from h3runtime.core import CHUNK_FRAMES
from h3runtime.denoiser.blocks import chunk_rows
from h3runtime.denoiser.config import AXES, BLOCK_VECTORS, MODALITIES, DitConfig
from h3runtime.denoiser.plan import WINDOW_BYTES, row_bytes
from h3runtime.media.vision_size import features_of
from h3runtime.quant.nvfp4 import BLOCK
from h3runtime.quant.slices import SLICE_ELEMENTS
from h3runtime.vae.audio_config import AudioDecoderConfig, AudioEncoderConfig
from h3runtime.vae.chunks import FRAME_OVERLAP, PIECE_LATENTS, TIME_PATCH
from h3runtime.vae.tile_batch import decoded_tile_bytes, encoded_tile_bytes, tiles_at_once
from h3runtime.vae.tiling import ALIGNMENT, Tiling
from h3runtime.vae.video_config import DecoderConfig, EncoderConfig

STEREO = 2
SOUND_COPIES = 5
"""Of the audio encoder's first stage: a unit's input, and Snake's product, sine, square and sum. 4.6 on a CPU, 5.0 on
an H200."""
WAVE_COPIES = 18
"""Of the audio decoder's widest stage: three kernels' sums, and activations at twice the rate. 17.8 on a CPU, 11.3 on
an H200."""
BLOCKED, NARROW = 16, 8
"""Channels that a CPU's convolution pads a narrow stage to, measured with the embedded decoder: 52,100 numbers a latent
where its widest stage has 28,800."""
LATENT_COPIES = 4
"""fp32 vectors of both latents: x, the noise, the estimate and the one before it."""
MASK_COPIES = 6
"""Likewise of a run with masks: the mask, how it blends, the noise for as long as the run, what the network is shown,
the content to keep, and that as it was given."""
WAITING_CHUNKS = 3
"""Chunks of 17 frames on the host: one to be written, one copied, one waiting."""
HEAP_SHARE, HEAP_BYTES = 1.0, 48 * 2**20
"""glibc serves what is smaller than 16 MiB (`heap`) from a heap with holes. Measured on a CPU, two engines, twice each:
of 22 MiB in use the process had 31 to 37, of 43 40 to 56, of 56 86 to 109, of 111 118 to 155, of 115 157 to 183, of 142
129 to 212."""
PIECE_FRAMES = PIECE_LATENTS * TIME_PATCH
"""Frames that the video decoder makes at once: 28."""


@dataclass(frozen=True, slots=True)
class Shot:
    """Pictures that the video VAE encodes as one: a picture, or a clip on its canvas."""

    frames: int
    width: int
    height: int


Workspace = Callable[[int, int, int], int]
"""Bytes that an attention backend holds beside q, k, v and its result; for rows, heads, head size."""


def text_bytes(config: TextEncoderConfig, rows: int, vision_rows: int, *, widened: bool, decoded: bool = False) -> int:
    """The residual stream, keys and values, cos and sin of all rows, the deepstack features, the wider of the two kinds
    of chunk, and the widest weight in fp32, with a slice of it where it has to be decoded."""
    whole = rows * (config.hidden + 2 * config.kv_heads * config.head_dim + config.head_dim)
    deepstack = len(config.vision.taps) * vision_rows * config.hidden
    mlp = chunk_bytes(rows, language_model.mlp_row_bytes(config))
    chunk = max(mlp, language_model.attention_chunk_bytes(config, rows))
    widest = config.hidden * max(config.intermediate, config.heads * config.head_dim) if widened else 0
    decoding = min(widest, SLICE_ELEMENTS) * DECODING_BYTES if decoded else 0
    return FP32 * (whole + deepstack + widest) + decoding + chunk


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


def video_encode_bytes(config: EncoderConfig | None, dtype: torch.dtype, tile: int, shot: Shot, room: int = 0) -> int:
    """17 frames as bytes and twice normalised, and what the tiles take that fit into `room` at once. A clip's last 5
    frames are encoded by themselves, and a shorter clip has no others."""
    if config is None:
        return 0
    frames = CHUNK_FRAMES if shot.frames > CHUNK_FRAMES else min(shot.frames, FRAME_OVERLAP)
    pixels = 3 * frames * shot.width * shot.height
    one = encoded_tile_bytes(config, dtype, frames, min(shot.height, tile), min(shot.width, tile))
    return pixels * (1 + FP32 + 2 * dtype.itemsize) + one * tiles_at_once(one, _tiles(tile, shot), room)


def _tiles(tile: int, shot: Shot) -> int:
    split = Tiling.of_size(tile).split
    return len(split(shot.width).starts) * len(split(shot.height).starts)


def audio_encode_bytes(config: AudioEncoderConfig | None, samples: int) -> int:
    """Both channels at the first stage's width, as often as it is held at once."""
    return 0 if config is None else SOUND_COPIES * FP32 * STEREO * config.widths[0] * samples


@dataclass(frozen=True, slots=True)
class Steps:
    """What a run of the network has: packed rows, those of text, values of both target latents, forwards, distinct
    timesteps of one. ahead: the modulation of all forwards is made ahead of them, as far as a window holds it. spared:
    of the forwards, those that reuse is likely to spare. kept_values: numbers that it keeps of velocities; kept_rows:
    rows that it keeps of what the blocks make; both in the compute dtype. compared_rows, compared_values: in fp32."""

    rows: int
    text_rows: int
    values: int
    forwards: int
    clocks: int
    ahead: bool = True
    spared: int = 0
    kept_values: int = 0
    kept_rows: int = 0
    compared_rows: int = 0
    compared_values: int = 0

    @property
    def computed(self) -> int:
        """Forwards that are likely to run."""
        return self.forwards - self.spared


LinearCalls = Callable[[str, int], CallBytes]


def nothing(rows: int, heads: int, head_dim: int) -> int:  # noqa: ARG001  # what a `Workspace` is asked with
    """The workspace of a backend that needs none."""
    return 0


@dataclass(frozen=True, slots=True)
class Computing:
    """How a network computes. adaln_decoded: the modulation's weights are stored in another form and made anew at every
    use. on_host: on the CPU, which norms in fp32. mlp_chunks: of a block's MLP. linear: what a call of a block's linear
    (`attn.qkv_proj`, ...) takes for so many rows; nothing, where weights are there as they are multiplied. attention:
    likewise a call of its backend, for rows, heads and their size. coded: linears that are handed codes in FP8 with a
    scale a row, which then round nothing themselves. branch_rank: of the widest adapter's, beside a linear. both:
    linears that have such codes beside the values, which a branch reads. packed: linears that are handed NVFP4; of
    these `linear` tells what a call takes that packs nothing."""

    dtype: torch.dtype
    adaln_decoded: bool
    on_host: bool
    mlp_chunks: int = 1
    linear: LinearCalls = lambda *_: CallBytes()
    attention: Workspace = nothing
    coded: frozenset[str] = frozenset()
    branch_rank: int = 0
    both: frozenset[str] = frozenset()
    packed: frozenset[str] = frozenset()

    def input_bytes(self, linear: str, width: int) -> int:
        """Of a row of what `linear` reads."""
        if linear in self.packed:
            return width // 2 + width // BLOCK
        return width + FP32 if linear in self.coded else width * self.dtype.itemsize

    def call(self, linear: str, rows: int) -> CallBytes:
        return CallBytes() if linear in self.coded | self.both else self.linear(linear, rows)

    def codes(self, linear: str, rows: int, width: int) -> int:
        """Beside the values that `linear` reads."""
        return rows * (width + FP32) if linear in self.both else 0


def sampling_bytes(config: DitConfig, how: Computing, steps: Steps) -> int:
    """What the whole run keeps, and the widest place of a block or of the modulation."""
    blocks = max(_attention_bytes(config, how, steps.rows), _mlp_bytes(config, how, steps.rows))
    return _run_bytes(config, how, steps) + max(blocks, _adaln_bytes(config, how))


def _run_bytes(config: DitConfig, how: Computing, steps: Steps) -> int:
    """cos and sin of every row, both latents as the sampler and the network have them, the text, the modulation, what
    reuse keeps."""
    size = how.dtype.itemsize
    rotary = 2 * AXES * config.rope_freqs * size * steps.rows
    copies = LATENT_COPIES if steps.ahead else LATENT_COPIES + MASK_COPIES
    latents = steps.values * (copies * FP32 + 2 * size)
    text = steps.text_rows * (config.text_dim * FP32 + config.hidden * size)
    tables = steps.clocks * row_bytes(config.layers, config.hidden, how.dtype)
    # Tables that no window holds are made block by block.
    held = min(steps.forwards if steps.ahead else 1, WINDOW_BYTES // tables)
    kept = size * (steps.kept_values + steps.kept_rows * config.hidden)
    compared = FP32 * (steps.compared_values + steps.compared_rows * config.hidden)
    return rotary + latents + text + held * tables + kept + compared


def _attention_bytes(config: DitConfig, how: Computing, rows: int) -> int:
    """h and its normed copy, q, k and v; beside them a chunk while it is normed, or the result and either what its
    backend takes or its projection."""
    size, inner = how.dtype.itemsize, config.inner
    normed = rows * (size * config.hidden + how.input_bytes("attn.qkv_proj", config.hidden))
    base = normed + rows * size * 3 * inner
    norm = min(rows, QK_ROWS) * inner * (3 * FP32 if how.on_host else 2 * size)
    out = rows * (size * inner + FP32 * config.heads)
    after = max(
        _product(how, "attn.out_proj", rows, (inner, config.hidden), 0),
        how.attention(rows, config.heads, config.head_dim),
    )
    return max(
        base + norm, base + out + after, _product(how, "attn.qkv_proj", rows, (config.hidden, 3 * inner), normed)
    )


def _mlp_bytes(config: DitConfig, how: Computing, rows: int) -> int:
    """h and its normed copy; of a chunk of rows, gate and value and the product's projection. Codes of the product, in
    FP8 or NVFP4, are made beside gate and value, which are gone when they are projected."""
    size = how.dtype.itemsize
    piece = min(rows, chunk_rows(rows, how.mlp_chunks))
    both = piece * size * 2 * config.ffn
    first = _product(how, "mlp.fc1", piece, (config.hidden, 2 * config.ffn), 0)
    if "mlp.fc2" in how.coded | how.packed:
        codes = piece * how.input_bytes("mlp.fc2", config.ffn)
        second = max(codes + both, _product(how, "mlp.fc2", piece, (config.ffn, config.hidden), codes))
    else:
        second = _product(how, "mlp.fc2", piece, (config.ffn, config.hidden), both)
    normed = rows * (size * config.hidden + how.input_bytes("mlp.fc1", config.hidden))
    return normed + max(first, second)


def _product(how: Computing, linear: str, rows: int, widths: tuple[int, int], held: int) -> int:
    """A linear over all rows beside `held` bytes: what it takes itself, and its result, to which an adapter's branch
    adds from x A^T. widths: of what it reads and makes."""
    call, size = how.call(linear, rows), how.dtype.itemsize
    result, branch = rows * size * widths[1], rows * size * how.branch_rank
    held += how.codes(linear, rows, widths[0])
    return held + max(call.held + call.before, result + max(call.held, branch))


def _adaln_bytes(config: DitConfig, how: Computing) -> int:
    """The widest projection, if it has to be decoded."""
    values = MODALITIES * BLOCK_VECTORS * config.hidden * config.time_dim
    decoding = min(values, SLICE_ELEMENTS) * DECODING_BYTES
    return values * how.dtype.itemsize + decoding if how.adaln_decoded else 0


def audio_decode_bytes(config: AudioDecoderConfig | None, latents: int, *, on_host: bool) -> int:
    """Both channels at the widest stage, as often as it is held at once. A CPU's convolutions take narrow stages in
    blocks of 16 channels."""
    if config is None:
        return 0
    lengths = accumulate(config.up_strides, lambda a, b: a * b)
    stages = [(width, length) for width, length in zip(config.widths[1:], lengths, strict=True)]
    widest: int = max(WAVE_COPIES * width * length for width, length in stages)
    blocked = max((BLOCKED * length for width, length in stages if on_host and width < NARROW), default=0)
    return FP32 * STEREO * (widest + blocked) * latents


def video_decode_bytes(
    config: DecoderConfig | None, dtype: torch.dtype, tile: int, target: Shot, room: int = 0, *, on_host: bool = False
) -> int:
    """The largest of three moments: a piece of 28 frames is there, and 17 of them become colours; it is put together of
    its tiles; or its last tiles are made, as many at once as fit into `room`. A CPU makes colours frame by frame, once
    in fp32, and their bytes besides; a device makes them in two passes."""
    if config is None:
        return 0
    size, values = dtype.itemsize, 3 * target.width * target.height
    shown, colours = min(CHUNK_FRAMES, target.frames), FP32 + 1 if on_host else 2 * FP32
    join = (PIECE_FRAMES + FRAME_OVERLAP) * size + shown * colours
    if target.frames > CHUNK_FRAMES + FRAME_OVERLAP:
        # The part before is still on its way to the host, and this one is blended with it.
        join += shown * (size + FP32 + on_host)
    pixels = min(target.width, tile) * min(target.height, tile)
    one = decoded_tile_bytes(config, dtype, PIECE_LATENTS * pixels // ALIGNMENT**2)
    at_once = tiles_at_once(one, _tiles(tile, target), room)
    # Those beside the last one have frames of their own, which overlap in the piece.
    beside = (at_once - 1) * 3 * PIECE_FRAMES * pixels * size
    piece = values * PIECE_FRAMES * size
    return max(values * join, 3 * PIECE_FRAMES * size * _stitched(tile, target), at_once * one + beside + piece)


def _stitched(tile: int, target: Shot) -> int:
    """Pixels of a frame that are held while the last row of tiles is put together: rows overlap, and so do the tiles of
    one; the last tile is there as it was made, too."""
    split = Tiling.of_size(tile).split
    rows, columns = len(split(target.height).starts), len(split(target.width).starts)
    height, width = min(target.height, tile), min(target.width, tile)
    if rows > 1:
        return rows * height * target.width + target.height * target.width + height * width
    return height * target.width + (columns + 1) * height * width if columns > 1 else height * width


def read_ahead_bytes(shot: Shot, *, on_host: bool) -> int:
    """Frames of a clip that are read while those before them are encoded, and one in its own size."""
    ahead = min(CHUNK_FRAMES + 1, shot.frames)
    return 3 * ahead * shot.width * shot.height if on_host and shot.frames > 1 else 0


def host_frames_bytes(target: Shot, *, on_host: bool) -> int:
    """Chunks of pictures on their way to the encoder, which a device's memory has nothing of."""
    return WAITING_CHUNKS * 3 * min(CHUNK_FRAMES, target.frames) * target.width * target.height if on_host else 0


def heap_bytes(needed: int, *, on_host: bool) -> int:
    """What a process grows by that needs `needed` bytes at once: on the CPU also what the C library can't reuse."""
    return needed + min(int(HEAP_SHARE * needed), HEAP_BYTES) if on_host else needed
