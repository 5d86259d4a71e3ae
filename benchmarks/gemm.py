"""Every linear backend that runs here on a block's four products: `gemm.py [--rows M] [--format F] [--output R.json]`.

    y = x W^T of qkv [21504, 5376], out [5376, 7168], fc1 [28672, 5376], fc2 [5376, 14336]     (checkpoint-formats §2.2)

x is random normal BF16 with a few channels twenty times as large, W random normal, stored as `--format` says; what a
backend prepares at load isn't timed, what it does to x is. Runs are interleaved. Prints a table and, with `--output`,
writes JSON. Does not judge; what can't run is listed with its reason, and nothing is timed before it was compared.

    ms         median of the runs, on the device's own clock where it has one; the least and the most beside it
    TFLOP/s    2 M N K over the median
    ceiling %  of a large matrix product measured in the same run, see `attention`: BF16 for exact backends and fp32,
               FP8 for the others where the device multiplies FP8
    error      relative L2 on up to 1,024 rows against FP32, from the same x and the numbers that W's storage stands for
    weight     what encoding W anew for the backend cost it, relative L2; nothing where it is read as stored
    ratio      the peer's median over this one's, with `--peer diffusers`: `nn.Linear` in BF16, as its pipelines call
               it, on the numbers that W's storage stands for
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch.nn import functional as F

from benchmarks.attention import CANONICAL_ROWS, PEERS, Call, ceilings_of, timed
from benchmarks.script import measured_here, names, positive
from h3runtime.backends.linear.base import LinearBackend
from h3runtime.backends.linear.dequant import dense, moved
from h3runtime.backends.linear.select import choose_linear, linear_backends
from h3runtime.backends.linear.switching import why_idle
from h3runtime.cli.report import print_error, say
from h3runtime.engine import determinism
from h3runtime.engine.device import choose_device
from h3runtime.errors import H3Error
from h3runtime.quant import fp8, int8, nvfp4
from h3runtime.quant.rotation import largest_group
from h3runtime.quant.stored import PlainWeight, StoredWeight

SHAPES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {"qkv": (21_504, 5376), "out": (5376, 7168), "fc1": (28_672, 5376), "fc2": (5376, 14_336)}
)
"""N and K of the real model's."""
FORMATS: Final[Mapping[str, Callable[[torch.Tensor], StoredWeight]]] = MappingProxyType(
    {
        "bf16": lambda weight: PlainWeight(weight.bfloat16()),
        "fp8": fp8.quantize,
        "int8_convrot": lambda weight: int8.quantize(weight, largest_group(weight.shape[1])),
        "nvfp4": nvfp4.quantize,
    }
)
JUDGED_ROWS: Final = 1024
OUTLIER_CHANNELS, OUTLIER = 64, 20.0
"""Every how many channels one is so many times as large."""


@dataclass(frozen=True, slots=True)
class Row:
    """One backend on one shape, or the peer. weight_error: None where nothing was encoded; ratio: without a peer."""

    shape: str
    name: str
    grade: str
    ms: float
    least_ms: float
    most_ms: float
    tflops: float
    ceiling: str
    ceiling_percent: float
    error: float
    weight_error: float | None
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """names: of backends, all that run here if there are none. shrink: divides N and K, for a look without a GPU."""

    rows: int
    form: str
    names: tuple[str, ...]
    runs: int
    shrink: int
    peer: str | None


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    asked = Asked(given.rows, given.format, given.backends, given.runs, given.shrink, given.peer)
    try:
        report = measure(asked, given.device)
    except H3Error as error:
        print_error(error)
        return 1
    print(table(report))
    if given.output is not None:
        given.output.write_text(json.dumps(report, indent=2) + "\n")
        say(f"{given.output}: written")
    return 0


def measure(asked: Asked, device_name: str) -> dict[str, Any]:
    """The report, ready for JSON."""
    determinism.pin()
    place = choose_device(device_name)
    device = place.device
    backends, unavailable = _backends(asked.names, device)
    ceilings = ceilings_of(device)
    rows: list[Row] = []
    with torch.no_grad():
        for shape, (out_width, width) in SHAPES.items():
            size = _shrunk(out_width, asked.shrink), _shrunk(width, asked.shrink)
            found, faults = _measured(shape, size, backends, asked, device, ceilings)
            rows += found
            unavailable |= faults
    return _report(asked, place.name, device, rows, ceilings, unavailable)


def _backends(names: Sequence[str], device: torch.device) -> tuple[list[LinearBackend[Any]], dict[str, str]]:
    """What runs here, and why others don't; one that was asked for by name is an error then."""
    if names:
        return [choose_linear(name, device)[0] for name in names], {}
    reasons = {backend.name: backend.why_unavailable(device) for backend in linear_backends()}
    able = [backend for backend in linear_backends() if reasons[backend.name] is None]
    return able, {name: reason for name, reason in reasons.items() if reason is not None}


def _measured(
    shape: str,
    size: tuple[int, int],
    backends: Sequence[LinearBackend[Any]],
    asked: Asked,
    device: torch.device,
    ceilings: dict[str, float],
) -> tuple[list[Row], dict[str, str]]:
    x, weight = activations(asked.rows, size[1], device), _weight(size, device)
    stored = moved(FORMATS[asked.form](weight), device)
    calls: dict[str, Call] = {}
    grades, costs, faults = dict.fromkeys(PEERS, "peer"), {}, {}
    for backend in backends:
        if (why := why_idle(backend, [stored])) is not None:
            faults[backend.name] = why
            continue
        resident = backend.prepare(stored, device)
        calls[backend.name] = lambda apply=backend.apply, resident=resident: apply(x, resident)  # type: ignore[misc]
        grades[backend.name] = backend.grade
        error = getattr(resident, "error", None)
        costs[backend.name] = None if error is None else float(error)
    if asked.peer is not None:
        plain = dense(stored, torch.bfloat16)
        calls[asked.peer] = lambda: F.linear(x, plain)
    del weight
    errors, failed = judged(calls, x, dense(stored, torch.float32))
    times = timed({name: calls[name] for name in errors}, asked.runs, device)
    operations = 2.0 * asked.rows * size[0] * size[1]
    rows = [
        _row(shape, name, grades[name], times[name], errors[name], costs.get(name), operations, ceilings)
        for name in times
    ]
    if asked.peer in times:
        base = median(times[asked.peer])
        rows = [replace(row, ratio=base / row.ms) for row in rows]
    return rows, faults | failed


def _shrunk(width: int, by: int) -> int:
    """In multiples of 32, which every backend takes."""
    return max(width // by // 32, 1) * 32


def judged(calls: dict[str, Call], x: torch.Tensor, weight: torch.Tensor) -> tuple[dict[str, float], dict[str, str]]:
    """The error of each that gives numbers, and what is wrong with the others. weight: fp32 [N, K]. A lost device ends
    it all."""
    some = torch.linspace(0, x.shape[0] - 1, min(JUDGED_ROWS, x.shape[0]), device=x.device).long()
    wanted = x[some].float() @ weight.t()
    errors: dict[str, float] = {}
    faults: dict[str, str] = {}
    for name, call in calls.items():
        try:
            got = call()[some].float()
        except torch.AcceleratorError:
            raise
        except Exception as fault:
            faults[name] = f"failed at this size: {type(fault).__name__}: {str(fault).partition(chr(10))[0][:200]}"
            continue
        error = float((got - wanted).norm() / wanted.norm())
        if math.isfinite(error):
            errors[name] = error
        else:
            faults[name] = "gives what is no number at this size"
    return errors, faults


def activations(rows: int, width: int, device: torch.device) -> torch.Tensor:
    """bf16 [rows, width]."""
    x = torch.randn(rows, width, generator=torch.Generator(device).manual_seed(1), device=device)
    x[:, :: min(OUTLIER_CHANNELS, width)] *= OUTLIER
    return x.bfloat16()


def _weight(size: tuple[int, int], device: torch.device) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator(device).manual_seed(2), device=device).mul_(0.02)


def table(report: dict[str, Any]) -> str:
    """For people, in Markdown, in the order of the shapes, fastest first; below it what can't run."""
    head = ["product", "backend", "grade", "ms", "least..most", "TFLOP/s", "of ceiling", "error", "weight", "ratio"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in sorted(report["rows"], key=lambda row: (list(SHAPES).index(row["shape"]), row["ms"])):
        cost, ratio = row["weight_error"], row["ratio"]
        cells = [row["shape"], row["name"], row["grade"], f"{row['ms']:.3f}"]
        cells += [f"{row['least_ms']:.3f}..{row['most_ms']:.3f}", f"{row['tflops']:.3g}"]
        cells += [f"{row['ceiling_percent']:.0f} % of {row['ceiling']}", f"{row['error']:.2e}"]
        cells += ["" if cost is None else f"{cost:.2e}", "" if ratio is None else f"{ratio:.2f}x"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"{name}: {reason}" for name, reason in report["unavailable"].items())])


def _row(
    shape: str,
    name: str,
    grade: str,
    times: Sequence[float],
    error: float,
    cost: float | None,
    operations: float,
    ceilings: dict[str, float],
) -> Row:
    ms = median(times)
    tflops = operations / (ms * 1e9)
    is_wide = grade in ("reference", "peer") or name == "fp32"
    ceiling = "bf16" if is_wide or "fp8" not in ceilings else "fp8"
    percent = 100 * tflops / ceilings[ceiling]
    return Row(shape, name, grade, ms, min(times), max(times), tflops, ceiling, percent, error, cost)


def _report(
    asked: Asked,
    device_name: str,
    device: torch.device,
    rows: Sequence[Row],
    ceilings: dict[str, float],
    unavailable: dict[str, str],
) -> dict[str, Any]:
    return {
        **measured_here(device_name, device),
        "asked": asdict(asked),
        "dtype": "bfloat16",
        "ceilings_tflops": ceilings,
        "rows": [asdict(row) for row in rows],
        "unavailable": unavailable,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gemm.py", description="Time every linear backend that runs here.")
    parser.add_argument("--rows", type=positive, default=CANONICAL_ROWS, metavar="M", help="Rows of x.")
    parser.add_argument("--format", choices=FORMATS, default="bf16", help="How the weight is stored. Default: bf16.")
    parser.add_argument("--backends", type=names, default=(), metavar="A,B", help="Only these.")
    parser.add_argument("--runs", type=positive, default=5, metavar="N", help="Timed runs of each. Default: 5.")
    parser.add_argument("--shrink", type=positive, default=1, metavar="D", help="Divide N and K by it. Default: 1.")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N. Default: auto.")
    parser.add_argument("--peer", choices=PEERS, help="Time it in the same run and print ratios.")
    parser.add_argument("--output", type=Path, metavar="R.json", help="Also write JSON.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
