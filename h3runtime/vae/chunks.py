"""Time in the video VAE: how many frames, in which pieces, and how the pieces are joined while they arrive.

The decoder knows 7 latents at a time and makes 28 frames of them; the encoder knows 17 frames and makes 5 latents.
Neither carries state from piece to piece, so the 5 frames two decoded pieces share are cross-faded here. Spatial tiles
and the networks themselves are `tiling` and `video_decoder`; `video_vae` feeds `join`, the engine reads its frames.

Arithmetic (conditioning contract §4.4, §4.7), T latents, N pieces:

    pad    = (-(T + 3)) mod 5 copies of the last latent; T = 2 gets 5 more
    N      = (T + 3 + pad) / 5 - 1
    piece i  decodes latents [5i, 5i + 7): 28 frames; part A = frames 3..19, part B = frames 23..27
    A_i    : its first 5 frames are faded in from B of piece i - 1
    result = A_0 .. A_{N-1} B_{N-1}: 17 N + 5 frames, less what the padding stands for:
             1 frame where (T + m) mod 5 = 0, else 4, for the padding latents m = 0..pad-1
    T = 1  : one latent alone, 4 frames, of which the last is the picture
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from h3runtime.core import CHUNK_FRAMES, CHUNK_LATENTS
from h3runtime.errors import InvalidRequest, Offence
from h3runtime.vae.tiling import blend

TOKEN_DROP = 3
"""Latents dropped at the end of an encode (§4.4)."""
PIECE_LATENTS = 7
"""Latents decoded at once: 5 of its own and 2 that overlap the next piece (§4.7)."""
TIME_PATCH = 4
"""Frames the decoder makes of every latent (§4.1)."""
FRAME_OVERLAP = 5
"""Frames two decoded pieces share: 2 * 4 - 3 (§4.4)."""
PART_A = slice(3, 20)
PART_B = slice(23, 28)


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """How T latents are decoded. `frames` come out in the end; `dropped` are what the padding would have added."""

    latent_frames: int
    padding: int
    chunks: int
    dropped: int
    frames: int

    def latents_of(self, index: int) -> slice:
        """Latents of piece `index` in the padded clip."""
        return slice(CHUNK_LATENTS * index, CHUNK_LATENTS * index + (PIECE_LATENTS if self.latent_frames > 1 else 1))


def plan(latent_frames: int) -> ChunkPlan:
    """The decode of T latents, T >= 1. InvalidRequest for less."""
    if latent_frames < 1:
        legal = "at least one latent frame"
        raise InvalidRequest("latents: nothing to decode", [Offence("latents", f"{latent_frames} frames", legal)])
    if latent_frames == 1:
        return ChunkPlan(1, padding=0, chunks=1, dropped=0, frames=1)
    padding = -(latent_frames + TOKEN_DROP) % CHUNK_LATENTS
    chunks = (latent_frames + TOKEN_DROP + padding) // CHUNK_LATENTS - 1
    if chunks < 1:
        padding, chunks = padding + CHUNK_LATENTS, 1
    dropped = sum(1 if (latent_frames + m) % CHUNK_LATENTS == 0 else TIME_PATCH for m in range(padding))
    return ChunkPlan(latent_frames, padding, chunks, dropped, CHUNK_FRAMES * chunks + FRAME_OVERLAP - dropped)


def decoded_frames(latent_frames: int) -> int:
    """F of T: 17 k + 5 for T = 5 k + 2, 1 for a picture; in between, what `plan` says."""
    return plan(latent_frames).frames


def encoded_latents(frames: int) -> int:
    """T of F pixel frames: 5 ceil(F / 17) - 3, a picture (F = 1) gives 1 (§4.6)."""
    return 1 if frames == 1 else CHUNK_LATENTS * -(-frames // CHUNK_FRAMES) - TOKEN_DROP


def join(pieces: Iterable[torch.Tensor], frames: int) -> Iterator[torch.Tensor]:
    """Decoded pieces [B, 3, 28, H, W] in order -> the clip in parts [B, 3, n <= 17, H, W], each as soon as it is final.

    Never more than `frames` in all; between two pieces only 5 frames are held. Arithmetic in the pieces' dtype.
    """
    carried: torch.Tensor | None = None
    left = frames
    for piece in pieces:
        part = piece[:, :, PART_A]
        if carried is not None:
            part = blend(carried, part, 2)
        # A copy: a view would keep the 23 other frames alive while the next piece is decoded.
        carried = piece[:, :, PART_B].clone()
        del piece
        if left > 0:
            yield part[:, :, :left]
        left -= CHUNK_FRAMES
        del part
    if carried is not None and left > 0:
        yield carried[:, :, :left]
