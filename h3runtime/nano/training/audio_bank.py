"""Sounds to train the audio VAE on: a bank made once on the device, and batches cut from it without the host.

    Bank.waves [N, 2, A, 800] float32: A latents of N sounds -> draw(...) -> mono segments [B, 1, 800 length]

Half of a bank and more are drawn scenes of three lengths, as they will be heard; the rest are steady tones of every
timbre and pitch of 160..1000 Hz (references may have them), beginning and ending anywhere, and some silence. Segments
begin at whole latents, so a steady tone has the same phase in every latent of every segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from h3runtime.core import SAMPLES_PER_LATENT
from h3runtime.nano.sounds import sound, voice
from h3runtime.nano.world import TIMBRES, draw_scene

LENGTH: Final = 37
"""Latents of one sound in the bank: all of the shortest clip."""
FRAMES: Final = (22, 22, 39, 124)
"""Lengths of the scenes, in turn; of the longer ones a random part is kept."""
PITCHES: Final = tuple(float(p) for p in range(160, 1001, 40))
"""Hz. Whole periods in one latent, like the world's own."""
AT_ONCE: Final = 64
"""Scenes rendered together: the longest clips of so many take 85 MB."""
EDGE: Final = 80
"""Samples in which a tone of the bank begins or ends: 2.5 ms, as steep as a pluck."""


@dataclass(frozen=True, slots=True, eq=False)
class Bank:
    """waves [N, 2, LENGTH, 800] float32 in [-1, 1]."""

    waves: torch.Tensor

    def draw(self, batch: int, length: int, generator: torch.Generator) -> torch.Tensor:
        """Mono segments [batch, 1, 800 length] by lot: any side of any sound, half of them louder or softer."""
        device = self.waves.device
        sides = self.waves.flatten(0, 1)
        of = torch.randint(len(sides), (batch, 1), generator=generator, device=device)
        begin = torch.randint(LENGTH - length + 1, (batch, 1), generator=generator, device=device)
        segments = sides[of, begin + torch.arange(length, device=device)]
        level = torch.rand(batch, 1, 1, generator=generator, device=device)
        gain = 1 + (level >= 0.5) * (2 * level - 1.8)
        return (segments * gain).view(batch, 1, length * SAMPLES_PER_LATENT)


def make_bank(sounds: int, seed: int, device: torch.device) -> Bank:
    """`sounds` of them, 600 KB each: 3/4 scenes, 1/4 tones, in parts by lot of `seed`."""
    rng = np.random.default_rng(seed)
    scenes = sounds - sounds // 4
    parts = list(_scenes(scenes, rng, device))
    parts.append(_tones(sounds - scenes, torch.Generator().manual_seed(seed), device))
    return Bank(torch.cat(parts))


def _scenes(count: int, rng: np.random.Generator, device: torch.device) -> Iterator[torch.Tensor]:
    for part, first in enumerate(range(0, count, AT_ONCE)):
        scenes = [draw_scene(rng) for _ in range(min(AT_ONCE, count - first))]
        waves = torch.unflatten(sound(scenes, FRAMES[part % len(FRAMES)], device), -1, (-1, SAMPLES_PER_LATENT))
        begin = int(rng.integers(waves.shape[2] - LENGTH + 1))
        yield waves[:, :, begin : begin + LENGTH]


def _tones(count: int, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    """[count, 2, LENGTH, 800]: tones that begin and end by lot (1 in 8 at once: silence), each side its own level."""
    every = torch.stack([voice(name, pitch, LENGTH, device)[0] for name in TIMBRES for pitch in PITCHES])
    which = torch.randint(len(every), (count,), generator=generator).to(device)
    samples = every.shape[-1]
    times = torch.rand(count, 2, 1, generator=generator).mul(1.8).sub(0.4).mul(samples).to(device)
    clock = torch.arange(samples, device=device)
    begun = ((clock - times[:, 0]) / EDGE).clamp(0, 1)
    ended = ((clock - times[:, 1]) / EDGE).clamp(0, 1)
    levels = torch.rand(count, 2, 1, generator=generator).mul(1.6).to(device)
    waves = (every[which] * (begun * (1 - ended))).unsqueeze(1) * levels
    return torch.unflatten(waves, -1, (LENGTH, SAMPLES_PER_LATENT))
