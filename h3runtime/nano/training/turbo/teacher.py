"""The package's masters as modules to learn from: DiT, text encoder and both VAEs, fp32, frozen.

The masters' embedding table lacks the rows that are zero; here it has all of the small vocabulary's, so that batches of
the joint training's `Lectern` can be encoded. Fed with the package's folder or that of another training; read by
`command`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from h3runtime.checkpoint.embedded.listing import read_listing
from h3runtime.checkpoint.embedded.packaged import NAME
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.denoiser.dit import Dit
from h3runtime.nano import model
from h3runtime.nano.training.masters import AUDIO_VAE, TEXT_ENCODER, TRANSFORMER, VIDEO_VAE, filled
from h3runtime.nano.training.text_master import TOKEN_IDS
from h3runtime.nano.vocabulary import Vocabulary
from h3runtime.vae.audio_vae import AudioVae
from h3runtime.vae.video_vae import VideoVae

TABLE = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True, eq=False)
class Teacher:
    dit: Dit
    encoder: TextEncoder
    video_vae: VideoVae
    audio_vae: AudioVae
    vocabulary: Vocabulary
    masters: str = ""
    """`Listing.trained`, where there is a listing."""


def read_teacher(masters: Path, device: torch.device) -> Teacher:
    """RuntimeError where names or shapes aren't h3-nano's, CheckpointError for a damaged listing."""
    vocabulary = Vocabulary.load()
    dit, encoder = filled(model.transformer(), masters / TRANSFORMER), read_encoder(masters / TEXT_ENCODER, vocabulary)
    video, audio = filled(model.video_vae(), masters / VIDEO_VAE), filled(model.audio_vae(), masters / AUDIO_VAE)
    for module in (dit, encoder, video, audio):
        module.requires_grad_(False).to(device)
    known = read_listing(masters).trained if (masters / NAME).is_file() else ""
    return Teacher(dit, encoder, video, audio, vocabulary, known)


def read_encoder(path: Path, vocabulary: Vocabulary) -> TextEncoder:
    """With a row for every token of the vocabulary, zeros where the master has none."""
    tensors = load_file(path)
    rows = torch.from_numpy(vocabulary.compact(tensors.pop(TOKEN_IDS).long().numpy()))
    table = torch.zeros(vocabulary.rows, tensors[TABLE].shape[1])
    table[rows] = tensors[TABLE].float()
    encoder = model.text_encoder(vocabulary.rows)
    encoder.load_state_dict({**tensors, TABLE: table})
    return encoder.eval()
