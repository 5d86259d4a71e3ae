"""What the lessons are about: captions of new scenes, and on some shelves clips whose pictures keyframes show.

    plain    captions alone: nothing is rendered or encoded, keyframes can't be asked for
    shown    as the joint training's shelves, encoded once by both VAEs

No lesson reads a clip's own latents, so a plain shelf has zeros of their shape that take no memory. Without the
wordings of Ref2VA, which is another adapter's. Fed by `command`; the trainer draws batches from the lectern.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from h3runtime.denoiser.config import DitConfig
from h3runtime.nano.captions import caption
from h3runtime.nano.training import clips
from h3runtime.nano.training.curriculum import Sizes
from h3runtime.nano.training.joint import Say
from h3runtime.nano.training.lectern import Lectern
from h3runtime.nano.training.tasks import Task
from h3runtime.nano.training.turbo.teacher import Teacher
from h3runtime.nano.world import draw_scene
from h3runtime.packing.geometry import audio_latents, latent_frames

EACH = 2
"""Captions of a scene."""


class CaptionLectern(Lectern):
    """Knows which shelves have pictures for keyframes."""

    def has(self, number: int, task: Task) -> bool:
        return super().has(number, task) and (not task.stills or self.shelves[number].stills.numel() > 0)


def lectern(teacher: Teacher, sizes: Sizes, seed: int, workers: int, *, keyframes: bool, say: Say) -> Lectern:
    """keyframes: whether clips are rendered for them, which takes a CPU seconds each."""
    none = torch.zeros(0, device=teacher.dit.device)
    made = (_shown if keyframes else _plain)(teacher, sizes, seed, workers, say)
    return CaptionLectern(made, clips.References({}, {}, none), teacher.vocabulary, teacher.dit)


def _plain(teacher: Teacher, sizes: Sizes, seed: int, _workers: int, say: Say) -> list[clips.Shelf]:
    found = [plain_shelf(size, teacher.dit.config, seed + i, teacher.dit.device) for i, size in enumerate(sizes.sizes)]
    say(f"captions of {sum(size.clips for size in sizes.sizes)} scenes")
    return found


def _shown(teacher: Teacher, sizes: Sizes, seed: int, workers: int, say: Say) -> list[clips.Shelf]:
    with clips.Planner(sizes.sizes, seed, workers) as planner:
        made = clips.shelves(sizes.sizes, planner, teacher.video_vae, teacher.audio_vae, teacher.dit.device, say)
    return [replace(shelf, captions=_without_references(shelf.captions)) for shelf in made]


def plain_shelf(size: clips.Size, config: DitConfig, seed: int, device: torch.device) -> clips.Shelf:
    """Scenes of the trained combinations, as the joint training had."""
    rng = np.random.default_rng(seed)
    scenes = tuple(draw_scene(rng, "trained") for _ in range(size.clips))
    texts = tuple(tuple(clips.tokenised(caption(scene, rng)) for _ in range(EACH)) for scene in scenes)
    video = config.video_row // 4, latent_frames(size.frames), size.height // 16, size.width // 16
    audio = config.audio_channels, 2, audio_latents(size.frames)
    zero, none = torch.zeros(1, device=device), torch.zeros(0, device=device)
    captions = _without_references(dict.fromkeys(clips.WORDINGS, texts))
    return clips.Shelf(
        size, scenes, captions, zero.expand(len(scenes), *video), zero.expand(len(scenes), *audio), none, none
    )


def _without_references(captions: clips.Captions) -> clips.Captions:
    return {wording: tuple(() if any(wording) else own for own in texts) for wording, texts in captions.items()}
