"""How many latents a request's sounds will be, told by their files' packets: nothing is decoded or encoded.

A child process reads the files (`media.intake.examine`), once for a file as it is. Fed by `estimating`, from any
thread; `packing.rows` counts rows with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from h3runtime.core import SAMPLE_RATE, SAMPLES_PER_LATENT, GenerateSpec, GuideInput, ReferenceInput, SoundInput
from h3runtime.errors import BadMedia, bad_media
from h3runtime.media.intake.examine import Ask, SoundMeasure, measure

REMEMBERED = 256
"""Files whose measure is kept: a client that asks for an estimate often sends the request next."""


class SoundLengths:
    """Asked by field of a spec; a file that is as it was is not read again."""

    def __init__(self) -> None:
        self._measured = lru_cache(maxsize=REMEMBERED)(_measured)

    def latents(self, spec: GenerateSpec) -> dict[str, int]:
        """Whole latents of each guide's and reference's sound, by its `field`. BadMedia for a file that is gone."""
        return {field: self._latents(sound) for field, sound in _sounds(spec)}

    def _latents(self, sound: SoundInput) -> int:
        """Of the part that `read_sound_in` cuts out."""
        try:
            facts = sound.file.path.stat()
        except OSError as error:
            raise bad_media(sound.file.field, "it can't be read any more", "the medium as it was sent") from error
        found = self._measured(sound.file.path, sound.file.field, facts.st_size, facts.st_mtime_ns)
        if found is None:
            return 0
        stop = round(found.samples * SAMPLE_RATE / found.rate)
        if sound.seconds is not None:
            stop = min(stop, round((sound.start + sound.seconds) * SAMPLE_RATE))
        return max(0, stop - round(sound.start * SAMPLE_RATE)) // SAMPLES_PER_LATENT


def _sounds(spec: GenerateSpec) -> Iterator[tuple[str, SoundInput]]:
    entries: list[GuideInput | ReferenceInput] = [*spec.guides, *spec.references]
    for entry in entries:
        if entry.sound is not None:
            yield entry.field, entry.sound


def _measured(path: Path, field: str, size: int, modified: int) -> SoundMeasure | None:  # noqa: ARG001  # of the key
    """BadMedia, which isn't remembered, for a file that can't be read."""
    (found,) = measure([Ask(path, field, "sound")])
    if isinstance(found, BadMedia):
        raise found
    return found.sound
