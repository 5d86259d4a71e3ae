"""Qwen3-VL's language layers up to the last one kept, without a final norm (conditioning contract §1.1, §1.2).

    x += o_proj(attention(input_layernorm(x)));  x += mlp(post_attention_layernorm(x))
    after layer j, the j-th deepstack feature is added at the vision rows

Grouped-query causal attention with per-head RMSNorm on q and k before the rotary. No [L, L] scores or mask ever exist,
and no key head is copied for the query heads that share it. Rows pass in chunks; since attention is causal, a chunk
leaves its keys and values behind and attends to those so far:

    whole      x [L, hidden], k and v [L, kv_heads * head_dim]
    a chunk    R rows: q and what attention gives, a mask [R, rows so far] if any are before; the middle of the MLP

Adds into x in place: at 30,000 rows each copy would be 614 MB. The encoder calls PyTorch's attention itself and never
follows the DiT's choice of backend; on CUDA fp32 goes to the memory-efficient kernel. Fed by `encoder` with embeddings
that hold the vision features already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional as F

from h3runtime.conditioning.config import TextEncoderConfig
from h3runtime.conditioning.layers import FP32, RMSNorm, chunk_bytes, row_chunks, uninitialised_embedding
from h3runtime.conditioning.mrope import Rotary, rotate

MASK_MULTIPLE = 16
"""Columns of a mask's storage: CUDA's memory-efficient attention copies a mask whose rows begin anywhere."""


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
        """embeds fp32 [1, L, hidden] -> the residual stream after the last layer, in the same memory.

        vision_rows: int64 [V], where the rows [V, hidden] of each deepstack feature go. `poll` runs before each layer.
        """
        hidden = embeds
        for index, layer in enumerate(self.layers):
            poll()
            hidden = layer(hidden, rotary)
            if index < len(deepstack):
                hidden.index_add_(1, vision_rows, deepstack[index].unsqueeze(0))
        return hidden


class LanguageLayer(nn.Module):
    """x fp32 [1, L, hidden] is changed in place and returned."""

    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.eps)
        self.self_attn = CausalAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.eps)
        self.mlp = SwiGlu(config)
        self.config = config

    def forward(self, x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        length = x.shape[1]
        kept = self.self_attn.room(length, x)
        for rows in row_chunks(length, attention_row_bytes(self.config, length)):
            x[:, rows] += self.self_attn(self.input_layernorm(x[:, rows]), rotary, rows, kept)
        del kept
        for rows in row_chunks(length, mlp_row_bytes(self.config)):
            x[:, rows] += self.mlp(self.post_attention_layernorm(x[:, rows]))
        return x


Kept = tuple[torch.Tensor, torch.Tensor]
"""Keys, turned, and values of the rows so far, in room for all: fp32 [L, kv_heads, head_dim] each."""


class CausalAttention(nn.Module):
    """heads query heads share kv_heads key and value heads; head_dim * heads may differ from hidden. One sequence."""

    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.kv_heads = config.kv_heads
        self.q_proj = nn.Linear(config.hidden, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.eps)
        self.k_norm = RMSNorm(config.head_dim, config.eps)

    def room(self, length: int, like: torch.Tensor) -> Kept:
        """Memory for the keys and values of `length` rows."""
        shape = (length, self.kv_heads, self.head_dim)
        return like.new_empty(shape), like.new_empty(shape)

    def forward(self, x: torch.Tensor, rotary: Rotary, rows: slice, kept: Kept) -> torch.Tensor:
        """The normed stream of `rows`, x [1, R, hidden] -> what attention adds there.

        Writes their keys and values to `kept`, where those of all rows before are.
        """
        turn = rotary[0][rows], rotary[1][rows]
        kept[0][rows] = rotate(self.k_norm(self._heads(self.k_proj(x))), turn)[0]
        kept[1][rows] = self._heads(self.v_proj(x))[0]
        out = self.attend(rotate(self.q_norm(self._heads(self.q_proj(x))), turn)[0], rows, kept)
        attended: torch.Tensor = self.o_proj(out.unsqueeze(0))
        return attended

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(*x.shape[:-1], -1, self.head_dim)

    def attend(self, q: torch.Tensor, rows: slice, kept: Kept) -> torch.Tensor:
        """q [R, heads, D] -> [R, heads * D].

        A key head is one of a batch, with the query heads that share it; to them it is a view of stride 0. In fp32 on
        CUDA, PyTorch's own grouping would hold all scores.
        """
        q = q.reshape(len(q), self.kv_heads, -1, self.head_dim).permute(1, 2, 0, 3)  # [kv_heads, sharing, R, D]
        k, v = (t[: rows.stop].transpose(0, 1).unsqueeze(1).expand(-1, q.shape[1], -1, -1) for t in kept)
        if rows.start:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=_later_rows_hidden(rows, q))
        else:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.permute(2, 0, 1, 3).flatten(1)


def _later_rows_hidden(rows: slice, like: torch.Tensor) -> torch.Tensor:
    """fp32 [R, stop] for query rows [start, stop): 0 where a key is not after its query, else -inf."""
    columns = rows.stop + -rows.stop % MASK_MULTIPLE
    mask = like.new_full((rows.stop - rows.start, columns), float("-inf")).triu_(rows.start + 1)
    return mask[:, : rows.stop]


def attention_row_bytes(config: TextEncoderConfig, length: int) -> int:
    """The normed row, three widths of q (while it turns, or beside what attention gives), its row of the mask."""
    return FP32 * (config.hidden + 3 * config.heads * config.head_dim + length)


def attention_chunk_bytes(config: TextEncoderConfig, length: int) -> int:
    """What attention's longest chunk of `length` rows holds. One chunk of all rows has no mask."""
    row_bytes = attention_row_bytes(config, length)
    alone = len(row_chunks(length, row_bytes)) == 1
    return length * attention_row_bytes(config, 0) if alone else chunk_bytes(length, row_bytes)


def mlp_row_bytes(config: TextEncoderConfig) -> int:
    """The normed row and the result; gate and value, or their product before and after an AWQ scale."""
    return FP32 * 2 * (config.hidden + config.intermediate)


class SwiGlu(nn.Module):
    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)).mul_(self.up_proj(x)))
        return out
