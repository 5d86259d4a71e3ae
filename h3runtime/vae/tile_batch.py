"""How many tiles of one picture go through the video VAE at once, and what each of them takes.

A tile is a small piece of work for a large GPU, so several of the same size run as one batch, as many as there is room
for; what is cut and how it is blended stays. `video_vae` asks before every chunk; the engine says how much room there
is (none on a CPU, which gains nothing by it) and counts a batch in what a request takes.

Bytes of one tile at the widest place of the network, fitted to what an allocator counts:

    decode   tokens of 7 x th x tw latents, three times as wide as the gate and five times the width
    encode   the widest level of F frames of H x W, 4.5 times, and 2 times with two frames of zeros in front
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice

import torch

from h3runtime.vae.video_config import DecoderConfig, EncoderConfig
from h3runtime.vae.video_encoder import FRONT_FRAMES

ROOM = 2**31
"""Bytes that tiles of one batch may take together. 14 of a decode at real size (126 MB each, of which an H200 was seen
to take 118): 1 % faster there than 7, and within 1 % of 28."""
DECODER_GATES, DECODER_WIDTHS = 3, 5
"""Copies of the gate's and of the block's width that are alive at once."""
ENCODER_COPIES = 4.5
"""Tensors of the video encoder's widest level that are alive at once, with a convolution's workspace."""
PADDED_COPIES = 2
"""And, of a clip, with two frames of zeros in front. Together 6.7 for 17 frames and 6.5 for a picture: a CPU takes 5.2
of both in fp32."""

Network = Callable[[torch.Tensor], torch.Tensor]


def decoded_tile_bytes(config: DecoderConfig, dtype: torch.dtype, tokens: int) -> int:
    """tokens: t h w of the tile's latents."""
    return tokens * (DECODER_GATES * config.feed_forward + DECODER_WIDTHS * config.width) * dtype.itemsize


def encoded_tile_bytes(config: EncoderConfig, dtype: torch.dtype, frames: int, height: int, width: int) -> int:
    """height, width: pixels of the tile."""
    padded = frames + FRONT_FRAMES if frames > 1 else 1
    copies = ENCODER_COPIES * frames + PADDED_COPIES * padded
    return int(copies * height * width * _widest_level(config)) * dtype.itemsize


def _widest_level(config: EncoderConfig) -> float:
    """Most channels that a pixel of the input has at any level: fewer pixels are left below."""
    widest, left = 0.0, 1.0
    for level in config.levels:
        widest = max(widest, max(level.in_channels, level.out_channels) * left)
        left /= math.prod(level.stride or (1,))
    return widest


def tiles_at_once(tile_bytes: int, tiles: int, room: int) -> int:
    """How many of `tiles` there is `room` for: at least one, and evenly many in every batch, so that none is left over
    by itself."""
    most = max(1, min(tiles, room // max(1, tile_bytes)))
    return math.ceil(tiles / math.ceil(tiles / most))


def in_batches(tiles: Iterator[torch.Tensor], network: Network, at_once: int) -> Iterator[torch.Tensor]:
    """Tiles [1, ...] of one shape -> each one's result [1, ...], in order. Takes no more than it needs ahead."""
    while batch := list(islice(tiles, at_once)):
        results = network(batch[0] if len(batch) == 1 else torch.cat(batch))
        del batch
        yield from torch.split(results, 1)
        del results
