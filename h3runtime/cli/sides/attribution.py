"""Where two sides part inside the network: their blocks, one by one, on the same input, at chosen steps of A's walk.

    x of A before step i -> A's sequence at block 0 -> A's block 0 -> A's block 1 -> ...      what every block is given
                            B's sequence, compared     B's block 0    B's block 1             on A's input, compared

So an error is told where it is made: no block inherits what blocks before it did, and inside a block no part inherits
from the parts before it (`parts`). Hooks are here and nowhere else; nothing of an ordinary run is touched. What step
reuse, a sampler or a schedule does is none of the blocks' doing, and shows in `steps` alone.

Heads are not compared: no backend but the definition runs them. Fed by the command line with what `making` made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import cast

import torch
from safetensors import safe_open

from h3runtime.cli.sides.engines import in_place, linear_of
from h3runtime.cli.sides.making import Made
from h3runtime.cli.sides.parts import BlockFound, BlockRun, agreement_of, compare_block, keep_block
from h3runtime.core import GenerateSpec, SamplerSettings
from h3runtime.denoiser.blocks import Block
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.denoise import Estimate, begin
from h3runtime.denoiser.dit import Dit, Passage, Prepared
from h3runtime.denoiser.masks import TokenMasks
from h3runtime.denoiser.schedule import sigmas
from h3runtime.engine.conditions.gathering import conditions_of
from h3runtime.engine.conditions.media_encoder import MediaEncoder
from h3runtime.engine.device import free_bytes
from h3runtime.engine.resident import COMPUTE_DTYPE, ResidentEngine
from h3runtime.engine.run import Run
from h3runtime.engine.sampling import Conditioned, attention_of
from h3runtime.media.agreement import Agreement

OnBlock = Callable[[], None]
SIZES = ("layers", "hidden", "heads", "head_dim", "ffn")
ROOM = 4
"""A block's parts are kept on the device if this many times as much is free there, else in the host's memory."""


@dataclass(frozen=True, slots=True)
class StepBlocks:
    """One step of A's walk. entering: the sequence that enters block 0, as each side embeds it."""

    step: int
    sigma: float
    entering: Agreement
    blocks: tuple[BlockFound, ...]

    @property
    def worst(self) -> int | None:
        """The block that adds most, by relative L2 of the residual stream behind it; None if none adds anything."""
        differ = {
            index: found.whole.rel_l2 or 0.0 for index, found in enumerate(self.blocks) if not found.whole.identical
        }
        return max(differ, key=lambda index: differ[index]) if differ else None


@dataclass(frozen=True, slots=True)
class Walker:
    """A side, conditioned and ready to be asked at any x of A's walk.

    active: its linears and adapters in place. estimate: on A's schedule. own_steps: for each step of A's, the one of
    this side's with the nearest sigma, which its attention takes it for.
    """

    network: Dit
    estimate: Estimate[Prepared]
    active: Callable[[], AbstractContextManager[Dit]]
    own_steps: tuple[int, ...]

    @torch.no_grad()
    def enter(self, x: torch.Tensor, step: int) -> Passage:
        """Its forward at x, fp32 [N] anywhere, ahead of block 0."""
        caught = _Caught(self.network)
        with self.active():
            replace(self.estimate, network=caught)(x.to(self.network.device), step)
        assert caught.way is not None
        return replace(caught.way, call=replace(caught.way.call, step=self.own_steps[step]))


class _Caught:
    """Stands in for a network: keeps a forward ahead of its first block, and goes no further."""

    def __init__(self, network: Dit) -> None:
        self.network = network
        self.way: Passage | None = None

    def __call__(
        self,
        prepared: Prepared,
        video: torch.Tensor,
        audio: torch.Tensor,
        sigma: float,
        *,
        step: int,
        masks: TokenMasks | None,
        sigma_next: float | None,  # noqa: ARG002  # of the heads
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.way = self.network.begin(prepared, video, audio, sigma, step=step, masks=masks)
        return torch.zeros_like(video), torch.zeros_like(audio)


def walker(engine: ResidentEngine, spec: GenerateSpec, sampling: SamplerSettings, run: Run) -> Walker:
    """spec: the side's. sampling: A's, whose schedule both are asked on."""
    media = MediaEncoder(engine.models.vaes, engine.device, engine.media_cache, run)
    conditions = conditions_of(spec, media)
    given = Conditioned.of(spec, engine.conditioner.condition(conditions.pieces, run.should_stop), conditions)
    network = engine.models.transformer_of(spec.task)
    linear = linear_of(engine, spec)
    taken = engine.adapters.take(spec.loras, spec.task.runs_on, network, run.look)

    def active() -> AbstractContextManager[Dit]:
        return in_place(network, linear, taken)

    with active():
        estimate, _ = begin(
            network,
            given.layout,
            given.text,
            conditions.keyframes,
            conditions.references,
            sampling,
            device=engine.device,
            dtype=COMPUTE_DTYPE,
            attention=attention_of(spec, engine.attention, engine.attentions),
            masks=conditions.masks,
        )
    own = sigmas(spec.sampling).tolist()[:-1]
    nearest = [min(range(len(own)), key=lambda i: abs(own[i] - sigma)) for sigma in estimate.sigmas.tolist()]
    return Walker(network, estimate, active, tuple(nearest))


def why_unlike(a: DitConfig, b: DitConfig) -> str | None:
    """Why blocks of two transformers can't be given each other's input."""
    differ = [
        f"{name} {getattr(a, name)} and {getattr(b, name)}" for name in SIZES if getattr(a, name) != getattr(b, name)
    ]
    return f"the transformers have other sizes: {', '.join(differ)}" if differ else None


def attribute(first: Walker, second: Walker, made: Made, steps: Sequence[int], on_block: OnBlock) -> list[StepBlocks]:
    """Both there at once, or one network in two dresses. made: A's, whose walk it is."""
    return [compared(second, step, x, runs_of(first, step, x), on_block) for step, x in walked(made, steps)]


def walked(made: Made, steps: Sequence[int]) -> Iterator[tuple[int, torch.Tensor]]:
    """x before each of `steps`, fp32 [N], as it was."""
    with safe_open(made.steps, "pt") as file:
        for step in steps:
            yield step, file.get_tensor(f"step{step}.x")


@torch.no_grad()
def runs_of(side: Walker, step: int, x: torch.Tensor) -> Iterator[BlockRun]:
    """A's blocks at x, one after the other, each when it is asked for."""
    begun = side.enter(x, step)
    h, place = begun.h, _place(side.network.config, begun.h)
    for index, block in enumerate(side.network.blocks):
        with side.active():
            call = replace(begun.call, block=index)
            run = keep_block(cast(Block, block), h, begun.tables.block(index), begun.time.rows, call, place)
        h = run.after.to(h.device)
        yield run


@torch.no_grad()
def compared(side: Walker, step: int, x: torch.Tensor, runs: Iterable[BlockRun], on_block: OnBlock) -> StepBlocks:
    """B's blocks against what A's made of the same. on_block: called after each."""
    begun, found, entering = side.enter(x, step), [], Agreement()
    for index, run in enumerate(runs):
        if index == 0:
            entering = agreement_of(run.h.to(begun.h.device), begun.h)
        with side.active():
            block = cast(Block, side.network.blocks[index])
            call = replace(begun.call, block=index)
            found.append(compare_block(block, run, begun.tables.block(index), begun.time.rows, call))
        on_block()
    return StepBlocks(step, float(side.estimate.sigmas[step]), entering, tuple(found))


def run_bytes(config: DitConfig, rows: int, itemsize: int = COMPUTE_DTYPE.itemsize) -> int:
    """Of one `BlockRun` but its table: h, norms, gates and products behind them; q, k, v twice; fc1 and its product."""
    return rows * (7 * config.hidden + 7 * config.inner + 3 * config.ffn) * itemsize


def _place(config: DitConfig, h: torch.Tensor) -> torch.device:
    """Where a block's parts are kept: on the device if there is plenty of room, else in the host's memory."""
    enough = free_bytes(h.device) > ROOM * run_bytes(config, h.shape[0], h.element_size())
    return h.device if enough else torch.device("cpu")
