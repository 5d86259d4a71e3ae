"""The parts a DiT block is made of, and the block.

Pre-norm attention and a gated MLP on the packed sequence, both modulated by AdaLN vectors that `modulation` made. Knows
nothing of timesteps, latents or heads. Fed by `Dit` and `TokenRefiner`; attention itself is the backend's.

    a = norm1(h)*(1 + scale) + shift;  h += gate*attn(a)
    b = norm2(h)*(1 + scale) + shift;  h += gate*mlp(b)          (dit-contract §4.2)

    h [S, hidden] in the compute dtype, updated in place. qkv [S, 3*inner], its thirds all-q, all-k, all-v [S, H, D];
    inner = H*D need not be hidden. fc1's halves are gate, value: mlp = fc2(silu(gate)*value).
    Everything between the products and attention is a producer's (`backends.fused`), which defines its roundings.

At S = 37,810 and the real width a block's peak is the MLP's: h 0.4 GB, b 0.4, fc1 2.2 (bf16). Nothing is quadratic in S
except inside the attention backend, if it chooses to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch
from torch import nn

from h3runtime.backends.attention.base import AttentionBackend, Place, attend_at
from h3runtime.backends.fused.base import FP8, GATED, MODULATED, Activation, Form, NormWeight, Producers, Rotary
from h3runtime.backends.fused.definition import DEFINITION
from h3runtime.backends.linear.adapted import AdaptedLinear
from h3runtime.backends.linear.fp8 import reads_codes, stored_scale
from h3runtime.backends.linear.nvfp4_base import nvfp4_form
from h3runtime.backends.linear.nvfp4_packing import Nvfp4Form
from h3runtime.core import PackedLayout
from h3runtime.denoiser.config import BLOCK_VECTORS, MODALITIES, DitConfig
from h3runtime.denoiser.modulation import AdaLn
from h3runtime.denoiser.timeline import RowMap
from h3runtime.quant.row_codes import RowCodes

CHUNK_ALIGNMENT: Final = 128
"""Rows of an MLP's chunk are a multiple of this, the tile of a GEMM; the last chunk has what is left."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What a block needs beside the sequence and its modulation: who attends, who makes what lies between the products.

    rotary: of every row, made by the same producers; None: no rotation (refiner). block: which one this is, for a
    backend that asks.
    """

    backend: AttentionBackend
    layout: PackedLayout | None
    step: int
    producers: Producers = DEFINITION
    rotary: Rotary | None = None
    block: int = 0


def read_by(linear: nn.Module, x: Activation, producers: Producers) -> Activation:
    """x as `linear` reads it: in codes, where it would round all of x by itself and a producer does so in one pass."""
    if not producers.gives_codes or not isinstance(x, torch.Tensor):
        return x
    if isinstance(linear, AdaptedLinear) and linear.asks_base:
        made = read_by(linear.base, x, producers)
        return replace(made, values=x) if isinstance(made, RowCodes) else x
    if reads_codes(linear):
        return producers.encode(x)
    scale = stored_scale(linear)
    return x if scale is None else producers.encode(x, scale)


def wished(linear: nn.Module, producers: Producers, made: str) -> Form | None:
    """What `linear` would round its input to, if `producers` hand that on where they make `made` of it."""
    if producers.gives_codes and reads_codes(linear):
        return FP8
    return nvfp4_form(linear) if made in producers.packs else None


class RmsNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dim, inside fp32, out in x's dtype (dit-contract §4.2).

    A block hands `held` to its producers, who fuse it with what follows; `forward` is the norm alone, by definition.
    """

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return DEFINITION.norm(x, self.held)

    @property
    def held(self) -> NormWeight:
        return NormWeight(self.weight, self.eps)


class Attention(nn.Module):
    """Full self-attention with per-head q and k norms (dit-contract §4.3)."""

    def __init__(self, config: DitConfig, *, gate_compress: bool = False) -> None:
        super().__init__()
        self.heads = config.heads
        self.head_dim = config.head_dim
        self.qkv_proj = nn.Linear(config.hidden, 3 * config.inner, bias=False)
        self.q_norm = RmsNorm(config.head_dim, config.qk_norm_eps)
        self.k_norm = RmsNorm(config.head_dim, config.qk_norm_eps)
        self.out_proj = nn.Linear(config.inner, config.hidden, bias=False)
        if gate_compress:
            # Held for files that carry it, so that loading stays strict; only `vsa` reads it, and has it loaded.
            self.to_gate_compress = nn.Linear(config.hidden, config.inner, bias=False)

    def forward(self, x: Activation, call: AttentionCall) -> torch.Tensor:
        """[S, hidden] -> [S, hidden]."""
        qkv = self.qkv_proj(read_by(self.qkv_proj, x, call.producers)).unflatten(-1, (3, self.heads, self.head_dim))
        call.producers.norm_rotate_(qkv, self.q_norm.held, self.k_norm.held, call.rotary)
        q, k, v = qkv.unsqueeze(0).unbind(2)
        place = Place(call.block, partial(self._gate, x) if isinstance(x, torch.Tensor) and self.gated else None)
        out = attend_at(call.backend, q, k, v, layout=call.layout, step=call.step, place=place)
        projected: torch.Tensor = self.out_proj(read_by(self.out_proj, out[0].flatten(1), call.producers))
        return projected

    def wished(self, producers: Producers) -> Form | None:
        """Of x: none where others than the projection read it."""
        return None if self.gated else wished(self.qkv_proj, producers, MODULATED)

    @property
    def gated(self) -> bool:
        """Whether `to_gate_compress` is there and was loaded."""
        gate = getattr(self, "to_gate_compress", None)
        return gate is not None and getattr(gate, "weight", self) is not None

    def _gate(self, x: torch.Tensor) -> torch.Tensor:
        """[S, hidden] -> [1, S, H, D]."""
        gate: torch.Tensor = self.to_gate_compress(x)
        return gate.view(1, -1, self.heads, self.head_dim)


def chunk_rows(rows: int, chunks: int) -> int:
    """Rows of all but the last of at most `chunks` chunks."""
    return -(-rows // (chunks * CHUNK_ALIGNMENT)) * CHUNK_ALIGNMENT


class Mlp(nn.Module):
    """fc2(silu(gate)*value), [gate | value] = fc1(x), no biases (dit-contract §4.4).

    chunks: rows are taken in so many pieces, so that fc1's output is never there for all of them. A row's numbers are
    its own either way; a GEMM library may add them in another order for another number of rows (1 bf16 ulp on at most
    1e-4 of the elements, measured on a CPU).
    """

    def __init__(self, config: DitConfig, chunks: int = 1) -> None:
        super().__init__()
        self.chunks = chunks
        self.fc1 = nn.Linear(config.hidden, 2 * config.ffn, bias=False)
        self.fc2 = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Activation, producers: Producers = DEFINITION) -> torch.Tensor:
        """[S, hidden] -> [S, hidden]; the activation overwrites fc1's output, and in chunks the result overwrites x."""
        if self.chunks == 1 or not isinstance(x, torch.Tensor):
            return self._rows(x, producers)
        for piece in torch.split(x, chunk_rows(x.shape[0], self.chunks)):
            piece.copy_(self._rows(piece, producers))
        return x

    def wished(self, producers: Producers) -> Form | None:
        """Of x: none where it is read in chunks."""
        return wished(self.fc1, producers, MODULATED) if self.chunks == 1 else None

    def _rows(self, x: Activation, producers: Producers) -> torch.Tensor:
        codes = wished(self.fc2, producers, GATED)
        # Not named: gate and value are gone once their product is there in codes.
        gated = producers.swiglu(self.fc1(read_by(self.fc1, x, producers)), codes=codes)
        projected: torch.Tensor = self.fc2(read_by(self.fc2, gated, producers))
        return projected


class Block(nn.Module):
    """One of the DiT's blocks. `adaln_proj` is read ahead of the loop, never in `forward`."""

    def __init__(self, config: DitConfig, mlp_chunks: int = 1) -> None:
        super().__init__()
        self.norm1 = RmsNorm(config.hidden, config.norm_eps)
        self.attn = Attention(config, gate_compress=config.gate_compress)
        self.norm2 = RmsNorm(config.hidden, config.norm_eps)
        self.mlp = Mlp(config, mlp_chunks)
        self.adaln_proj = AdaLn(config.time_dim, MODALITIES * BLOCK_VECTORS * config.hidden)

    def forward(self, h: torch.Tensor, table: torch.Tensor, rows: RowMap, call: AttentionCall) -> torch.Tensor:
        """h [S, hidden], updated in place and returned; table [M*3, 6*hidden] in h's dtype, read by `rows`."""
        shift1, scale1, gate1, shift2, scale2, gate2 = table.chunk(BLOCK_VECTORS, dim=-1)
        made = call.producers
        codes = self.attn.wished(made)
        x = made.norm_modulate(h, self.norm1.held, shift1, scale1, rows, codes=codes)
        y = self.attn(x, call)
        codes = self.mlp.wished(made)
        x = made.add_gated_norm_modulate(h, y, gate1, self.norm2.held, shift2, scale2, rows, codes=codes)
        # The MLP is where a block is widest.
        del y
        return made.add_gated_(h, self.mlp(x, made), gate2, rows)

    def packed_for(self, producers: Producers) -> tuple[str, ...]:
        """The linears (`attn.qkv_proj`, ...) that `producers` hand NVFP4."""
        forms = {
            "attn.qkv_proj": self.attn.wished(producers),
            "mlp.fc1": self.mlp.wished(producers),
            "mlp.fc2": wished(self.mlp.fc2, producers, GATED),
        }
        return tuple(place for place, form in forms.items() if isinstance(form, Nvfp4Form))
