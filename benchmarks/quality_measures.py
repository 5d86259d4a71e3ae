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

import torch

from benchmarks.quality_engines import Made
from benchmarks.quality_pictures import clip_ssim, mean_square, working
from benchmarks.quality_prompts import Ends, Prompt
from h3runtime.media.similarity import psnr, ssim
from h3runtime.nano.hearing import listen
from h3runtime.nano.judge import Verdict, compare
from h3runtime.nano.seeing import look
from h3runtime.nano.world import track
from h3runtime.quality.distances import sound_distance


def measure(made: Made, prompt: Prompt, ends: Ends, exact: Made | None, anchor: Made | None) -> dict[str, Any]:
    """Ready for JSON. A clip isn't compared with itself: None where it is the one to compare with."""
    return {
        "verdict": {item: None if value is None else bool(value) for item, value in _verdict(made, prompt).items()},
        "exact": None if exact is None else distance(exact, made),
        "anchor": None if anchor is None else distance(anchor, made),
        "first": None if ends.first is None else ssim(ends.first, made.frames[0].cpu().numpy()),
        "last": None if ends.last is None else ssim(ends.last, made.frames[-1].cpu().numpy()),
        "seconds": made.seconds,
        "sampling": made.sampling,
        "forwards": made.forwards,
        "alarms": [f"{name}: {text}" for name, check in made.checks.items() for _, text in check.findings],
        "checks": {
            f"{name} {key}": float(x) for name, check in made.checks.items() for key, x in check.figures.items()
        },
    }


def _verdict(made: Made, prompt: Prompt) -> Verdict:
    """`judge`'s, of frames that were reduced where they are."""
    count, height, width, _ = made.frames.shape
    tracks = [track(actor, count, height / min(height, width)) for actor in prompt.scene.actors]
    return compare(prompt.scene, tracks, look(working(made.frames)), listen(made.samples, count))


def distance(reference: Made, made: Made) -> dict[str, float | None]:
    return {
        "ssim": clip_ssim(reference.frames, made.frames),
        "psnr": psnr(mean_square(reference.frames, made.frames)),
        "log_mel_db": sound_distance(reference.samples, made.samples),
        "video_l2": _relative(reference.latents.video, made.latents.video),
        "audio_l2": _relative(reference.latents.audio, made.latents.audio),
    }


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((b - a).norm() / a.norm())
