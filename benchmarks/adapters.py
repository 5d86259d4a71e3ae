"""What active adapters cost: `adapters.py [--blocks 4] [--rank 128] [--workload W] [--sizes small] [--output R.json]`.

Made-up adapters in the public Turbo layout (q, k and v fused, rank 3 r) for the first blocks of the published
transformer with random weights, on a contract's rows. Written to a temporary folder and taken from it as an
engine does. Every forward is timed once in every round: without adapters, with one, with two. Prints a table and, with
`--output`, writes JSON after every lane. Does not judge.

    lane        exact: BF16 products; fp8: products of FP8 codes, whose fused producers an adapter turns off. Attention
                is `cudnn_sdpa` in both (`sdpa` where that can't run), so that only the linears differ
    ms          median of the rounds; device clock where there is one. The blocks alone, without what stands around them
    above       what the adapters add, and that for 50 blocks
    take        seconds until an adapter is resident that wasn't, hashed and read from disk; again: that is resident
    change      microseconds of putting an adapter beside the layers and of taking it out again
    stays       whether every weight lies where it lay, after all of it, and the forward without adapters gives its bits
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.contract import contract_names, read_contract
from benchmarks.script import measured_here, names, positive
from benchmarks.step_lanes import SIGMA, STEP, Lane, Lanes, Ready
from benchmarks.step_session import SIZES
from benchmarks.step_times import once
from benchmarks.step_workload import workload_of
from h3runtime.backends.linear.adapted import adapted
from h3runtime.checkpoint.synthetic.adapters import adapter
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes
from h3runtime.cli.report import say
from h3runtime.core import AdapterUse
from h3runtime.denoiser.recording import addresses
from h3runtime.engine import determinism
from h3runtime.engine.adapters import AdapterShelf, Taken
from h3runtime.engine.device import choose_device
from h3runtime.engine.made_network import made_weights

WORKLOAD: Final = "t2va-1344x768-124f"
ATTENTION: Final = ("cudnn_sdpa",)
LANES: Final[Mapping[str, Lane]] = {
    "exact": Lane("exact", ATTENTION, "resident_bf16"),
    "fp8": Lane("fp8", ATTENTION, "fp8"),
}
PUBLISHED_BLOCKS: Final = 50
PARTITION: Final = "fl2va"
SHELF_BYTES: Final = 2**34


@dataclass(frozen=True, slots=True)
class Taking:
    """Of the first adapter."""

    file_bytes: int
    take_seconds: float
    again_seconds: float
    change_microseconds: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of the blocks, by how many adapters are active."""

    lane: str
    attention: str
    producers: str
    rows: int
    blocks: int
    ms: Mapping[int, float]
    stays: bool

    def above(self, adapters: int) -> float:
        return self.ms[adapters] - self.ms[0]


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    determinism.pin()
    place = choose_device(given.device)
    sizes = replace(SIZES[given.sizes], layers=given.blocks, refiner_layers=1)
    report = measured_here(place.name, place.device) | {"rank": given.rank, "blocks": given.blocks}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for seed in (0, 1):
            adapter("comfyui_turbo", sizes, rank=given.rank, seed=seed).write(Path(folder) / f"{seed}.safetensors")
        say(f"two adapters of rank {given.rank} for {given.blocks} blocks are written")
        costs = _Measuring(sizes, Path(folder), place.device, given.rounds, given.workload)
        for name in given.lanes:
            cost, taking = costs.of(LANES[name])
            report |= {name: asdict(cost), "taking": asdict(taking)}
            print(_line(cost), flush=True)
            print(_taken_line(taking), flush=True)
            if given.output is not None:
                given.output.write_text(json.dumps(report, indent=2) + "\n")
    return 0


class _Measuring:
    def __init__(self, sizes: TransformerSizes, folder: Path, device: torch.device, rounds: int, workload: str) -> None:
        self._sizes, self._folder, self._device, self._rounds = sizes, folder, device, rounds
        self._given = workload_of(read_contract(workload).contract, sizes.text_dim, device)
        self._lanes = Lanes(sizes, made_weights(sizes, device), device)

    def of(self, lane: Lane) -> tuple[Cost, Taking]:
        ready = self._lanes.ready(lane, self._given)
        shelf = AdapterShelf(self._folder, SHELF_BYTES, self._device)
        shelf.list({PARTITION: ready.network})
        uses = [self._use(shelf, str(seed)) for seed in (0, 1)]
        taking = self._taking(shelf, uses[0], ready)
        taken = [shelf.take(uses[:count], PARTITION, ready.network) for count in range(3)]
        where, bits = addresses(ready.network), self._blocks(ready)
        found: dict[int, list[float]] = {count: [] for count in range(3)}
        for at in range(self._rounds + 1):
            for count, adapters in enumerate(taken):
                with adapted(ready.network, adapters.changes):
                    spent = once(lambda: self._blocks(ready), self._device)
                if at:
                    found[count].append(spent)
        stays = addresses(ready.network) == where and torch.equal(self._blocks(ready), bits)
        ms = {count: median(times) for count, times in found.items()}
        told = ready.attention.name, ready.network.producers.name
        return Cost(lane.name, *told, self._given.layout.rows, self._sizes.layers, ms, stays), taking

    @staticmethod
    def _use(shelf: AdapterShelf, name: str) -> AdapterUse:
        facts = next(facts for facts in shelf.facts if facts.name == name)
        fit = facts.fits[PARTITION]
        return AdapterUse(name, 1.0, facts.sha256, facts.alpha, facts.rank, facts.ratio, fit.matched, fit.total)

    def _taking(self, shelf: AdapterShelf, use: AdapterUse, ready: Ready) -> Taking:
        first, taken = self._timed(shelf, use, ready)
        again, _ = self._timed(shelf, use, ready)
        began = time.perf_counter()
        for _ in range(100):
            with adapted(ready.network, taken.changes):
                pass
        change = (time.perf_counter() - began) / 100
        size = next(facts.bytes for facts in shelf.facts if facts.name == use.name)
        return Taking(size, first, again, 1e6 * change)

    def _timed(self, shelf: AdapterShelf, use: AdapterUse, ready: Ready) -> tuple[float, Taken]:
        began = time.perf_counter()
        taken = shelf.take([use], PARTITION, ready.network)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - began, taken

    def _blocks(self, ready: Ready) -> torch.Tensor:
        """What the last block leaves, [S, hidden]."""
        given = self._given
        way = ready.network.begin(ready.prepared, given.video, given.audio, SIGMA, step=STEP)
        h: torch.Tensor = ready.network.advance(way).h
        return h


def _line(cost: Cost) -> str:
    spent = ", ".join(f"{count} adapters {ms:.1f} ms" for count, ms in cost.ms.items())
    above = "; ".join(
        f"{count} more: {cost.above(count):.1f} ms, {100 * cost.above(count) / cost.ms[0]:.1f} %, "
        f"{cost.above(count) * PUBLISHED_BLOCKS / cost.blocks:.0f} ms in {PUBLISHED_BLOCKS} blocks"
        for count in (1, 2)
    )
    told = f"{cost.lane} ({cost.attention}, {cost.producers}), {cost.blocks} blocks of {cost.rows} rows"
    return f"{told}: {spent}; {above}; stays: {'yes' if cost.stays else 'NO'}"


def _taken_line(taking: Taking) -> str:
    read = f"{taking.file_bytes / 1e6:.0f} MB in {taking.take_seconds:.3f} s"
    return f"take {read}, again {1e3 * taking.again_seconds:.2f} ms, change {taking.change_microseconds:.0f} us"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--blocks", type=positive, default=4)
    parser.add_argument("--rank", type=positive, default=128)
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--workload", choices=contract_names(), default=WORKLOAD)
    parser.add_argument("--sizes", choices=sorted(SIZES), default="published")
    parser.add_argument("--lanes", type=names, default=tuple(LANES))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
