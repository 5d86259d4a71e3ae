"""The sizes of h3-nano and its four modules, built as the runtime builds them: from the shapes of a file.

The same classes as the published model's, small: 6 blocks of width 256 with two heads of 128, an encoder of two layers
with a vision tower of two, and VAEs of the released structure. All parameters together stay below 10 million, so that
the masters (16 bits each) fit into 20 MB. Fed by the training; the runtime itself reads sizes from files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch

from h3runtime.checkpoint.synthetic import layouts
from h3runtime.conditioning.config import TextEncoderConfig
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit
from h3runtime.vae.audio_config import AudioVaeConfig
from h3runtime.vae.audio_vae import AudioVae
from h3runtime.vae.upscaler import LatentUpscaler
from h3runtime.vae.upscaler_config import UpscalerConfig
from h3runtime.vae.video_config import VideoVaeConfig
from h3runtime.vae.video_vae import VideoVae

TOLD: Final = {"vision_num_heads": 2, "deepstack_visual_indexes": [0]}
"""What the shapes of a vision tower that nobody published can't tell."""
TRANSFORMER: Final = layouts.TransformerSizes(
    hidden=256, layers=6, refiner_layers=1, heads=2, ffn=512, text_dim=128, curve=(1025, 8)
)
TEXT_ENCODER: Final = layouts.EncoderSizes(
    hidden=128,
    intermediate=256,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=64,
    vision_hidden=32,
    vision_intermediate=64,
    vision_depth=2,
    positions=64,
    taps=1,
)
VIDEO_VAE: Final = layouts.VideoVaeSizes(
    encoder_widths=(32, 32, 32, 64, 64, 96), blocks=1, width=192, inner=192, ffn=384, layers=4
)
AUDIO_VAE: Final = layouts.AudioVaeSizes(
    encoder_widths=(4, 8, 32, 64, 96, 128),
    decoder_in=96,
    decoder_widths=(96, 64, 48, 32, 16, 16, 8, 4),
    block_kernels=(7,),
    dilations=1,
)
UPSCALER: Final = layouts.UpscalerSizes(channels=32, blocks=(1, 1))


def transformer(dtype: torch.dtype = torch.float32) -> Dit:
    """The DiT in its pruned form, parameters uninitialised."""
    config = DitConfig.from_shapes(layouts.transformer_shapes(TRANSFORMER))
    return Dit(config, dtype=dtype)


def text_encoder(rows: int) -> TextEncoder:
    """Qwen3-VL with an embedding table of `rows` (a small vocabulary's own rows, in training), uninitialised."""
    config = TextEncoderConfig.from_shapes(layouts.encoder_shapes(replace(TEXT_ENCODER, vocab=rows)), TOLD)
    return TextEncoder(config)


def video_vae() -> VideoVae:
    """Both halves in fp32, uninitialised, with latent statistics of its own."""
    return VideoVae(VideoVaeConfig.from_shapes(layouts.video_vae_shapes(VIDEO_VAE)), torch.float32)


def audio_vae() -> AudioVae:
    """Both halves, uninitialised, with latent statistics of its own."""
    return AudioVae(AudioVaeConfig.from_shapes(layouts.audio_vae_shapes(AUDIO_VAE)))


def upscaler() -> LatentUpscaler:
    """The latent upscaler in fp32, uninitialised."""
    return LatentUpscaler(UpscalerConfig.from_shapes(layouts.upscaler_shapes(UPSCALER)))
