"""Qwen3-VL's language layers up to the last one kept, without a final norm (conditioning contract §1.1, §1.2).

    x += o_proj(attention(input_layernorm(x)));  x += mlp(post_attention_layernorm(x))
    after layer j, the j-th deepstack feature is added at the vision rows

Grouped-query causal attention with per-head RMSNorm on q and k before the rotary, by `is_causal`: no [L, L] mask ever
exists. The encoder calls PyTorch's attention itself and never follows the DiT's choice of backend. Fed by `encoder`
with embeddings that hold the vision features already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional as F

from h3runtime.conditioning.config import TextEncoderConfig
from h3runtime.conditioning.layers import RMSNorm, in_row_slices, uninitialised_embedding
from h3runtime.conditioning.mrope import Rotary, rotate


class LanguageModel(nn.Module):
    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        self.embed_tokens = uninitialised_embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(LanguageLayer(config) for _ in range(config.layers))

    def forward(
        self,
        embeds: torch.Tensor,
        rotary: Rotary,
        vision_rows: torch.Tensor,
        deepstack: Sequence[torch.Tensor],
        poll: Callable[[], None],
    ) -> torch.Tensor:
        """embeds fp32 [1, L, hidden] -> the residual stream after the last layer, fp32 [1, L, hidden].

        vision_rows: int64 [V], where the rows [V, hidden] of each deepstack feature go. `poll` runs before each layer.
        """
        hidden = embeds
        for index, layer in enumerate(self.layers):
            poll()
            hidden = layer(hidden, rotary)
            if index < len(deepstack):
                hidden = hidden.index_add(1, vision_rows, deepstack[index].unsqueeze(0))
        return hidden


class LanguageLayer(nn.Module):
    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.eps)
        self.self_attn = CausalAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.eps)
        self.mlp = SwiGlu(config)

    def forward(self, x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotary)
        return x + in_row_slices(self.mlp, self.post_attention_layernorm(x))


class CausalAttention(nn.Module):
    """heads query heads share kv_heads key and value heads; head_dim * heads may differ from hidden."""

    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.sharing = config.heads // config.kv_heads
        self.q_proj = nn.Linear(config.hidden, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.eps)
        self.k_norm = RMSNorm(config.head_dim, config.eps)

    def forward(self, x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        """x [B, L, hidden] -> [B, L, hidden]."""
        q, k, v = (p(x).unflatten(-1, (-1, self.head_dim)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(self.q_norm(q), rotary), rotate(self.k_norm(k), rotary)
        # Key heads are repeated by hand: in fp32 on CUDA, PyTorch's own grouping holds all [L, L] scores.
        k, v = (t.repeat_interleave(self.sharing, dim=2) for t in (k, v))
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        attended: torch.Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return attended


class SwiGlu(nn.Module):
    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)).mul_(self.up_proj(x)))
        return out
