"""Media -> latents, one medium at a time, each content once.

Reads a file through `media`, fits it, encodes it with the VAE it belongs to and keeps the result; the next time nothing
is read. Counts pieces as it goes: a picture, a sound and 17 frames of a clip are one each (`clip_steps`). Knows nothing
of what a medium is used for; guides, references and sources ask it.

A clip is never held: the 17 frames that are encoded are, the next 17, which are read meanwhile, and every 12th fitted
one if the text encoder sees it. Raises BadMedia for a file
that is not what was admitted any more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from h3runtime.core import CHUNK_FRAMES, SAMPLES_PER_LATENT, ClipInput, Fit, MediaFile, SoundInput
from h3runtime.engine.conditions.mask_pixels import clip_mask, picture_mask
from h3runtime.engine.conditions.media_cache import Encoded, MediaCache, MediaKey, Pixels, Use
from h3runtime.engine.conditions.reading import read, read_each
from h3runtime.engine.conditions.sound_cut import SoundCut
from h3runtime.engine.device import tile_room
from h3runtime.engine.load import Vaes
from h3runtime.engine.run import Run
from h3runtime.errors import BadMedia, bad_media
from h3runtime.media.intake.clip_frames import clip_frames
from h3runtime.media.intake.sound_in import read_sound_in
from h3runtime.media.pictures import cover, read_picture, stretch
from h3runtime.media.vision_size import SAMPLE_EVERY

Make = Callable[[], Encoded]
VaeName = Literal["video_vae", "audio_vae"]


def clip_steps(clip: ClipInput) -> int:
    """Pieces of progress that a clip counts for: 17 frames each."""
    return -(-clip.frames // CHUNK_FRAMES)


@dataclass(frozen=True, slots=True)
class MediaEncoder:
    """For one request. device: where latents are handed out. run: is told of every piece, and may stop the work."""

    vaes: Vaes
    device: torch.device
    cache: MediaCache
    run: Run
    hashes: dict[Path, str] = field(default_factory=dict)

    def picture(self, file: MediaFile, width: int, height: int, fit: Fit) -> Encoded:
        """One picture, fitted: latent [1, C, 1, height/16, width/16], shown [1, height, width, 3]."""
        use = ("picture", width, height, fit)
        return self._once(file, "video_vae", use, 1, partial(self._picture, file, width, height, fit))

    def clip(self, clip: ClipInput, width: int, height: int, fit: Fit, *, shown: bool = False) -> Encoded:
        """latent [1, C, T, height/16, width/16]; with `shown` every 12th frame of it, [n, height, width, 3]."""
        use = ("clip", clip.first, clip.frames, width, height, fit, shown)
        make = partial(self._clip, clip, width, height, fit, shown)
        return self._once(clip.file, "video_vae", use, clip_steps(clip), make)

    def sound(self, sound: SoundInput, cut: SoundCut) -> Encoded:
        """latent [1, C, 2, A]; of a sound `within`, at most that many latents."""
        use = ("sound", sound.start, sound.seconds, cut.kind, cut.latents)
        return self._once(sound.file, "audio_vae", use, 1, partial(self._sound, sound, cut))

    def mask_picture(self, file: MediaFile, width: int, height: int) -> Encoded:
        """Mask pixels uint8 [1, 1, 1, height/8, width/8]."""
        use = ("mask", width, height)
        return self._once(file, None, use, 1, lambda: self._mask(lambda: [picture_mask(file, width, height)]))

    def mask_clip(self, clip: ClipInput, width: int, height: int) -> Encoded:
        """Mask pixels uint8 [1, 1, frames, height/8, width/8]."""
        use = ("mask", clip.first, clip.frames, width, height)
        return self._once(
            clip.file, None, use, clip_steps(clip), lambda: self._mask(lambda: clip_mask(clip, width, height))
        )

    def require_unchanged(self, file: MediaFile) -> None:
        """BadMedia for a file that has other bytes than when the request was accepted, or none any more."""
        if file.sha256 and self._hash(file) != file.sha256:
            raise _bad(file.field, "it has changed since the request was accepted")

    def _once(self, file: MediaFile, vae: VaeName | None, use: Use, pieces: int, make: Make) -> Encoded:
        """What the cache has, else what `make` makes of the file as it was admitted."""
        weights = next((facts.sha256 for facts in self.vaes.facts if facts.component == vae), "")
        key = MediaKey(file.sha256 or self._hash(file), weights, use)
        found = self.cache.get(key)
        if found is not None:
            self.run.advance(pieces)
            return replace(found, latent=found.latent.to(self.device))
        self.require_unchanged(file)
        made = make()
        self.cache.put(key, replace(made, latent=made.latent.cpu()))
        return made

    def _picture(self, file: MediaFile, width: int, height: int, fit: Fit) -> Encoded:
        fitted = read(lambda: _fitted(file, width, height, fit), self.run.check_stop)
        on_device = torch.from_numpy(fitted).to(self.device)
        latent = self.vaes.video.encode_image(on_device, should_stop=self.run.should_stop, room=tile_room(self.device))
        self.run.advance()
        return Encoded(latent, fitted)

    def _clip(self, clip: ClipInput, width: int, height: int, fit: Fit, shown: bool) -> Encoded:
        samples = np.empty((-(-clip.frames // SAMPLE_EVERY), height, width, 3), np.uint8) if shown else None
        reading = read_each(lambda: clip_frames(clip, width, height, fit), self.run.check_stop, CHUNK_FRAMES)
        with closing(reading) as frames:
            latent = self.vaes.video.encode_stream(
                frames if samples is None else _sampled(frames, samples),
                clip.frames,
                should_stop=self.run.should_stop,
                on_chunk=lambda *_: self.run.advance(),
                room=tile_room(self.device),
            )
        return Encoded(latent, samples)

    def _sound(self, sound: SoundInput, cut: SoundCut) -> Encoded:
        waveform = read(lambda: read_sound_in(sound), self.run.check_stop)
        if cut.kind != "filling" and waveform.shape[1] < SAMPLES_PER_LATENT:
            raise _bad(sound.file.field, "its sound is shorter than 25 ms")
        heard = torch.from_numpy(np.ascontiguousarray(cut.of(waveform))).to(self.device)
        latent = self.vaes.audio.encode(heard[None])
        if cut.kind == "within":
            latent = latent[..., : cut.latents].clone()
        self.run.advance()
        return Encoded(latent, samples=cut.samples(waveform))

    def _mask(self, make: Callable[[], Iterable[Pixels]]) -> Encoded:
        kept = []
        for frame in read_each(make, self.run.check_stop):
            kept.append(frame)
            if len(kept) % CHUNK_FRAMES == 0:
                self.run.advance()
        if len(kept) % CHUNK_FRAMES:
            self.run.advance()
        return Encoded(torch.from_numpy(np.stack(kept)[None, None]))

    def _hash(self, file: MediaFile) -> str:
        if file.path not in self.hashes:
            try:
                self.hashes[file.path] = read(lambda: _digest(file.path), self.run.check_stop)
            except OSError as error:
                raise _bad(file.field, "it can't be read any more") from error
        return self.hashes[file.path]


def _fitted(file: MediaFile, width: int, height: int, fit: Fit) -> Pixels:
    """uint8 [1, height, width, 3]."""
    pixels = read_picture(file.path, file.field).pixels
    return (stretch if fit == "stretch" else cover)(pixels, width, height)[None]


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _bad(name: str, why: str) -> BadMedia:
    return bad_media(name, why, "the medium as it was sent")


def _sampled(frames: Iterable[Pixels], samples: Pixels) -> Iterator[Pixels]:
    """The same frames, every 12th of them also written into `samples`."""
    for index, frame in enumerate(frames):
        if index % SAMPLE_EVERY == 0:
            samples[index // SAMPLE_EVERY] = frame
        yield frame
