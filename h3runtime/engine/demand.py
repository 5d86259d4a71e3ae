"""A request's sizes, as far as memory and work depend on them.

Fed with the rows of its packed sequence, those of a run (`diagnosis`) or those that are counted beforehand
(`estimating`); everything else stands in the request. Read by `memory_estimate` and `work`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from h3runtime.core import SAMPLES_PER_LATENT, GenerateSpec, PackedLayout, ReferenceInput, SegmentKind, StepReuse
from h3runtime.denoiser.reuse.outlook import likely_skips
from h3runtime.denoiser.schedule import forwards
from h3runtime.engine.memory_formulas import STEREO, Shot, Steps
from h3runtime.media.vision_size import SAMPLE_EVERY, Grid, features_of, patch_grid
from h3runtime.packing.geometry import audio_latents, latent_frames, latent_side

SOUNDS = (SegmentKind.COND_AUDIO, SegmentKind.REF_AUDIO)
PICTURES = {SegmentKind.COND, SegmentKind.REF_IMAGE}
VIDEO_CHANNELS, AUDIO_CHANNELS = 24, 32
"""Of the target's latents (conditioning contract §4.1, §5.1)."""
COMPARED_LATENTS = 3
"""fp32 copies of the compared latents while the network runs: its input, that of the last computed step, its answer."""
Rows = Sequence[tuple[SegmentKind, int]]
"""Rows of each segment, in packed order."""


@dataclass(frozen=True, slots=True)
class Demand:
    """steps: of one clip's sampling. vision: patch grids of every block that the text encoder sees. shots: what the
    video VAE encodes. sounds: what the audio VAE encodes, samples at 32 kHz. target: what is made, n times."""

    steps: Steps
    vision: tuple[Grid, ...]
    shots: tuple[Shot, ...]
    sounds: tuple[int, ...]
    target: Shot
    n: int = 1

    @property
    def rows(self) -> int:
        return self.steps.rows

    @property
    def text_rows(self) -> int:
        return self.steps.text_rows

    @property
    def audio_latents(self) -> int:
        return audio_latents(self.target.frames)

    @property
    def vision_rows(self) -> int:
        """Of the text's rows, features alone."""
        return sum(map(features_of, self.vision))

    @property
    def patches(self) -> int:
        """Of the largest vision block, 0 without one."""
        return max((height * width for height, width in self.vision), default=0)

    @property
    def samples(self) -> int:
        """Of the longest sound that is encoded."""
        return max(self.sounds, default=0)


def demand_of(spec: GenerateSpec, rows: Rows) -> Demand:
    sounds = [count // STEREO * SAMPLES_PER_LATENT for kind, count in rows if kind in SOUNDS]
    if spec.source is not None and spec.source.sound is not None:
        sounds.append(audio_latents(spec.frames) * SAMPLES_PER_LATENT)
    return Demand(
        steps=_steps(spec, rows),
        vision=tuple(_vision(spec)),
        shots=tuple(_shots(spec)),
        sounds=tuple(sounds),
        target=Shot(spec.frames, spec.width, spec.height),
        n=spec.n,
    )


def _steps(spec: GenerateSpec, rows: Rows) -> Steps:
    """Conditions are held at timesteps of their own, pictures at one and sounds at another (dit-contract §5.7)."""
    kinds = {kind for kind, count in rows if count}
    masked = spec.source is not None
    video = VIDEO_CHANNELS * latent_frames(spec.frames) * latent_side(spec.height) * latent_side(spec.width)
    values = video + AUDIO_CHANNELS * STEREO * audio_latents(spec.frames)
    return Steps(
        rows=sum(count for _, count in rows),
        text_rows=sum(count for kind, count in rows if kind is SegmentKind.TEXT),
        values=values,
        forwards=forwards(spec.sampling),
        spared=likely_skips(spec.sampling, spec.reuse),
        **_kept(spec.reuse, values, rows),
        clocks=2 + bool(kinds & PICTURES) + bool(kinds & set(SOUNDS)) + 2 * masked,
        ahead=not masked,
    )


def _kept(reuse: StepReuse | None, values: int, rows: Rows) -> dict[str, int]:
    """One or two velocities, and some latents; or what all blocks but the first add to the target's rows, and of some
    what that adds."""
    if reuse is None:
        return {}
    if reuse.mode == "first_block":
        target = sum(count for kind, count in rows if kind in (SegmentKind.VIDEO, SegmentKind.AUDIO))
        return {"kept_rows": target, "compared_rows": -(-target // reuse.subsample)}
    kept = values * (2 if reuse.forecast == "taylor" else 1)
    return {"kept_values": kept, "compared_values": COMPARED_LATENTS * values // reuse.subsample**2}


def as_shown(spec: GenerateSpec) -> GenerateSpec:
    """With references the text encoder sees these alone."""
    if not spec.references:
        return spec
    return replace(spec, guides=tuple(replace(guide, shown=False) for guide in spec.guides))


def _vision(spec: GenerateSpec) -> Iterator[Grid]:
    for guide in as_shown(spec).guides:
        if guide.shown:
            yield patch_grid(spec.height, spec.width)
    for reference in spec.references:
        if reference.kind != "audio":
            yield from [patch_grid(reference.height, reference.width)] * _blocks(reference)


def _blocks(reference: ReferenceInput) -> int:
    """Vision blocks: one of a picture, one for two shown frames of a clip."""
    return 1 if reference.clip is None else -(-reference.clip.frames // (2 * SAMPLE_EVERY))


def _shots(spec: GenerateSpec) -> Iterator[Shot]:
    for guide in spec.guides:
        if guide.picture is not None or guide.clip is not None:
            yield Shot(1 if guide.clip is None else guide.clip.frames, spec.width, spec.height)
    for reference in spec.references:
        if reference.kind != "audio":
            yield Shot(1 if reference.clip is None else reference.clip.frames, reference.width, reference.height)
    if spec.source is not None:
        yield Shot(spec.frames, spec.width, spec.height)


def rows_by_kind(rows: Iterable[tuple[SegmentKind, int]]) -> dict[str, int]:
    """Of every segment kind, 0 for kinds that the sequence has none of."""
    found = {kind.value: 0 for kind in SegmentKind}
    for kind, count in rows:
        found[kind.value] += count
    return found


def rows_of(layout: PackedLayout) -> Rows:
    """Of a sequence that is there."""
    return tuple((segment.kind, segment.stop - segment.start) for segment in layout.segments)
