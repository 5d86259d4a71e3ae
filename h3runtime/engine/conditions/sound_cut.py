"""How much of a sound goes into the audio VAE.

    whole    all of it; the VAE itself keeps the middle A = floor(n / 800) latents (conditioning contract §5.2)
    within   its first `latents` latents. A guide's sound may be an hour long, where a few seconds fit; latent j depends
             on nothing more than `REACH` latents after it, so that much more is encoded and cut off again. The spare
             samples stay as many as the whole sound has, so that the VAE's middle lies where the whole sound's does.
    filling  exactly `latents` latents, cut at the end or continued with silence

Numpy only. Fed by `media_encoder`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from h3runtime.core import SAMPLES_PER_LATENT

REACH = 16
"""Latents. The first n need 800 n + 9125 samples, 12 latents more (conditioning contract §5.2: from the last kernel of
3 back through five stages of three dilated kernels of 7 to the stem); the attention is causal."""

Waveform = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SoundCut:
    """latents: of no meaning to `whole`."""

    kind: Literal["whole", "within", "filling"] = "whole"
    latents: int = 0

    def of(self, waveform: Waveform) -> Waveform:
        """float32 [2, n] at 32 kHz -> what is encoded, [2, m]."""
        samples = waveform.shape[1]
        if self.kind == "filling":
            wanted = self.latents * SAMPLES_PER_LATENT
            return np.pad(waveform[:, :wanted], ((0, 0), (0, max(0, wanted - samples))))
        if self.kind == "within" and samples // SAMPLES_PER_LATENT > self.latents + REACH:
            return waveform[:, : (self.latents + REACH) * SAMPLES_PER_LATENT + samples % SAMPLES_PER_LATENT]
        return waveform

    def samples(self, waveform: Waveform) -> int:
        """How many of the sound's own samples count, of those that `of` gives."""
        given: int = self.of(waveform).shape[1]
        return min(given, self.latents * SAMPLES_PER_LATENT) if self.kind == "within" else given
