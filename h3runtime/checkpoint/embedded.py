"""The embedded default: a tiny checkpoint set in the published layouts, made at first use into the user's cache.

Four files and a tokenizer folder, about 20 MB, the same bytes on every machine for one version of the code. The folder
is named after a hash of the code that makes it, so a new version makes a new set. Every file appears whole or not at
all; two processes that race write the same bytes, and whoever renames last changes nothing.

The weights are random (see `synthetic`): the clips are abstract, but every part of the pipeline does its real work and
reacts to every input. Metadata says `h3runtime_synthetic`. Fed with a cache folder by the command line and the tests.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from h3runtime.checkpoint import layouts, storage, synthetic
from h3runtime.checkpoint.byte_tokenizer import tokenizer_files
from h3runtime.checkpoint.file import CONFIG_KEY, SYNTHETIC_KEY, checkpoint_error
from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.storage import Storage
from h3runtime.checkpoint.synthetic import Recipe
from h3runtime.checkpoint.writer import encode_header, in_order, write_file
from h3runtime.errors import Offence

SEED = 20260815
METADATA = {SYNTHETIC_KEY: "1"}
TOLD = {CONFIG_KEY: '{"vision_num_heads": 2, "deepstack_visual_indexes": [0, 1, 2]}'}
"""What the shapes of a vision tower that nobody published can't tell."""
TOKENIZER = "tokenizer"
MAKERS = (
    "checkpoint/byte_tokenizer.py",
    "checkpoint/constants.py",
    "checkpoint/embedded.py",
    "checkpoint/layouts.py",
    "checkpoint/random_values.py",
    "checkpoint/storage.py",
    "checkpoint/synthetic.py",
    "checkpoint/writer.py",
    "quant/int8.py",
    "quant/nvfp4.py",
)
"""The code that decides the bytes; its hash names the folder."""

TRANSFORMER = layouts.TransformerSizes(hidden=256, layers=3, refiner_layers=2, heads=2, ffn=512, text_dim=64)
TEXT_ENCODER = layouts.EncoderSizes(
    hidden=64,
    intermediate=128,
    layers=4,
    heads=2,
    kv_heads=1,
    vision_hidden=64,
    vision_intermediate=128,
    vision_depth=4,
    positions=256,
)
"""The whole vocabulary, so that the real ids of the special tokens fit."""
VIDEO_VAE = layouts.VideoVaeSizes(encoder_widths=(32, 32, 32, 64, 64, 64), width=128, inner=128, ffn=256, layers=2)
AUDIO_VAE = layouts.AudioVaeSizes(
    encoder_widths=(8, 16, 32, 64, 128, 256), decoder_in=64, decoder_widths=(64, 32, 16, 8, 8, 4, 2, 2)
)


@dataclass(frozen=True, slots=True)
class CheckpointSet:
    """Paths of everything an engine loads. `tokenizer` is a folder."""

    transformer: Path
    text_encoder: Path
    video_vae: Path
    audio_vae: Path
    tokenizer: Path


@dataclass(frozen=True, slots=True)
class _Member:
    """One file of the set."""

    name: str
    shapes: Mapping[str, tuple[int, ...]]
    recipe: Recipe
    storage: Storage
    metadata: Mapping[str, str] = field(default_factory=lambda: METADATA)

    def size(self) -> int:
        """Bytes of the finished file, computed without making it."""
        layout = in_order(storage.stored_layout(self.shapes, self.storage))
        data = sum(torch.Size(shape).numel() * dtype.itemsize for dtype, shape in layout.values())
        return len(encode_header(layout, self.metadata)) + data

    def write(self, folder: Path) -> None:
        weights = self.recipe.weights(self.shapes)
        scales = synthetic.pre_quant_scales(self.shapes, self.storage.pre_quant, self.recipe.seed)
        write_file(folder / self.name, storage.pack(weights, self.storage, scales), self.metadata)


def _members() -> tuple[_Member, ...]:
    return (
        _Member(
            "minimax_h3_fl2va_pruned_nvfp4.safetensors",
            layouts.transformer_shapes(TRANSFORMER),
            synthetic.transformer(SEED),
            storage.TRANSFORMER_NVFP4,
        ),
        _Member(
            "qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors",
            layouts.encoder_shapes(TEXT_ENCODER),
            synthetic.text_encoder(SEED),
            storage.ENCODER_NVFP4_AWQ,
            {**METADATA, **TOLD},
        ),
        _Member(
            "minimax_h3_video_vae_fp16.safetensors",
            layouts.video_vae_shapes(VIDEO_VAE),
            synthetic.video_vae(SEED),
            storage.VIDEO_VAE_FP16,
        ),
        _Member(
            "minimax_h3_audio_vae_fp32.safetensors",
            layouts.audio_vae_shapes(AUDIO_VAE),
            synthetic.audio_vae(SEED),
            storage.AUDIO_VAE_FP32,
        ),
    )


def embedded_set(cache_dir: Path) -> CheckpointSet:
    """The set below `cache_dir`, made if it isn't there yet or isn't whole. CheckpointError if it can't be written."""
    return write_set(cache_dir / "embedded" / source_hash())


def write_set(folder: Path) -> CheckpointSet:
    """The set in `folder`; files that are there in their right size are left alone."""
    members = _members()
    try:
        (folder / TOKENIZER).mkdir(parents=True, exist_ok=True)
        for member in members:
            if not _has_size(folder / member.name, member.size()):
                member.write(folder)
        for name, content in tokenizer_files().items():
            if not _has_size(folder / TOKENIZER / name, len(content)):
                _write_whole(folder / TOKENIZER / name, content)
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else "input/output error"
        message = f"the embedded model can't be written to the cache: {reason}"
        raise checkpoint_error(folder, [Offence(FILE, message, "a writable XDG_CACHE_HOME")]) from None
    transformer, text_encoder, video_vae, audio_vae = (folder / member.name for member in members)
    return CheckpointSet(transformer, text_encoder, video_vae, audio_vae, folder / TOKENIZER)


@cache
def source_hash() -> str:
    """16 hex digits over the code that decides the bytes of the set."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for name in MAKERS:
        digest.update((root / name).read_bytes())
    return digest.hexdigest()[:16]


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _write_whole(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
