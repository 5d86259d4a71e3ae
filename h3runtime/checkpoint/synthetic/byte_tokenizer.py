"""A tokenizer folder in which every byte is its own token, for encoders whose weights were made up.

The three files have the published ones' form (conditioning contract §1.4): 256 byte characters in `vocab.json`, no
merges, and the added tokens at their real ids, H3's seven listed without ids so that a reader has to number them.
Fed by `tiny` and `synthesis`; read by `conditioning`.
"""

from __future__ import annotations

import json

FIRST_ADDED = 151643
ADDED = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""151643..151668 in order (conditioning contract §1.4)."""
SPECIAL = ADDED[:14]
"""Those flagged `special` in the published config: up to `<|video_pad|>`."""
H3_TOKENS = ("<d>", "</d>", "<|cutoff|>", "<|lyrics_start|>", "<|lyrics_end|>", "<|caption_start|>", "<|caption_end|>")
"""151669..151675 by being numbered on (conditioning contract §1.4)."""


def tokenizer_files() -> dict[str, bytes]:
    """File name -> contents."""
    return {
        "vocab.json": _json({character: i for i, character in enumerate(byte_characters())}),
        "merges.txt": b"",
        "tokenizer_config.json": _json(_config()),
    }


def byte_characters() -> list[str]:
    """The byte-level alphabet by token id: bytes that print stand for themselves, then the others from U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [*map(chr, own), *(chr(0x100 + n) for n in range(256 - len(own)))]


def _config() -> dict[str, object]:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(FIRST_ADDED + i): {"content": token, **flags, "special": token in SPECIAL}
            for i, token in enumerate(ADDED)
        },
        "additional_special_tokens": [*SPECIAL[1:], *H3_TOKENS],
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 262144,
    }


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()
