"""The video VAE as the engine uses it: pixels -> latents, latents -> frames chunk by chunk.

Puts together the encoder, the decoder, spatial tiles and time; holds no arithmetic of its own beyond the latents'
normalisation. The engine encodes guides, references and sources with it before sampling and feeds its frames to the
encoder of the MP4 while later chunks are still being decoded. Memory does not grow with the clip, in either direction:
one tile is in flight, or as many as fit into `room` bytes; of a decode one piece of 28 frames is assembled and 5 frames
are carried over, of a streamed encode 17 frames are held.

dtype is float16 (ComfyUI's default) or float32; every parameter must have it. bfloat16 is refused as ComfyUI does
(conditioning contract §4.8): the pictures suffer. A CPU encodes in float32 whatever the dtype, as ComfyUI does there:
most CPUs have no fp16 arithmetic, and PyTorch's convolutions then take 60 times as long.

Shapes: pixels [F, H, W, 3], H and W multiples of 16; latents fp32 [1, C, T, H/16, W/16], normalised as the DiT wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from h3runtime.backends.cnn.base import CnnSteps
from h3runtime.backends.cnn.definition import DEFINITION
from h3runtime.backends.vit.base import VitSteps
from h3runtime.core import CHUNK_FRAMES, ShouldStop
from h3runtime.errors import CheckpointError, InvalidRequest, JobCancelled, Offence, SettingsError
from h3runtime.vae.chunks import FRAME_OVERLAP, ChunkPlan, join, plan
from h3runtime.vae.tile_batch import decoded_tile_bytes, encoded_tile_bytes, in_batches, tiles_at_once
from h3runtime.vae.tiling import ALIGNMENT, BlendRule, TileAxis, Tiling, stitch
from h3runtime.vae.video_config import VideoVaeConfig
from h3runtime.vae.video_decoder import VideoDecoder
from h3runtime.vae.video_encoder import PointConv3d, VideoEncoder
from h3runtime.vae.video_pixels import denormalise, normalise
from h3runtime.vae.video_statistics import LATENTS_MEAN, LATENTS_STD

OnChunk = Callable[[int, int], None]
"""Called with (chunks done, chunks in all) after every decoded or encoded piece."""

SMALLEST_SIDE = 32
"""Pixels: at 16 the deepest level is one cell wide and can't be padded by reflection."""


def check_dtype(dtype: torch.dtype) -> torch.dtype:
    """float16 or float32; SettingsError for anything else, bfloat16 by name (§4.8)."""
    if dtype not in (torch.float16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        offence = Offence("vae_dtype", f"{name} is not supported by the H3 video VAE", "float16 or float32")
        raise SettingsError(f"{offence.field}: {offence.message}; use {offence.legal}", [offence])
    return dtype


class VideoVae(nn.Module):
    """Both halves, or the one that the file has. Build under `torch.device("meta")`, then load strictly."""

    def __init__(
        self, config: VideoVaeConfig, dtype: torch.dtype = torch.float16, tiling: Tiling | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.dtype = check_dtype(dtype)
        self.tiling = tiling or Tiling()
        self.encoder = self.quant_conv = self.decoder = self.post_quant_conv = None
        if config.encoder is not None:
            self.encoder = VideoEncoder(config.encoder)
            self.quant_conv = PointConv3d(config.encoder.moments, config.encoder.moments)
        if config.decoder is not None:
            self.decoder = VideoDecoder(config.decoder)
            self.post_quant_conv = nn.Conv3d(config.latent_channels, config.latent_channels, 1)
        if config.stored_statistics:
            self.register_buffer("latents_mean", torch.empty(config.latent_channels))
            self.register_buffer("latents_std", torch.empty(config.latent_channels))

    def take_steps(self, decoder: VitSteps, encoder: CnnSteps) -> None:
        """Let these compute what lies between the products of both halves; without this, the definition does."""
        if self.decoder is not None:
            self.decoder.steps = decoder
        if self.encoder is not None:
            self.encoder.take_steps(encoder)

    @torch.no_grad()
    def build_encoder(self) -> None:
        """Encode a picture and a clip as small as can be, so that no request waits for a kernel to be compiled."""
        if self.encoder is not None and self.encoder.steps is not DEFINITION:
            device = next(self.parameters()).device
            pixels = torch.zeros(FRAME_OVERLAP, SMALLEST_SIDE, SMALLEST_SIDE, 3, dtype=torch.uint8, device=device)
            for frames in (1, FRAME_OVERLAP):
                self.encode_moments(pixels[:frames])

    def decode_chunks(
        self,
        latents: torch.Tensor,
        *,
        blend: BlendRule = "blended",
        should_stop: ShouldStop | None = None,
        on_chunk: OnChunk | None = None,
        room: int = 0,
    ) -> Iterator[torch.Tensor]:
        """Latents [1, C, T, h, w] of any T >= 1 -> fp32 frames [n <= 17, H, W, 3] in [0, 1] on the model's device.

        Each part comes as soon as it is final; together they are `chunks.decoded_frames(T)` frames. `should_stop` is
        asked before every tile and ends the decode with JobCancelled. room: bytes that tiles decoded at once may take
        (`tile_batch`); one at a time as default. InvalidRequest for other shapes, before work.
        """
        self._check_latents(latents)
        return self._decode(latents, plan(latents.shape[2]), blend, should_stop, on_chunk, room)

    @torch.no_grad()
    def _decode(
        self,
        latents: torch.Tensor,
        chunks: ChunkPlan,
        blend: BlendRule,
        should_stop: ShouldStop | None,
        on_chunk: OnChunk | None,
        room: int,
    ) -> Iterator[torch.Tensor]:
        z = self.denormalised(latents)
        if chunks.padding:
            z = torch.cat([z, z[:, :, -1:].expand(-1, -1, chunks.padding, -1, -1)], 2)
        pieces = self._decode_pieces(z, chunks, blend, should_stop, on_chunk, room)
        parts = join(pieces, chunks.frames) if chunks.latent_frames > 1 else (p[:, :, -1:] for p in pieces)
        # A loop variable would keep a part, and the piece it is a view of, alive while the next piece is decoded.
        yield from map(denormalise, parts)

    def _decode_pieces(
        self,
        z: torch.Tensor,
        chunks: ChunkPlan,
        blend: BlendRule,
        should_stop: ShouldStop | None,
        on_chunk: OnChunk | None,
        room: int,
    ) -> Iterator[torch.Tensor]:
        for index in range(chunks.chunks):
            piece = self.decode_piece(z[:, :, chunks.latents_of(index)], blend, should_stop, room)
            if on_chunk is not None:
                on_chunk(index + 1, chunks.chunks)
            yield piece
            del piece

    @torch.no_grad()
    def decode_piece(
        self, z: torch.Tensor, blend: BlendRule = "blended", should_stop: ShouldStop | None = None, room: int = 0
    ) -> torch.Tensor:
        """Denormalised latents [1, C, t, h, w] -> decoder output [1, 3, 4t, 16h, 16w], tiled, ImageNet-normalised."""
        decoder, conv = self._decoder()
        rows, columns = (self.tiling.split(ALIGNMENT * cells) for cells in z.shape[-2:])
        cells = rows.divided(ALIGNMENT), columns.divided(ALIGNMENT)
        tokens = z.shape[2] * cells[0].tile * cells[1].tile
        tile_bytes = decoded_tile_bytes(decoder.config, self.dtype, tokens)
        at_once = tiles_at_once(tile_bytes, _count(rows, columns), room)
        results = in_batches(_tiles(z, *cells, should_stop), lambda tile: decoder(conv(tile)), at_once)
        return stitch(lambda *_: next(results), rows, columns, blend)

    def denormalised(self, latents: torch.Tensor) -> torch.Tensor:
        """x * std + mean in the model's dtype, constants rounded to it first (§4.7)."""
        mean, std = self._statistics()
        return latents.to(mean) * std + mean

    @torch.no_grad()
    def encode_image(
        self, pixels: torch.Tensor, *, should_stop: ShouldStop | None = None, room: int = 0
    ) -> torch.Tensor:
        """One picture [1, H, W, 3], uint8 or float in [0, 1] -> its normalised latent, fp32 [1, C, 1, H/16, W/16]."""
        self._check_pixels(pixels)
        if pixels.shape[0] != 1:
            raise _bad("pixels", f"{pixels.shape[0]} frames", "one picture; clips go to encode_clip")
        return self._normalised(self.encode_moments(pixels, should_stop=should_stop, room=room))

    @torch.no_grad()
    def encode_clip(
        self,
        pixels: torch.Tensor,
        *,
        should_stop: ShouldStop | None = None,
        on_chunk: OnChunk | None = None,
        room: int = 0,
    ) -> torch.Tensor:
        """A clip [F, H, W, 3], uint8 or float in [0, 1] -> fp32 [1, C, T, H/16, W/16], T = 5 ceil(F/17) - 3.

        Clips of 17 frames, each on its own. The last one runs on 5 frames (its own, or the last one repeated): its
        other latents are dropped, and time is causal (§4.6). F = 1 is a picture, one frame alone.
        """
        self._check_pixels(pixels)
        return self._encode(torch.split(pixels, CHUNK_FRAMES), pixels.shape[0], should_stop, on_chunk, room)

    @torch.no_grad()
    def encode_stream(
        self,
        frames: Iterable[NDArray[np.uint8]],
        count: int,
        *,
        should_stop: ShouldStop | None = None,
        on_chunk: OnChunk | None = None,
        room: int = 0,
    ) -> torch.Tensor:
        """`count` frames uint8 [H, W, 3] that come one by one -> what `encode_clip` makes of them, bit for bit.

        17 frames are held, however many come. All of them are taken, so that their reader can say that it is done.
        """
        if count < 1:
            raise _bad("frames", str(count), "at least one")
        return self._encode(self._checked(_pieces(frames, count)), count, should_stop, on_chunk, room)

    def _encode(
        self,
        clips: Iterable[torch.Tensor],
        count: int,
        should_stop: ShouldStop | None,
        on_chunk: OnChunk | None,
        room: int,
    ) -> torch.Tensor:
        """Clips of 17 frames, the last one of what is left of `count`, each encoded as it comes."""
        chunks = -(-count // CHUNK_FRAMES)
        latents = []
        for index, clip in enumerate(clips):
            frames = _first_frames(clip, FRAME_OVERLAP) if index + 1 == chunks and count > 1 else clip
            latents.append(self._normalised(self.encode_moments(frames, should_stop=should_stop, room=room)))
            if on_chunk is not None:
                on_chunk(index + 1, chunks)
        return torch.cat(latents, 2)

    def _checked(self, clips: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        for clip in clips:
            self._check_pixels(clip)
            yield clip

    @property
    def encode_dtype(self) -> torch.dtype:
        """What the encoder computes in, on the device where the weights are."""
        return torch.float32 if next(self.parameters()).device.type == "cpu" else self.dtype

    @torch.no_grad()
    def encode_moments(
        self, pixels: torch.Tensor, *, should_stop: ShouldStop | None = None, room: int = 0
    ) -> torch.Tensor:
        """One clip of up to 17 frames -> moments [1, 2C, T, h, w] in `encode_dtype`; tiles meet here, unblended
        neighbours (§4.5)."""
        encoder, conv = self._encoder()
        x = normalise(pixels.to(conv.weight.device), self.encode_dtype)
        rows, columns = (self.tiling.split(length) for length in x.shape[-2:])
        tile_bytes = encoded_tile_bytes(encoder.config, x.dtype, x.shape[2], rows.tile, columns.tile)
        at_once = tiles_at_once(tile_bytes, _count(rows, columns), room)
        results = in_batches(_tiles(x, rows, columns, should_stop), lambda tile: conv(encoder(tile)), at_once)
        return stitch(lambda *_: next(results), rows.divided(ALIGNMENT), columns.divided(ALIGNMENT), "raw")

    def _normalised(self, moments: torch.Tensor) -> torch.Tensor:
        """(mean - latents_mean) / latents_std in fp32; the posterior's mean, no sample (§4.6, §8 row 1)."""
        mean, std = self._statistics()
        return (moments[:, : self.config.latent_channels].float() - mean.float()) / std.float()

    def _statistics(self) -> tuple[torch.Tensor, torch.Tensor]:
        """latents_mean, latents_std [1, C, 1, 1, 1], the file's or the released ones, rounded to the model's dtype."""
        conv = self.post_quant_conv or self.quant_conv
        assert conv is not None
        stored = (self.latents_mean, self.latents_std) if self.config.stored_statistics else (LATENTS_MEAN, LATENTS_STD)
        mean, std = (torch.as_tensor(s, device=conv.weight.device).to(self.dtype) for s in stored)
        return mean.view(1, -1, 1, 1, 1), std.view(1, -1, 1, 1, 1)

    def _decoder(self) -> tuple[VideoDecoder, nn.Conv3d]:
        if self.decoder is None or self.post_quant_conv is None:
            raise CheckpointError("video VAE: the file has no decoder", [Offence("decoder", "missing")])
        return self.decoder, self.post_quant_conv

    def _encoder(self) -> tuple[VideoEncoder, nn.Conv3d]:
        if self.encoder is None or self.quant_conv is None:
            raise CheckpointError("video VAE: the file has no encoder", [Offence("encoder", "missing")])
        return self.encoder, self.quant_conv

    def _check_latents(self, latents: torch.Tensor) -> None:
        self._decoder()
        shape = tuple(latents.shape)
        channels = self.config.latent_channels
        if len(shape) != 5 or shape[:2] != (1, channels) or 0 in shape:
            raise _bad("latents", f"shape {list(shape)}", f"[1, {channels}, T, h, w], nothing empty")

    def _check_pixels(self, pixels: torch.Tensor) -> None:
        self._encoder()
        shape = tuple(pixels.shape)
        if len(shape) != 4 or shape[3] != 3 or shape[0] < 1:
            raise _bad("pixels", f"shape {list(shape)}", "[F, H, W, 3], at least one frame")
        if any(side < SMALLEST_SIDE or side % ALIGNMENT for side in shape[1:3]):
            raise _bad("pixels", f"{shape[2]} x {shape[1]} pixels", "sides of at least 32, multiples of 16")
        if pixels.dtype != torch.uint8 and not pixels.is_floating_point():
            raise _bad("pixels", str(pixels.dtype).removeprefix("torch."), "uint8, or a float in [0, 1]")


def _tiles(
    x: torch.Tensor, rows: TileAxis, columns: TileAxis, should_stop: ShouldStop | None
) -> Iterator[torch.Tensor]:
    """Row by row, as `stitch` asks for them."""
    for y in rows.starts:
        for left in columns.starts:
            _poll(should_stop)
            yield x[..., y : y + rows.tile, left : left + columns.tile]


def _count(rows: TileAxis, columns: TileAxis) -> int:
    return len(rows.starts) * len(columns.starts)


def _pieces(frames: Iterable[NDArray[np.uint8]], count: int) -> Iterator[torch.Tensor]:
    """Frames 17 at a time, all in one buffer that the next ones overwrite."""
    held: NDArray[np.uint8] | None = None
    taken = 0
    for frame in frames:
        assert taken < count, f"more than {count} frames"
        if held is None:
            held = np.empty((min(CHUNK_FRAMES, count), *frame.shape), dtype=np.uint8)
        held[taken % CHUNK_FRAMES] = frame
        taken += 1
        if taken % CHUNK_FRAMES == 0 or taken == count:
            yield torch.from_numpy(held[: (taken - 1) % CHUNK_FRAMES + 1])
    assert taken == count, f"{taken} frames of {count}"


def _first_frames(clip: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` frames of [F, H, W, 3], the last one repeated where there are fewer."""
    missing = count - clip.shape[0]
    return torch.cat([clip, clip[-1:].expand(missing, -1, -1, -1)]) if missing > 0 else clip[:count]


def _poll(should_stop: ShouldStop | None) -> None:
    if should_stop is not None and should_stop():
        raise JobCancelled("The job was cancelled while the video VAE ran")


def _bad(field: str, message: str, legal: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {message}; legal: {legal}", [Offence(field, message, legal)])
