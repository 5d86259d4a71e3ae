"""What a training has come to: clips of captions that it never had, sampled, decoded and judged.

`python -m h3runtime.nano.training.looking FOLDER` reads the pieces and masters that a training leaves there, also while
it goes on, and writes a sheet and the judge's figures. Text alone; what counts is measured through the runtime's own
engine. Fed with scenes by lot; `command` looks at the end in the same way.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from h3runtime.nano import model
from h3runtime.nano.captions import caption
from h3runtime.nano.judge import judge, score
from h3runtime.nano.training import clips, samples
from h3runtime.nano.training.audio_vae import decode_sounds
from h3runtime.nano.training.lectern import Batch, Lectern
from h3runtime.nano.training.masters import AUDIO_VAE, VIDEO_VAE, filled
from h3runtime.nano.training.pupil import Pupil
from h3runtime.nano.training.tasks import TASKS
from h3runtime.nano.training.video_vae import decode_clips
from h3runtime.nano.vocabulary import Vocabulary
from h3runtime.nano.world import Split, draw_scene
from h3runtime.packing.geometry import audio_latents, latent_frames
from h3runtime.vae.audio_vae import AudioVae
from h3runtime.vae.video_vae import VideoVae

STEPS = 16
"""Forwards of a sample."""
ROWS = 12
"""Clips on a sheet."""


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m h3runtime.nano.training.looking", description="Judge a training.")
    parser.add_argument("folder", type=Path, help="Where a training leaves its pieces and masters.")
    parser.add_argument("--clips", type=int, default=48, help="How many.")
    parser.add_argument("--split", choices=("trained", "held_out"), default="trained", help="Combinations drawn from.")
    parser.add_argument("--size", default="128x128x22", help="WIDTHxHEIGHTxFRAMES.")
    arguments = parser.parse_args(given)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    vocabulary = Vocabulary.load()
    pupil = Pupil.begin(vocabulary, device, 0, arguments.folder)
    vaes = read_vaes(arguments.folder, device)
    width, height, frames = map(int, arguments.size.split("x"))
    size = clips.Size(width, height, frames, arguments.clips)
    batch = asked(pupil, vocabulary, size, arguments.split, 777)
    print(arguments.size, arguments.split, look(pupil, batch, *vaes, arguments.folder, f"look-{arguments.split}"))
    return 0


def read_vaes(folder: Path, device: torch.device) -> tuple[VideoVae, AudioVae]:
    """Both masters, on the device."""
    video, audio = filled(model.video_vae(), folder / VIDEO_VAE), filled(model.audio_vae(), folder / AUDIO_VAE)
    return video.to(device), audio.to(device)


@torch.no_grad()
def asked(pupil: Pupil, vocabulary: Vocabulary, size: clips.Size, split: Split, seed: int) -> Batch:
    """Captions of new scenes, as a batch without clips."""
    rng = np.random.default_rng(seed)
    scenes = tuple(draw_scene(rng, split) for _ in range(size.clips))
    texts = tuple((clips.tokenised(caption(scene, rng)),) for scene in scenes)
    device, config = pupil.dit.device, pupil.dit.config
    t, h, w = latent_frames(size.frames), size.height // 16, size.width // 16
    video = torch.zeros(len(scenes), config.video_row // 4, t, h, w, device=device)
    audio = torch.zeros(len(scenes), config.audio_channels, 2, audio_latents(size.frames), device=device)
    none = torch.zeros(0, device=device)
    shelf = clips.Shelf(size, scenes, {(False, False): texts}, video, audio, none, none)
    lectern = Lectern([shelf], clips.References({}, {}, none), vocabulary, pupil.dit)
    each, generator = torch.arange(len(scenes), device=device), torch.Generator(device).manual_seed(seed)
    return lectern.draw(lectern.bucket(0, TASKS[0], count=len(scenes)), generator, each)


def look(pupil: Pupil, batch: Batch, video_vae: VideoVae, audio_vae: AudioVae, folder: Path, name: str) -> str:
    """Sample a batch, keep a sheet `name`.png and the clips beside it; the judge's figures, in words."""
    dtype = torch.bfloat16 if pupil.dit.device.type == "cuda" else torch.float32
    video, audio = samples.sample(pupil.dit, pupil.encoder, batch, STEPS, 0, dtype)
    frames, heard = decode_clips(video_vae, video).cpu().numpy(), decode_sounds(audio_vae, audio).cpu().numpy()
    samples.sheet(frames[:ROWS], folder / f"{name}.png")
    samples.keep(batch, frames, heard, folder)
    found = score(judge(scene, *clip) for (_, scene), *clip in zip(batch.asked(), frames, heard, strict=True))
    return ", ".join(f"{item} {share:.0%}" for item, (share, count) in found.items() if count)


if __name__ == "__main__":
    raise SystemExit(main())
