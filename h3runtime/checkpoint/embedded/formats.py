"""Which published files the embedded model comes as: names and storages by format.

    nvfp4 | int8_convrot | fp8_scaled | bf16        the transformer, once for each partition
    bf16                                            the text encoder, whatever the transformer's format
    fp16, fp32                                      the VAEs

The storages are the published ones (`synthetic.published`). The encoder of the published NVFP4 and INT8 sets is
quantised, too. Here it isn't: it is 128 wide and two layers deep, of which a block of 16 with 4 bits a weight leaves
little, its rows don't hold one group of 256 of the INT8 rotation, and a comparison of formats is to compare
transformers. The BF16 encoder is published, and belongs to the FP8 and BF16 sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from h3runtime.checkpoint.families import Component
from h3runtime.checkpoint.partition import FL2VA, REF2VA
from h3runtime.checkpoint.synthetic import published
from h3runtime.checkpoint.synthetic.published import FORMATS, SetFormat
from h3runtime.checkpoint.synthetic.storage import Storage

DEFAULT: SetFormat = "nvfp4"
PARTITIONS = (FL2VA, REF2VA)

__all__ = ["DEFAULT", "FORMATS", "PARTITIONS", "DerivedFile", "SetFormat", "derived_files"]


@dataclass(frozen=True, slots=True)
class DerivedFile:
    """A published file, the master that it is made of and how it stores it."""

    name: str
    component: Component
    storage: Storage


def derived_files(kind: SetFormat, partitions: Sequence[str] = PARTITIONS) -> tuple[DerivedFile, ...]:
    """Transformers, text encoder, video VAE, audio VAE. Both transformers have the same weights: one master was trained
    on all tasks."""
    stored = published.SETS[kind].pruned
    return (
        *(DerivedFile(published.transformer_name(kind, p, pruned=True), "transformer", stored) for p in partitions),
        DerivedFile(published.encoder_name("bf16"), "text_encoder", published.ENCODER_BF16),
        DerivedFile(published.VIDEO_VAE_NAME, "video_vae", published.VIDEO_VAE_FP16),
        DerivedFile(published.AUDIO_VAE_NAME, "audio_vae", published.AUDIO_VAE_FP32),
    )
