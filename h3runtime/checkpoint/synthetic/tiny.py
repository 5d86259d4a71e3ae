"""The tiny set: random weights in the published layouts, the smallest that every part of the pipeline takes.

Both transformers, what they share, and a tokenizer folder, about 32 MB, the same bytes on every machine for one version
of the code. In a cache, the folder is named after a hash of the code that makes it, so a new version makes a new set.
Every file appears whole or not at all; two processes that race write the same bytes, and whoever renames last changes
nothing.

The weights are random (see `recipes`): the clips are abstract, but every part of the pipeline does its real work and
reacts to every input. Metadata says `h3runtime_synthetic`, so that checks of a clip only warn. Fed with a folder by the
tests, which want two transformers that differ and no trained weights' habits; its sizes are `synthesis`' too.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from h3runtime.checkpoint.checkpoint_set import CheckpointSet
from h3runtime.checkpoint.file import CONFIG_KEY
from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.partition import FL2VA, REF2VA
from h3runtime.checkpoint.sources import SYNTHETIC_KEY
from h3runtime.checkpoint.synthetic import layouts
from h3runtime.checkpoint.synthetic.byte_tokenizer import tokenizer_files
from h3runtime.checkpoint.synthetic.made_files import MadeFile, SetSizes, set_files
from h3runtime.checkpoint.tensor_file import checkpoint_error
from h3runtime.checkpoint.writer import write_whole
from h3runtime.errors import Offence

SEED = 20260815
METADATA = {SYNTHETIC_KEY: "1"}
TOLD = {CONFIG_KEY: '{"vision_num_heads": 2, "deepstack_visual_indexes": [0, 1, 2]}'}
"""What the shapes of a vision tower that nobody published can't tell."""
TOKENIZER = "tokenizer"
MAKERS = (
    "checkpoint/synthetic/byte_tokenizer.py",
    "checkpoint/synthetic/constants.py",
    "checkpoint/synthetic/layouts.py",
    "checkpoint/synthetic/made_files.py",
    "checkpoint/synthetic/published.py",
    "checkpoint/synthetic/random_values.py",
    "checkpoint/synthetic/recipes/audio_vae.py",
    "checkpoint/synthetic/recipes/recipe.py",
    "checkpoint/synthetic/recipes/text_encoder.py",
    "checkpoint/synthetic/recipes/transformer.py",
    "checkpoint/synthetic/recipes/video_vae.py",
    "checkpoint/synthetic/storage.py",
    "checkpoint/synthetic/tiny.py",
    "checkpoint/writer.py",
    "quant/int8.py",
    "quant/nvfp4.py",
    "quant/slices.py",
    "quant/tiles.py",
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
VIDEO_VAE = layouts.VideoVaeSizes(
    encoder_widths=(32, 32, 32, 64, 64, 64), blocks=1, width=128, inner=128, ffn=256, layers=2
)
"""32 channels are the fewest that its norms take, and the first level, where a CPU spends its time, has one block."""
AUDIO_VAE = layouts.AudioVaeSizes(
    encoder_widths=(8, 16, 32, 64, 128, 256), decoder_in=64, decoder_widths=(64, 32, 16, 8, 8, 4, 2, 2)
)


def _members() -> tuple[MadeFile, ...]:
    sizes = SetSizes(TRANSFORMER, TEXT_ENCODER, VIDEO_VAE, AUDIO_VAE)
    return set_files("nvfp4", sizes, SEED, METADATA, TOLD, (FL2VA, REF2VA))


def tiny_set(cache_dir: Path) -> CheckpointSet:
    """The set below `cache_dir`, made if it isn't there yet or isn't whole. CheckpointError if it can't be written."""
    return write_set(cache_dir / "tiny" / source_hash())


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
                write_whole(folder / TOKENIZER / name, content)
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else "input/output error"
        message = f"the tiny set can't be written to the cache: {reason}"
        raise checkpoint_error(folder, [Offence(FILE, message, "a writable XDG_CACHE_HOME")]) from None
    fl2va, ref2va, text_encoder, video_vae, audio_vae = (folder / member.name for member in members)
    return CheckpointSet(fl2va, ref2va, text_encoder, video_vae, audio_vae, folder / TOKENIZER)


@cache
def source_hash() -> str:
    """16 hex digits over the code that decides the bytes of the set."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for name in MAKERS:
        digest.update((root / name).read_bytes())
    return digest.hexdigest()[:16]


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False
