"""A small encoder with random weights and a byte-only tokenizer, in the layout of the real files."""

import json
from pathlib import Path

import numpy as np
import torch
from tokenizers.pre_tokenizers import ByteLevel

from h3runtime.backends.linear.dequant import install_plain
from h3runtime.conditioning.config import TextEncoderConfig, VisionConfig
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.conditioning.tokenizer import REQUIRED, PromptTokenizer

VISION = VisionConfig(hidden=32, intermediate=48, depth=4, heads=2, positions=36, out_hidden=48, taps=(0, 1, 3))
CONFIG = TextEncoderConfig(
    vocab=600,
    hidden=48,
    intermediate=80,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=32,
    mrope_section=(6, 5, 5),
    vision=VISION,
)


def weights(config: TextEncoderConfig = CONFIG, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        shapes = {name: t.shape for name, t in TextEncoder(config).state_dict().items()}
    out = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        fan_in = shape[1:].numel() if len(shape) > 1 else 1
        scale = 0.1 if len(shape) == 1 else fan_in**-0.5
        out[name] = noise * scale + (1 if "norm" in name and name.endswith("weight") else 0)
    return out


def encoder(state: dict[str, torch.Tensor], config: TextEncoderConfig = CONFIG) -> TextEncoder:
    with torch.device("meta"):
        model = TextEncoder(config)
    model.load_state_dict(state, strict=True, assign=True)
    install_plain(model)
    return model


def picture(height: int, width: int, frames: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (frames, height, width, 3), dtype=np.uint8)


BASE_TOKENS = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>"),
    *("<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>"),
    *("<think>", "</think>"),
]
EXTRA_TOKENS = [token for token, i in REQUIRED.items() if i >= 151669]


def byte_tokenizer_files(folder: Path, extra: list[str] | None = None) -> Path:
    """256 byte characters, no merges, the added tokens of the real files: a gap between 256 and 151643."""
    vocab = {character: i for i, character in enumerate(sorted(ByteLevel.alphabet()))}
    config = {
        "added_tokens_decoder": {str(151643 + i): {"content": t} for i, t in enumerate(BASE_TOKENS)},
        "additional_special_tokens": ["<|im_start|>", *(EXTRA_TOKENS if extra is None else extra)],
    }
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (folder / "merges.txt").write_text("", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def byte_tokenizer(folder: Path) -> PromptTokenizer:
    return PromptTokenizer.from_folder(byte_tokenizer_files(folder))
