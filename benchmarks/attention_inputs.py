"""q, k and v as h3-nano makes them: the inputs on which an approximation's error means something.

    a held-out prompt -> the exact clip's own run -> q, k, v of a few steps and blocks, BF16, as the blocks hand them on

Random normal numbers have no outliers and no structure: K smoothing has nothing to take away there and sparse attention
nothing to find. The model's own have both. Made by the runtime's engine, in the order of steps; kept on its device.
Read by `attention`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from benchmarks.quality_engines import Engines
from benchmarks.quality_plan import EXACT, Schedule, Size
from benchmarks.quality_prompts import draw_prompt, ends_of, request_of
from h3runtime.backends.attention.base import AttentionBackend, Place
from h3runtime.core import PackedLayout

SIZES: Final = (Size(192, 192, 39), Size(640, 384, 124))
"""What the model was trained at, and the rows of a real clip: some 540 and 9,400."""
STEPS: Final = (1, 6, 11)
BLOCKS: Final = (0, 2, 5)
"""Of 12 forwards and 6 blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """One call: q, k, v [1, S, H, D] as the block gave them."""

    qkv: tuple[torch.Tensor, ...]
    layout: PackedLayout
    step: int
    block: int


class Recorder:
    """Hands every call to `backend`, and keeps those of `steps` and `blocks`."""

    def __init__(self, backend: AttentionBackend, steps: Collection[int], blocks: Collection[int]) -> None:
        self.name, self.grade = backend.name, backend.grade
        self.backend, self.steps, self.blocks = backend, steps, blocks
        self.calls: list[Recorded] = []

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, layout: PackedLayout | None, step: int
    ) -> torch.Tensor:
        return self.backend.attend(q, k, v, layout=layout, step=step)

    def attend_at(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        layout: PackedLayout | None,
        step: int,
        place: Place | None,
    ) -> torch.Tensor:
        if layout is not None and place is not None and step in self.steps and place.block in self.blocks:
            self.calls.append(Recorded(tuple(x.clone() for x in (q, k, v)), layout, step, place.block))
        return self.attend(q, k, v, layout=layout, step=step)


def recorded(
    device: str, size: Size, steps: Collection[int] = STEPS, blocks: Collection[int] = BLOCKS, threads: int = 1
) -> list[Recorded]:
    """Of the first held-out prompt at `size`, in 12 forwards."""
    prompt = draw_prompt("t2va", "held_out", 0)
    with tempfile.TemporaryDirectory() as scratch:
        engines = Engines(device, threads, Path(scratch))
        spec, given = engines.condition(request_of(prompt, size, ends_of(prompt, size), Path(scratch)))
        keeper = Recorder(engines.engine(EXACT).attention, steps, blocks)
        engines.sample(EXACT, Schedule(), spec, given, keeper)
    return keeper.calls
