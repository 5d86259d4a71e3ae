"""Pictures that were enlarged beside what they were enlarged from, or beside the truth: edges, fine detail, colour.

    overshoot        8-bit levels by which pixels near an edge leave the range that the reference has around them (five
                     pixels each way): halos and ringing. Mean over the pixels near edges
    high_frequency   energy of the luma beyond half of Nyquist, which no clip of half the size has, as a share of the
                     reference's. 1 is as sharp, less is softer, more is noise or ringing
    chroma_edge      mean absolute difference of Cb and Cr near edges, in 8-bit levels: colour beside its edge
    psnr, ssim       of the whole

All uint8 [F, H, W, 3] of the same size; every third frame counts. Edges are where the reference's luma changes by more
than `EDGE` levels from one pixel to the next, and two pixels around them. Fed by `upscale`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from h3runtime.media.similarity import psnr, ssim

FRAMES_APART = 3
EDGE = 24.0
AROUND = 2
NEIGHBOURS = 11
"""Pixels of the window whose range counts: five each way."""
Pictures = NDArray[np.uint8]
Plane = NDArray[np.float64]


def compare(made: Pictures, reference: Pictures) -> dict[str, float]:
    """Means over frames; figures of edges over the frames that have any."""
    pairs = list(zip(made[::FRAMES_APART], reference[::FRAMES_APART], strict=True))
    error = float(np.mean([np.square(m.astype(np.float64) - r).mean() for m, r in pairs]))
    energies = [(detail(luma(m)), detail(luma(r))) for m, r in pairs]
    return {
        "overshoot": _mean(overshoot, pairs),
        "high_frequency": sum(e for e, _ in energies) / max(sum(e for _, e in energies), 1e-9),
        "chroma_edge": _mean(chroma_edge, pairs),
        "psnr": psnr(error) or float("inf"),
        "ssim": float(np.mean([ssim(m, r) for m, r in pairs])),
    }


def enlarged(frames: Pictures, width: int, height: int) -> Pictures:
    """By a plain bicubic resize."""
    resized = [Image.fromarray(frame).resize((width, height), Image.Resampling.BICUBIC) for frame in frames]
    return np.stack([np.asarray(picture, np.uint8) for picture in resized])


def luma(frame: Pictures) -> Plane:
    """BT.601, 0..255."""
    weighted: Plane = frame @ np.array([0.299, 0.587, 0.114])
    return weighted


def edges(frame: Pictures) -> NDArray[np.bool_]:
    plane = luma(frame)
    steep = np.zeros(plane.shape, bool)
    steep[:, 1:] |= np.abs(np.diff(plane, axis=1)) > EDGE
    steep[1:, :] |= np.abs(np.diff(plane, axis=0)) > EDGE
    found: NDArray[np.bool_] = ndimage.binary_dilation(steep, np.ones((3, 3), bool), iterations=AROUND)
    return found


def overshoot(made: Pictures, reference: Pictures) -> float | None:
    """None without an edge."""
    near = edges(reference)
    window = (NEIGHBOURS, NEIGHBOURS, 1)
    low, high = (f(reference, size=window).astype(np.float64) for f in (ndimage.minimum_filter, ndimage.maximum_filter))
    beyond = np.maximum(made - high, 0) + np.maximum(low - made, 0)
    return float(beyond[near].mean()) if near.any() else None


def chroma_edge(made: Pictures, reference: Pictures) -> float | None:
    near = edges(reference)
    return float(np.abs(_chroma(made) - _chroma(reference))[near].mean()) if near.any() else None


def detail(plane: Plane) -> float:
    """Energy beyond a quarter of a cycle a pixel, in either direction."""
    spectrum = np.fft.rfft2(plane - plane.mean())
    fine = np.maximum(np.abs(np.fft.fftfreq(plane.shape[0]))[:, None], np.fft.rfftfreq(plane.shape[1])[None]) > 0.25
    return float(np.square(np.abs(spectrum[fine])).sum()) / plane.size


def _chroma(frame: Pictures) -> Plane:
    pixels, plane = frame.astype(np.float64), luma(frame)
    return np.stack([(pixels[..., 2] - plane) / 1.772, (pixels[..., 0] - plane) / 1.402], axis=-1)


def _mean(of: Callable[[Pictures, Pictures], float | None], pairs: list[tuple[Pictures, Pictures]]) -> float:
    found = [value for pair in pairs if (value := of(*pair)) is not None]
    return float(np.mean(found)) if found else 0.0
