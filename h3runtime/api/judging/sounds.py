"""Which part of a measured sound is used, and how many latents that is. Fed by `guides` and `references`."""

from __future__ import annotations

from h3runtime.core import MediaFile, SoundInput
from h3runtime.media.intake.examine import Measured
from h3runtime.packing.rows import latents_of_sound


def seconds_left(measured: Measured, start: float = 0.0) -> float:
    """Of the sound from `start` seconds on; 0 or less if it has ended by then or there is none."""
    return 0.0 if measured.sound is None else measured.sound.seconds - start


def latents_left(measured: Measured, start: float = 0.0, seconds: float | None = None) -> int:
    """Whole latents of `seconds` of the sound from `start` on, or of all that is left."""
    if measured.sound is None:
        return 0
    rate = measured.sound.rate
    left = measured.sound.samples - round(start * rate)
    return latents_of_sound(max(0, left if seconds is None else min(left, round(seconds * rate))), rate)


def own_sound(
    file: MediaFile, measured: Measured, start: float = 0.0, seconds: float | None = None
) -> SoundInput | None:
    """A clip's own sound, if there is enough of it for a latent."""
    return SoundInput(file, start, seconds) if latents_left(measured, start, seconds) else None
