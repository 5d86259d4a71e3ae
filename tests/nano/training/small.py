"""A pupil and a lectern small enough for tests: what is tested with them doesn't depend on sizes."""

from __future__ import annotations

import torch

from h3runtime.checkpoint.synthetic import layouts
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit
from h3runtime.nano import model
from h3runtime.nano.training import clips, transformer
from h3runtime.nano.training.lectern import Lectern
from h3runtime.nano.training.pupil import Pupil
from h3runtime.nano.training.tasks import TASKS
from h3runtime.nano.training.text_master import initialise
from h3runtime.nano.vocabulary import Vocabulary
from tests.nano.training.untrained import untrained_audio_vae, untrained_video_vae

SIZE = clips.Size(64, 64, 5, 12)
SMALL_TASKS = [task for task in TASKS if task.side <= SIZE.width]
"""Those whose pictures fit such a canvas."""
CPU = torch.device("cpu")
SIZES = layouts.TransformerSizes(
    hidden=128, layers=2, refiner_layers=1, heads=1, ffn=256, text_dim=128, curve=(1025, 8)
)


def small_dit() -> Dit:
    dit = Dit(DitConfig.from_shapes(layouts.transformer_shapes(SIZES)), dtype=torch.float32)
    transformer.initialise(dit, 0)
    return dit


def spoken(dit: Dit) -> Dit:
    """One that has something to say, in place and frozen: fresh heads are silent."""
    lots = torch.Generator().manual_seed(1)
    for name, value in dit.named_parameters():
        if "adaln" in name or "final_layer" in name:
            value.data.add_(0.1 * torch.randn(value.shape, generator=lots).to(value.device))
    return dit.requires_grad_(False)


def small_pupil(device: torch.device = CPU) -> Pupil:
    encoder = model.text_encoder(Vocabulary.load().rows)
    initialise(encoder, 0)
    return Pupil.of(small_dit().to(device), encoder.to(device))


def small_lectern(device: torch.device = CPU) -> Lectern:
    video, audio = untrained_video_vae().to(device), untrained_audio_vae().to(device)
    with clips.Planner([SIZE], seed=1, workers=0) as planner:
        shelves = clips.shelves([SIZE], planner, video, audio, device, print)
    references = clips.references(video, audio, device, (SIZE.width,))
    return Lectern(shelves, references, Vocabulary.load(), small_dit().to(device))
