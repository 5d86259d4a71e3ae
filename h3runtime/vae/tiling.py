"""How a picture is cut into overlapping tiles and put together again. Spatial only; no network is known here.

`video_vae` cuts pixels (encode) or latents (decode) with `Tiling.split`, runs its network tile by tile and hands the
results to `stitch`. Tiles are part of H3's result, not a memory measure: the released model and ComfyUI always tile,
and every tile is its own coordinate frame (conditioning contract §4.5, §8 row 26).

Arithmetic, per axis of `length` pixels: one tile if length <= size; else N tiles of `size`, the smallest N from
ceil(length / size) on with size*N - overlap*(N-1) >= length. What is too much is handed to the overlaps in steps of
16 pixels, one at a time from the first, round and round. The last tile ends exactly at `length`.

Shapes: tiles are [..., th, tw], the stitched picture is [..., H, W]; leading axes are free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from h3runtime.errors import Offence, SettingsError

ALIGNMENT = 16
"""Pixels of one latent cell, and the unit in which overlaps grow (conditioning contract §4.5)."""

BlendRule = Literal["blended", "raw"]
"""Which neighbours a tile is faded with: already blended ones (ComfyUI's decode since September 2026) or tiles as the
network made them (every encode, the release's decode)."""


@dataclass(frozen=True, slots=True)
class TileAxis:
    """One axis cut up. `overlaps[k]` is what tiles k and k+1 share; every tile is `tile` long."""

    length: int
    tile: int
    starts: tuple[int, ...]
    overlaps: tuple[int, ...]

    def overlap_after(self, index: int) -> int:
        """What tile `index` shares with its successor; 0 for the last one."""
        return self.overlaps[index] if index < len(self.overlaps) else 0

    def divided(self, factor: int) -> TileAxis:
        """The same cut in units of `factor` pixels (16: latent cells)."""
        return TileAxis(
            self.length // factor,
            self.tile // factor,
            tuple(start // factor for start in self.starts),
            tuple(overlap // factor for overlap in self.overlaps),
        )


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tile edge and smallest overlap in pixels, multiples of 16; 256 and 64 are what H3 was released with (§4.5)."""

    size: int = 256
    overlap: int = 64

    @classmethod
    def of_size(cls, size: int) -> Tiling:
        """Another tile edge keeps the released ratio of overlap to tile, 1:4, on the 16-pixel grid."""
        return cls(size, max(ALIGNMENT, size // 4 // ALIGNMENT * ALIGNMENT))

    def __post_init__(self) -> None:
        offences = []
        if self.size < ALIGNMENT or self.size % ALIGNMENT:
            offences.append(Offence("vae_tile_size", f"{self.size} is no tile edge", "a positive multiple of 16"))
        if not 0 <= self.overlap < self.size or self.overlap % ALIGNMENT:
            legal = f"a multiple of 16 below {self.size}"
            offences.append(Offence("vae_tile_overlap", f"{self.overlap} is no overlap", legal))
        if offences:
            raise SettingsError("; ".join(f"{o.field}: {o.message}" for o in offences), offences)

    def split(self, length: int) -> TileAxis:
        """Cut an axis of `length` pixels (a positive multiple of 16)."""
        assert length > 0 and length % ALIGNMENT == 0, length
        if length <= self.size:
            return TileAxis(length, length, (0,), ())
        count = self._count(length)
        overlaps = [self.overlap] * (count - 1)
        for step in range((self._covered(count) - length) // ALIGNMENT):
            overlaps[step % len(overlaps)] += ALIGNMENT
        starts = [0]
        for overlap in overlaps:
            starts.append(starts[-1] + self.size - overlap)
        return TileAxis(length, self.size, tuple(starts), tuple(overlaps))

    def _count(self, length: int) -> int:
        count = -(-length // self.size)
        while self._covered(count) < length:
            count += 1
        return count

    def _covered(self, count: int) -> int:
        return self.size * count - self.overlap * (count - 1)


def blend(before: torch.Tensor, after: torch.Tensor, dim: int) -> torch.Tensor:
    """`after` with its first e entries along `dim` faded in from all of `before`, e = min of the two lengths.

    Weights of `after` are 0, 1/e, .. (e-1)/e. Weights, products and sum are in the tensors' own dtype: ComfyUI's
    rounding points in fp16 (§4.5, §4.8).
    """
    extent = min(before.shape[dim], after.shape[dim])
    if extent == 0:
        return after
    weight = torch.arange(extent, dtype=after.dtype, device=after.device) / extent
    weight = weight.view([-1 if axis == dim % after.ndim else 1 for axis in range(after.ndim)])
    tail = before.narrow(dim, before.shape[dim] - extent, extent)
    faded = tail * (1 - weight) + after.narrow(dim, 0, extent) * weight
    return torch.cat([faded, after.narrow(dim, extent, after.shape[dim] - extent)], dim)


def stitch(
    tile_at: Callable[[int, int], torch.Tensor], rows: TileAxis, columns: TileAxis, rule: BlendRule
) -> torch.Tensor:
    """Ask for every tile once, row by row, and assemble [..., H, W]. `rows`, `columns` are in units of the tiles.

    Each tile is blended with the tile above, then with the one to the left, then its trailing overlaps are cut off.
    Under `blended` "above" is the finished row above over the full width, so it also holds pixels of the next column.
    """
    pieces: list[torch.Tensor] = []
    above: Sequence[torch.Tensor] = ()
    for i in range(len(rows.starts)):
        overlap = rows.overlap_after(i)
        tiles = (tile_at(i, j) for j in range(len(columns.starts)))
        row, raw_bottoms = _assemble_row(tiles, above, columns, overlap, rule)
        kept = row.shape[-2] - overlap
        bottom = row[..., kept:, :]
        above = raw_bottoms if rule == "raw" else [bottom[..., s : s + columns.tile] for s in columns.starts]
        pieces.append(row[..., :kept, :])
    return _joined(pieces, -2)


def _assemble_row(
    tiles: Iterator[torch.Tensor], above: Sequence[torch.Tensor], columns: TileAxis, overlap: int, rule: BlendRule
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """One row over the full width, bottom overlap still on, and the bottom overlaps of its tiles before any blend."""
    pieces: list[torch.Tensor] = []
    bottoms: list[torch.Tensor] = []
    left: torch.Tensor | None = None
    for j, raw in enumerate(tiles):
        tile = blend(above[j], raw, -2) if above else raw
        if left is not None:
            tile = blend(left, tile, -1)
        kept = tile.shape[-1] - columns.overlap_after(j)
        left = (raw if rule == "raw" else tile)[..., kept:]
        bottoms.append(raw[..., raw.shape[-2] - overlap :, :].clone())
        pieces.append(tile[..., :kept])
    return _joined(pieces, -1), bottoms


def _joined(pieces: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    """A picture of a single tile is that tile: there is nothing to copy."""
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces), dim)
