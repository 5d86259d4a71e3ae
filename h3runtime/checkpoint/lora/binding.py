"""An adapter's matrices laid onto a transformer: which layer, which rows, in which order; every shape checked.

    fits: A [r, K], B [n, r] with the layer's K, and n the rows that the name stands for (a third of q, k, v)
    AdaLN of another width than the transformer's (2688 full, 8 pruned) is left out and told (checkpoint-formats G11)
    a replacement of an output head may have k*N rows, or be [k, N, ...]: a bank of k heads (dit-contract §4.7)

Needs names and shapes alone. Fed by `engine.adapters` with what `stored` found and the model's shapes; `reading` makes
tensors of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from h3runtime.backends.linear.adapted import Move
from h3runtime.checkpoint.entries import StoredTensor
from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.lora.places import CONVERTED, Place, places, rows_of
from h3runtime.checkpoint.lora.report import PREFIXES
from h3runtime.checkpoint.lora.stored import TABLE, StoredAdapter, StoredPair, StoredWhole
from h3runtime.checkpoint.tensor_file import checkpoint_error
from h3runtime.core import AdapterFit
from h3runtime.errors import CheckpointError, Offence

Shapes = Mapping[str, tuple[int, ...]]
SHOWN = 4


@dataclass(frozen=True, slots=True)
class Target:
    """A transformer as adapters meet it. shapes: of its tensors by our names, quantised ones at their logical [N, K].
    head_dim: rows of a head of q."""

    shapes: Shapes
    head_dim: int


@dataclass(frozen=True, slots=True)
class BoundPair:
    place: Place
    pair: StoredPair

    @property
    def moves(self) -> tuple[Move, ...]:
        """Rows by heads are put in order when they are read."""
        return moves_of(self.place)


@dataclass(frozen=True, slots=True)
class BoundWhole:
    place: Place
    whole: StoredWhole


@dataclass(frozen=True, slots=True)
class Binding:
    """What is applied, and what isn't. table: an AdaLN table that the file has; the transformer keeps its own."""

    pairs: tuple[BoundPair, ...]
    wholes: tuple[BoundWhole, ...]
    fit: AdapterFit
    table: StoredTensor | None = None


def fit_of(stored: StoredAdapter, target: Target, path: Path) -> AdapterFit:
    """As `bind`, but what is wrong is part of the answer."""
    try:
        return bind(stored, target, path).fit
    except CheckpointError as error:
        return AdapterFit(0, len(stored.layers), error.message)


def bind(stored: StoredAdapter, target: Target, path: Path) -> Binding:
    """CheckpointError, naming the file at `path`, for tensors that don't fit, and where nothing matches at all."""
    binding = _Binding(stored, target)
    for layer in stored.layers:
        binding.take(layer)
    if binding.offences:
        raise checkpoint_error(path, binding.offences)
    if not binding.matched:
        raise checkpoint_error(path, [Offence(FILE, _nothing(stored, binding))])
    fit = AdapterFit(len(binding.matched), len(stored.layers), "", tuple(binding.skipped), tuple(binding.unmatched))
    return Binding(tuple(binding.pairs), tuple(binding.wholes), fit, binding.table)


def moves_of(place: Place) -> tuple[Move, ...]:
    if place.order != "halves":
        return ((0, place.rows, place.start),)
    half = place.rows // 2
    return (half, place.rows, place.start), (0, half, place.start + half)


class _Binding:
    def __init__(self, stored: StoredAdapter, target: Target) -> None:
        interleaved = stored.infixed and stored.metadata.get(CONVERTED[0]) != CONVERTED[1]
        self._stored, self._target = stored, target
        self._places = places(rows_of(target.shapes), interleaved=interleaved)
        self._wholes: dict[str, list[StoredWhole]] = {}
        for whole in stored.wholes:
            self._wholes.setdefault(whole.layer, []).append(whole)
        self.pairs: list[BoundPair] = []
        self.wholes: list[BoundWhole] = []
        self.matched: list[str] = []
        self.skipped: list[str] = []
        self.unmatched: list[str] = []
        self.offences: list[Offence] = []
        self.table: StoredTensor | None = None

    def take(self, layer: str) -> None:
        place = self._places.get(layer)
        if place is None:
            adaln = layer == TABLE or "adaln" in layer
            (self.skipped if adaln else self.unmatched).append(layer)
            return
        if layer == TABLE:
            self.table = self._wholes[layer][0].entry
            self.matched.append(layer)
            return
        shape = self._shape(place.target)
        if self._is_other_adaln(layer, shape):
            self.skipped.append(layer)
            return
        wrong = list(self._wrong(layer, place, shape))
        self.offences += wrong
        if not wrong:
            self._bind(layer, place)

    def _bind(self, layer: str, place: Place) -> None:
        self.matched.append(layer)
        if layer in self._stored.pairs:
            self.pairs.append(BoundPair(place, self._stored.pairs[layer]))
        self.wholes += [BoundWhole(place, whole) for whole in self._wholes.get(layer, ())]

    def _shape(self, target: str) -> tuple[int, ...]:
        return self._target.shapes.get(f"{target}.weight") or self._target.shapes[target]

    def _is_other_adaln(self, layer: str, shape: tuple[int, ...]) -> bool:
        """Whether this is a full AdaLN's and the transformer's is pruned, or the other way round."""
        if ("adaln" not in layer and "norm_out" not in layer) or len(shape) != 2:
            return False
        pair = self._stored.pairs.get(layer)
        widths = [] if pair is None else [pair.down.shape[1]]
        wholes = [whole.entry for whole in self._wholes.get(layer, ()) if whole.leaf == "weight"]
        widths += [entry.shape[1] for entry in wholes if len(entry.shape) == 2]
        return any(width != shape[1] for width in widths)

    def _wrong(self, layer: str, place: Place, shape: tuple[int, ...]) -> Iterator[Offence]:
        pair = self._stored.pairs.get(layer)
        if pair is not None:
            yield from self._wrong_pair(pair, place, shape)
        for whole in self._wholes.get(layer, ()):
            yield from self._wrong_whole(whole, place)

    def _wrong_pair(self, pair: StoredPair, place: Place, shape: tuple[int, ...]) -> Iterator[Offence]:
        if len(shape) != 2:
            yield Offence(pair.down.name, f"is a pair's, but {place.target} is no matrix")
            return
        if pair.down.shape[1] != shape[1]:
            yield Offence(pair.down.name, f"has shape {list(pair.down.shape)}", f"[{pair.rank}, {shape[1]}]")
        if pair.up.shape[0] != place.rows:
            yield Offence(pair.up.name, f"has shape {list(pair.up.shape)}", f"[{place.rows}, {pair.rank}]")

    def _wrong_whole(self, whole: StoredWhole, place: Place) -> Iterator[Offence]:
        own = self._target.shapes.get(f"{place.target}.{whole.leaf}")
        found = whole.entry.shape
        if own is None:
            yield Offence(whole.entry.name, f"is for a bias, which {place.target} has none of")
            return
        wanted = (place.rows, *own[1:])
        if whole.kind == "replacement" and place.rows != own[0]:
            yield Offence(whole.entry.name, f"replaces some rows of {place.target} only", "all of them")
        elif found != wanted and not (whole.kind == "replacement" and self._is_bank(place, found, wanted)):
            yield Offence(whole.entry.name, f"has shape {list(found)}", str(list(wanted)))

    def _is_bank(self, place: Place, found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
        """k heads: one under the other, or [k, ...]. Of output heads alone."""
        if not place.target.startswith("final_layer.") or not place.target.endswith("_out"):
            return False
        stacked = found[1:] == wanted[1:] and found[0] > 0 and found[0] % wanted[0] == 0
        return stacked or found[1:] == wanted


def _nothing(stored: StoredAdapter, binding: _Binding) -> str:
    named = stored.layers
    if binding.skipped and not binding.unmatched:
        return f"adapts nothing but AdaLN layers of another width: {_some(binding.skipped)}"
    twice = next((p for p in PREFIXES if named and all(layer.startswith(p) for layer in named)), None)
    if twice is not None:
        return f"matches none of the transformer's layers: every name begins with a prefix twice ({twice})"
    return f"matches none of the transformer's layers with its {len(named)}: {_some(named)}"


def _some(layers: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(layers) - SHOWN} more" if len(layers) > SHOWN else ""
    return ", ".join(layers[:SHOWN]) + more
