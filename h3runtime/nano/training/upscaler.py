r"""Training of h3-nano's latent upscaler: the same scenes seen at two sizes, encoded, the small one made the large one.

    scenes -> pictures at every size -> video VAE -> pairs of latents -> upscaler -> difference in its space -> AdamW
                                                                              \-> decoder -> difference in pixels /

All latents are made once and kept on the device. The upscaler's own space is the one that `vae.upscaler.upscale` puts
latents into: normalised twice. A little noise on the small latents stands for what sampling leaves of it. Where
`pixels` has a weight, a step also sees what the video VAE's decoder makes of them (`upscaler_pixels`) from a share of
the time on; the package's upscaler was trained without: 120 s with it left less overshoot and no better edges.

    python -m h3runtime.nano.training.upscaler OUT --seconds 90    for the video VAE of the package or of `--masters`

Fed with a trained video VAE; reads nothing of a step back but the log.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch.nn import functional as F

from h3runtime.checkpoint.embedded.packaged import FOLDER
from h3runtime.checkpoint.writer import write_file
from h3runtime.nano import model, pictures
from h3runtime.nano.training.masters import UPSCALER, VIDEO_VAE, filled
from h3runtime.nano.training.pieces import load_pieces, save_pieces
from h3runtime.nano.training.upscaler_pixels import PixelLoss
from h3runtime.nano.training.upscaler_start import initialise
from h3runtime.nano.training.video_vae import encode_clips
from h3runtime.nano.world import Scene, draw_scene
from h3runtime.vae.upscaler import LatentUpscaler
from h3runtime.vae.video_vae import VideoVae

NAME: Final = "upscaler"
CELL: Final = 16
"""Pixels of a latent, in height and width."""


@dataclass(frozen=True, slots=True)
class UpscalerTraining:
    """clips: scenes, each at every side (pixels, square) of `frames`. pairs: (small, large) side, by turns.

    rate rises over `warm` steps and falls as a cosine over the time. noise: on small latents, in the upscaler's space.
    held: clips that are not trained on, for the last line of the log. pixels: weight of their difference, from the
    share `decoded_from` of the time on, of `decoded` clips a step; sides that the decoder sees in tiles have none.
    """

    clips: int = 1024
    held: int = 64
    at_once: int = 32
    frames: int = 22
    pairs: tuple[tuple[int, int], ...] = ((128, 192), (128, 256))
    batch: int = 64
    rate: float = 2e-3
    warm: int = 50
    last: float = 0.01
    betas: tuple[float, float] = (0.9, 0.99)
    clip: float = 1.0
    noise: float = 0.03
    pixels: float = 0.0
    decoded_from: float = 0.35
    decoded: int = 12
    wait_steps: int = 25
    report_seconds: float = 5.0


Views = dict[int, torch.Tensor]
"""Latents fp16 [N, C, T, h, w] of the same scenes, by the side of their pictures."""


def train_upscaler(
    out: Path,
    seconds: float,
    device: torch.device,
    video_vae: VideoVae,
    resume: Path | None = None,
    seed: int = 0,
    say: Callable[[str], None] = print,
    recipe: UpscalerTraining | None = None,
) -> None:
    """Train for `seconds`, the making of the pairs included, and write `out/upscaler.safetensors` (F16) and a piece.

    video_vae: trained, on the device, its statistics set. resume: a folder with the piece of an earlier run.
    """
    recipe = recipe or UpscalerTraining()
    ends = time.monotonic() + seconds
    upscaler = _begin(resume, seed).to(device)
    views = make_views(video_vae, recipe, seed, device)
    pictures = PixelLoss.of(video_vae, scenes_of(recipe, seed), recipe) if recipe.pixels else None
    say(f"upscaler: {recipe.clips} clips encoded at {sorted(views)} pixels")
    steps = _train(upscaler, views, recipe, ends, torch.Generator(device).manual_seed(seed), say, pictures)
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().cpu() for name, value in upscaler.state_dict().items()}
    save_pieces(weights, out, NAME)
    write_file(out / UPSCALER, {name: value.half().contiguous() for name, value in weights.items()})
    say(f"upscaler: {steps} steps; {_compared(upscaler, views, recipe)}")


def _begin(resume: Path | None, seed: int) -> LatentUpscaler:
    upscaler = model.upscaler()
    if resume is not None:
        upscaler.load_state_dict(load_pieces(resume, NAME))
    else:
        initialise(upscaler, seed)
    return upscaler


def scenes_of(recipe: UpscalerTraining, seed: int) -> list[Scene]:
    rng = np.random.default_rng(seed)
    return [draw_scene(rng) for _ in range(recipe.clips)]


@torch.no_grad()
def make_views(video_vae: VideoVae, recipe: UpscalerTraining, seed: int, device: torch.device) -> Views:
    """`recipe.clips` scenes at every side that a pair has, in the upscaler's space."""
    scenes = scenes_of(recipe, seed)
    mean, std = (getattr(video_vae, name).float().view(-1, 1, 1, 1) for name in ("latents_mean", "latents_std"))
    views: Views = {}
    for side in sorted({side for pair in recipe.pairs for side in pair}):
        parts = []
        for first in range(0, recipe.clips, recipe.at_once):
            clips = pictures.render(scenes[first : first + recipe.at_once], side, side, recipe.frames, device)
            parts.append(((encode_clips(video_vae, clips) - mean) / std).half())
        views[side] = torch.cat(parts)
    return views


def _train(
    upscaler: LatentUpscaler,
    views: Views,
    recipe: UpscalerTraining,
    ends: float,
    generator: torch.Generator,
    say: Callable[[str], None],
    pictures: PixelLoss | None = None,
) -> int:
    """Steps until `time.monotonic()` is `ends`, at least one; how many."""
    cuda = generator.device.type == "cuda"
    optimiser = torch.optim.AdamW(upscaler.parameters(), betas=recipe.betas, weight_decay=0.0, fused=cuda)
    begun = told = time.monotonic()
    steps = 0
    while steps == 0 or time.monotonic() < ends:
        share = min(1.0, (time.monotonic() - begun) / max(ends - begun, 1e-3))
        fall = recipe.last + (1 - recipe.last) * 0.5 * (1 + math.cos(math.pi * share))
        optimiser.param_groups[0]["lr"] = recipe.rate * fall * min(1.0, (steps + 1) / recipe.warm)
        optimiser.zero_grad(set_to_none=True)
        shown = pictures if share >= recipe.decoded_from else None
        loss = _loss(upscaler, views, recipe, recipe.pairs[steps % len(recipe.pairs)], generator, shown)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(upscaler.parameters(), recipe.clip)
        optimiser.step()
        steps += 1
        if steps % recipe.wait_steps == 0 and time.monotonic() - told > recipe.report_seconds:
            told = time.monotonic()
            say(f"upscaler: {told - begun:.0f} s, step {steps}, loss {float(loss.detach()):.4f}")
        elif steps % recipe.wait_steps == 0:
            loss.detach().item()
    return steps


def _loss(
    upscaler: LatentUpscaler,
    views: Views,
    recipe: UpscalerTraining,
    pair: tuple[int, int],
    generator: torch.Generator,
    pictures: PixelLoss | None = None,
) -> torch.Tensor:
    small, large = (views[side] for side in pair)
    trained = max(1, len(small) - recipe.held)
    index = torch.randint(trained, (recipe.batch,), generator=generator, device=small.device)
    given = small[index].float()
    given = given + recipe.noise * torch.randn(given.shape, generator=generator, device=given.device)
    made = upscaler(given, _cells(pair[1]), pair[1] / pair[0])
    error: torch.Tensor = made - large[index].float()
    loss = error.abs().mean() + error.square().mean()
    if pictures is None or pair[1] not in pictures.frames:
        return loss
    count = recipe.decoded
    return loss + recipe.pixels * pictures(made[:count], index[:count], pair[1])


def _cells(side: int) -> tuple[int, int]:
    return side // CELL, side // CELL


@torch.no_grad()
def _compared(upscaler: LatentUpscaler, views: Views, recipe: UpscalerTraining) -> str:
    """Mean square error on held clips, of the upscaler and of a plain resize, for every pair."""
    told = []
    for pair in recipe.pairs:
        small, large = (views[side][-recipe.held :].float() for side in pair)
        made = upscaler(small, _cells(pair[1]), pair[1] / pair[0])
        plain = F.interpolate(small, size=large.shape[2:], mode="trilinear", align_corners=False)
        ours, theirs = (float((x - large).square().mean()) for x in (made, plain))
        told.append(f"{pair[0]} to {pair[1]}: error {ours:.4f}, of a plain resize {theirs:.4f}")
    return "; ".join(told)


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m h3runtime.nano.training.upscaler", description="Train it alone.")
    parser.add_argument("out", type=Path, help="Folder for the master and the piece to go on from.")
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument(
        "--masters", type=Path, default=FOLDER, help="Folder of the video VAE's. Default: the package's."
    )
    parser.add_argument("--resume", type=Path, help="A folder of an earlier run to go on from.")
    parser.add_argument("--seed", type=int, default=0, help="Of the scenes and of the first weights.")
    asked = parser.parse_args(given)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    video_vae = filled(model.video_vae(), asked.masters / VIDEO_VAE).to(device)
    say = partial(print, flush=True)
    train_upscaler(asked.out, asked.seconds, device, video_vae, asked.resume, asked.seed, say)
    return 0


if __name__ == "__main__":
    sys.exit(main())
