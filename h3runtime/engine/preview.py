"""A cheap look at a clip: while it is sampled, the middle latent frame of the present estimate of x0, as a small PNG;
once it is decoded, its middle frame.

    colour  RGB = x W, x the 24 channels of a latent cell and a 1, W [25, 3]. Fitted once to the loaded decoder itself:
            least squares from a small random latent to the mean colour of each cell's pixels. So it needs no numbers
            from elsewhere and follows whatever VAE is loaded
    size    four pixels a cell, at most 512 a side, smoothly enlarged

It must cost nothing: on a device the colours of one small frame are queued behind the step in flight and fetched by an
event at the next step, so that the host waits for nothing; on the host a picture comes no oftener than every hundredth
part of the time it takes, and the last step's always. The decoded frame takes a few milliseconds, once, while the
encoder works. Fed by `sampling` and `clip`; the PNG goes into `core.Progress`.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from h3runtime.core import PackedLayout
from h3runtime.vae.chunks import PIECE_LATENTS, TIME_PATCH
from h3runtime.vae.tiling import ALIGNMENT
from h3runtime.vae.video_pixels import denormalise
from h3runtime.vae.video_vae import VideoVae

PIXELS_PER_CELL = 4
LARGEST_SIDE = 512
CELLS = 8
"""Latent rows and columns of the fitted piece: 448 cells for 25 unknowns a colour, of which groups of four are alike,
as in pictures; a quarter of a decoder's tile."""
SEED = 0
SHARE = 0.01
"""Of the sampling time that pictures may take on the host."""
FAST_COMPRESSION = 1


@dataclass(frozen=True, slots=True)
class ColourMap:
    """weights: fp32 [C + 1, 3], the last row added to every cell; on the VAE's device."""

    weights: torch.Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, vae: VideoVae) -> ColourMap:
        """Decodes one small piece. The same weights for the same VAE on the same device."""
        channels, device = vae.config.latent_channels, next(vae.parameters()).device
        latent = coarse_latent(channels).repeat_interleave(2, -1).repeat_interleave(2, -2)
        frames = denormalise(vae.decode_piece(vae.denormalised(latent.to(device)))).cpu()
        cells = frames.view(PIECE_LATENTS, TIME_PATCH, CELLS, ALIGNMENT, CELLS, ALIGNMENT, 3).mean((1, 3, 5))
        asked = _with_one(latent[0].movedim(0, -1).reshape(-1, channels)).double()
        found = torch.linalg.lstsq(asked, cells.reshape(-1, 3).double()).solution
        return cls(found.float().to(device))

    @torch.no_grad()
    def colours(self, frame: torch.Tensor) -> torch.Tensor:
        """One latent frame [C, h, w] -> uint8 [h, w, 3] on its device."""
        coloured = _with_one(frame.movedim(0, -1).float()) @ self.weights.to(frame.device)
        return (coloured * 255).clamp_(0, 255).to(torch.uint8)


class Previews:
    """Of one run. colours: None makes none. layout: the run's; the estimates are its packed latents."""

    def __init__(
        self,
        colours: ColourMap | None,
        layout: PackedLayout,
        channels: int,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._colours, self._clock = colours, clock
        self._shape = channels, layout.latent_frames, layout.height, layout.width
        self._on_device = device.type == "cuda"
        self._free_from = clock()
        self._held: torch.Tensor | None = None
        self._arrived: torch.cuda.Event | None = None

    def look(self, denoised: torch.Tensor, *, is_last: bool) -> bytes | None:
        """x0 as packed fp32 [N] -> a PNG, if one is due: on a device that of an earlier step, but for the last."""
        if self._colours is None:
            return None
        if not self._on_device:
            return self._timed(self._colours.colours(self._middle(denoised))) if self._is_due(is_last) else None
        made = self._fetched()
        if is_last or (self._arrived is None and self._is_due()):
            self._queue(self._colours.colours(self._middle(denoised)))
        return self._fetched(wait=True) if is_last else made

    def _middle(self, denoised: torch.Tensor) -> torch.Tensor:
        channels, frames, height, width = self._shape
        video = denoised[: channels * frames * height * width].view(self._shape)
        return video[:, frames // 2]

    def _is_due(self, is_last: bool = False) -> bool:
        return is_last or self._clock() >= self._free_from

    def _queue(self, colours: torch.Tensor) -> None:
        if self._held is None:
            self._held = torch.empty(colours.shape, dtype=torch.uint8, pin_memory=True)
        self._held.copy_(colours, non_blocking=True)
        self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._arrived.record(torch.cuda.current_stream(colours.device))

    def _fetched(self, *, wait: bool = False) -> bytes | None:
        """The picture that was queued, if it has arrived."""
        if self._arrived is None or self._held is None:
            return None
        if wait:
            self._arrived.synchronize()
        elif not self._arrived.query():  # type: ignore[no-untyped-call]
            return None
        self._arrived = None
        return self._timed(self._held)

    def _timed(self, colours: torch.Tensor) -> bytes:
        began = self._clock()
        made = as_png(colours)
        ended = self._clock()
        self._free_from = ended + (ended - began) / SHARE
        return made


class Poster:
    """The middle one of `frames` frames, as a PNG of at most 512 a side: what stays as the look at a finished clip."""

    def __init__(self, frames: int) -> None:
        self._ahead = frames // 2

    def found_in(self, pixels: NDArray[np.uint8]) -> bytes | None:
        """The next frames of the clip, uint8 [n, H, W, 3] -> the PNG, if the middle one is among them."""
        at, self._ahead = self._ahead, self._ahead - len(pixels)
        if not 0 <= at < len(pixels):
            return None
        picture = Image.fromarray(pixels[at])
        picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE), Image.Resampling.BILINEAR)
        return _png(picture)


def as_png(colours: torch.Tensor) -> bytes:
    """uint8 [h, w, 3] on the host -> a PNG of four pixels a cell, less where that is more than 512."""
    height, width = colours.shape[:2]
    scale = min(PIXELS_PER_CELL, LARGEST_SIDE / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return _png(Image.fromarray(colours.numpy()).resize(size, Image.Resampling.BILINEAR))


def _png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=FAST_COMPRESSION)
    return file.getvalue()


def coarse_latent(channels: int) -> torch.Tensor:
    """fp32 [1, C, 7, 4, 4], normal numbers, always the same."""
    side = CELLS // 2
    return torch.randn(1, channels, PIECE_LATENTS, side, side, generator=torch.Generator().manual_seed(SEED))


def _with_one(cells: torch.Tensor) -> torch.Tensor:
    """[..., C] -> [..., C + 1]."""
    return torch.cat([cells, cells.new_ones(*cells.shape[:-1], 1)], -1)
