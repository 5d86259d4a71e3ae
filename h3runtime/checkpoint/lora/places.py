"""A transformer's layers under every name that adapters call them by.

    ours          blocks.0.attn.qkv_proj                     rows as they are
    Diffusers     transformer_blocks.0.attn.to_q, to_k, to_v  a third of the rows each
                  transformer_blocks.0.ff.net.0.proj          [value; gate] where ours is [gate; value]
    flattened     blocks_0_attn_qkv_proj                      either of these with `_` for `.`

(dit-contract §7.3). Of the names alone nobody can tell whether fused q, k and v are in thirds or head by head; only
DiffSynth trains on the latter, and what marks its files is PEFT's `.default.` in our names. Read by `binding`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from h3runtime.checkpoint.renaming import BLOCK_LISTS, BLOCK_NAMES, THIRDS, TRANSFORMER_NAMES

Order = Literal["same", "halves", "heads"]
"""How an adapter's rows differ from the layer's: not at all, halves the other way round, interleaved by heads."""
QKV: Final = ".attn.qkv_proj"
FC1: Final = ".mlp.fc1"
CONVERTED: Final = ("converted_layout", "comfyui_minimax_h3")
"""Metadata of files whose rows were put into ComfyUI's order, whatever their names look like."""


@dataclass(frozen=True, slots=True)
class Place:
    """Rows start..stop of the layer `target`, in `order`."""

    target: str
    start: int
    stop: int
    order: Order = "same"

    @property
    def rows(self) -> int:
        return self.stop - self.start


def places(rows: Mapping[str, int], *, interleaved: bool) -> dict[str, Place]:
    """rows: of every layer by our name, as `rows_of` tells. interleaved: fused q, k and v under our names are."""
    found: dict[str, Place] = {}
    for name, count in rows.items():
        order: Order = "heads" if interleaved and name.endswith(QKV) else "same"
        own = {name: Place(name, 0, count, order), **dict(_theirs(name, count))}
        found |= {alias.replace(".", "_"): place for alias, place in own.items()} | own
    return found


def rows_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Layers of a model with these tensors -> rows of each. A lone tensor (`adaln_t_table`) is a layer too."""
    own = {name.removesuffix(".weight"): shape[0] for name, shape in shapes.items() if name.endswith(".weight")}
    lone = {name: shape[0] for name, shape in shapes.items() if not name.endswith((".weight", ".bias")) and shape}
    return own | lone


def _theirs(name: str, count: int) -> Iterator[tuple[str, Place]]:
    """The same layer as Diffusers has it."""
    for theirs, ours in TRANSFORMER_NAMES.items():
        if name == ours:
            yield theirs, Place(name, 0, count)
    for their_list, our_list in BLOCK_LISTS:
        if name.startswith(our_list):
            block, _, leaf = name.removeprefix(our_list).partition(".")
            yield from _of_block(f"{their_list}{block}.", leaf, name, count)


def _of_block(block: str, leaf: str, name: str, count: int) -> Iterator[tuple[str, Place]]:
    if name.endswith(QKV):
        third = count // len(THIRDS)
        for index, part in enumerate(THIRDS):
            yield f"{block}attn.{part}", Place(name, index * third, (index + 1) * third)
        return
    theirs = next((theirs for theirs, ours in BLOCK_NAMES.items() if ours == leaf), leaf)
    yield f"{block}{theirs}", Place(name, 0, count, "halves" if name.endswith(FC1) else "same")
