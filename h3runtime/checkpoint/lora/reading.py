"""A bound adapter's bytes -> what `backends.linear.adapted` puts beside a model, on one device.

Matrices keep the dtype that they are stored in. Rows that lie head by head are put in thirds, heads that a file keeps
whole become head 0 and offsets from it (dit-contract §4.7), and a B of q, k and v that is block-diagonal becomes three,
which leaves two thirds of its products out, all of them with zeros; once, here. Fed by `engine.adapters`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from h3runtime.backends.linear.adapted import Change, Difference, LowRank
from h3runtime.checkpoint.entries import StoredTensor
from h3runtime.checkpoint.lora.binding import Binding, BoundPair, BoundWhole, Target, moves_of
from h3runtime.checkpoint.lora.places import QKV
from h3runtime.checkpoint.lora.stored import read_tensor
from h3runtime.checkpoint.sources import Source

THIRDS = 3
"""Of fused q, k and v."""
OnRead = Callable[[], None]
"""Called before each layer."""


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """changes: by the transformer's layers, pairs at scale 1. table: the AdaLN table that the file was made with, to be
    compared. not_finite: tensors with a NaN or an infinity."""

    changes: Mapping[str, Change]
    table: torch.Tensor | None = None
    not_finite: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(change.nbytes for change in self.changes.values())

    def scaled(self, ratios: Mapping[str, float]) -> dict[str, Change]:
        """The same tensors, with alpha / rank of each pair by the name that its file has for the layer."""
        return {layer: replace(change, pairs=_scaled(change.pairs, ratios)) for layer, change in self.changes.items()}


def _scaled(pairs: tuple[LowRank, ...], ratios: Mapping[str, float]) -> tuple[LowRank, ...]:
    return tuple(replace(pair, scale=ratios[pair.name]) for pair in pairs)


def read_bound(
    source: Source,
    binding: Binding,
    target: Target,
    device: torch.device,
    on_read: OnRead = lambda: None,
) -> Loaded:
    """CheckpointError for what can't be read."""
    reader = _Reader(source, target, device)
    changes: dict[str, Change] = {}
    for pair in binding.pairs:
        on_read()
        found = changes.get(pair.place.target, Change())
        changes[pair.place.target] = replace(found, pairs=(*found.pairs, *reader.pairs(pair)))
    for whole in binding.wholes:
        on_read()
        found = changes.get(whole.place.target, Change())
        changes[whole.place.target] = reader.whole(whole, found)
    table = None if binding.table is None else reader.tensor(binding.table)
    return Loaded(changes, table, tuple(reader.not_finite))


class _Reader:
    def __init__(self, source: Source, target: Target, device: torch.device) -> None:
        self._source, self._target, self._device = source, target, device
        self.not_finite: list[str] = []

    def tensor(self, entry: StoredTensor) -> torch.Tensor:
        found = read_tensor(self._source, entry).to(self._device)
        if not bool(torch.isfinite(found).all()):
            self.not_finite.append(entry.name)
        return found

    def pairs(self, bound: BoundPair) -> tuple[LowRank, ...]:
        name = bound.pair.layer
        down, up = self.tensor(bound.pair.down), self._ordered(self.tensor(bound.pair.up), bound)
        if not bound.place.target.endswith(QKV) or not _is_diagonal(up):
            return (LowRank(down, up, 1.0, bound.moves, name),)
        rows, start = up.shape[0] // THIRDS, bound.place.start
        parts = zip(down.chunk(THIRDS), up.chunk(THIRDS), strict=True)
        return tuple(
            LowRank(a.clone(), b.chunk(THIRDS, 1)[i].clone(), 1.0, ((0, rows, start + i * rows),), name)
            for i, (a, b) in enumerate(parts)
        )

    def whole(self, bound: BoundWhole, before: Change) -> Change:
        values = self._ordered(self.tensor(bound.whole.entry), bound)
        is_weight = bound.whole.leaf == "weight"
        if bound.whole.kind == "difference":
            part = Difference(values, moves_of(bound.place))
            if is_weight:
                return replace(before, differences=(*before.differences, part))
            return replace(before, bias_differences=(*before.bias_differences, part))
        values = self._bank(values, bound)
        if bound.place.order == "halves":
            values = values.roll(bound.place.rows // 2, 0)
        return replace(before, weight=values) if is_weight else replace(before, bias=values)

    def _ordered(self, rows: torch.Tensor, bound: BoundPair | BoundWhole) -> torch.Tensor:
        """[n, ...] head by head -> all of q, all of k, all of v."""
        if bound.place.order != "heads":
            return rows
        grouped = rows.reshape(-1, 3, self._target.head_dim, *rows.shape[1:])
        return grouped.transpose(0, 1).reshape(rows.shape)

    def _bank(self, values: torch.Tensor, bound: BoundWhole) -> torch.Tensor:
        """Heads [k, N, ...] that are whole each -> [k*N, ...] of head 0 and offsets from it, fp32."""
        own = self._target.shapes[f"{bound.place.target}.{bound.whole.leaf}"]
        if values.ndim != len(own) + 1:
            return values
        heads = values.float()
        heads = torch.cat([heads[:1], heads[1:] - heads[:1]])
        return heads.flatten(0, 1)


def _is_diagonal(up: torch.Tensor) -> bool:
    """Whether B [3n, 3r] is nothing but zeros beside its three blocks of [n, r]."""
    if up.shape[0] % THIRDS or up.shape[1] % THIRDS:
        return False
    blocks = up.reshape(THIRDS, up.shape[0] // THIRDS, THIRDS, up.shape[1] // THIRDS)
    return not any(bool(blocks[i, :, j].any()) for i in range(THIRDS) for j in range(THIRDS) if i != j)
