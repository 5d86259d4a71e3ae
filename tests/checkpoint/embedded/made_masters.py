"""Masters with made-up values, of the sizes of the real ones: what the training leaves, without the training."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import torch

from h3runtime.checkpoint.embedded.__main__ import list_derived
from h3runtime.checkpoint.embedded.masters import TABLE, TOKEN_IDS, TOKENIZER, Weights, file_name
from h3runtime.checkpoint.embedded.packaged import FOLDER
from h3runtime.checkpoint.synthetic import layouts, published
from h3runtime.checkpoint.synthetic.byte_tokenizer import tokenizer_files
from h3runtime.checkpoint.synthetic.recipes.audio_vae import audio_vae
from h3runtime.checkpoint.synthetic.recipes.text_encoder import text_encoder
from h3runtime.checkpoint.synthetic.recipes.transformer import transformer
from h3runtime.checkpoint.synthetic.recipes.video_vae import video_vae
from h3runtime.checkpoint.synthetic.storage import Storage, pack
from h3runtime.checkpoint.writer import write_file
from h3runtime.nano import model

SPECIAL = range(151_643, 151_676)
"""Ids of the added tokens (conditioning contract §1.4)."""


def write_masters(folder: Path, seed: int = 1) -> Path:
    """All four and a tokenizer, with their list."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = write_tokenizer(folder / TOKENIZER)
    shapes = layouts.transformer_shapes(model.TRANSFORMER)
    weights = transformer(seed, model.TRANSFORMER.layers).weights(shapes)
    write_file(folder / file_name("transformer"), pack(weights, published.TRANSFORMER_BF16))
    write_file(folder / file_name("text_encoder"), encoder(ids, seed))
    shapes = layouts.video_vae_shapes(model.VIDEO_VAE)
    weights = video_vae(seed, model.VIDEO_VAE.layers).weights(shapes)
    write_file(folder / file_name("video_vae"), pack(weights, published.VIDEO_VAE_FP16))
    weights = audio_vae(seed).weights(layouts.audio_vae_shapes(model.AUDIO_VAE))
    write_file(folder / file_name("audio_vae"), pack(weights, Storage(torch.float16)))
    list_derived(folder)
    return folder


def encoder(ids: list[int], seed: int = 1) -> Weights:
    """Rows of these tokens alone."""
    shapes = layouts.encoder_shapes(replace(model.TEXT_ENCODER, vocab=len(ids)))
    packed = pack(text_encoder(seed).weights(shapes), published.ENCODER_BF16)
    assert packed[TABLE].shape == (len(ids), model.TEXT_ENCODER.hidden)
    return packed | {TOKEN_IDS: torch.tensor(ids)}


def write_tokenizer(folder: Path) -> list[int]:
    """The package's own where it is there, else one of bytes. The ids that it may give."""
    if (FOLDER / TOKENIZER).is_dir():
        shutil.copytree(FOLDER / TOKENIZER, folder, dirs_exist_ok=True)
    else:
        folder.mkdir(exist_ok=True)
        for name, content in tokenizer_files().items():
            (folder / name).write_bytes(content)
    return [*range(len(json.loads((folder / "vocab.json").read_text()))), *SPECIAL]
