"""One adapter's file sorted out by its names: pairs, differences, replacements; what can't be applied is refused here.

    <layer>.lora_A|lora_down[.default][.weight] [r, K]     .lora_B|lora_up... [n, r]     .alpha []
    <layer>.diff, .diff_b                                   added to a weight, to a bias
    <layer>[.weight|.bias].set_weight, .set_bias            replace them, and so do <layer>.weight, <layer>.bias

(checkpoint-formats §6). Knows no transformer: whether a layer is one of its own is `binding`'s to say. Fed with a
`Source`; of the data only scalars are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import torch

from h3runtime.checkpoint.entries import StoredTensor
from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.lora.report import PREFIXES
from h3runtime.checkpoint.sources import Source
from h3runtime.checkpoint.tensor_file import checkpoint_error
from h3runtime.errors import Offence

PAIR: Final = re.compile(r"(.+?)\.(lora_A|lora_B|lora_down|lora_up)(\.default)?(?:\.weight)?")
ALPHA: Final = re.compile(r"(.+)\.alpha")
DIFFERENCE: Final = re.compile(r"(.+)\.(diff|diff_b)")
REPLACED: Final = re.compile(r"(.+?)(?:\.(weight|bias))?\.(set_weight|set_bias)")
PLAIN: Final = re.compile(r"(.+)\.(weight|bias)")
TABLE: Final = "adaln_t_table"
DOWN: Final = ("lora_A", "lora_down")
REFUSED: Final = (
    (r"\.(dora_scale|lora_magnitude_vector)(\.|$)", "is a DoRA's magnitude, which needs the weight itself"),
    (r"\.lora_(A|B|down|up)(\.default)?\.bias$", "is a bias inside a pair"),
    (r"\.hada_(w|t)\d", "is part of a LoHa"),
    (r"\.lokr_(w|t)\d", "is part of a LoKr"),
    (r"\.lora_mid\.", "is the middle factor of a LoCon"),
    (r"\.(boft|oft)_|\.oft_blocks$", "is part of an OFT"),
    (r"\.(glora_|a1\.weight$|b1\.weight$)", "is part of a GLoRA"),
    (r"\.(weight_scale|weight_scale_2|comfy_quant|scale_weight)$", "belongs to matrices that are quantised themselves"),
)
"""Kinds of adapters that are known and aren't applied, by a tensor's name."""
FLOATS: Final = (torch.bfloat16, torch.float16, torch.float32)
LEGAL_DTYPES: Final = "BF16, F16, F32"
PLACES_LEGAL: Final = "lora_A and lora_B (lora_down, lora_up), alpha, diff, diff_b, set_weight, set_bias"

Leaf = Literal["weight", "bias"]
Kind = Literal["difference", "replacement"]


@dataclass(frozen=True, slots=True)
class StoredPair:
    """Of `layer` as its file calls it, prefix off. down [r, K], up [n, r]. alpha: None where it has none of its own."""

    layer: str
    down: StoredTensor
    up: StoredTensor
    alpha: float | None = None

    @property
    def rank(self) -> int:
        return self.down.shape[0]


@dataclass(frozen=True, slots=True)
class StoredWhole:
    """A tensor in full: added to, or put in the place of, a layer's weight or bias."""

    layer: str
    leaf: Leaf
    kind: Kind
    entry: StoredTensor


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    """prefix: taken off every name. infixed: PEFT's `.default.` is in the names. metadata: the header's."""

    prefix: str
    pairs: Mapping[str, StoredPair]
    wholes: tuple[StoredWhole, ...]
    metadata: Mapping[str, str]
    infixed: bool

    @property
    def layers(self) -> tuple[str, ...]:
        """Every layer that something is for, once."""
        return tuple(dict.fromkeys([*self.pairs, *(whole.layer for whole in self.wholes)]))


def read_stored(source: Source) -> StoredAdapter:
    """CheckpointError, naming the file and every tensor that is of a kind that can't be applied or is broken."""
    prefix = next((p for p in PREFIXES if all(name.startswith(p) for name in source.entries)), "")
    sorting = _Sorting(source)
    for name, entry in source.entries.items():
        sorting.take(name.removeprefix(prefix), entry)
    pairs = dict(sorting.pairs())
    if not sorting.offences and not sorting.marked:
        told = "has nothing but whole weights, as a checkpoint has; an adapter's own have a name for what they are"
        sorting.offences.append(Offence(FILE, told, PLACES_LEGAL))
    if sorting.offences:
        raise checkpoint_error(source.path, sorting.offences)
    return StoredAdapter(prefix, pairs, tuple(sorting.wholes), source.metadata, sorting.infixed)


def read_tensor(source: Source, entry: StoredTensor) -> torch.Tensor:
    """In its stored dtype, on the CPU."""
    raw = bytearray(entry.nbytes)
    done = 0
    for span in entry.spans:
        part = source.parts[span.part]
        part.fill(memoryview(raw)[done : done + span.nbytes], part.data_start + span.start, entry.name)
        done += span.nbytes
    if not raw:
        return torch.empty(entry.shape, dtype=entry.dtype)
    return torch.frombuffer(raw, dtype=torch.uint8).view(entry.dtype).reshape(entry.shape)


class _Sorting:
    def __init__(self, source: Source) -> None:
        self.offences: list[Offence] = []
        self.wholes: list[StoredWhole] = []
        self.infixed = False
        self.marked = False
        """Whether a name says that this is an adapter."""
        self._source = source
        self._halves: dict[str, dict[str, StoredTensor]] = {}
        self._alphas: dict[str, StoredTensor] = {}

    def take(self, name: str, entry: StoredTensor) -> None:
        refused = next((why for pattern, why in REFUSED if re.search(pattern, name)), None)
        if refused is not None:
            self.offences.append(Offence(entry.name, refused, PLACES_LEGAL))
        elif (alpha := ALPHA.fullmatch(name)) is not None:
            self._alphas[alpha[1]] = entry
        elif entry.dtype not in FLOATS:
            told = str(entry.dtype).removeprefix("torch.")
            self.offences.append(Offence(entry.name, f"is stored as {told}", LEGAL_DTYPES))
        elif (pair := PAIR.fullmatch(name)) is not None:
            self.infixed = self.infixed or pair[3] is not None
            self.marked = True
            self._half(pair[1], "down" if pair[2] in DOWN else "up", entry)
        else:
            self._whole(name, entry)

    def _half(self, layer: str, half: str, entry: StoredTensor) -> None:
        held = self._halves.setdefault(layer, {})
        if half in held:
            self.offences.append(Offence(entry.name, f"is there twice: {held[half].name} is the same"))
        elif len(entry.shape) != 2 or 0 in entry.shape:
            self.offences.append(Offence(entry.name, f"has shape {list(entry.shape)}", "two dimensions, none empty"))
        held[half] = entry

    def _whole(self, name: str, entry: StoredTensor) -> None:
        self.marked = self.marked or not PLAIN.fullmatch(name)
        found = _whole_of(name, entry)
        if found is None:
            self.offences.append(Offence(entry.name, "is of no kind that is known", PLACES_LEGAL))
        elif found.leaf == "bias" and len(entry.shape) != 1 and not _is_bank(found):
            told = f"has shape {list(entry.shape)}: a bias has one dimension, and older DoRA files misuse the name"
            self.offences.append(Offence(entry.name, told, "one dimension"))
        elif (other := self._held_already(found)) is not None:
            self.offences.append(Offence(entry.name, f"is there twice: {other} is the same"))
        else:
            self.wholes.append(found)

    def _held_already(self, whole: StoredWhole) -> str | None:
        """Under which other name the same is there."""
        same = (whole.layer, whole.leaf, whole.kind)
        return next((held.entry.name for held in self.wholes if (held.layer, held.leaf, held.kind) == same), None)

    def pairs(self) -> Iterator[tuple[str, StoredPair]]:
        for layer, halves in self._halves.items():
            if len(halves) == 1:
                (name,) = (entry.name for entry in halves.values())
                self.offences.append(Offence(name, "has no other half"))
                continue
            down, up = halves["down"], halves["up"]
            if len(down.shape) == len(up.shape) == 2 and down.shape[0] != up.shape[1]:
                told = f"has rank {up.shape[1]}, but {down.name} has {down.shape[0]}"
                self.offences.append(Offence(up.name, told))
                continue
            yield layer, StoredPair(layer, down, up, self._alpha(layer))

    def _alpha(self, layer: str) -> float | None:
        entry = self._alphas.get(layer)
        if entry is None:
            return None
        value = float(read_tensor(self._source, entry)) if entry.nbytes == entry.dtype.itemsize else float("nan")
        if not 0 < value < float("inf"):
            self.offences.append(Offence(entry.name, "is no alpha", "one number above 0"))
        return value


def _whole_of(name: str, entry: StoredTensor) -> StoredWhole | None:
    if (added := DIFFERENCE.fullmatch(name)) is not None:
        return StoredWhole(added[1], "bias" if added[2] == "diff_b" else "weight", "difference", entry)
    if (put := REPLACED.fullmatch(name)) is not None:
        leaf: Leaf = "bias" if put[2] == "bias" or put[3] == "set_bias" else "weight"
        return StoredWhole(put[1], leaf, "replacement", entry)
    if name == TABLE:
        return StoredWhole(name, "weight", "replacement", entry)
    if (plain := PLAIN.fullmatch(name)) is not None:
        return StoredWhole(plain[1], "bias" if plain[2] == "bias" else "weight", "replacement", entry)
    return None


def _is_bank(whole: StoredWhole) -> bool:
    """Heads that a file keeps apart: [N, rows] of a bias."""
    return whole.kind == "replacement" and len(whole.entry.shape) == 2 and whole.layer.endswith(("_out", "proj_out"))
