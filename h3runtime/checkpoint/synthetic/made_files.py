"""The files of a made-up set as plans: name, shapes, recipe, storage, metadata; and writing the small ones.

    MadeFile -> header and size without any value; `write` makes all values in memory, quantises them, writes them

Fed with sizes by `tiny` and `synthesis` (the sets of `h3runtime synth`). Files of the published
sizes are planned here too, but written by `full_size`, which never holds a whole tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from h3runtime.checkpoint.partition import FL2VA, REF2VA
from h3runtime.checkpoint.synthetic import layouts, published
from h3runtime.checkpoint.synthetic.layouts import AudioVaeSizes, EncoderSizes, TransformerSizes, VideoVaeSizes
from h3runtime.checkpoint.synthetic.published import SetFormat
from h3runtime.checkpoint.synthetic.recipes.audio_vae import STREAM, audio_vae
from h3runtime.checkpoint.synthetic.recipes.recipe import Recipe
from h3runtime.checkpoint.synthetic.recipes.text_encoder import pre_quant_scales, text_encoder
from h3runtime.checkpoint.synthetic.recipes.transformer import transformer
from h3runtime.checkpoint.synthetic.recipes.video_vae import video_vae
from h3runtime.checkpoint.synthetic.storage import Storage, pack, stored_layout
from h3runtime.checkpoint.writer import Described, encode_header, in_order, write_file

APART: Mapping[str, int] = {FL2VA: 0, REF2VA: 1 << 63}
"""Added to a set's seed: the partitions differ in their values alone (dit-contract §1.1)."""


@dataclass(frozen=True, slots=True)
class MadeFile:
    """One file, not made yet. `extra`: metadata beside what its layout has."""

    name: str
    shapes: Mapping[str, tuple[int, ...]]
    recipe: Recipe
    storage: Storage
    extra: Mapping[str, str]

    def layout(self) -> dict[str, Described]:
        """Stored tensors in the order of their bytes."""
        return in_order(stored_layout(self.shapes, self.storage))

    def metadata(self) -> dict[str, str]:
        return {**self.storage.file_metadata(self.shapes), **self.extra}

    def header(self) -> bytes:
        """Everything before the data."""
        return encode_header(self.layout(), self.metadata())

    def size(self) -> int:
        """Bytes of the finished file, computed without making it."""
        data = sum(math.prod(shape) * dtype.itemsize for dtype, shape in self.layout().values())
        return len(self.header()) + data

    def write(self, folder: Path) -> str:
        """Make it in memory and write it, replacing what is there. Its SHA-256; OSError if the disk says no."""
        weights = self.recipe.weights(self.shapes)
        return write_file(folder / self.name, pack(weights, self.storage, self._pre_quant()), self.metadata())

    def _pre_quant(self) -> dict[str, torch.Tensor]:
        schemes = {name: self.storage.scheme_of(name, shape) for name, shape in self.shapes.items()}
        scaled = [name for name, scheme in schemes.items() if scheme is not None and scheme.pre_quant]
        layers = {name.removesuffix(".weight"): self.shapes[name] for name in scaled}
        return pre_quant_scales(layers, self.recipe.seed)


@dataclass(frozen=True, slots=True)
class SetSizes:
    """Sizes of the four components. audio_stream: what the recipe has to know of the audio VAE."""

    transformer: TransformerSizes
    text_encoder: EncoderSizes
    video_vae: VideoVaeSizes
    audio_vae: AudioVaeSizes
    audio_stream: float = STREAM


def set_files(
    kind: SetFormat,
    sizes: SetSizes,
    seed: int,
    mark: Mapping[str, str],
    encoder_config: Mapping[str, str],
    partitions: Sequence[str] = (FL2VA,),
) -> tuple[MadeFile, ...]:
    """A transformer for each partition (pruned if its sizes have a curve), text encoder, video VAE, audio VAE of a set.

    mark: metadata of every file. encoder_config: further metadata of the encoder's.
    """
    stored = published.SETS[kind]
    return (
        *(_transformer_file(kind, sizes.transformer, seed, mark, partition) for partition in partitions),
        MadeFile(
            published.encoder_name(stored.encoder_name),
            layouts.encoder_shapes(sizes.text_encoder),
            text_encoder(seed),
            stored.encoder,
            {**mark, **encoder_config},
        ),
        MadeFile(
            published.VIDEO_VAE_NAME,
            layouts.video_vae_shapes(sizes.video_vae),
            video_vae(seed, sizes.video_vae.layers),
            published.VIDEO_VAE_FP16,
            mark,
        ),
        MadeFile(
            published.AUDIO_VAE_NAME,
            layouts.audio_vae_shapes(sizes.audio_vae),
            audio_vae(seed, sizes.audio_stream),
            published.AUDIO_VAE_FP32,
            mark,
        ),
    )


def _transformer_file(
    kind: SetFormat, sizes: TransformerSizes, seed: int, mark: Mapping[str, str], partition: str
) -> MadeFile:
    stored, pruned = published.SETS[kind], sizes.curve is not None
    return MadeFile(
        published.transformer_name(kind, partition, pruned=pruned),
        layouts.transformer_shapes(sizes),
        transformer((seed + APART[partition]) % (1 << 64), sizes.layers),
        stored.pruned if pruned else stored.unpruned,
        mark,
    )
