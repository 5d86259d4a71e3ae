"""Everything that conditions a run, gathered from a request's media: what `Engine.generate` needs before it samples.

    guides     -> keyframes, and pictures that the text encoder sees             `guides`
    references -> references, and what the text encoder sees of them             `references`
    source     -> content and masks                                              `sources`

In this order, which is that of the packed sequence (text | keyframes | references | audio | video) but for the source,
which has no rows. With references the text encoder is shown these alone. Counts progress in pieces and stops between
them. Fed by `resident`; pieces go to `conditioning`, shapes to `packing`, the rest to `denoiser`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h3runtime.conditioning.pieces import Piece, keyframe_pieces, reference_pieces
from h3runtime.core import GenerateSpec, Keyframe, KeyframeShape, Reference, ReferenceShape
from h3runtime.denoiser.masks import Masks
from h3runtime.engine.conditions.guides import Anchored, anchored, guide_steps
from h3runtime.engine.conditions.media_encoder import MediaEncoder
from h3runtime.engine.conditions.references import Referred, reference_steps, referred
from h3runtime.engine.conditions.sources import Kept, kept, source_steps
from h3runtime.engine.conditions.told_inputs import told_inputs


@dataclass(frozen=True, slots=True)
class Conditions:
    """pieces: what the text encoder is shown, prompt included. masks: None without a source. inputs: for diagnostics,
    empty unless asked for."""

    keyframes: tuple[Keyframe, ...]
    references: tuple[Reference, ...]
    pieces: tuple[Piece, ...]
    masks: Masks | None
    inputs: tuple[dict[str, Any], ...]

    @property
    def keyframe_shapes(self) -> tuple[KeyframeShape, ...]:
        return tuple(keyframe_shape(keyframe) for keyframe in self.keyframes)

    @property
    def reference_shapes(self) -> tuple[ReferenceShape, ...]:
        return tuple(reference_shape(reference) for reference in self.references)


def steps_of(spec: GenerateSpec) -> int:
    """Steps of the conditioning stage: pieces of all media, and one for the text."""
    guides = sum(guide_steps(guide) for guide in spec.guides)
    references = sum(reference_steps(reference) for reference in spec.references)
    source = 0 if spec.source is None else source_steps(spec.source, spec.frames)
    return guides + references + source + 1


def conditions_of(spec: GenerateSpec, encoder: MediaEncoder) -> Conditions:
    """Read and encode all media of a request. BadMedia names the field of one that can't be used any more."""
    guides = tuple(anchored(guide, spec, encoder) for guide in spec.guides)
    references = tuple(referred(reference, encoder) for reference in spec.references)
    source = None if spec.source is None else kept(spec.source, spec, encoder)
    return Conditions(
        keyframes=tuple(guide.keyframe for guide in guides),
        references=tuple(reference.reference for reference in references),
        pieces=_pieces(spec.prompt, guides, references),
        masks=None if source is None else source.masks,
        inputs=_inputs(guides, references, source) if spec.diagnostics else (),
    )


def keyframe_shape(keyframe: Keyframe) -> KeyframeShape:
    frames = 0 if keyframe.latent is None else keyframe.latent.shape[2]
    sounds = 0 if keyframe.audio_latent is None else keyframe.audio_latent.shape[3]
    return KeyframeShape(keyframe.frame, frames, sounds)


def reference_shape(reference: Reference) -> ReferenceShape:
    frames, height, width = (0, 0, 0) if reference.latent is None else reference.latent.shape[2:]
    sounds = 0 if reference.audio_latent is None else reference.audio_latent.shape[3]
    return ReferenceShape(reference.kind, frames, height, width, sounds)


def _pieces(prompt: str, guides: tuple[Anchored, ...], references: tuple[Referred, ...]) -> tuple[Piece, ...]:
    if references:
        return reference_pieces(prompt, [reference.shown for reference in references])
    return keyframe_pieces(prompt, [guide.shown for guide in guides if guide.shown is not None])


def _inputs(
    guides: tuple[Anchored, ...], references: tuple[Referred, ...], source: Kept | None
) -> tuple[dict[str, Any], ...]:
    parts: list[Anchored | Referred | Kept] = [*guides, *references]
    if source is not None:
        parts.append(source)
    return told_inputs([medium for part in parts for medium in part.given])
