"""Side A's blocks in files, for when its weights have to go before side B's come.

    <folder>/<step>/<block>.safetensors     h, table, and every part's result, in the order of the block

One block at a time goes through memory. At 1344x768x124 and H3's sizes that is 9.4 GB a block, so whether the disk has
room is judged before anything is made. Fed by `attribution.runs_of`; read by `attribution.compared`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from safetensors.torch import load_file

from h3runtime.cli.sides.attribution import OnBlock, StepBlocks, Walker, compared, run_bytes, runs_of, walked
from h3runtime.cli.sides.making import Made
from h3runtime.cli.sides.parts import BlockRun
from h3runtime.denoiser.config import DitConfig
from h3runtime.engine.latents_file import write_tensors
from h3runtime.errors import Offence, invalid
from h3runtime.settings import GIB

SPARE = GIB
"""Of the disk, left alone."""


def require_disk(folder: Path, config: DitConfig, rows: int, steps: Sequence[int]) -> None:
    """InvalidRequest naming the steps that would fit."""
    each = config.layers * run_bytes(config, rows)
    free = max(0, shutil.disk_usage(folder).free - SPARE)
    if each * len(steps) > free:
        told = f"{len(steps)} steps take {each * len(steps) / GIB:.1f} GiB of disk, {free / GIB:.1f} GiB are free"
        legal = f"{free // each} steps at most, or none"
        raise invalid([Offence("blocks_at", f"both sides don't fit into memory together, and {told}", legal)])


def write_steps(folder: Path, side: Walker, made: Made, steps: Sequence[int], on_block: OnBlock) -> None:
    """A's blocks at `steps` of its walk."""
    for step, x in walked(made, steps):
        write_runs(folder / str(step), runs_of(side, step, x), on_block)


def compare_steps(folder: Path, side: Walker, made: Made, steps: Sequence[int], on_block: OnBlock) -> list[StepBlocks]:
    """B's blocks against A's in the files. made: A's."""
    return [compared(side, step, x, read_runs(folder / str(step)), on_block) for step, x in walked(made, steps)]


def write_runs(folder: Path, runs: Iterable[BlockRun], on_block: OnBlock = lambda: None) -> None:
    folder.mkdir(parents=True)
    for index, run in enumerate(runs):
        tensors = {"h": run.h, "table": run.table}
        tensors |= {f"{place:03d}.{part}": result for place, (part, result) in enumerate(run.outputs)}
        write_tensors(folder / f"{index}.safetensors", {name: x.cpu().contiguous() for name, x in tensors.items()})
        on_block()


def read_runs(folder: Path) -> Iterator[BlockRun]:
    """In the order of the blocks; each file goes once it has been read."""
    for index in range(len(list(folder.iterdir()))):
        path = folder / f"{index}.safetensors"
        tensors = load_file(path)
        path.unlink()
        h, table = tensors.pop("h"), tensors.pop("table")
        outputs = tuple((name.partition(".")[2], tensors[name]) for name in sorted(tensors))
        yield BlockRun(h, table, outputs)
