"""Clips from the model in training: sampled a batch at a time, decoded, drawn as sheets.

Euler on both clocks, each stream with its own sigma: what carrying the audio on the video's sigma comes to for Euler
(dit-contract §5.2). For looking while training; what counts is measured through the runtime's own engine.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.core import SamplerSettings
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.schedule import sigmas, unshift
from h3runtime.nano.training.lectern import Batch
from h3runtime.nano.training.text import encode_batch
from h3runtime.nano.training.transformer import SHIFT, audio_latent, predict, refine, sigmas_of, unpatchify
from h3runtime.nano.world import Actor, Scene


@torch.no_grad()
def sample(
    dit: Dit, encoder: TextEncoder, batch: Batch, steps: int, seed: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised latents fp32: video [B, 24, T, h, w], audio [B, 32, 2, A]."""
    device = batch.video.device
    generator = torch.Generator(device).manual_seed(seed)
    audio = torch.randn(batch.audio.shape, generator=generator, device=device)
    video = torch.randn(batch.video.shape, generator=generator, device=device)
    visited = [unshift(float(s), SHIFT) for s in sigmas(SamplerSettings(steps, scheduler="beta"))]
    with torch.autocast(device.type, dtype, enabled=dtype is not torch.float32):
        text = refine(dit, encode_batch(encoder, batch.text), batch.rows.text_mask)
        for now, after in pairwise(visited):
            base = torch.full((video.shape[0],), now, device=device)
            u_audio, u_video = predict(dit, batch.rows, text, batch.visual, batch.audible, audio, video, base)
            (v0, a0), (v1, a1) = sigmas_of(torch.tensor(now)), sigmas_of(torch.tensor(after))
            video = video + float(v0 - v1) * u_video
            audio = audio + float(a0 - a1) * u_audio
    t, h, w = batch.bucket.shelf.video.shape[2:]
    return unpatchify(video, t, h, w), audio_latent(audio)


def sheet(clips: NDArray[np.uint8], path: Path, columns: int = 8) -> None:
    """A PNG with one clip a row, `columns` of its frames side by side; clips uint8 [B, F, H, W, 3]."""
    frames = np.linspace(0, clips.shape[1] - 1, columns).round().astype(int)
    rows = [np.concatenate([clip[f] for f in frames], 1) for clip in clips]
    Image.fromarray(np.concatenate(rows, 0)).save(path)


def keep(batch: Batch, frames: NDArray[np.uint8], sounds: NDArray[np.float32], folder: Path) -> None:
    """What the judge needs: the clips, and beside them what was asked, caption and scene of each."""
    np.savez_compressed(folder / "samples.npz", frames=frames, sounds=sounds.astype(np.float16))
    asked = [{"caption": words, "scene": asdict(scene)} for words, scene in batch.asked()]
    (folder / "samples.json").write_text(json.dumps(asked, indent=1))


def kept(folder: Path) -> list[tuple[str, Scene, NDArray[np.uint8], NDArray[np.float32]]]:
    """Caption, scene, frames and samples of each clip that `keep` wrote."""
    asked = json.loads((folder / "samples.json").read_text())
    with np.load(folder / "samples.npz") as held:
        clips = zip(asked, held["frames"], held["sounds"].astype(np.float32), strict=True)
        return [(entry["caption"], _scene(entry["scene"]), frames, sounds) for entry, frames, sounds in clips]


def _scene(held: dict[str, Any]) -> Scene:
    return Scene(**(held | {"actors": tuple(Actor(**actor) for actor in held["actors"])}))
