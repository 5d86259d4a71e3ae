"""What a LoRA file adapts, told from its names, shapes and a few scalars (checkpoint-formats §6).

    <prefix><layer>.lora_A|lora_down[.default].weight [r, in]    .lora_B|lora_up... [out, r]    .alpha []
    <prefix><layer>.diff, .diff_b, .set_weight, .set_bias, .dora_scale

Read by `checkpoint.report`, which adds what `stored` makes of the file. It applies nothing; of faults it tells those
that the file shows by itself. Whether an adapter fits a checkpoint is for whoever loads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from h3runtime.checkpoint.entries import StoredTensor
from h3runtime.checkpoint.families import H3
from h3runtime.checkpoint.sources import Source
from h3runtime.core import AdapterContract

REF2VA_PREFIX: Final = "transformer_ref."
"""What diffusers puts before the names of an adapter of the Ref2VA transformer; of the other's it is `transformer.`."""
PREFIXES: Final = (
    "base_model.model.",
    "model.diffusion_model.",
    "diffusion_model.",
    "transformer.",
    REF2VA_PREFIX,
    "model.",
    "lora_unet_",
    "lora_transformer_",
)
"""dit-contract §7.3, checkpoint-formats §6."""
PAIR: Final = re.compile(r"(.+?)\.(lora_A|lora_B|lora_down|lora_up)(?:\.default)?(?:\.weight)?")
QUANTISED: Final = re.compile(r"(.+?)\.(lora_A|lora_B|lora_down|lora_up)(?:\.default)?\.(weight_scale|comfy_quant)")
OTHER: Final = re.compile(r"(.+?)\.(alpha|diff|diff_b|dora_scale|(?:weight\.|bias\.)?set_weight|set_bias)")
DOWN: Final = ("lora_A", "lora_down")
NUMBER: Final = re.compile(r"(?<=[._])\d+(?=[._]|$)")
HIDDEN: Final = 5376
"""Of the published transformer (dit-contract §1.1): tells an adapter in Diffusers' names from other families'."""
ALPHAS_SHOWN: Final = 8
ODD_SHOWN: Final = 4
DIFFUSERS: Final = re.compile(
    r"(transformer_blocks|token_refiner\.refiner_blocks)\.\d+\.(attn\.to_(q|k|v|out\.0)|ff\.net\.(0\.proj|2))"
)
"""The transformer's linears in Diffusers' names (checkpoint-formats §6)."""


@dataclass(frozen=True, slots=True)
class LoraTarget:
    """Layers called alike, `*` for numbers. ranks: all that occur. inputs, outputs: of the first."""

    layers: str
    count: int
    ranks: tuple[int, ...]
    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True)
class LoraReport:
    """naming: `comfyui` (fused qkv) or `diffusers`. pairs: adapted layers. alphas: distinct values, ascending.

    with_alpha: how many layers have one. others: tensors of other kinds, by kind. adaln: whether AdaLN is adapted, and
    so which checkpoints it fits: inputs of 2688 are a full one's, others a pruned one's. odd: what is wrong with the
    file whatever it is applied to. layout: which of the public ones, "" for what can't be applied at all. scale: alpha
    / rank of all layers, None where they differ or none is known. contract: what a published one was trained for.
    """

    family: str
    naming: str
    prefix: str
    pairs: int
    ranks: tuple[int, ...]
    with_alpha: int
    alphas: tuple[float, ...]
    targets: tuple[LoraTarget, ...]
    adaln: bool
    others: Mapping[str, int]
    odd: tuple[str, ...] = ()
    layout: str = ""
    scale: float | None = None
    contract: AdapterContract | None = None


def read_lora(source: Source, stripped: str) -> LoraReport:
    """`stripped`: what every name was found to begin with."""
    prefix = stripped or next((p for p in PREFIXES if all(name.startswith(p) for name in source.entries)), "")
    names = {name.removeprefix(prefix): entry for name, entry in source.entries.items()}
    downs, ups, others = _sorted_out(names)
    alphas = [n for n in names if n.endswith(".alpha")]
    targets = _targets(downs, ups)
    return LoraReport(
        family=_family(names, downs, ups),
        naming="diffusers" if any(".attn.to_" in n or "_attn_to_" in n for n in names) else "comfyui",
        prefix=prefix,
        pairs=len(downs),
        ranks=tuple(sorted({rank for target in targets for rank in target.ranks})),
        with_alpha=len(alphas),
        alphas=_values([names[n] for n in alphas], source),
        targets=targets,
        adaln=any("adaln" in layer or "norm_out" in layer for layer in (*downs, *names)),
        others=others,
        odd=tuple(_odd(names, downs, ups)),
    )


def _sorted_out(
    names: Mapping[str, StoredTensor],
) -> tuple[dict[str, StoredTensor], dict[str, StoredTensor], dict[str, int]]:
    downs: dict[str, StoredTensor] = {}
    ups: dict[str, StoredTensor] = {}
    others: dict[str, int] = {}
    for name, entry in names.items():
        pair, other = PAIR.fullmatch(name), OTHER.fullmatch(name)
        if pair is not None:
            (downs if pair[2] in DOWN else ups)[pair[1]] = entry
        elif QUANTISED.fullmatch(name) is None and (other is None or other[2] != "alpha"):
            kind = other[2] if other is not None else "unknown"
            others[kind] = others.get(kind, 0) + 1
    return downs, ups, others


def _targets(downs: Mapping[str, StoredTensor], ups: Mapping[str, StoredTensor]) -> tuple[LoraTarget, ...]:
    groups: dict[str, list[str]] = {}
    for layer in downs:
        groups.setdefault(NUMBER.sub("*", layer), []).append(layer)
    return tuple(
        LoraTarget(
            layers=pattern,
            count=len(layers),
            ranks=tuple(sorted({_size(downs[layer], 0) for layer in layers})),
            inputs=_size(downs[layers[0]], 1),
            outputs=_size(ups[layers[0]], 0) if layers[0] in ups else 0,
        )
        for pattern, layers in groups.items()
    )


def _size(entry: StoredTensor, axis: int) -> int:
    return entry.shape[axis] if axis < len(entry.shape) else 0


def _family(
    names: Mapping[str, StoredTensor], downs: Mapping[str, StoredTensor], ups: Mapping[str, StoredTensor]
) -> str:
    fused = any("qkv_proj" in name or "adaln_proj" in name for name in names)
    refined = any("refiner_blocks" in name for name in names)
    wide = any(_size(entry, 1) == HIDDEN for entry in downs.values())
    return H3 if fused or refined or wide or _has_our_linears(downs, ups) else "unknown"


def _has_our_linears(downs: Mapping[str, StoredTensor], ups: Mapping[str, StoredTensor]) -> bool:
    """Diffusers' names of ours and no others; the attention is wider or narrower than the rest, which is rare."""
    if not downs or not all(DIFFUSERS.fullmatch(layer) for layer in downs):
        return False
    queries = [layer for layer in downs if layer.endswith(".to_q") and layer in ups]
    return bool(queries) and all(_size(downs[layer], 1) != _size(ups[layer], 0) for layer in queries)


def _odd(
    names: Mapping[str, StoredTensor], downs: Mapping[str, StoredTensor], ups: Mapping[str, StoredTensor]
) -> Iterator[str]:
    if alone := sorted(downs.keys() ^ ups.keys()):
        yield f"half of a pair is missing: {_some(alone)}"
    if torn := sorted(layer for layer in downs.keys() & ups.keys() if _size(downs[layer], 0) != _size(ups[layer], 1)):
        yield f"the ranks of a pair differ: {_some(torn)}"
    twice = next((p for p in PREFIXES if names and all(name.startswith(p) for name in names)), None)
    if twice is not None:
        yield f"every name begins with a prefix twice ({twice})"
    if any(entry.dtype is torch.int8 for entry in (*downs.values(), *ups.values())):
        yield "its matrices are stored as INT8"


def _some(layers: Sequence[str]) -> str:
    more = f" and {len(layers) - ODD_SHOWN} more" if len(layers) > ODD_SHOWN else ""
    return ", ".join(layers[:ODD_SHOWN]) + more


def _values(entries: list[StoredTensor], source: Source) -> tuple[float, ...]:
    found = set()
    for entry in entries:
        if entry.nbytes == entry.dtype.itemsize:
            span = entry.spans[0]
            part = source.parts[span.part]
            raw = bytearray(part.pread(part.data_start + span.start, span.nbytes))
            found.add(float(torch.frombuffer(raw, dtype=torch.uint8).view(entry.dtype)[0]))
    return tuple(sorted(found)[:ALPHAS_SHOWN])
