"""Pixels on their way in and out of the video VAE: RGB in [0, 1] <-> the ImageNet-normalised RGB the networks speak.

No network, no tiles. `video_vae` calls it on both sides; the engine turns finished frames into bytes with `to_bytes`.
Shapes: pixels are [F, H, W, 3] outside, [1, 3, F, H, W] inside. A CPU takes one frame after the other through all
operations, so that it stays in the cache, and no second clip is made in between: the numbers are the same.
"""

from __future__ import annotations

import numpy as np
import torch

PIXEL_MEAN = (0.485, 0.456, 0.406)
"""ImageNet mean over RGB in [0, 1] (conditioning contract §4.4)."""
PIXEL_STD = (0.229, 0.224, 0.225)
"""ImageNet standard deviation, likewise (§4.4)."""


def _per_channel(values: tuple[float, ...], like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # Filled on the device: a copy from the host would wait for all that is enqueued there.
    return torch.stack([torch.full((1, 1, 1), value, dtype=dtype, device=like.device) for value in values]).unsqueeze(0)


def normalise(pixels: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """uint8 or float [0, 1] [F, H, W, 3] -> ImageNet-normalised [1, 3, F, H, W] in `dtype`.

    Goes through [-1, 1] in `dtype` as ComfyUI does: in fp16 that rounds the pixels before they are normalised (§4.6).
    """
    # By a tensor: a division by a Python number is a product with its reciprocal on CUDA, which rounds half the bytes
    # to another last bit than ComfyUI, whose pixels are divided on the CPU.
    white = torch.full((), 255.0, device=pixels.device)
    unit = pixels.float() / white if pixels.dtype == torch.uint8 else pixels.float()
    x = (unit * 2 - 1).permute(3, 0, 1, 2).unsqueeze(0).to(dtype)
    return ((x + 1) / 2 - _per_channel(PIXEL_MEAN, x, dtype)) / _per_channel(PIXEL_STD, x, dtype)


def denormalise(decoded: torch.Tensor) -> torch.Tensor:
    """Decoder output [1, 3, F, H, W] -> fp32 [F, H, W, 3] in [0, 1], a view of planes: `to_bytes` puts pixels together.

    fp32 arithmetic with constants rounded to the decoder's dtype: ComfyUI keeps them in the module (§4.8).
    """
    std = _per_channel(PIXEL_STD, decoded, decoded.dtype).float()
    mean = _per_channel(PIXEL_MEAN, decoded, decoded.dtype).float()
    if decoded.device.type == "cpu":
        frames = torch.empty(decoded.shape[1:])
        for index in range(decoded.shape[2]):
            frame = frames[:, index].copy_(decoded[0, :, index])
            frame.mul_(std[0, :, 0]).add_(mean[0, :, 0]).clamp_(0, 1)
    else:
        frames = (decoded.float() * std).add_(mean).clamp_(0, 1)[0]
    return frames.permute(1, 2, 3, 0)


def to_bytes(frames: torch.Tensor) -> torch.Tensor:
    """Frames in [0, 1], float -> uint8 of the same shape on the same device, contiguous, truncated as ComfyUI does
    (§6)."""
    if frames.device.type == "cpu" and frames.ndim == 4:
        return _frame_by_frame(frames)
    return (frames * 255).clamp_(0, 255).to(torch.uint8).contiguous()


def _frame_by_frame(frames: torch.Tensor) -> torch.Tensor:
    """NumPy takes a third of PyTorch's time to make bytes, and two thirds to put planes together one by one. What isn't
    finite becomes some byte."""
    pixels = np.empty(frames.shape, np.uint8)
    with np.errstate(invalid="ignore"):
        for frame, whole in zip(frames.detach(), pixels, strict=True):
            codes = (frame * 255).clamp_(0, 255).float().numpy().astype(np.uint8)
            for channel in range(codes.shape[-1]):
                whole[..., channel] = codes[..., channel]
    return torch.from_numpy(pixels)
