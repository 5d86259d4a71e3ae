"""What makes NVFP4 activations, family by family: the tensor's scale, and the codes with their block scales.

Families: `torch` (aminmax and a division), `kitchen` (comfy-kitchen's packer), `vortex` and `vortex_native` (the CUDA
C++ kernels of `h3_kernels`); those of producers that end in NVFP4 are told in `nvfp4_fused_cases`. Inputs are random
normal BF16 in the widths that the model packs; runs are interleaved.
Prints a table and, with `--output`, writes JSON. Does not judge: nothing is timed before its bits were compared with
the first family's, and a difference is an error.

    ms       median of the runs, on the device's own clock; the least and the most beside it
    GB/s     bytes that have to move at least (each input read once, each result written once) over the median
    copy %   of a large copy's rate, measured in the same run
    ratio    the first family's median over this one's
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.elementwise import CANONICAL_ROWS, copy_rate, timed
from benchmarks.nvfp4_case import Case, Made, keeping_busy, kitchen_pack, native_module, packed_parts, random_normal
from benchmarks.nvfp4_fused_cases import fused
from benchmarks.script import measured_here, names, positive
from h3runtime.cli.report import print_error, say
from h3runtime.engine import determinism
from h3runtime.engine.device import choose_device
from h3runtime.errors import H3Error
from h3runtime.quant import nvfp4, tiles

WIDTHS: Final = {"qkv, FC1": 5376, "out": 7168, "FC2": 14336}
"""Of what the products of a block read (dit-contract §1.1)."""


@dataclass(frozen=True, slots=True)
class Row:
    operation: str
    family: str
    ms: float
    least_ms: float
    most_ms: float
    gb_per_s: float
    copy_percent: float
    ratio: float


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        report = measure(given.rows, given.device, given.runs, given.only)
    except H3Error as error:
        print_error(error)
        return 1
    print(table(report))
    if given.output is not None:
        given.output.write_text(json.dumps(report, indent=2) + "\n")
        say(f"{given.output}: written")
    return 0


def measure(rows: int, device_name: str, runs: int, only: Sequence[str]) -> dict[str, Any]:
    """The report, ready for JSON. only: beginnings of names of operations, none: all."""
    determinism.pin()
    place = choose_device(device_name)
    found: list[Row] = []
    with torch.no_grad():
        rate = copy_rate(place.device, runs)
        for group in GROUPS:
            for case in group(rows, place.device):
                if not only or case.operation.startswith(tuple(only)):
                    found += _rows(case, runs, rate, place.device)
                    print(table({"rows": [asdict(row) for row in found[-len(case.families) :]]}), flush=True)
    return {
        **measured_here(place.name, place.device),
        "shape": {"rows": rows},
        "dtype": "bfloat16",
        "runs": runs,
        "copy_gb_per_s": rate,
        "rows": [asdict(row) for row in found],
    }


def packing(rows: int, device: torch.device) -> Iterator[Case]:
    """Scale discovery, packing by a known scale, and both, at each width."""
    before = keeping_busy(device)
    for reader, width in WIDTHS.items():
        x = random_normal((rows, width), device)
        scale = nvfp4.activation_scale(x)
        read, written = 2 * x.numel(), x.numel() * 9 // 16
        yield Case(f"tensor scale of {reader}", _discoveries(x), read, before)
        yield Case(f"pack for {reader}", _packers(x, scale), read + written, before)
        yield Case(f"scale and pack for {reader}", _both(x), 2 * read + written, before)


GROUPS: Final[tuple[Callable[[int, torch.device], Iterator[Case]], ...]] = (packing, fused)
"""What there is to measure; each makes its inputs when it is asked for the next case."""


def _discoveries(x: torch.Tensor) -> dict[str, Callable[[], Made]]:
    found: dict[str, Callable[[], Made]] = {"torch": lambda: (nvfp4.activation_scale(x),)}
    if (native := native_module(x.device)) is not None:
        found["vortex"] = lambda: (native.tensor_scale(x),)
    return found


def _packers(x: torch.Tensor, scale: torch.Tensor) -> dict[str, Callable[[], Made]]:
    found: dict[str, Callable[[], Made]] = {"kitchen": partial(kitchen_pack, x, scale)}
    if (native := native_module(x.device)) is not None:
        found["vortex_native"] = lambda: packed_parts(native.pack(x, scale))
    return found


def _both(x: torch.Tensor) -> dict[str, Callable[[], Made]]:
    found: dict[str, Callable[[], Made]] = {"kitchen": lambda: kitchen_pack(x, nvfp4.activation_scale(x))}
    if (native := native_module(x.device)) is not None:
        found["vortex"] = lambda: kitchen_pack(x, native.tensor_scale(x))
        found["vortex_native"] = lambda: packed_parts(native.pack(x, native.tensor_scale(x)))
    return found


def _rows(case: Case, runs: int, rate: float, device: torch.device) -> list[Row]:
    first, *others = case.families
    for name in others:
        case.before()
        wanted = case.families[first]()
        case.before()
        check_same(case, wanted, case.families[name](), name)
    times = timed(case.families, runs, device, case.before)
    base = median(times[first])
    return [
        Row(
            case.operation,
            name,
            ms := median(times[name]),
            min(times[name]),
            max(times[name]),
            case.nbytes / ms / 1e6,
            100 * case.nbytes / ms / 1e6 / rate,
            base / ms,
        )
        for name in case.families
    ]


def check_same(case: Case, wanted: Made, got: Made, family: str) -> None:
    """Bit for bit, on the rows that both have; AssertionError if not."""
    for a, b in zip(wanted, got, strict=True):
        if a.dtype == torch.float8_e4m3fn:
            a, b = (tiles.unswizzle(one, one.shape[0], one.shape[1]) for one in (a, b))
        elif a.dim() == 2:
            a, b = a[: b.shape[0]], b[: a.shape[0]]
        assert torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)), (
            f"{case.operation}: {family} makes other bits"
        )


def table(report: dict[str, Any]) -> str:
    """For people, in Markdown."""
    head = ["operation", "family", "ms", "least..most", "GB/s", "of copy", "ratio"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in report["rows"]:
        cells = [row["operation"], row["family"], f"{row['ms']:.3f}", f"{row['least_ms']:.3f}..{row['most_ms']:.3f}"]
        cells += [f"{row['gb_per_s']:.0f}", f"{row['copy_percent']:.0f} %", f"{row['ratio']:.2f}x"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nvfp4_producers.py", description="Time what makes NVFP4 activations here.")
    parser.add_argument("--rows", type=positive, default=CANONICAL_ROWS, metavar="S", help="Packed rows.")
    parser.add_argument("--runs", type=positive, default=20, metavar="N", help="Timed runs of each. Default: 20.")
    parser.add_argument("--only", type=names, default=(), metavar="A,B", help="Operations whose names begin so.")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N. Default: auto.")
    parser.add_argument("--output", type=Path, metavar="R.json", help="Also write JSON.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
