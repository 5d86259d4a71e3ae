"""The files of a job's result: their final names, their staged ones, and a clip under the other of the two.

    scratch/made/cat.mp4  --publish-->  outputs/cat.mp4

The engine of a server writes under staged names alone; `publish` moves what it made. No file is touched here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from h3runtime.core import LATENTS_SUFFIX, STEPS_SUFFIX, Clip, GenerateSpec, variant_path

STAGE = "made"
"""A folder in a job's scratch, so that a staged file never has the name of a scrap."""


@dataclass(frozen=True, slots=True)
class Placement:
    """One finished file on its way. sha256: of a clip; "" for what lies beside one."""

    staged: Path
    final: Path
    sha256: str = ""

    @property
    def is_clip(self) -> bool:
        return bool(self.sha256)


def outputs_of(spec: GenerateSpec) -> frozenset[Path]:
    """Every file that a job writes under a final name."""
    asked = {"": True, LATENTS_SUFFIX: spec.save_latents, STEPS_SUFFIX: spec.diagnostic_latents}
    suffixes = [suffix for suffix, is_asked in asked.items() if is_asked]
    clips = [variant_path(spec.output, index, spec.n) for index in range(spec.n)]
    return frozenset(clip.with_name(clip.name + suffix) for clip in clips for suffix in suffixes)


def staged(spec: GenerateSpec) -> GenerateSpec:
    """What the engine is told: the same job with its output in its scratch folder, where nothing is in the way."""
    return replace(spec, output=spec.scratch / STAGE / spec.output.name, overwrite=True)


def as_final(clip: Clip, spec: GenerateSpec) -> Clip:
    """The clip and its variants under their final names."""
    folder = spec.output.parent
    latents = clip.latents_output
    return replace(
        clip,
        output=folder / clip.output.name,
        latents_output=None if latents is None else folder / latents.name,
        variants=tuple(as_final(variant, spec) for variant in clip.variants),
    )


def clips_of(clip: Clip) -> tuple[Clip, ...]:
    """All clips of a request, in order."""
    return (clip, *clip.variants)


def placements(spec: GenerateSpec, clip: Clip) -> Iterator[Placement]:
    """Every file of a result (final names), clips first. A side file that was asked for may not have been made."""
    stage = spec.scratch / STAGE
    clips = {made.output: made.sha256 for made in clips_of(clip)}
    for final, sha256 in clips.items():
        yield Placement(stage / final.name, final, sha256)
    for final in sorted(outputs_of(spec) - clips.keys()):
        yield Placement(stage / final.name, final)
