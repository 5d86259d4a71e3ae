"""Which order the rows of a transformer's fused q, k and v are in, and putting them in ours (checkpoint-formats G1).

    contiguous    [q of all heads; k of all heads; v of all heads]      what our model reads, ComfyUI's files
    interleaved   [q, k, v of head 0; q, k, v of head 1; ...]           the vendor's shards and some repacks

Names, shapes and dtypes are the same, and the wrong guess gives grey mush without an error. What tells is that training
leaves rows of q, k and v of different size. Levels y[b, g], the mean log size of the rows of group g (head_dim rows) of
block b, are explained by which third a group is in (3 means a block) under either order:

    R2 = 1 - (SSW / dfW) / (SST / dfT)      dfB = 2 B, dfW = B (G - 3), dfT = B (G - 1)
    F  = (SSB / dfB) / (SSW / dfW)

One order must explain much, far more than the other, more than a smooth trend over the heads does, and more than chance
can. Sizes are read off row scales or block scales where the format has them, else off a few rows of every group.

`decide` is asked by `file`; `as_contiguous` then gives the tensors as spans, so that nothing is copied. Text encoders
and VAEs have no such choice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from scipy.special import fdtrc

from h3runtime.checkpoint.entries import StoredTensor
from h3runtime.checkpoint.layers import QuantLayer
from h3runtime.checkpoint.rearrange import in_order, rows_of
from h3runtime.errors import Offence
from h3runtime.quant.tiles import TILE_ROWS, unswizzle

QkvOrder = Literal["contiguous", "interleaved"]
QkvSwitch = Literal["auto", "contiguous", "interleaved"]
How = Literal["construction", "convention", "statistics", "switch", "assumed", "single head"]
"""construction: kept apart in the file. convention: what files of this layout have. assumed: nothing told."""
Read = Callable[[StoredTensor], torch.Tensor]

QKV: Final = re.compile(r"(token_refiner\.)?blocks\.(\d+)\.attn\.qkv_proj\.weight")
NORM: Final = "blocks.0.attn.q_norm.weight"
SIGNS: Final = ("video_patch_proj.weight", "audio_patch_proj.weight", NORM)
SETTING: Final = "H3_QKV_ORDER"

BLOCKS_READ: Final = 6
"""Of the main blocks, evenly spread; and as many refiner blocks, of which real files have two."""
ROWS_READ: Final = 4
"""Rows of a group whose sizes are averaged where rows have no scales: 43 KB of a published group in BF16."""
EXPLAINS, TIMES, CHANCE = 0.1, 2.0, 1e-6
"""Least share explained, least ratio to the other order's, and greatest probability of either under no order at all."""

TILED: Final = ("nvfp4", "mxfp8")
UNTOUCHED: Final = ("weight_scale_2", "input_scale", "pre_quant_scale", "weight_codebook")
"""Sidecars that don't know rows."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A component's tensors: as stored, as the model sees their shapes, its quantised layers, and how to read one."""

    entries: Mapping[str, StoredTensor]
    shapes: Mapping[str, tuple[int, ...]]
    layers: Mapping[str, QuantLayer]
    read: Read


@dataclass(frozen=True, slots=True)
class Heads:
    """Of every q, k and v: `count` heads of `width` rows each."""

    count: int
    width: int

    @property
    def rows(self) -> int:
        return 3 * self.count * self.width

    @property
    def groups(self) -> int:
        return 3 * self.count


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


@dataclass(frozen=True, slots=True)
class QkvDecision:
    """order: as stored. how, why: what told. warning: what the operator should know, or None."""

    order: QkvOrder
    how: How
    why: str
    warning: str | None = None


def decide(stored: Stored, layout: str, switch: QkvSwitch, *, synthetic: bool) -> QkvDecision | Offence | None:
    """None for what is no transformer; Offence where the statistics contradict the layout or each other.

    layout: as in `renaming`. switch: what the operator says, which nothing overrules. synthetic: made-up weights, of
    which nobody expects statistics.
    """
    heads = heads_of(stored.shapes)
    if heads is None:
        return None
    if layout == "diffusers":
        return _by_construction(switch)
    if heads.count == 1:
        return QkvDecision("contiguous", "single head", "with one head both orders are the same")
    found = gather(stored, heads)
    if switch != "auto":
        return _by_switch(switch, found)
    return _by_files(found, layout, synthetic)


def heads_of(shapes: Mapping[str, tuple[int, ...]]) -> Heads | None:
    """From names and shapes; None where there is no transformer or its sizes don't fit (the model will say how)."""
    if not all(sign in shapes for sign in SIGNS):
        return None
    fused, norm = shapes.get("blocks.0.attn.qkv_proj.weight", ()), shapes[NORM]
    width = norm[0] if len(norm) == 1 else 0
    if len(fused) != 2 or not width or not fused[0] or fused[0] % (3 * width):
        return None
    return Heads(fused[0] // (3 * width), width)


def _by_construction(switch: QkvSwitch) -> QkvDecision:
    warning = f"{SETTING}={switch} has no effect: q, k and v are stored apart" if switch == "interleaved" else None
    return QkvDecision("contiguous", "construction", "q, k and v are stored apart", warning)


def _by_switch(switch: QkvOrder, found: Mapping[str, Evidence]) -> QkvDecision:
    against = [e for e in found.values() if e.verdict not in (None, switch)]
    warning = f"{SETTING}={switch} contradicts the weights: {against[0]}" if against else None
    return QkvDecision(switch, "switch", f"{SETTING}={switch}", warning)


def _by_files(found: Mapping[str, Evidence], layout: str, synthetic: bool) -> QkvDecision | Offence:
    verdicts = {e.verdict: (section, e) for section, e in found.items() if e.verdict is not None}
    if len(verdicts) > 1:
        told = "; ".join(f"{section}: {evidence}" for section, evidence in verdicts.values())
        return Offence("attn.qkv_proj", f"has its rows in different orders in one file: {told}")
    verdict = next(iter(verdicts), None)
    evidence = "; ".join(
        f"{section}: {e}" for section, e in found.items() if verdict is not None and e.verdict == verdict
    )
    if layout == "raw_shards":
        if verdict == "contiguous":
            told = f"has contiguous q, k and v, where shards have them interleaved: {evidence}"
            return Offence("attn.qkv_proj", told, f"{SETTING}=contiguous or {SETTING}=interleaved")
        return QkvDecision("interleaved", "convention", evidence or "shards have q, k and v interleaved by head")
    if verdict is not None:
        return QkvDecision(verdict, "statistics", evidence)
    told = "; ".join(f"{section}: {e}" for section, e in found.items()) or "no row sizes could be read"
    warning = f"the order of q, k and v can't be told from statistics; assumed contiguous ({SETTING} says otherwise)"
    return QkvDecision("contiguous", "assumed", told, None if synthetic else warning)


# Statistics


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


# Rearrangement


def as_contiguous(stored: Stored) -> tuple[dict[str, StoredTensor], list[Offence]]:
    """Interleaved tensors of the fused layers, in contiguous order: weights, scales of rows, tiles of block scales."""
    heads, entries = heads_of(stored.shapes), stored.entries
    if heads is None:
        return {}, []
    found: dict[str, StoredTensor] = {}
    offences: list[Offence] = []
    for name in (n for n in entries if QKV.fullmatch(n)):
        layer = stored.layers.get(name.removesuffix(".weight"))
        if len(entries[name].shape) != 2 or entries[name].shape[0] < heads.rows:
            continue
        found[name] = in_order(entries[name], _ranges(heads, entries[name].shape[0]))
        for sidecar in layer.sidecars if layer is not None else ():
            moved = _sidecar(sidecar, entries[sidecar], layer, heads)
            if isinstance(moved, Offence):
                offences.append(moved)
            elif moved is not None:
                found[sidecar] = moved
    return found, offences


def _ranges(heads: Heads, rows: int) -> Iterator[tuple[int, int]]:
    """All q, all k, all v; then what padding follows."""
    for third in range(3):
        for head in range(heads.count):
            group = 3 * head + third
            yield group * heads.width, (group + 1) * heads.width
    if rows > heads.rows:
        yield heads.rows, rows


def _sidecar(name: str, entry: StoredTensor, layer: QuantLayer | None, heads: Heads) -> StoredTensor | Offence | None:
    """None: holds for all rows alike."""
    leaf = name.rpartition(".")[2]
    form = layer.marker.format if layer is not None else ""
    if leaf in UNTOUCHED or entry.shape in ((), (1,)):
        return None
    if leaf == "weight_scale" and form in TILED:
        if heads.width % TILE_ROWS:
            told = f"has tiles of {TILE_ROWS} rows, which interleaved heads of {heads.width} rows don't fill"
            return Offence(name, told, f"contiguous q, k and v, or heads of a multiple of {TILE_ROWS} rows")
        return in_order(entry, _ranges(heads, entry.shape[0]))
    if form == "awq_w4a16" or leaf == "weight_correction" or entry.shape[0] < heads.rows:
        return Offence(name, f"of {form} can't be put in order", "contiguous q, k and v")
    return in_order(entry, _ranges(heads, entry.shape[0]))
