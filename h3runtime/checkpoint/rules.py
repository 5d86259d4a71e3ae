"""What each component's file may hold and how its tensors are kept: one frozen rule per component.

Read by `load`. Patterns are shell patterns over names without prefix (`*` crosses dots).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import torch

from h3runtime.errors import Offence, SettingsError

if TYPE_CHECKING:
    from h3runtime.checkpoint.file import CheckpointFile


@dataclass(frozen=True, slots=True)
class LoadRule:
    """cast:    the dtype everything plain and floating becomes, or None: kept as stored. Quantised parts always are.
    ignored: names that file and model may have and that nothing reads: neither judged nor loaded.
    switched: linears that follow the choice of backend; all others are computed by the definition, `dequant`.
    """

    cast: torch.dtype | None = None
    ignored: tuple[str, ...] = ()
    switched: tuple[str, ...] = ()

    def ignores(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.ignored)

    def switches(self, linear: str) -> bool:
        return any(fnmatchcase(linear, pattern) for pattern in self.switched)

    def formats(self, file: CheckpointFile) -> frozenset[str]:
        """How the layers of a file are stored that follow the choice; plain ones aren't among them."""
        return frozenset(layer.marker.format for layer in file.layers.values() if self.switches(layer.name))


TRANSFORMER = LoadRule(
    ignored=("blocks.*.attn.to_gate_compress.*",),
    switched=("blocks.*.attn.qkv_proj", "blocks.*.attn.out_proj", "blocks.*.mlp.fc1", "blocks.*.mlp.fc2"),
)
"""Stored dtypes are kept: F32 islands, F16 or BF16 AdaLN, any format for any linear (checkpoint-formats §2.3, §2.6).
`to_gate_compress` belongs to sparse attention and is unused by a dense forward (dit-contract §1.2), 3.9 GB in BF16.
The blocks' four linears are nearly all the work of a step and read the compute dtype; the projections before and after
them are FP32 or run once a request, and modulation is made ahead of the loop."""

TRANSFORMER_GATED = replace(TRANSFORMER, ignored=())
"""For a server whose attention reads `to_gate_compress`; a file without it is loaded all the same."""

TEXT_ENCODER = LoadRule()
"""Stored dtypes are kept (checkpoint-formats §5.1)."""

AUDIO_VAE = LoadRule(cast=torch.float32, ignored=("logs_proj.*",))
"""FP32 only (conditioning contract §5.1); `logs_proj` is never used (§5.2)."""

_VIDEO_VAE = LoadRule(ignored=("decoder.mask_token",))
VAE_DTYPES = {"float16": torch.float16, "float32": torch.float32}


_DECODER_LINEARS = tuple(f"decoder.transformer_blocks.*.{n}" for n in ("attn.to_qkv", "attn.to_out", "ff.w1", "ff.w2"))


def video_vae(dtype: torch.dtype, *, switched: bool = False) -> LoadRule:
    """The rule of the video VAE in float16 or float32, which the model itself judges; `mask_token` is zeros and never
    used (§4.2). switched: the decoder's blocks follow a choice of backend."""
    return replace(_VIDEO_VAE, cast=dtype, switched=_DECODER_LINEARS if switched else ())


def vae_dtype(name: str) -> torch.dtype:
    """`float16` or `float32`; SettingsError otherwise. bfloat16 is refused: the decoder falls apart in it (§4.8)."""
    if name in VAE_DTYPES:
        return VAE_DTYPES[name]
    legal = ", ".join(VAE_DTYPES)
    raise SettingsError(
        f"vae_dtype: {name} isn't a dtype the video VAE can run in", [Offence("vae_dtype", name, legal)]
    )
