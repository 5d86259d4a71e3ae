"""How each published kind of file stores its tensors: dtypes, quantised layers, markers; and packing weights that way.

    logical weights {name: fp32 tensor} + Storage -> stored tensors {name or sidecar: tensor}, ready for `writer`

Markers are the exact bytes of the published files (checkpoint-formats §2.5). Fed by `synthetic`; the tests compute the
published files' sizes from it to the byte. It makes no values but scales.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch

from h3runtime.checkpoint.markers import SUFFIX
from h3runtime.quant import int8, nvfp4

NVFP4_MARKER = b'{"format": "nvfp4"}'
NVFP4_FULL_PRECISION_MARKER = b'{"format": "nvfp4", "full_precision_matrix_mult": true}'
INT8_ROWS_MARKER = b'{"format": "int8_tensorwise"}'

StoredTensor = tuple[torch.dtype, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Storage:
    """dtype: of whatever nothing else is said about. dtypes: (pattern, dtype), first match wins.

    nvfp4, int8_rows: patterns of layers stored so. pre_quant: those of them with an AWQ `pre_quant_scale` (BF16).
    """

    dtype: torch.dtype
    dtypes: tuple[tuple[str, torch.dtype], ...] = ()
    nvfp4: tuple[str, ...] = ()
    nvfp4_marker: bytes = NVFP4_MARKER
    pre_quant: tuple[str, ...] = ()
    int8_rows: tuple[str, ...] = ()

    def dtype_of(self, name: str) -> torch.dtype:
        return next((dtype for pattern, dtype in self.dtypes if fnmatchcase(name, pattern)), self.dtype)


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
TRANSFORMER_BF16 = Storage(torch.bfloat16, _ISLANDS)
TRANSFORMER_NVFP4 = Storage(
    torch.bfloat16,
    (*_ISLANDS, ("*.adaln_proj.linear.*", torch.float16)),
    nvfp4=("blocks.*.attn.qkv_proj", "blocks.*.attn.out_proj", "blocks.*.mlp.fc1", "blocks.*.mlp.fc2"),
)
"""The layout of `pruned_nvfp4` (checkpoint-formats §2.6)."""
ENCODER_BF16 = Storage(torch.bfloat16)
ENCODER_NVFP4_AWQ = Storage(
    torch.bfloat16,
    nvfp4=("model.layers.*_proj",),
    nvfp4_marker=NVFP4_FULL_PRECISION_MARKER,
    pre_quant=("*.o_proj", "*.down_proj"),
    int8_rows=("model.embed_tokens",),
)
"""The layout of `nvfp4_awq` (checkpoint-formats §5.1)."""
VIDEO_VAE_FP16 = Storage(torch.float16, (("latents_*", torch.float32),))
AUDIO_VAE_FP32 = Storage(torch.float32)


def format_of(name: str, shape: tuple[int, ...], storage: Storage) -> str | None:
    """`nvfp4`, `int8_rows` or None for the tensor called `name`."""
    layer = name.removesuffix(".weight")
    if layer == name or len(shape) != 2:
        return None
    if any(fnmatchcase(layer, p) for p in storage.nvfp4):
        return "nvfp4"
    return "int8_rows" if any(fnmatchcase(layer, p) for p in storage.int8_rows) else None


def has_pre_quant(name: str, storage: Storage) -> bool:
    return any(fnmatchcase(name.removesuffix(".weight"), p) for p in storage.pre_quant)


def stored_layout(shapes: Mapping[str, tuple[int, ...]], storage: Storage) -> dict[str, StoredTensor]:
    """dtype and shape of every stored tensor, without making any."""
    return {k: v for name, shape in shapes.items() for k, v in _layout(name, shape, storage)}


def _layout(name: str, shape: tuple[int, ...], storage: Storage) -> Iterator[tuple[str, StoredTensor]]:
    layer = name.removesuffix(".weight")
    kind = format_of(name, shape, storage)
    if kind is None:
        yield name, (storage.dtype_of(name), shape)
    elif kind == "nvfp4":
        rows, columns = shape
        yield name, (torch.uint8, nvfp4.packed_shape((rows, columns)))
        yield f"{layer}.weight_scale", (torch.float8_e4m3fn, nvfp4.scale_shape((rows, columns)))
        yield f"{layer}.weight_scale_2", (torch.float32, ())
        yield layer + SUFFIX, (torch.uint8, (len(storage.nvfp4_marker),))
        if has_pre_quant(name, storage):
            yield f"{layer}.pre_quant_scale", (torch.bfloat16, (columns,))
    else:
        yield name, (torch.int8, shape)
        yield f"{layer}.weight_scale", (torch.float32, (shape[0], 1))
        yield layer + SUFFIX, (torch.uint8, (len(INT8_ROWS_MARKER),))


def pack(
    weights: Mapping[str, torch.Tensor], storage: Storage, pre_quant: Mapping[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """Logical fp32 weights -> stored tensors. `pre_quant`: layer -> [K] scale, divided out of the weight, else 1."""
    scales = pre_quant or {}
    return {k: v for name, weight in weights.items() for k, v in _pack(name, weight, storage, scales)}


def _pack(
    name: str, weight: torch.Tensor, storage: Storage, scales: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    layer = name.removesuffix(".weight")
    kind = format_of(name, tuple(weight.shape), storage)
    if kind is None:
        yield name, weight.to(storage.dtype_of(name))
    elif kind == "nvfp4":
        if has_pre_quant(name, storage):
            scale = scales.get(layer, torch.ones(weight.shape[1])).to(torch.bfloat16)
            weight = weight / scale.float()
            yield f"{layer}.pre_quant_scale", scale
        stored = nvfp4.quantize(weight)
        yield name, stored.codes
        yield f"{layer}.weight_scale", stored.block_scale
        yield f"{layer}.weight_scale_2", stored.tensor_scale
        yield layer + SUFFIX, marker_tensor(storage.nvfp4_marker)
    else:
        rows = int8.quantize(weight)
        yield name, rows.codes
        yield f"{layer}.weight_scale", rows.scale
        yield layer + SUFFIX, marker_tensor(INT8_ROWS_MARKER)


def marker_tensor(text: bytes) -> torch.Tensor:
    return torch.tensor(list(text), dtype=torch.uint8)
