"""Every attention backend that runs here, beside each other: `attention.py [--rows S] [--heads H] [--output R.json]`.

Times softmax(q k^T / sqrt(D)) v on strided views of one projection, as the blocks call it, with random normal BF16
numbers; runs are interleaved, so that a clock that changes meets all of them. Prints a table and, with `--output`,
writes JSON. Does not judge; what can't run is listed with its reason, and nothing is timed before it was compared.

    ms         median of the runs, on the device's own clock where it has one; the least and the most beside it
    TFLOP/s    4 S^2 H D over the median
    ceiling %  of a large matrix product measured in the same run: BF16 for backends of 16-bit arithmetic, FP8 for the
               others where the device multiplies FP8
    error      relative L2 on up to 4,096 rows, against fp32 from the same inputs; for sparse attention it says nothing
               on random numbers
    ratio      the peer's median over this one's, with `--peer diffusers`: its attention as its pipelines call it
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from benchmarks.script import measured_here, names, positive
from h3runtime.backends.attention.options import AttentionOptions
from h3runtime.backends.attention.probe import reference
from h3runtime.backends.attention.select import Attentions
from h3runtime.cli.report import print_error, say
from h3runtime.core import PackedLayout, Segment, SegmentKind
from h3runtime.engine import determinism
from h3runtime.engine.device import choose_device
from h3runtime.errors import H3Error
from h3runtime.settings import ATTENTION_ONLY, Settings, add_flags, resolve

CANONICAL_ROWS: Final = 37_810
"""`t2va-1344x768-124f` (performance.md)."""
TEXT_ROWS, AUDIO_ROWS = 100, 414
CANONICAL_GRID: Final = (37, 24, 42)
JUDGED_ROWS: Final = 4096
STEP: Final = 4
"""Of a run, one in which sparse backends are sparse."""
PEERS: Final = ("diffusers",)
Call = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Row:
    """One backend, or the peer. ratio: None without a peer."""

    name: str
    grade: str
    ms: float
    least_ms: float
    most_ms: float
    tflops: float
    ceiling: str
    ceiling_percent: float
    error: float
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """B = 1."""

    rows: int
    heads: int
    head_dim: int

    @property
    def operations(self) -> float:
        return 4.0 * self.rows**2 * self.heads * self.head_dim


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        settings = resolve({name: value for name, value in vars(given).items() if name != "output"}, given.config)
        report = measure(
            Shape(given.rows, given.heads, given.head_dim), settings, given.backends, given.runs, given.peer
        )
    except H3Error as error:
        print_error(error)
        return 1
    print(table(report))
    if given.output is not None:
        given.output.write_text(json.dumps(report, indent=2) + "\n")
        say(f"{given.output}: written")
    return 0


def measure(shape: Shape, settings: Settings, names: Sequence[str], runs: int, peer: str | None) -> dict[str, Any]:
    """The report, ready for JSON. names: of backends, all if there are none; one that can't run is an error then."""
    determinism.pin()
    place = choose_device(settings.device)
    found = Attentions(place.device, AttentionOptions.of(settings))
    found.fit({shape.head_dim}, "needs to_gate_compress of a model, and there is none here")
    qkv = _qkv(shape, place.device)
    calls = _calls(found, names, qkv, layout_of(shape.rows))
    if peer is not None:
        calls[peer] = _diffusers(qkv)
    with torch.no_grad():
        errors, faults = judged(calls, qkv)
        calls = {name: calls[name] for name in errors}
        times = timed(calls, runs, place.device)
        ceilings = ceilings_of(place.device)
    exact = {backend.name for backend in found.backends if backend.exact} | set(PEERS)
    listing = found.listing("", "")
    rows = [
        _row(name, listing.grades.get(name, "peer"), times[name], errors[name], shape, ceilings, name in exact)
        for name in calls
    ]
    if peer in times:
        base = median(times[peer])
        rows = [replace(row, ratio=base / row.ms) for row in rows]
    return _report(shape, place.name, place.device, rows, ceilings, {**listing.unavailable, **faults}, peer, runs)


def layout_of(rows: int) -> PackedLayout:
    """As many rows as asked for: text and sound as in the canonical clip, or a tenth each of few; the rest pictures, in
    the canonical grid or one that is as near to a cube as their number allows."""
    text, audio = min(TEXT_ROWS, rows // 10), min(AUDIO_ROWS, rows // 10)
    bounds = (0, text, text + audio, rows)
    kinds = (SegmentKind.TEXT, SegmentKind.AUDIO, SegmentKind.VIDEO)
    segments = tuple(Segment(kind, bounds[i], bounds[i + 1]) for i, kind in enumerate(kinds))
    frames, height, width = _grid(rows - text - audio)
    tags = np.ones(text, dtype=np.int64)
    return PackedLayout(frames, 2 * height, 2 * width, audio, segments, np.zeros((rows, 3)), tags)


def _grid(rows: int) -> tuple[int, int, int]:
    if rows == math.prod(CANONICAL_GRID):
        return CANONICAL_GRID
    frames = _divisor(rows, rows ** (1 / 3))
    height = _divisor(rows // frames, (rows // frames) ** 0.5)
    return frames, height, rows // frames // height


def _divisor(of: int, near: float) -> int:
    return min((d for d in range(1, of + 1) if of % d == 0), key=lambda d: abs(d - near))


def judged(calls: dict[str, Call], qkv: Sequence[torch.Tensor]) -> tuple[dict[str, float], dict[str, str]]:
    """The error of each that gives numbers, and what is wrong with the others. A lost device ends it all."""
    errors: dict[str, float] = {}
    faults: dict[str, str] = {}
    for name, call in calls.items():
        try:
            error = error_of(call(), qkv)
        except torch.AcceleratorError:
            raise
        except Exception as fault:
            faults[name] = f"failed at this size: {type(fault).__name__}: {str(fault).partition(chr(10))[0][:200]}"
            continue
        if math.isfinite(error):
            errors[name] = error
        else:
            faults[name] = "gives what is no number at this size"
    return errors, faults


def error_of(out: torch.Tensor, qkv: Sequence[torch.Tensor]) -> float:
    """Relative L2 on `JUDGED_ROWS` rows spread over all, head by head."""
    q, k, v = qkv
    rows = torch.linspace(0, q.shape[1] - 1, min(JUDGED_ROWS, q.shape[1]), device=q.device).long()
    off, whole = 0.0, 0.0
    for head in range(q.shape[2]):
        one = slice(head, head + 1)
        wanted = reference(q[:, rows, one], k[:, :, one], v[:, :, one])
        off += float((out[:, rows, one].float() - wanted).square().sum())
        whole += float(wanted.square().sum())
    return float((off / whole) ** 0.5)


def timed(calls: dict[str, Call], runs: int, device: torch.device) -> dict[str, list[float]]:
    """Milliseconds of each, `runs` of them after one that isn't counted, each round once through all."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for counts in range(runs + 1):
        for name, call in calls.items():
            took = _once(call, device)
            if counts:
                found[name].append(took)
    return found


def table(report: dict[str, Any]) -> str:
    """For people, in Markdown, fastest first; below it what can't run."""
    head = ["backend", "grade", "ms", "least..most", "TFLOP/s", "of ceiling", "error", "ratio"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in sorted(report["rows"], key=lambda row: row["ms"]):
        spread, ratio = f"{row['least_ms']:.2f}..{row['most_ms']:.2f}", row["ratio"]
        cells = [row["name"], row["grade"], f"{row['ms']:.2f}", spread, f"{row['tflops']:.3g}"]
        cells += [f"{row['ceiling_percent']:.0f} % of {row['ceiling']}", f"{row['error']:.2e}"]
        lines.append("| " + " | ".join([*cells, "" if ratio is None else f"{ratio:.2f}x"]) + " |")
    return "\n".join([*lines, "", *(f"{name}: {reason}" for name, reason in report["unavailable"].items())])


def _calls(
    found: Attentions, names: Sequence[str], qkv: Sequence[torch.Tensor], layout: PackedLayout
) -> dict[str, Call]:
    """Of each backend that runs here, each called once already."""
    calls: dict[str, Call] = {}
    for name in names or found.listing("", "").available:
        try:
            backend, _ = found.choose(name)
        except H3Error:
            # Listed with its reason; one that was asked for by name is an error.
            if names:
                raise
            continue
        calls[name] = lambda attend=backend.attend: attend(*qkv, layout=layout, step=STEP)  # type: ignore[misc]
    return calls


def _diffusers(qkv: Sequence[torch.Tensor]) -> Call:
    from diffusers.models.attention_dispatch import dispatch_attention_fn

    def call() -> torch.Tensor:
        q, k, v = qkv
        out: torch.Tensor = dispatch_attention_fn(q, k, v)
        return out

    return call


def _qkv(shape: Shape, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Views [1, S, H, D] of one random projection [1, S, 3, H, D]."""
    source = torch.Generator(device).manual_seed(0)
    made = torch.empty(1, shape.rows, 3, shape.heads, shape.head_dim, dtype=torch.bfloat16, device=device)
    return made.normal_(generator=source).unbind(2)


def _once(call: Call, device: torch.device) -> float:
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


def ceilings_of(device: torch.device) -> dict[str, float]:
    """TFLOP/s of a large product in BF16, and in FP8 where the device has it."""
    size = 8192 if device.type == "cuda" else 512
    a = torch.randn(size, size, device=device).to(torch.bfloat16)
    calls: dict[str, Call] = {"bf16": lambda: a @ a}
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9):
        low, one = a.to(torch.float8_e4m3fn), torch.ones((), device=device)
        calls["fp8"] = lambda: torch._scaled_mm(low, low.t(), one, one, out_dtype=torch.bfloat16)
    times = timed(calls, 5, device)
    return {name: 2 * size**3 / (median(times[name]) * 1e9) for name in calls}


def _row(
    name: str,
    grade: str,
    times: Sequence[float],
    error: float,
    shape: Shape,
    ceilings: dict[str, float],
    is_exact: bool,
) -> Row:
    ms = median(times)
    tflops = shape.operations / (ms * 1e9)
    ceiling = "bf16" if is_exact or "fp8" not in ceilings else "fp8"
    return Row(name, grade, ms, min(times), max(times), tflops, ceiling, 100 * tflops / ceilings[ceiling], error)


def _report(
    shape: Shape,
    device_name: str,
    device: torch.device,
    rows: Sequence[Row],
    ceilings: dict[str, float],
    unavailable: dict[str, str],
    peer: str | None,
    runs: int,
) -> dict[str, Any]:
    return {
        **measured_here(device_name, device),
        "shape": asdict(shape),
        "dtype": "bfloat16",
        "runs": runs,
        "peer": peer,
        "ceilings_tflops": ceilings,
        "rows": [asdict(row) for row in rows],
        "unavailable": unavailable,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="attention.py", description="Time every attention backend that runs here.")
    parser.add_argument("--rows", type=positive, default=CANONICAL_ROWS, metavar="S", help="Packed rows.")
    parser.add_argument("--heads", type=positive, default=56, metavar="H", help="Heads. Default: 56.")
    parser.add_argument("--head-dim", type=positive, default=128, metavar="D", help="Of each head. Default: 128.")
    parser.add_argument("--runs", type=positive, default=5, metavar="N", help="Timed runs of each. Default: 5.")
    parser.add_argument(
        "--backends", type=names, default=(), metavar="A,B", help="Only these. Default: all that run here."
    )
    parser.add_argument("--peer", choices=PEERS, help="Time it in the same run and print ratios.")
    parser.add_argument("--output", type=Path, metavar="R.json", help="Also write JSON.")
    add_flags(parser.add_argument_group("settings"), frozenset(Settings.model_fields) - ATTENTION_ONLY - {"device"})
    return parser


if __name__ == "__main__":
    sys.exit(main())
