"""Latents to packed rows and back.

Pure reshapes: no arithmetic, no projection. Fed by `Dit` with target latents and conditions; its rows go through the
patch projections, and the heads' rows come back here (dit-contract §2.2).

    video [1, C, T, h, w]  <->  [T * h/2 * w/2, C*4]   frames, then h, then w; inside a row (c, ph, pw)
    audio [1, C, 2, A]     <->  [2 * A, C]             left channel's A rows, then the right one's

Odd h or w are padded to even by repeating the first row or column, and cropped afterwards (circular, §2.2).
"""

from __future__ import annotations

import torch

from h3runtime.denoiser.config import PATCH


def pad_to_even(video: torch.Tensor) -> torch.Tensor:
    """[1, C, T, h, w] -> the same with h and w even; the appended line is the first one."""
    if video.shape[-2] % PATCH:
        video = torch.cat([video, video[..., :1, :]], dim=-2)
    if video.shape[-1] % PATCH:
        video = torch.cat([video, video[..., :1]], dim=-1)
    return video


def patchify(video: torch.Tensor) -> torch.Tensor:
    """[1, C, T, h, w], h and w even -> rows [T * h/2 * w/2, C*4]."""
    _, c, t, h, w = video.shape
    grid = video.reshape(c, t, h // PATCH, PATCH, w // PATCH, PATCH)
    return grid.permute(1, 2, 4, 0, 3, 5).reshape(t * (h // PATCH) * (w // PATCH), c * PATCH * PATCH)


def unpatchify(rows: torch.Tensor, frames: int, height: int, width: int) -> torch.Tensor:
    """rows [T * h/2 * w/2, C*4] -> [1, C, T, h, w], h and w even."""
    grid = rows.reshape(frames, height // PATCH, width // PATCH, -1, PATCH, PATCH)
    return grid.permute(3, 0, 1, 4, 2, 5).reshape(1, -1, frames, height, width)


def audio_rows(audio: torch.Tensor) -> torch.Tensor:
    """[1, C, 2, A] -> rows [2*A, C]."""
    return audio[0].flatten(1).transpose(0, 1)


def audio_latent(rows: torch.Tensor) -> torch.Tensor:
    """rows [2*A, C] -> [1, C, 2, A]."""
    return rows.transpose(0, 1).reshape(1, rows.shape[1], 2, -1)


def video_mask_rows(mask: torch.Tensor) -> torch.Tensor:
    """[1, 1, T, h, w], constant inside a token -> [T * ceil(h/2) * ceil(w/2)]."""
    return mask[0, 0, :, ::PATCH, ::PATCH].reshape(-1)


def audio_mask_rows(mask: torch.Tensor) -> torch.Tensor:
    """[1, 1, 2, A] -> [2*A]."""
    return mask[0, 0].reshape(-1)
