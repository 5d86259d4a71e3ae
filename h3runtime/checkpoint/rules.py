"""What each component's file may hold and how its tensors are kept: one frozen rule per component.

Read by `load`. Patterns are shell patterns over names without prefix (`*` crosses dots).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from h3runtime.errors import Offence, SettingsError


@dataclass(frozen=True, slots=True)
class LoadRule:
    """cast:     the dtype everything floating becomes, or None: kept as stored.
    optional:  names the model has, never uses, and the file may lack; zeros stand in.
    ignored:   names the file may have that the model has no use for.
    nvfp4, int8_rows: layers that may be stored so.
    """

    cast: torch.dtype | None = None
    optional: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    nvfp4: tuple[str, ...] = ()
    int8_rows: tuple[str, ...] = ()


TRANSFORMER = LoadRule(
    ignored=("blocks.*.attn.to_gate_compress.*",),
    nvfp4=("blocks.*", "token_refiner.blocks.*"),
)
"""Stored dtypes are kept: BF16 or NVFP4 linears, F32 islands, F16 or BF16 AdaLN (checkpoint-formats §2.3, §4.2).
`to_gate_compress` belongs to sparse attention and is unused by a dense forward (dit-contract §1.2)."""

TEXT_ENCODER = LoadRule(nvfp4=("model.layers.*",), int8_rows=("model.embed_tokens",))
"""Stored dtypes are kept (checkpoint-formats §5.1)."""

AUDIO_VAE = LoadRule(cast=torch.float32, optional=("logs_proj.*",), ignored=("logs_proj.*",))
"""FP32 only (conditioning contract §5.1); `logs_proj` is never used (§5.2)."""

_VIDEO_VAE = LoadRule(optional=("decoder.mask_token",), ignored=("decoder.mask_token",))
VAE_DTYPES = {"float16": torch.float16, "float32": torch.float32}


def video_vae(dtype: torch.dtype) -> LoadRule:
    """The rule of the video VAE in float16 or float32, which the model itself judges; `mask_token` is zeros and never
    used (§4.2)."""
    return replace(_VIDEO_VAE, cast=dtype)


def vae_dtype(name: str) -> torch.dtype:
    """`float16` or `float32`; SettingsError otherwise. bfloat16 is refused: the decoder falls apart in it (§4.8)."""
    if name in VAE_DTYPES:
        return VAE_DTYPES[name]
    legal = ", ".join(VAE_DTYPES)
    raise SettingsError(
        f"vae_dtype: {name} isn't a dtype the video VAE can run in", [Offence("vae_dtype", name, legal)]
    )
