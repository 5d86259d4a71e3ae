"""The DiT for training: many sequences of one layout at once, differentiable, on the parameters of the runtime's `Dit`.

The runtime's forward works in place on one sequence and makes its modulation ahead of the loop; this one does the same
arithmetic out of place for a batch, and a test holds the two together. Sequences whose texts differ in length are one
batch too: text rows that one doesn't have are masked, and each has the angles of its own layout. Computes in bf16 under
autocast, or in fp32.

    text hidden [B, L, text_dim]; visual conditions [B, n, 96], audio conditions [B, m, 32], in packed order;
    noisy target rows [B, 2A, 32] and [B, V, 96]; base b [B] -> what the network predicts, u = x0 - noise, of both

One base serves both streams: sigma_video = S_12(b), sigma_audio = S_3(b) (dit-contract §5.1). Fed by `joint`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

import torch
from torch import nn
from torch.nn import functional as F

from h3runtime.core import Modality, PackedLayout, SegmentKind
from h3runtime.denoiser.blocks import Attention, Block, Mlp, RmsNorm
from h3runtime.denoiser.config import BLOCK_VECTORS, FINAL_VECTORS, MODALITIES
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.modulation import curve
from h3runtime.denoiser.refiner import RefinerBlock
from h3runtime.denoiser.schedule import AUDIO_LEVEL, VISUAL_LEVEL, shift_base
from h3runtime.denoiser.timeline import runs

SHIFT: Final = 12.0
AUDIO_SHIFT: Final = 3.0
RANK: Final = 8
GRID: Final = 1025
AUDIO_KINDS: Final = (SegmentKind.AUDIO, SegmentKind.COND_AUDIO, SegmentKind.REF_AUDIO)
ALIGNED: Final = 8
"""Rows and kinds come in multiples of it, so that bf16 products and masks lie on 16 bytes."""
VISUAL_CONDITIONS: Final = (SegmentKind.COND, SegmentKind.REF_IMAGE)


def curve_table() -> torch.Tensor:
    """The fixed `adaln_t_table` of h3-nano, fp32 [1025, 8]: cosines of the base that t stands for.

    t = 1 - sigma crowds near 0 at shift 12; in the base u = 1 - b the noise levels are even, so cos(k pi u), k = 0..7,
    resolve them all alike.
    """
    t = torch.linspace(0, 1, GRID, dtype=torch.float64)
    sigma = 1 - t
    u = 1 - sigma / (sigma * (1 - SHIFT) + SHIFT)
    return torch.cos(math.pi * u.unsqueeze(1) * torch.arange(RANK, dtype=torch.float64)).float()


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A layout as the batch needs it, on the device.

    clocks, modalities int64 [K]: which of the four timesteps and which modality each kind of rows has; K is a multiple
    of `ALIGNED`. select [S, K] one-hot: which of them a packed row reads. cos, sin fp32 [S, 48], or [B, S, 48] where
    sequences differ. order: the segments as (kind, start, stop). mask: fp32 [B, 1, 1, S], -inf for the rows that a
    sequence doesn't have, or None where it has all.
    """

    clocks: torch.Tensor
    modalities: torch.Tensor
    select: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    order: tuple[tuple[SegmentKind, int, int], ...]
    mask: torch.Tensor | None = None

    @property
    def text_mask(self) -> torch.Tensor | None:
        """[B, 1, 1, L]: the same of the text rows."""
        return None if self.mask is None else self.mask[..., : self.order[0][2]]


@dataclass(frozen=True, slots=True, eq=False)
class PaddedRows:
    """Layouts that differ in the length of their text alone, as one with the longest: the rest of the text is masked.

    cos, sin fp32 [N, S, 48] and mask fp32 [N, S] of each of the N layouts.
    """

    longest: Rows
    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor

    def at(self, which: torch.Tensor) -> Rows:
        """Of a batch whose sequences have the layouts `which`, int64 [B]."""
        mask = self.mask[which].unsqueeze(1).unsqueeze(1)
        return replace(self.longest, cos=self.cos[which], sin=self.sin[which], mask=mask)


def rows_of(layout: PackedLayout, dit: Dit) -> Rows:
    """What `predict` needs of a layout."""
    device = dit.device
    found = [(_clock_of(run.kind), run.modality, run.start, run.stop) for run in runs(layout)]
    kinds = sorted({(clock, modality) for clock, modality, _, _ in found})
    kinds += [kinds[0]] * (-len(kinds) % ALIGNED)
    select = torch.zeros(layout.rows, len(kinds))
    for clock, modality, start, stop in found:
        select[start:stop, kinds.index((clock, modality))] = 1
    cos, sin = dit.rope(layout.position_ids, torch.float32)
    order = tuple((s.kind, s.start, s.stop) for s in layout.segments)
    clocks, modalities = torch.tensor(kinds, device=device).unbind(1)
    return Rows(clocks, modalities, select.to(device), cos, sin, order)


def padded_rows(layouts: Sequence[PackedLayout], longest: PackedLayout, dit: Dit) -> PaddedRows:
    """The layouts with text rows added up to those of `longest`."""
    full, device = rows_of(longest, dit), dit.device
    mask = torch.zeros(len(layouts), longest.rows)
    cos, sin = (torch.zeros(len(layouts), *full.cos.shape, device=device) for _ in range(2))
    for index, layout in enumerate(layouts):
        text, missing = layout.text_rows, longest.text_rows - layout.text_rows
        mask[index, text : text + missing] = -torch.inf
        for table, own in zip((cos, sin), dit.rope(layout.position_ids, torch.float32), strict=True):
            table[index, :text], table[index, text + missing :] = own[:text], own[text:]
    return PaddedRows(full, cos, sin, mask.to(device))


def _clock_of(kind: SegmentKind) -> int:
    """0: the video's timestep, 1: the audio's, 2: visual conditions', 3: audio conditions' (dit-contract §5.7)."""
    if kind in VISUAL_CONDITIONS:
        return 2
    if kind is SegmentKind.AUDIO:
        return 1
    return 3 if kind in AUDIO_KINDS else 0


def sigmas_of(base: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sigmas of the video and of the audio at base b [B]."""
    return shift_base(base, SHIFT), shift_base(base, AUDIO_SHIFT)


def clocks(base: torch.Tensor) -> torch.Tensor:
    """The four timesteps [B, 4] at base b [B]."""
    video, audio = (1 - sigma for sigma in sigmas_of(base))
    return torch.stack([video, audio, video.clamp(min=VISUAL_LEVEL), audio.clamp(min=AUDIO_LEVEL)], 1)


def refine(dit: Dit, hidden: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Encoder output [B, L, text_dim] -> text rows [B, L, hidden]. mask: `Rows.text_mask`."""
    x = dit.condition_proj(hidden)
    mask = None if mask is None else mask.to(x.dtype)
    for block in dit.token_refiner.blocks:
        refiner = cast(RefinerBlock, block)
        x = x + _attention(refiner.attn, _norm(refiner.norm1, x), None, mask)
        x = x + _mlp(refiner.mlp, _norm(refiner.norm2, x))
    return _norm(dit.token_refiner.final_norm, x)


def predict(
    dit: Dit,
    rows: Rows,
    text: torch.Tensor,
    visual: torch.Tensor | None,
    audible: torch.Tensor | None,
    audio: torch.Tensor,
    video: torch.Tensor,
    base: torch.Tensor,
    through: BlockForward | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """u of the audio rows [B, 2A, 32] and of the video rows [B, V, 96], fp32.

    `text` comes from `refine`. through: `block_forward`, or the same compiled.
    """
    through = through or block_forward
    h = _sequence(dit, rows, text, visual, audible, audio, video)
    times = clocks(base)
    e = curve(dit.adaln_t_table, times.flatten()).view(*times.shape, -1)
    cos, sin, select = rows.cos.to(h.dtype), rows.sin.to(h.dtype), rows.select.to(h.dtype)
    mask = None if rows.mask is None else rows.mask.to(h.dtype)
    for module, vectors in zip(dit.blocks, _vectors(dit, e, rows).to(h.dtype).unbind(), strict=True):
        h = through(cast(Block, module), h, vectors, select, cos, sin, mask)
    (_, a, b), (_, c, d) = rows.order[-2:]
    return _head(dit, dit.final_layer.audio_out, h[:, a:b], e[:, 1]), _head(
        dit, dit.final_layer.video_out, h[:, c:d], e[:, 0]
    )


def _sequence(
    dit: Dit,
    rows: Rows,
    text: torch.Tensor,
    visual: torch.Tensor | None,
    audible: torch.Tensor | None,
    audio: torch.Tensor,
    video: torch.Tensor,
) -> torch.Tensor:
    """[B, S, hidden]: conditions are given per modality and laid out in packed order."""
    parts, seen, heard = [text], 0, 0
    for kind, start, stop in rows.order[1:-2]:
        count = stop - start
        if kind in AUDIO_KINDS:
            assert audible is not None
            parts.append(dit.audio_patch_proj(audible[:, heard : heard + count]))
            heard += count
        else:
            assert visual is not None
            parts.append(dit.video_patch_proj(visual[:, seen : seen + count]))
            seen += count
    parts += [dit.audio_patch_proj(audio), dit.video_patch_proj(video)]
    return torch.cat([part.to(text.dtype) for part in parts], 1)


def block_forward(
    block: Block,
    h: torch.Tensor,
    vectors: torch.Tensor,
    select: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """One block: h [B, S, hidden]; vectors [K, B, 6 hidden] of each kind of rows, select [S, K] each row's kind."""
    spread = torch.bmm(select.expand(h.shape[0], -1, -1), vectors.transpose(0, 1))
    shift1, scale1, gate1, shift2, scale2, gate2 = spread.chunk(BLOCK_VECTORS, -1)
    h = h + gate1 * _attention(block.attn, _norm(block.norm1, h) * (1 + scale1) + shift1, (cos, sin), mask)
    return h + gate2 * _mlp(block.mlp, _norm(block.norm2, h) * (1 + scale2) + shift2)


BlockForward = Callable[
    [Block, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor
]


def _vectors(dit: Dit, e: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Modulation of each kind of rows in every block, fp32 [blocks, K, B, 6 hidden]: e [B, 4, rank] through the
    kind's own weights, all blocks at once."""
    linears = [cast(Block, block).adaln_proj.linear for block in dit.blocks]
    count, kinds, rank = len(linears), len(rows.clocks), e.shape[-1]
    weight = torch.stack([linear.weight for linear in linears]).view(count, MODALITIES, -1, rank)
    bias = torch.stack([linear.bias for linear in linears]).view(count, MODALITIES, 1, -1)
    with torch.autocast(e.device.type, enabled=False):
        own = weight.index_select(1, rows.modalities).flatten(0, 1).mT
        at = e.index_select(1, rows.clocks).transpose(0, 1).repeat(count, 1, 1)
        made = torch.baddbmm(bias.index_select(1, rows.modalities).flatten(0, 1), at, own)
    return made.view(count, kinds, *made.shape[1:])


def _head(dit: Dit, head: nn.Module, h: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    final = dit.final_layer
    with torch.autocast(e.device.type, enabled=False):
        shift, scale = final.adaln_proj.linear(e).unsqueeze(1).chunk(FINAL_VECTORS, -1)
        y = _norm(final.norm, h).float() * (1 + scale) + shift
        out: torch.Tensor = head(y, None)
        return out


def _norm(norm: RmsNorm, x: torch.Tensor) -> torch.Tensor:
    # Autocast may take the norm apart and carry on in fp32; the runtime's stays in x's dtype.
    with torch.autocast(x.device.type, enabled=False):
        return F.rms_norm(x, norm.weight.shape, norm.weight.to(x.dtype), norm.eps)


def _attention(
    attention: Attention,
    x: torch.Tensor,
    rotary: tuple[torch.Tensor, torch.Tensor] | None,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    q, k, v = attention.qkv_proj(x).unflatten(-1, (3, attention.heads, attention.head_dim)).unbind(2)
    q, k = _norm(attention.q_norm, q), _norm(attention.k_norm, k)
    if rotary is not None:
        q, k = _rotate(q, *rotary), _rotate(k, *rotary)
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask)
    projected: torch.Tensor = attention.out_proj(out.transpose(1, 2).flatten(2))
    return projected


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [B, S, H, D]; cos, sin [S, n] or [B, S, n]: pairs (j, j + n), the rest passes (dit-contract §3.1)."""
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(-2).to(x.dtype), sin.unsqueeze(-2).to(x.dtype)
    first, second, rest = torch.split(x, [half, half, x.shape[-1] - 2 * half], -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


def _mlp(mlp: Mlp, x: torch.Tensor) -> torch.Tensor:
    gate, value = mlp.fc1(x).chunk(2, -1)
    projected: torch.Tensor = mlp.fc2(F.silu(gate) * value)
    return projected


def patchify(video: torch.Tensor) -> torch.Tensor:
    """[B, C, T, h, w] -> rows [B, T h/2 w/2, 4 C] (c, ph, pw), as the runtime's for one."""
    b, c, t, h, w = video.shape
    grid = video.reshape(b, c, t, h // 2, 2, w // 2, 2)
    return grid.permute(0, 2, 3, 5, 1, 4, 6).reshape(b, t * (h // 2) * (w // 2), 4 * c)


def unpatchify(rows: torch.Tensor, frames: int, height: int, width: int) -> torch.Tensor:
    """rows [B, T h/2 w/2, 4 C] -> [B, C, T, h, w]."""
    grid = rows.reshape(rows.shape[0], frames, height // 2, width // 2, -1, 2, 2)
    return grid.permute(0, 4, 1, 2, 5, 3, 6).reshape(rows.shape[0], -1, frames, height, width)


def audio_rows(audio: torch.Tensor) -> torch.Tensor:
    """[B, C, 2, A] -> rows [B, 2 A, C], the left channel first."""
    return audio.flatten(2).transpose(1, 2)


def audio_latent(rows: torch.Tensor) -> torch.Tensor:
    """rows [B, 2 A, C] -> [B, C, 2, A]."""
    return rows.transpose(1, 2).reshape(rows.shape[0], rows.shape[2], 2, -1)


def initialise(dit: Dit, seed: int) -> None:
    """Weights to begin with: linears by their fan-in, the last of each residual branch small, gates nearly shut."""
    generator = torch.Generator().manual_seed(seed)
    dit.adaln_t_table.copy_(curve_table())
    dit.rope.inv_freq.copy_(10000.0 ** (-torch.arange(dit.config.rope_freqs, dtype=torch.float64) / 16))
    depth = 2 * dit.config.layers
    for name, value in dit.named_parameters():
        if value.ndim == 1:
            value.data.fill_(1.0 if "norm" in name else 0.0)
            continue
        std = value.shape[1] ** -0.5
        if name.endswith(("out_proj.weight", "fc2.weight")):
            std *= depth**-0.5
        if "adaln" in name or name.startswith("final_layer"):
            std = 0.0
        value.data.copy_(torch.randn(value.shape, generator=generator) * std)
    for block in dit.blocks:
        gates = cast(Block, block).adaln_proj.linear.bias.data.view(MODALITIES, BLOCK_VECTORS, -1)
        gates[:, [2, 5]] = GATE


GATE: Final = 0.5
"""What the gates begin at: open enough for gradients to reach the blocks from the first step on."""
assert set(Modality) == set(range(MODALITIES))
