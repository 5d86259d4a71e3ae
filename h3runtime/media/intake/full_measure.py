"""What a clip or a sound really holds: decoded, counted, and everything that is wrong with it found.

Runs in `examiner`, after `packet_measure` found it worth decoding. Decodes by the same code as the job will
(`clip_pictures`, `sound_pieces`), so that what passes here can't be a job's failure; pictures aren't converted.

As far as the limits go: what lies behind the last second that is decoded keeps the figures of its packets.
"""

from __future__ import annotations

from h3runtime.media.intake.clip_clock import ClipClock
from h3runtime.media.intake.clip_pictures import clip_pictures
from h3runtime.media.intake.containers import bad_medium
from h3runtime.media.intake.examine import Ask, ClipMeasure, Limits, Measured, SoundMeasure
from h3runtime.media.intake.packet_measure import clip_measure, sound_measure, upright_size
from h3runtime.media.intake.sound_pieces import sound_pieces


def verified(ask: Ask, told: Measured, limits: Limits) -> Measured:
    """`told`: what the packets say. `BadMedia` naming the ask's field for whatever can't be decoded."""
    clip = None if told.clip is None else _clip(ask, told.clip, limits)
    sound = None if told.sound is None else _sound(ask, told.sound, limits)
    return Measured(clip, sound)


def _clip(ask: Ask, told: ClipMeasure, limits: Limits) -> ClipMeasure:
    clock, pictures, size = ClipClock(), 0, (0, 0, 0)
    for picture in clip_pictures(ask.path, ask.field, max_pixels=limits.pixels, is_strict=True):
        clock.show(picture.stamp)
        size = upright_size(picture)
        pictures += 1
        if clock.seconds > limits.verify_seconds:
            return told
    if not pictures:
        raise bad_medium(ask.field, "none of its pictures can be decoded")
    return clip_measure(size, pictures, clock, told.rate)


def _sound(ask: Ask, told: SoundMeasure, limits: Limits) -> SoundMeasure | None:
    samples, rate, channels = 0, told.rate, told.channels
    for piece in sound_pieces(ask.path, ask.field):
        rate, channels = piece.rate, len(piece.samples)
        samples += piece.samples.shape[1]
        if samples > min(limits.samples, limits.verify_seconds * rate):
            return told
    if samples:
        return sound_measure(samples, rate, channels)
    if ask.kind == "sound":
        raise bad_medium(ask.field, "it has no sound")
    return None
