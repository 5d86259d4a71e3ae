"""What a request takes of the device's memory, in bytes, by closed formulas of its sizes: nothing is run or allocated.

    weights        what the loaded files left resident
    conditioning   the largest of what comes one after another: a clip or picture, a sound, a vision block, the text
    sampling       the widest place of a block for all rows, and the modulation of a window of steps
    decode         the larger of the sound and the pictures, which come one after another too
    total          weights and the largest stage

Conditioning is fitted: within 25 % of what the CPU's allocator counts (tests/engine/test_memory_estimate.py), for texts
of up to 30,000 rows. Sampling and decode are plain sums over their widest places, to be fitted to measured peaks later;
a backend with workspaces of its own takes more. Fed by `diagnosis` with what a run really had; the sums themselves are
in `memory_formulas`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import torch

from h3runtime.conditioning.config import TextEncoderConfig
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.conditioning.pieces import Piece, Vision
from h3runtime.core import SAMPLES_PER_LATENT, GenerateSpec, PackedLayout, SegmentKind, Task
from h3runtime.denoiser.config import DitConfig
from h3runtime.engine.load import Models
from h3runtime.engine.memory_formulas import (
    STEREO,
    Shot,
    audio_decode_bytes,
    audio_encode_bytes,
    sampling_bytes,
    text_bytes,
    video_decode_bytes,
    video_encode_bytes,
    vision_bytes,
)
from h3runtime.media.vision_size import features_of, patch_grid
from h3runtime.packing.geometry import audio_latents
from h3runtime.quant.stored import PlainWeight
from h3runtime.vae.audio_config import AudioDecoderConfig, AudioEncoderConfig
from h3runtime.vae.video_config import DecoderConfig, EncoderConfig


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """text_widened: the encoder's weights aren't stored in fp32, so one of them is made fp32 at a time."""

    weights: int
    transformer: DitConfig
    transformer_dtype: torch.dtype
    text_encoder: TextEncoderConfig
    text_widened: bool
    video_encoder: EncoderConfig | None
    video_decoder: DecoderConfig | None
    video_dtype: torch.dtype
    video_encode_dtype: torch.dtype
    audio_encoder: AudioEncoderConfig | None
    audio_decoder: AudioDecoderConfig | None
    tile: int


def sizes_of(models: Models, task: Task) -> ModelSizes:
    """Of what is loaded; the transformer that `task` runs on."""
    transformer, video, audio = models.transformer_of(task), models.vaes.video, models.vaes.audio.config
    return ModelSizes(
        weights=sum(part.bytes for part in models.facts),
        transformer=transformer.config,
        transformer_dtype=transformer.dtype,
        text_encoder=models.text_encoder.config,
        text_widened=not _stored_in_fp32(models.text_encoder),
        video_encoder=video.config.encoder,
        video_decoder=video.config.decoder,
        video_dtype=video.dtype,
        video_encode_dtype=video.encode_dtype,
        audio_encoder=audio.encoder,
        audio_decoder=audio.decoder,
        tile=video.tiling.size,
    )


def _stored_in_fp32(encoder: TextEncoder) -> bool:
    stored = encoder.get_submodule("model.layers.0.mlp.gate_proj").resident
    return isinstance(stored, PlainWeight) and stored.weight.dtype == torch.float32


@dataclass(frozen=True, slots=True)
class Demand:
    """A request's sizes. rows: packed. vision_rows: of the text's, features alone. patches: of the largest vision
    block, 0 without one. samples: of the longest sound that is encoded, 32 kHz."""

    rows: int
    text_rows: int
    vision_rows: int
    patches: int
    shots: tuple[Shot, ...]
    samples: int
    target: Shot


@dataclass(frozen=True, slots=True)
class Conditioning:
    """Parts that come one after another."""

    video: int
    sound: int
    vision: int
    text: int

    @property
    def peak(self) -> int:
        return max(self.video, self.sound, self.vision, self.text)


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """`total`: weights and the largest stage."""

    weights: int
    conditioning: Conditioning
    sampling: int
    decode: int

    @property
    def total(self) -> int:
        return self.weights + max(self.conditioning.peak, self.sampling, self.decode)

    def told(self) -> dict[str, int]:
        """Lines for people, in bytes."""
        parts = {f"conditioning_{name}_bytes": value for name, value in asdict(self.conditioning).items()}
        return {
            "weights_bytes": self.weights,
            "conditioning_bytes": self.conditioning.peak,
            **parts,
            "sampling_bytes": self.sampling,
            "decode_bytes": self.decode,
            "total_bytes": self.total,
        }


def estimate(models: ModelSizes, demand: Demand) -> MemoryEstimate:
    shots = (video_encode_bytes(models.video_encoder, models.video_encode_dtype, models.tile, s) for s in demand.shots)
    text = models.text_encoder
    conditioning = Conditioning(
        video=max(shots, default=0),
        sound=audio_encode_bytes(models.audio_encoder, demand.samples),
        vision=vision_bytes(text, demand.text_rows, demand.vision_rows, demand.patches),
        text=text_bytes(text, demand.text_rows, demand.vision_rows, widened=models.text_widened),
    )
    decode = max(
        audio_decode_bytes(models.audio_decoder, audio_latents(demand.target.frames)),
        video_decode_bytes(models.video_decoder, models.video_dtype, models.tile, demand.target),
    )
    sampling = sampling_bytes(models.transformer, models.transformer_dtype, demand.rows)
    return MemoryEstimate(models.weights, conditioning, sampling, decode)


def demand_of(spec: GenerateSpec, layout: PackedLayout, pieces: Sequence[Piece]) -> Demand:
    """A request's sizes once its conditions are known."""
    grids = [patch_grid(*piece.pixels.shape[1:3]) for piece in pieces if isinstance(piece, Vision)]
    kinds = (SegmentKind.COND_AUDIO, SegmentKind.REF_AUDIO)
    sounds = [(s.stop - s.start) // STEREO for s in layout.of_kind(*kinds)]
    if spec.source is not None and spec.source.sound is not None:
        sounds.append(layout.audio_latents)
    return Demand(
        rows=layout.rows,
        text_rows=layout.text_rows,
        vision_rows=sum(map(features_of, grids)),
        patches=max((height * width for height, width in grids), default=0),
        shots=tuple(_shots(spec)),
        samples=max(sounds, default=0) * SAMPLES_PER_LATENT,
        target=Shot(spec.frames, spec.width, spec.height),
    )


def _shots(spec: GenerateSpec) -> Iterator[Shot]:
    for guide in spec.guides:
        if guide.picture is not None or guide.clip is not None:
            yield Shot(1 if guide.clip is None else guide.clip.frames, spec.width, spec.height)
    for reference in spec.references:
        if reference.kind != "audio":
            yield Shot(1 if reference.clip is None else reference.clip.frames, reference.width, reference.height)
    if spec.source is not None:
        yield Shot(spec.frames, spec.width, spec.height)
