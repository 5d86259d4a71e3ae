"""What lies between a block's products, every family of producers beside the definition: `elementwise.py`.

Times norm + modulation, norm + rotation of q and k, SwiGLU, the gated residual, alone and with the norm after it, and
what ends in FP8 rows (the definition's figure there is the producer and `quant.fp8.quantize_rows` after it). Inputs are
random normal BF16 in the shapes and strides of the model; runs are interleaved. Prints a table and, with `--output`,
writes JSON. Does not judge: nothing is timed before it was compared, and what differs by more than the family may (bit
for bit; a norm by one ulp in a thousandth of the elements) is an error.

    ms       median of the runs, on the device's own clock where it has one; the least and the most beside it
    GB/s     bytes that have to move at least (each input read once, each result written once) over the median
    copy %   of a large copy's rate, measured in the same run
    ratio    the definition's median over this one's
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.script import measured_here, positive
from h3runtime.backends.fused.base import FP8, Activation, Form, NormWeight, Producers, Rotary
from h3runtime.backends.fused.definition import DEFINITION
from h3runtime.backends.fused.select import producer_families
from h3runtime.cli.report import print_error, say
from h3runtime.denoiser.timeline import RowMap
from h3runtime.engine import determinism
from h3runtime.engine.device import choose_device
from h3runtime.errors import H3Error

CANONICAL_ROWS: Final = 37_810
"""`t2va-1344x768-124f` (performance.md)."""
WIDTH, HEADS, HEAD_DIM, FFN, TURNING = 5376, 56, 128, 14336, 48
"""dit-contract §1.1: widths of the residual stream, of heads, of the feed-forward; half of what turns of a head."""
TEXT_ROWS, AUDIO_ROWS = 100, 414
TABLE_ROWS, VECTORS = 6, 6
EPS: Final = 1e-5
ULP_SHARE: Final = 1e-3
COPY_BYTES: Final = 1 << 30
Call = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    """Packed rows and the model's widths."""

    rows: int
    width: int = WIDTH
    heads: int = HEADS
    head_dim: int = HEAD_DIM
    ffn: int = FFN
    turning: int = TURNING


@dataclass(frozen=True, slots=True)
class Inputs:
    """Of every operation. rotaries: of each family, made once as in a run."""

    x: torch.Tensor
    update: torch.Tensor
    table: torch.Tensor
    qkv: torch.Tensor
    wide: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    weight: NormWeight
    head_weight: NormWeight
    rows: RowMap
    rotaries: dict[str, Rotary] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """One operation of one family. differs: share of the elements that aren't the definition's bits."""

    operation: str
    family: str
    ms: float
    least_ms: float
    most_ms: float
    gigabytes: float
    gb_per_s: float
    copy_percent: float
    ratio: float
    differs: float


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    shape = Shape(given.rows, given.width, given.heads, given.head_dim, given.ffn, given.turning)
    try:
        report = measure(shape, given.device, given.runs)
    except H3Error as error:
        print_error(error)
        return 1
    print(table(report))
    if given.output is not None:
        given.output.write_text(json.dumps(report, indent=2) + "\n")
        say(f"{given.output}: written")
    return 0


def measure(shape: Shape, device_name: str, runs: int) -> dict[str, Any]:
    """The report, ready for JSON."""
    determinism.pin()
    place = choose_device(device_name)
    families = {found.name: found for found in producer_families() if found.why_unavailable(place.device) is None}
    unavailable = {
        found.name: why for found in producer_families() if (why := found.why_unavailable(place.device)) is not None
    }
    rows: list[Row] = []
    with torch.no_grad():
        inputs = made(shape, place.device)
        rate = copy_rate(place.device, runs)
        for operation in OPERATIONS:
            rows += _rows(operation, families, inputs, shape, runs, rate)
    return _report(shape, place.name, place.device, rows, rate, unavailable, runs)


def made(shape: Shape, device: torch.device) -> Inputs:
    source = torch.Generator(device).manual_seed(0)

    def random(*sizes: int) -> torch.Tensor:
        return torch.empty(sizes, dtype=torch.bfloat16, device=device).normal_(generator=source)

    angles = random(shape.rows, shape.turning).float()
    bounds = (0, min(TEXT_ROWS, shape.rows // 10), min(TEXT_ROWS + AUDIO_ROWS, shape.rows // 5), shape.rows)
    segments = tuple((bounds[i], bounds[i + 1], row) for i, row in enumerate((1, 5, 0)))
    return Inputs(
        x=random(shape.rows, shape.width),
        update=random(shape.rows, shape.width),
        table=random(TABLE_ROWS, VECTORS * shape.width) * 0.1,
        qkv=random(shape.rows, 3, shape.heads, shape.head_dim),
        wide=random(shape.rows, 2 * shape.ffn),
        cos=angles.cos().bfloat16(),
        sin=angles.sin().bfloat16(),
        weight=NormWeight(1 + random(shape.width) * 0.1, EPS),
        head_weight=NormWeight(1 + random(shape.head_dim) * 0.1, EPS),
        rows=RowMap(segments),
    )


@dataclass(frozen=True, slots=True)
class Operation:
    """writes: which of the inputs it overwrites, if any. nbytes: that have to move. exact: no bit may differ."""

    name: str
    writes: str | None
    run: Callable[[Producers, Inputs], torch.Tensor]
    nbytes: Callable[[Shape], int]
    exact: bool


def _norm_modulate(family: Producers, given: Inputs, *, codes: Form | None = None) -> torch.Tensor:
    shift, scale = given.table.chunk(VECTORS, -1)[:2]
    return _bits(family.norm_modulate(given.x, given.weight, shift, scale, given.rows, codes=codes))


def _norm_rotate(family: Producers, given: Inputs) -> torch.Tensor:
    rotary = given.rotaries.setdefault(family.name, family.rotary(given.cos, given.sin))
    family.norm_rotate_(given.qkv, given.head_weight, given.head_weight, rotary)
    return given.qkv


def _swiglu(family: Producers, given: Inputs, *, codes: Form | None = None) -> torch.Tensor:
    return _bits(family.swiglu(given.wide, codes=codes))


def _bits(made: Activation) -> torch.Tensor:
    return made if isinstance(made, torch.Tensor) else made.codes


def _add_gated(family: Producers, given: Inputs) -> torch.Tensor:
    return family.add_gated_(given.x, given.update, given.table.chunk(VECTORS, -1)[2], given.rows)


def _gate_and_norm(family: Producers, given: Inputs, *, codes: Form | None = None) -> torch.Tensor:
    shift, scale, gate = given.table.chunk(VECTORS, -1)[:3]
    made = family.add_gated_norm_modulate(
        given.x, given.update, gate, given.weight, shift, scale, given.rows, codes=codes
    )
    return _bits(made)


def _encode(family: Producers, given: Inputs) -> torch.Tensor:
    return _bits(family.encode(given.qkv[:, 0].flatten(1)))


OPERATIONS: Final = (
    Operation("norm + modulation", None, _norm_modulate, lambda s: 4 * s.rows * s.width, False),
    Operation("norm + RoPE of q, k", "qkv", _norm_rotate, lambda s: 8 * s.rows * s.heads * s.head_dim, False),
    Operation("SwiGLU", "wide", _swiglu, lambda s: 6 * s.rows * s.ffn, True),
    Operation("gated residual", "x", _add_gated, lambda s: 6 * s.rows * s.width, True),
    Operation("gated residual, norm + modulation", "x", _gate_and_norm, lambda s: 8 * s.rows * s.width, False),
    Operation(
        "norm + modulation, FP8", None, partial(_norm_modulate, codes=FP8), lambda s: 3 * s.rows * s.width, False
    ),
    Operation("SwiGLU, FP8", "wide", partial(_swiglu, codes=FP8), lambda s: 5 * s.rows * s.ffn, True),
    Operation(
        "gated residual, norm + modulation, FP8",
        "x",
        partial(_gate_and_norm, codes=FP8),
        lambda s: 7 * s.rows * s.width,
        False,
    ),
    Operation("attention's result in FP8", None, _encode, lambda s: 3 * s.rows * s.heads * s.head_dim, True),
)


def _rows(
    operation: Operation, families: dict[str, Producers], given: Inputs, shape: Shape, runs: int, rate: float
) -> list[Row]:
    differs = {name: _differs(operation, family, given) for name, family in families.items()}
    calls: dict[str, Call] = {name: partial(operation.run, family, given) for name, family in families.items()}
    times = timed(calls, runs, given.x.device, _restoring(operation, given))
    size = operation.nbytes(shape) / 1e9
    base = median(times[DEFINITION.name])
    return [
        Row(
            operation.name,
            name,
            ms := median(times[name]),
            min(times[name]),
            max(times[name]),
            size,
            size / ms * 1e3,
            100 * size / ms * 1e3 / rate,
            base / ms,
            differs[name],
        )
        for name in families
    ]


def _differs(operation: Operation, family: Producers, given: Inputs) -> float:
    """Share of elements that aren't the definition's bits, on the first rows; AssertionError for more than allowed."""
    few = min(given.x.shape[0], 2048)

    def fresh() -> Inputs:
        segments = RowMap(((0, few // 2, 1), (few // 2, few, 4)))
        kept = {name: getattr(given, name)[:few].clone() for name in ("x", "update", "qkv", "wide", "cos", "sin")}
        return Inputs(**kept, table=given.table, weight=given.weight, head_weight=given.head_weight, rows=segments)

    got, wanted = (operation.run(one, fresh()).contiguous() for one in (family, DEFINITION))
    bits = torch.int16 if got.dtype == torch.bfloat16 else torch.int8
    share = float((got.view(bits) != wanted.view(bits)).float().mean())
    # A norm's last bit may move a product's, and an FP8 code at a tie.
    limit = 0.0 if operation.exact else 4 * ULP_SHARE
    assert share <= limit, f"{operation.name} of {family.name}: {share:.1e} of the elements differ"
    return share


def _restoring(operation: Operation, given: Inputs) -> Callable[[], object]:
    """What brings the input back that a run overwrites: one run after the other, its numbers would become others."""
    if operation.writes is None:
        return lambda: None
    into: torch.Tensor = getattr(given, operation.writes)
    kept = into.clone()
    return lambda: into.copy_(kept)


def timed(
    calls: Mapping[str, Callable[[], object]],
    runs: int,
    device: torch.device,
    before: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Milliseconds of each, `runs` of them after one that isn't counted, each round once through all. before: each
    call, not counted."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for counts in range(runs + 1):
        for name, call in calls.items():
            before()
            took = _once(call, device)
            if counts:
                found[name].append(took)
    return found


def _once(call: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - began)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    call()
    end.record()
    torch.cuda.synchronize(device)
    return float(start.elapsed_time(end))


def copy_rate(device: torch.device, runs: int) -> float:
    """GB/s of a copy, read and written bytes together."""
    size = COPY_BYTES if device.type == "cuda" else COPY_BYTES >> 4
    source = torch.zeros(size, dtype=torch.int8, device=device)
    into = torch.empty_like(source)
    times = timed({"copy": lambda: into.copy_(source)}, runs, device)
    return 2 * size / 1e6 / median(times["copy"])


def table(report: dict[str, Any]) -> str:
    """For people, in Markdown; below it what can't run."""
    head = ["operation", "family", "ms", "least..most", "GB/s", "of copy", "ratio", "differs"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in report["rows"]:
        cells = [row["operation"], row["family"], f"{row['ms']:.3f}", f"{row['least_ms']:.3f}..{row['most_ms']:.3f}"]
        cells += [f"{row['gb_per_s']:.3g}", f"{row['copy_percent']:.0f} %", f"{row['ratio']:.2f}x"]
        lines.append("| " + " | ".join([*cells, f"{row['differs']:.1e}"]) + " |")
    return "\n".join([*lines, "", *(f"{name}: {reason}" for name, reason in report["unavailable"].items())])


def _report(
    shape: Shape,
    device_name: str,
    device: torch.device,
    rows: Sequence[Row],
    rate: float,
    unavailable: dict[str, str],
    runs: int,
) -> dict[str, Any]:
    return {
        **measured_here(device_name, device),
        "shape": asdict(shape),
        "dtype": "bfloat16",
        "runs": runs,
        "copy_gb_per_s": rate,
        "rows": [asdict(row) for row in rows],
        "unavailable": unavailable,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="elementwise.py", description="Time every family of fused producers here.")
    parser.add_argument("--rows", type=positive, default=CANONICAL_ROWS, metavar="S", help="Packed rows.")
    for name, default in (
        ("width", WIDTH),
        ("heads", HEADS),
        ("head-dim", HEAD_DIM),
        ("ffn", FFN),
        ("turning", TURNING),
    ):
        parser.add_argument(f"--{name}", type=positive, default=default, metavar="N", help=f"Default: {default}.")
    parser.add_argument("--runs", type=positive, default=5, metavar="N", help="Timed runs of each. Default: 5.")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N. Default: auto.")
    parser.add_argument("--output", type=Path, metavar="R.json", help="Also write JSON.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
