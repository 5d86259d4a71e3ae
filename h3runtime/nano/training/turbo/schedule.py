"""Where the few-step adapter steps: the published Turbo rule, on both clocks.

    b_i = (N - i) / N,  i = 0..N;   sigma_video = S_12(b_i),  sigma_audio = S_3(b_i);   Euler  (dit-contract §7.2)

These are the `simple` and `linear` schedules of N forwards, and Euler on both clocks is Euler on the carried latent
(dit-contract §5.2). The teacher divides each step evenly in the base. Numbers only; read by `landing` and `judging`.
"""

from __future__ import annotations

from typing import Final

from h3runtime.denoiser.schedule import shift_base
from h3runtime.nano.training.transformer import AUDIO_SHIFT, SHIFT

FORWARDS: Final = 4
NAME: Final = "h3_nano_turbo_4step"
"""By which `checkpoint.lora.contracts` knows the adapter."""


def bases(forwards: int) -> tuple[float, ...]:
    """b_0 = 1 to b_N = 0."""
    return tuple((forwards - i) / forwards for i in range(forwards + 1))


def between(first: float, last: float, parts: int) -> tuple[float, ...]:
    """From one base to the next in `parts` even steps, both ends included."""
    return (*(first + (last - first) * i / parts for i in range(parts)), last)


def lengths(now: float, after: float) -> tuple[float, float]:
    """What a step from base to base takes off the video's sigma and off the audio's."""
    video, audio = (shift_base(now, shift) - shift_base(after, shift) for shift in (SHIFT, AUDIO_SHIFT))
    return video, audio
