"""What the sizes of a transformer's q, k and v rows tell of their order (checkpoint-formats G1; see `qkv_order`).

Training leaves rows of q, k and v of different size. Levels y[b, g], the mean log size of the rows of group g (head_dim
rows) of block b, are explained by which third a group is in (3 means a block) under either order:

    R2 = 1 - (SSW / dfW) / (SST / dfT)      dfB = 2 B, dfW = B (G - 3), dfT = B (G - 1)
    F  = (SSB / dfB) / (SSW / dfW)

One order must explain much, far more than the other, more than a smooth trend over the heads does, and more than chance
can. Sizes are read off row scales or block scales where the format has them, else off a few rows of every group. Asked
by `qkv_order`, which decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch

from h3runtime.checkpoint.entries import StoredTensor
from h3runtime.checkpoint.layers import QuantLayer
from h3runtime.checkpoint.qkv_rows import QKV, TILED, Heads, Read, Stored
from h3runtime.checkpoint.rearrange import rows_of
from h3runtime.quant.tiles import unswizzle

QkvOrder = Literal["contiguous", "interleaved"]
BLOCKS_READ: Final = 6
"""Of the main blocks, evenly spread; and as many refiner blocks, of which real files have two."""
ROWS_READ: Final = 4
"""Rows of a group whose sizes are averaged where rows have no scales: 43 KB of a published group in BF16."""
EXPLAINS, TIMES, CHANCE = 0.1, 2.0, 1e-6
"""Least share explained, least ratio to the other order's, and greatest probability of either under no order at all."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Shares of the variance that both orders and a trend explain over `blocks` blocks; `verdict` if it is clear."""

    blocks: int
    contiguous: float
    interleaved: float
    trend: float
    verdict: QkvOrder | None

    def __str__(self) -> str:
        shares = f"contiguous explains {_percent(self.contiguous)}, interleaved {_percent(self.interleaved)}"
        return f"{shares} of the variance of row sizes in {self.blocks} blocks"


def gather(stored: Stored, heads: Heads) -> dict[str, Evidence]:
    """Evidence for `blocks` and `token_refiner.blocks`, each where there is some."""
    found = {}
    for section in ("blocks", "token_refiner.blocks"):
        names = _spread([n for n in stored.entries if QKV.fullmatch(n) and n.startswith(f"{section}.")])
        levels = [group_levels(stored, name, heads) for name in names]
        usable = [level for level in levels if level is not None and torch.isfinite(level).all()]
        if usable:
            found[section] = weigh(torch.stack(usable))
    return found


def _spread(names: Sequence[str]) -> list[str]:
    """At most BLOCKS_READ of them, evenly spread, in the order of their numbers."""
    ordered = sorted(names, key=lambda name: int(name.split(".attn.")[0].rpartition(".")[2]))
    count = min(BLOCKS_READ, len(ordered))
    return [ordered[(2 * i + 1) * len(ordered) // (2 * count)] for i in range(count)]


def weigh(levels: torch.Tensor) -> Evidence:
    """levels [B, G], float64, G a multiple of 3 above 3 -> what either order explains of them."""
    blocks, groups = levels.shape
    place = torch.arange(groups)
    thirds = torch.nn.functional.one_hot(place * 3 // groups, 3).double()
    by_head = torch.nn.functional.one_hot(place % 3, 3).double()
    at = place.double() / groups - 0.5
    smooth = torch.stack([torch.ones_like(at), at, at.square()], dim=1)
    (contiguous, p), (interleaved, q), (trend, _) = (_explained(levels, basis) for basis in (thirds, by_head, smooth))
    verdict: QkvOrder | None = None
    if _clear(contiguous, interleaved, trend, p):
        verdict = "contiguous"
    elif _clear(interleaved, contiguous, trend, q):
        verdict = "interleaved"
    return Evidence(blocks, contiguous, interleaved, trend, verdict)


def _explained(levels: torch.Tensor, basis: torch.Tensor) -> tuple[float, float]:
    """Adjusted share of the variance that the three columns of `basis` [G, 3] explain, and the chance of that much."""
    blocks, groups = levels.shape
    centred = levels - levels.mean(dim=1, keepdim=True)
    columns, _ = torch.linalg.qr(basis)
    total = float(centred.square().sum())
    between = float((centred @ columns).square().sum())
    within = max(total - between, 0.0)
    free = blocks * (groups - 3)
    if total <= 1e-12 * blocks * groups or free <= 0:
        return 0.0, 1.0
    share = 1.0 - (within / free) / (total / (blocks * (groups - 1)))
    # Few files are asked for it, and its import takes 0.2 s.
    from scipy.special import fdtrc

    ratio = (between / (2 * blocks)) / max(within / free, 1e-300)
    return share, float(fdtrc(2 * blocks, free, ratio))


def _clear(share: float, other: float, trend: float, chance: float) -> bool:
    return share >= EXPLAINS and share >= TIMES * other and share > trend and chance <= CHANCE


def group_levels(stored: Stored, name: str, heads: Heads) -> torch.Tensor | None:
    """Mean log size of the rows of each of the 3 * heads groups, float64 [G]; None where the format doesn't show it."""
    layer, weight = stored.layers.get(name.removesuffix(".weight")), stored.entries[name]
    if len(weight.shape) != 2 or weight.shape[0] < heads.rows:
        return None
    rows = _from_scales(layer, stored, heads) if layer is not None else None
    if rows is None:
        rows = _from_rows(weight, layer, stored.read, heads)
    return None if rows is None else rows.double().reshape(heads.groups, -1).mean(dim=1)


def _from_scales(layer: QuantLayer, stored: Stored, heads: Heads) -> torch.Tensor | None:
    """Log size of every row off the scales, [rows], or None if they don't tell rows apart."""
    leaf = "weight_s_channel" if layer.marker.format == "asym_w4a8_int8" else "weight_scale"
    entry = stored.entries.get(f"{layer.name}.{leaf}")
    if entry is None:
        return None
    read = stored.read
    if layer.marker.format in TILED:
        return _from_blocks(layer, read(entry), heads)
    if layer.marker.format == "awq_w4a16":
        return _log(read(entry).float().square().mean(dim=0)) / 2 if len(entry.shape) == 2 else None
    return _log(read(entry).float().reshape(-1)) if entry.shape in ((heads.rows, 1), (heads.rows,)) else None


def _from_blocks(layer: QuantLayer, scale: torch.Tensor, heads: Heads) -> torch.Tensor:
    block = 16 if layer.marker.format == "nvfp4" else 32
    raw = unswizzle(scale, heads.rows, layer.shape[1] // block)
    if layer.marker.format == "mxfp8":
        return raw.float().mean(dim=1) * torch.log(torch.tensor(2.0))
    return _log(raw.view(torch.float8_e4m3fn).float().square().mean(dim=1)) / 2


def _from_rows(weight: StoredTensor, layer: QuantLayer | None, read: Read, heads: Heads) -> torch.Tensor | None:
    """Log size of a few rows of every group, [groups * few]. Codes do as well: one scale for all changes nothing."""
    count = min(ROWS_READ, heads.width)
    spans = [s for g in range(heads.groups) for s in rows_of(weight, g * heads.width, g * heads.width + count)]
    shape = (heads.groups * count, *weight.shape[1:])
    sample = read(StoredTensor(weight.name, weight.dtype, shape, tuple(spans)))
    if sample.dtype is torch.uint8 and layer is not None and layer.marker.format.startswith("float8"):
        sample = sample.view(getattr(torch, layer.marker.format))
    if sample.dtype in (torch.uint8, torch.bool):
        return None
    return _log(sample.float().square().mean(dim=1)) / 2


def _log(values: torch.Tensor) -> torch.Tensor:
    return values.clamp(min=1e-30).log()


def _percent(share: float) -> str:
    return f"{100 * max(share, 0.0):.0f} %"
