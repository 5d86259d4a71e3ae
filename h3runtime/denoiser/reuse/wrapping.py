"""Settings -> what the loop's steps ask in place of the network itself.

What is made belongs to one run, whose steps it remembers: `denoise` makes one for every run.
"""

from __future__ import annotations

from typing import cast

from h3runtime.core import SamplerSettings, StepReuse
from h3runtime.denoiser.network import PreparedT, Velocities
from h3runtime.denoiser.reuse.first_block import FirstBlockReuse, Staged
from h3runtime.denoiser.reuse.latents import LatentReuse
from h3runtime.denoiser.reuse.log import ReuseLog


def reusing(
    network: Velocities[PreparedT], settings: StepReuse, sampling: SamplerSettings, log: ReuseLog
) -> Velocities[PreparedT]:
    """`network`, asked at fewer steps. TypeError for `first_block` with a network that has no blocks to stop behind."""
    if settings.mode != "first_block":
        return LatentReuse(network, settings, sampling.shift, sampling.audio_shift, log)
    if not isinstance(network, Staged):
        raise TypeError(f"{type(network).__name__} can't be asked for its first block alone")
    return cast(Velocities[PreparedT], FirstBlockReuse(network, settings, sampling.shift, log))
