"""The audio decoder's anti-aliased activation as two matrix products: what the CPU runs.

A CPU's convolutions are slow where every channel is filtered by itself. Both filters are the same for all channels and
short, so a signal cut into blocks of 16 samples goes through either of them as one product with a band matrix: four
fifths of it are zeros, and it still takes half the time. `audio_decoder` calls it without gradients on the CPU; the
convolutions of `audio_filters` define the result, which differs in the order of at most 12 sums.

Arithmetic, n taps f, p = n/2 - 1, a block of b samples x[k0 .. k0 + b):

    columns  x[k0 - p .. k0 + b + p)                   [blocks, b + 2p], ends repeated
    up       u[2 k0 - p .. 2 k0 + 2b + p), u[m] = 2 sum_v f[m - 2v + p] x[v]        [blocks, 2b + 2p]
    ends     what lies before u[0] and behind u[2L - 1] repeats these
    act      SnakeBeta, element by element
    out      y[k] = sum_t f[t] u[2k + t - p]           [blocks, b]

Neighbouring blocks make the 2p samples that they share twice, so that nothing is copied between the two products.
"""

from __future__ import annotations

import torch

BLOCK = 16
"""Samples of a block. 16 and 32 take as long on an AVX-512 core, 8 a little longer: less makes more samples twice, more
multiplies with more zeros."""


def anti_aliased(
    x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, frequency: torch.Tensor, strength: torch.Tensor
) -> torch.Tensor:
    """x [B, C, L] fp32, filters [1, 1, n], SnakeBeta's frequency and strength [C, 1] -> [B, C, L].

    n even and at most 2 * BLOCK + 2.
    """
    length, taps = x.shape[-1], up.shape[-1]
    reach = taps // 2 - 1
    blocks = -(-length // BLOCK)
    first, last = x[..., :1].expand(-1, -1, reach), x[..., -1:].expand(-1, -1, blocks * BLOCK - length + reach)
    # Takes half as long as F.pad does.
    columns = torch.cat([first, x, last], -1).unfold(-1, BLOCK + 2 * reach, BLOCK)
    wide = columns.reshape(-1, BLOCK + 2 * reach) @ _band(2 * up, BLOCK + 2 * reach, 2 * (BLOCK + reach), 2 * reach)
    wide = wide.view(*x.shape[:2], blocks, -1)
    _repeat_ends(wide, length, reach)
    wave = torch.mul(wide, frequency.unsqueeze(-1)).sin_().square_()
    wide.addcmul_(wave, strength.unsqueeze(-1))
    out = wide.flatten(0, 2) @ _band(down, BLOCK, 2 * (BLOCK + reach), 0).T
    return out.view(*x.shape[:2], -1)[..., :length]


def _band(filter: torch.Tensor, rows: int, columns: int, before: int) -> torch.Tensor:
    """[rows, columns] with filter[column - 2 row + before] where there is such a tap, else 0."""
    taps = filter.shape[-1]
    # Rows wide enough for all taps; written along the diagonal, then the margins are cut off.
    wide = before + columns + 2 * rows + taps
    flat = filter.new_zeros(rows * (wide + 2))
    flat.as_strided((rows, taps), (wide + 2, 1)).copy_(filter.view(-1))
    return flat[: rows * wide].view(rows, wide)[:, before : before + columns]


def _repeat_ends(wide: torch.Tensor, length: int, reach: int) -> None:
    """Overwrite, in the blocks [B, C, blocks, 2 BLOCK + 2 reach], what stands for samples outside of [0, 2 length)."""
    wide[:, :, 0, :reach] = wide[:, :, 0, reach : reach + 1]
    for block in range(max(0, wide.shape[2] - 2), wide.shape[2]):
        end = 2 * (length - block * BLOCK) + reach
        if end < wide.shape[3]:
            wide[:, :, block, end:] = wide[:, :, block, end - 1 : end]
