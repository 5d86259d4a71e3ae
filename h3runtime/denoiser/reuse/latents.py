"""`easycache` and `h3_cache`: a network that compares the latents it is shown with those of the step before.

    below the threshold   the velocities of earlier steps, continued (`forecast`): the network isn't asked
    else                  the network's own, which are kept

Both streams come in their own units: the audio on its own clock, its carry undone. What is kept: one or two velocities
of each stream in the network's dtype, and each `subsample`-th of the latents in fp32. Within the window the host waits
for the device once a step, for two numbers; outside it, and for what is kept, never. Wrapped around a network by
`wrapping`.
"""

from __future__ import annotations

from typing import Generic

import torch

from h3runtime.core import StepReuse
from h3runtime.denoiser.masks import TokenMasks
from h3runtime.denoiser.network import PreparedT, Velocities
from h3runtime.denoiser.reuse.change import Pair, Weights, relative_change, thinned, thinned_masks
from h3runtime.denoiser.reuse.forecast import Extrapolation
from h3runtime.denoiser.reuse.log import ReuseLog
from h3runtime.denoiser.reuse.rule import Rule, Window
from h3runtime.denoiser.schedule import timesteps


class LatentReuse(Generic[PreparedT]):
    """One run's: not for a second one. shift, audio_shift: the run's."""

    def __init__(
        self, network: Velocities[PreparedT], settings: StepReuse, shift: float, audio_shift: float, log: ReuseLog
    ) -> None:
        self._network = network
        self._factor = settings.subsample
        self._shifts = shift, audio_shift
        self._window = Window.of(settings, shift)
        self._rule = Rule.of(settings)
        self._video, self._audio = Extrapolation(settings.forecast), Extrapolation(settings.forecast)
        self._before: Pair | None = None
        self._weights: Weights | None = None
        self._log = log

    def __call__(
        self,
        prepared: PreparedT,
        video: torch.Tensor,
        audio: torch.Tensor,
        sigma: float,
        *,
        step: int,
        masks: TokenMasks | None,
        sigma_next: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        own = timesteps(sigma, *self._shifts)
        if self._reuses(thinned(video, audio, self._factor), sigma, step, masks):
            self._log.reused.add(step)
            return self._video.at(own.sigma_video), self._audio.at(own.sigma_audio)
        made = self._network(prepared, video, audio, sigma, step=step, masks=masks, sigma_next=sigma_next)
        self._rule.computed()
        self._video.note(own.sigma_video, made[0])
        self._audio.note(own.sigma_audio, made[1])
        return made

    def _reuses(self, shown: Pair, sigma: float, step: int, masks: TokenMasks | None) -> bool:
        before, self._before = self._before, shown
        if before is None or not self._window.holds(sigma):
            return False
        if self._weights is None:
            self._weights = thinned_masks(masks, self._factor)
        change = relative_change(shown, before, self._weights)
        self._log.changes[step] = change
        return self._rule.allows(change)
