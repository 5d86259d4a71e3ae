"""The published files as data: what each is called and how it stores its tensors (checkpoint-formats §1, §2.6, §5).

One `Storage` per file layout, and which of them make up a set of each format. Read by `made_files` and the tests, which
compare counts and sizes with the published ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from h3runtime.checkpoint.published_files import file_name
from h3runtime.checkpoint.synthetic.storage import INT8_CONVROT, INT8_ROWS, NVFP4, Scheme, Storage

SetFormat = Literal["nvfp4", "int8_convrot", "fp8_scaled", "bf16"]
FORMATS: tuple[SetFormat, ...] = get_args(SetFormat)

_PT = (("format", "pt"),)
"""Metadata of files that torch's own saver wrote."""
_ISLANDS = tuple(
    (pattern, torch.float32)
    for pattern in (
        "video_patch_proj.*",
        "audio_patch_proj.*",
        "rope.inv_freq",
        "adaln_t_table",
        "time_embedder.*",
        "final_layer.video_out.*",
        "final_layer.audio_out.*",
    )
)
"""Kept F32 in every transformer file (checkpoint-formats §2.3)."""
_CURVE_F16 = (*_ISLANDS, ("*.adaln_proj.linear.*", torch.float16))
"""Pruned AdaLN of the quantised files; BF16 in the BF16 file (checkpoint-formats §4.2)."""
QKV, OUT, FC1, FC2 = "attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2"
ADALN = "blocks.*.adaln_proj.linear"


def in_blocks(scheme: Scheme, *leaves: str) -> tuple[tuple[str, Scheme], ...]:
    """These linears of every block of the transformer, not of its refiner."""
    return tuple((f"blocks.*.{leaf}", scheme) for leaf in leaves or (QKV, OUT, FC1, FC2))


TRANSFORMER_BF16 = Storage(torch.bfloat16, _ISLANDS, metadata=_PT)
"""`pruned_bf16`, and the unpruned `bf16`."""
TRANSFORMER_NVFP4 = Storage(torch.bfloat16, _CURVE_F16, in_blocks(NVFP4))
"""`pruned_nvfp4`: 200 layers."""
TRANSFORMER_NVFP4_FULL = Storage(
    torch.bfloat16,
    _ISLANDS,
    (*in_blocks(NVFP4), (ADALN, NVFP4), *((f"token_refiner.blocks.*.{leaf}", NVFP4) for leaf in (QKV, OUT, FC1, FC2))),
    told_by="metadata",
)
"""The unpruned `nvfp4_full`: 258 layers, told by `_quantization_metadata` alone."""
TRANSFORMER_INT8 = Storage(torch.bfloat16, _CURVE_F16, in_blocks(INT8_CONVROT))
"""`pruned_int8_convrot`: 200 layers."""
TRANSFORMER_INT8_FULL = Storage(
    torch.bfloat16, _ISLANDS, (*in_blocks(INT8_CONVROT), (ADALN, Scheme("int8_tensorwise", convrot=64)))
)
"""The unpruned `int8_convrot`: 250 layers; 256 doesn't divide the 2688 inputs of AdaLN, 64 is the next power of 4."""
_FP8 = (
    *in_blocks(Scheme("float8_e4m3fn", input_scale=True), QKV, OUT, FC1),
    *in_blocks(Scheme("float8_e4m3fn", full_precision=True), FC2),
)
TRANSFORMER_FP8 = Storage(torch.bfloat16, _CURVE_F16, _FP8)
"""`pruned_fp8_scaled`: 200 layers, fc2 without a static scale and never multiplied in FP8. AdaLN could be BF16 as well:
the bytes are the same."""
TRANSFORMER_FP8_FULL = Storage(torch.bfloat16, _ISLANDS, _FP8)
"""An unpruned `fp8_scaled`. Nobody published one: the same layers, the rest as in the unpruned BF16 file."""

ENCODER_BF16 = Storage(torch.bfloat16, metadata=_PT)
ENCODER_INT8 = Storage(torch.bfloat16, layers=(("model.layers.*_proj", INT8_CONVROT),))
"""`int8_convrot`: 350 layers; the embedding and the vision tower stay BF16."""
_AWQ = Scheme("nvfp4", full_precision=True, pre_quant=True)
ENCODER_NVFP4_AWQ = Storage(
    torch.bfloat16,
    layers=(
        ("model.layers.*.o_proj", _AWQ),
        ("model.layers.*.down_proj", _AWQ),
        ("model.layers.*_proj", Scheme("nvfp4", full_precision=True)),
        ("model.embed_tokens", INT8_ROWS),
    ),
)
"""`nvfp4_awq`: 350 NVFP4 layers and the INT8 embedding."""

VIDEO_VAE_FP16 = Storage(torch.float16, (("latents_*", torch.float32),))
VIDEO_VAE_INT8 = Storage(
    torch.float32,
    tuple((f"{kernel}.weight", torch.float16) for kernel in ("encoder.*conv*", "encoder.*nin_shortcut", "*quant_conv")),
    tuple((f"decoder.*.{linear}", INT8_CONVROT) for linear in ("attn.to_qkv", "attn.to_out", "ff.w1", "ff.w2")),
)
"""`int8_convrot`: 144 linears; convolutions F16, all else F32 (the split is unverified)."""
AUDIO_VAE_FP32 = Storage(torch.float32)


@dataclass(frozen=True, slots=True)
class SetStorages:
    """How the transformer, pruned and not, and the encoder of a set are stored; its VAEs are always fp16 and fp32.

    The video VAE is published as int8_convrot too, later and as an option; the sets keep to the first one, which every
    device can run (checkpoint-formats §1.1, G12).
    """

    pruned: Storage
    unpruned: Storage
    encoder_name: str
    encoder: Storage


SETS: Mapping[SetFormat, SetStorages] = {
    "nvfp4": SetStorages(TRANSFORMER_NVFP4, TRANSFORMER_NVFP4_FULL, "nvfp4_awq", ENCODER_NVFP4_AWQ),
    "int8_convrot": SetStorages(TRANSFORMER_INT8, TRANSFORMER_INT8_FULL, "int8_convrot", ENCODER_INT8),
    "fp8_scaled": SetStorages(TRANSFORMER_FP8, TRANSFORMER_FP8_FULL, "bf16", ENCODER_BF16),
    "bf16": SetStorages(TRANSFORMER_BF16, TRANSFORMER_BF16, "bf16", ENCODER_BF16),
}


def transformer_name(kind: SetFormat, partition: str, *, pruned: bool) -> str:
    """The published file name of that partition, `fl2va` or `ref2va` (checkpoint-formats §1)."""
    return file_name(partition, f"{'pruned_' if pruned else ''}{kind}")


def encoder_name(storage_name: str) -> str:
    return file_name("text_encoder", storage_name)


VIDEO_VAE_NAME = file_name("video_vae", "fp16")
AUDIO_VAE_NAME = file_name("audio_vae", "fp32")
