"""One clip in figures: what the judge sees and hears in it, and how far it is from others.

    verdict        the judge's items: true, false, or null where the scene says nothing of it
    exact, anchor  against the exact clip of the same schedule, and the anchor: SSIM (mean of every third frame),
                   PSNR (null: infinite), log-mel distance of the sound in dB, relative L2 of both latents
    first, last    SSIM of the clip's first or last frame with the picture that it was given
    alarms         what the engine's own checks find, each led by its check's name
    checks         their figures

Fed by `quality` with what `quality_engines` made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.quality_engines import Made
from benchmarks.quality_prompts import Ends, Prompt
from h3runtime.media.similarity import psnr, ssim
from h3runtime.nano.judge import judge
from h3runtime.quality.distances import clip_ssim, sound_distance


def measure(made: Made, prompt: Prompt, ends: Ends, exact: Made | None, anchor: Made | None) -> dict[str, Any]:
    """Ready for JSON. A clip isn't compared with itself: None where it is the one to compare with."""
    verdict = judge(prompt.scene, made.frames, made.samples)
    return {
        "verdict": {item: None if value is None else bool(value) for item, value in verdict.items()},
        "exact": None if exact is None else distance(exact, made),
        "anchor": None if anchor is None else distance(anchor, made),
        "first": None if ends.first is None else ssim(ends.first, made.frames[0]),
        "last": None if ends.last is None else ssim(ends.last, made.frames[-1]),
        "seconds": made.seconds,
        "sampling": made.sampling,
        "forwards": made.forwards,
        "alarms": [f"{name}: {text}" for name, check in made.checks.items() for _, text in check.findings],
        "checks": {
            f"{name} {key}": float(x) for name, check in made.checks.items() for key, x in check.figures.items()
        },
    }


def distance(reference: Made, made: Made) -> dict[str, float | None]:
    error = made.frames.astype(np.float32) - reference.frames
    return {
        "ssim": clip_ssim(reference.frames, made.frames),
        "psnr": psnr(float(np.square(error).mean())),
        "log_mel_db": sound_distance(reference.samples, made.samples),
        "video_l2": _relative(reference.latents.video, made.latents.video),
        "audio_l2": _relative(reference.latents.audio, made.latents.audio),
    }


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((b - a).norm() / a.norm())
