"""The text encoder: the first layers of a fixed prompt, beside the same layers written out in FP64.

The published encoder's weights aren't at hand everywhere, so no state of its is stored here to compare with; what is
compared is the arithmetic of this machine, on the weights that are loaded: PyTorch's attention and products in FP32,
norms, rotation, and weights that are decoded at every call. It never follows the transformer's backends (conditioning
contract §1.2), and a wrong one shows as a cosine far from 1; the case that this is for had another attention in it
(deepbeepmeep/Wan2GP #2066: the clip has nothing to do with its prompt). The error is 1 - cosine of the worst row, and
what FP32 costs is 1e-12.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Final

import torch
from torch.nn import functional as F

from h3runtime.backends.linear.dequant import dense
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.conditioning.language_model import LanguageLayer
from h3runtime.conditioning.layers import RMSNorm
from h3runtime.conditioning.mrope import Rotary, position_ids, rotary_angles, rotate
from h3runtime.conditioning.presentation import Presentation
from h3runtime.engine.self_test.check import Check

FAMILY: Final = "text_encoder"
KERNEL: Final = "pytorch"
PROMPT: Final = "A red lantern swings over a still harbour at dusk; water laps and a bell rings far away."
LAYERS: Final = 2
TOLERANCE: Final = 1e-5
PIECE_ROWS: Final = 1024


def encoder_checks(encoder: TextEncoder, presentation: Presentation) -> Iterator[Check]:
    """presentation: of `PROMPT`, without pictures."""
    layers = encoder.model.layers[:LAYERS]
    asked = f"1 - cosine of {presentation.rows} rows after {len(layers)} layers"
    yield Check(FAMILY, KERNEL, asked, TOLERANCE, lambda: _error(encoder, list(layers), presentation))


@torch.no_grad()
def _error(encoder: TextEncoder, layers: Sequence[Any], presentation: Presentation) -> float:
    """A layer runs before it is written out: where weights come to the device only as they are used, it calls them."""
    config, lodging = encoder.config, encoder.lodging
    with nullcontext() if lodging is None else lodging.visit(tower=False, poll=lambda: None):
        got = encoder.language_input(presentation).embeds
        positions = position_ids(presentation.rows, [])
        cos, sin = rotary_angles(positions, config.head_dim, config.rope_theta, config.mrope_section)
        rotary = cos.to(got.device), sin.to(got.device)
        wanted = got.double()
        for layer in layers:
            got = layer(got, rotary)
            wanted = wanted + _attention(layer, _normed(layer.input_layernorm, wanted), rotary)
            wanted = wanted + _mlp(layer, _normed(layer.post_attention_layernorm, wanted))
        return float((1 - F.cosine_similarity(got[0].double(), wanted[0], dim=-1)).max())


def _attention(layer: LanguageLayer, x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """x fp64 [1, L, hidden], normed; a key head is copied for the query heads that share it, scores are kept whole."""
    own = layer.self_attn
    turn = rotary[0].double(), rotary[1].double()
    q = rotate(_normed(own.q_norm, _heads(_product(own.q_proj, x), own.head_dim)), turn)
    k = rotate(_normed(own.k_norm, _heads(_product(own.k_proj, x), own.head_dim)), turn)
    v = _heads(_product(own.v_proj, x), own.head_dim)
    sharing = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(sharing, 2), v.repeat_interleave(sharing, 2)
    scores = torch.einsum("blhd,bmhd->bhlm", q, k) / own.head_dim**0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    weights = scores.masked_fill(later, float("-inf")).softmax(-1)
    return _product(own.o_proj, torch.einsum("bhlm,bmhd->blhd", weights, v).flatten(2))


def _mlp(layer: LanguageLayer, x: torch.Tensor) -> torch.Tensor:
    gate = _product(layer.mlp.gate_proj, x)
    return _product(layer.mlp.down_proj, gate * gate.sigmoid() * _product(layer.mlp.up_proj, x))


def _heads(x: torch.Tensor, head_dim: int) -> torch.Tensor:
    return x.reshape(*x.shape[:-1], -1, head_dim)


def _normed(norm: RMSNorm, x: torch.Tensor) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + norm.eps).rsqrt() * norm.weight.double()


def _product(linear: Any, x: torch.Tensor) -> torch.Tensor:
    """By the decoded weight of whatever format, a piece of its rows at a time: what the encoder's own call holds, and
    no more than 210 MB beside it."""
    scale = getattr(linear.resident, "pre_quant_scale", None)
    x = x if scale is None else x * scale.double()
    weight = dense(linear.resident, torch.float32)
    return torch.cat([x @ piece.double().t() for piece in torch.split(weight, PIECE_ROWS)], -1)
