"""References of Ref2VA -> latents on their own grid, and what the text encoder is shown (conditioning contract §3.3).

Their pictures are stretched to the size that stands in the reference, a clip's soundtrack and a lone sound are used
whole. Waveforms never reach the text encoder, so a sound shows as a label. Fed by `gathering`, in the caller's order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from h3runtime.conditioning.pieces import AudioReference, ImageReference, MediaReference, VideoReference
from h3runtime.core import Reference, ReferenceInput
from h3runtime.engine.conditions.media_cache import Encoded
from h3runtime.engine.conditions.media_encoder import MediaEncoder, clip_steps
from h3runtime.engine.conditions.sound_cut import SoundCut
from h3runtime.engine.conditions.told_inputs import Given, got_clip, got_picture, got_sound


@dataclass(frozen=True, slots=True)
class Referred:
    """reference: for the transformer. shown: for the text encoder."""

    reference: Reference
    shown: MediaReference
    given: tuple[Given, ...]


def reference_steps(reference: ReferenceInput) -> int:
    """Pieces of progress that a reference counts for."""
    seen = 0 if reference.clip is None else clip_steps(reference.clip)
    return seen + (reference.picture is not None) + (reference.sound is not None)


def referred(reference: ReferenceInput, encoder: MediaEncoder) -> Referred:
    """Read, fit and encode one reference; a clip before its soundtrack, which doesn't matter to the packed order."""
    seen = _seen(reference, encoder)
    heard = None if reference.sound is None else encoder.sound(reference.sound, SoundCut("whole"))
    latent, audio_latent = (None if part is None else part.latent for part in (seen, heard))
    made = Reference(reference.kind, latent, audio_latent)
    return Referred(made, _shown(seen, heard, reference), tuple(_given(reference, seen, heard)))


def _seen(reference: ReferenceInput, encoder: MediaEncoder) -> Encoded | None:
    size = reference.width, reference.height
    if reference.picture is not None:
        return encoder.picture(reference.picture, *size, "stretch")
    if reference.clip is not None:
        return encoder.clip(reference.clip, *size, "stretch", shown=True)
    return None


def _shown(seen: Encoded | None, heard: Encoded | None, reference: ReferenceInput) -> MediaReference:
    if seen is None:
        assert heard is not None, reference.field
        return AudioReference()
    assert seen.shown is not None
    if reference.kind == "image":
        return ImageReference(seen.shown)
    return VideoReference(seen.shown, soundtrack=heard is not None, sampled=True)


def _given(reference: ReferenceInput, seen: Encoded | None, heard: Encoded | None) -> Iterator[Given]:
    size = reference.width, reference.height
    if reference.picture is not None:
        yield Given(reference.field, "image", reference.picture, got_picture(*size))
    if reference.clip is not None and seen is not None:
        got = got_clip(*size, reference.clip.frames, seen.latents)
        yield Given(reference.field, "video", reference.clip.file, got)
    if reference.sound is not None and heard is not None:
        name = reference.field if seen is None else f"{reference.field}.audio"
        yield Given(name, "audio", reference.sound.file, got_sound(heard))
