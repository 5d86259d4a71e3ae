"""Every attention backend that runs here, beside each other: `attention.py [--rows S] [--heads H] [--output R.json]`.

Times softmax(q k^T / sqrt(D)) v on strided views of one projection, as the blocks call it, with random normal BF16
numbers; runs are interleaved, so that a clock that changes meets all of them. Prints a line a backend as it goes and a
table at the end; `--output` is written after every backend. Does not judge; what can't run is listed with its reason,
and nothing is timed before it was compared. On a GPU the work is done in a process of its own (`watched`): a kernel
that hangs or loses the device is left out, and told.

    ms         median of the runs, on the device's own clock where it has one; the least and the most beside it
    TFLOP/s    4 S^2 H D over the median
    ceiling %  of a large matrix product measured in the same run: BF16 for backends of 16-bit arithmetic, FP8 for the
               others where the device multiplies FP8
    error      relative L2 on up to 4,096 rows, against fp32 from the same inputs; for sparse attention it says nothing
               on random numbers
    nano WxHxF with `--nano`: relative L2 over all rows of nine calls of h3-nano's own (`attention_inputs`), or of those
               that the backend runs itself; `-` where it gives all of them to another, or reads what nano hasn't
    first s    the first call at this size, with what it compiles
    ratio      the peer's median over this one's, with `--peer diffusers`: its attention as its pipelines call it

`--join R.json` adds the rows of an earlier run at the same shape, if it is there: of a library that can't be beside
another one.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from benchmarks.attention_inputs import SIZES, Recorded, recorded
from benchmarks.script import measured_here, names, positive
from benchmarks.watched import PATIENCE, Beat, run
from h3runtime.backends.attention.base import Place, attend_at
from h3runtime.backends.attention.counting import Tally
from h3runtime.backends.attention.options import AttentionOptions
from h3runtime.backends.attention.probe import reference, relative_error
from h3runtime.backends.attention.select import Attentions
from h3runtime.cli.report import print_error, say
from h3runtime.core import PackedLayout, Segment, SegmentKind
from h3runtime.engine import determinism
from h3runtime.engine.device import choose_device
from h3runtime.errors import BackendUnavailable, H3Error
from h3runtime.settings import ATTENTION_ONLY, Settings, add_flags, resolve

CANONICAL_ROWS: Final = 37_810
"""`t2va-1344x768-124f` (performance.md)."""
TEXT_ROWS, AUDIO_ROWS = 100, 414
CANONICAL_GRID: Final = (37, 24, 42)
JUDGED_ROWS: Final = 4096
STEP: Final = 4
"""Of a run, one in which sparse backends are sparse."""
PLACE_BLOCK: Final = 24
"""In the middle of the network, where no backend is dense for being at its begin."""
NANO: Final = "h3-nano's inputs"
PEERS: Final = ("diffusers",)
Call = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Row:
    """One backend, or the peer. nano: error by size, None where calls of that size are given to another backend.
    ratio: None without a peer."""

    name: str
    grade: str
    ms: float
    least_ms: float
    most_ms: float
    tflops: float
    ceiling: str
    ceiling_percent: float
    error: float
    first_s: float
    nano: dict[str, float | None] = field(default_factory=dict)
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """A backend that gives numbers at this size. first_ms: its first timed run."""

    call: Call
    error: float
    first_s: float
    first_ms: float
    nano: dict[str, float | None] = field(default_factory=dict)


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
    own = ("output", "join", "watched", "without", "nano", "patience")
    try:
        settings = resolve({name: value for name, value in vars(given).items() if name not in own}, given.config)
        if given.watched is None and choose_device(settings.device).device.type == "cuda":
            return run(Path(__file__), sys.argv[1:] if arguments is None else arguments, given.patience)
        report = measure(
            Shape(given.rows, given.heads, given.head_dim),
            settings,
            given.backends,
            given.runs,
            given.peer,
            nano=given.nano,
            without=dict(given.without),
            beat=Beat(given.watched),
            on_report=lambda report: _write(_joined(report, given.join), given.output),
        )
    except H3Error as error:
        print_error(error)
        return 1
    print(table(_joined(report, given.join)), flush=True)
    if given.output is not None:
        say(f"{given.output}: written")
    return 0


def measure(
    shape: Shape,
    settings: Settings,
    names: Sequence[str],
    runs: int,
    peer: str | None,
    *,
    nano: bool,
    without: Mapping[str, str],
    beat: Beat,
    on_report: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """The report, ready for JSON; given to `on_report` whenever there is more of it. names: of backends, all if there
    are none; one that can't run is an error then. without: what to leave out, and why."""
    determinism.pin()
    place = choose_device(settings.device)
    found = Attentions(place.device, AttentionOptions.of(settings))
    found.fit({shape.head_dim})
    qkv = _qkv(shape, place.device)
    with torch.no_grad():
        bench = _Bench(shape, place.device, found, ceilings_of(place.device), peer, dict(without), beat)
        if nano:
            bench.record()

        def tell(times: dict[str, list[float]]) -> dict[str, Any]:
            report = bench.report(times, place.name, runs)
            on_report(report)
            return report

        bench.try_all(names, qkv, lambda: tell({}))
        calls = {name: trial.call for name, trial in bench.trials.items()}
        times = timed(calls, runs, place.device, beat)
    return tell(times)


class _Bench:
    """One run: what gave numbers, and what is wrong with the others."""

    def __init__(
        self,
        shape: Shape,
        device: torch.device,
        found: Attentions,
        ceilings: dict[str, float],
        peer: str | None,
        faults: dict[str, str],
        beat: Beat,
    ) -> None:
        self.shape, self.device, self.found, self.ceilings, self.peer = shape, device, found, ceilings, peer
        self.faults, self.beat = faults, beat
        self.trials: dict[str, Trial] = {}
        self.inputs: Mapping[str, Sequence[Recorded]] = {}

    def record(self) -> None:
        """h3-nano's inputs; without them, told, where its engine fails here."""
        if NANO in self.faults:
            return
        self.beat.at(NANO)
        try:
            self.inputs = {size.name: recorded(str(self.device), size) for size in SIZES}
        except Exception as fault:
            self._failed(NANO, fault)

    def try_all(self, names: Sequence[str], qkv: Sequence[torch.Tensor], on_trial: Callable[[], object]) -> None:
        """Each that runs here, experimental ones last; the peer ahead of all."""
        judge, layout = Judge(qkv), layout_of(self.shape.rows)
        if self.peer is not None and self.peer not in self.faults:
            self._try(self.peer, lambda: _diffusers(qkv), judge)
        gate = torch.randn_like(qkv[0])
        for name in names or self._by_grade():
            if name in self.faults:
                continue
            self._try(name, lambda name=name: self._call(name, qkv, layout, gate, bool(names)), judge)  # type: ignore[misc]
            on_trial()

    def _by_grade(self) -> list[str]:
        listing = self.found.listing("", "")
        return sorted(listing.available, key=lambda name: listing.grades[name] == "experimental")

    def _call(
        self, name: str, qkv: Sequence[torch.Tensor], layout: PackedLayout, gate: torch.Tensor, is_asked: bool
    ) -> Call | None:
        """None for one that can't run, which is listed with its reason; an error where it was asked for by name."""
        try:
            backend, _ = self.found.choose(name)
        except H3Error:
            if is_asked:
                raise
            return None
        q, k, v = qkv
        place = Place(PLACE_BLOCK, lambda: gate)
        return lambda: attend_at(backend, q, k, v, layout=layout, step=STEP, place=place)

    def _try(self, name: str, made: Callable[[], Call | None], judge: Judge) -> None:
        """What one backend does at its first call. A lost device ends the process."""
        self.beat.at(name)
        began = time.monotonic()
        try:
            call = made()
            if call is None:
                return
            out = call()
            _wait(self.device)
            first, error = time.monotonic() - began, judge.error_of(out)
            del out
            if not math.isfinite(error):
                self.faults[name] = "gives what is no number at this size"
            else:
                self.trials[name] = Trial(call, error, first, _once(call, self.device), self._on_nano(name))
        except H3Error:
            raise
        except Exception as fault:
            self._failed(name, fault)
        else:
            self._say(name)

    def _failed(self, name: str, fault: Exception) -> None:
        """A lost device ends the process."""
        self.faults[name] = f"failed at this size: {type(fault).__name__}: {_first_line(fault)}"
        if _is_lost(self.device):
            self.beat.lost(f"lost the device at this size: {_first_line(fault)}")
            raise fault
        self._say(name)

    def _on_nano(self, name: str) -> dict[str, float | None]:
        if name == self.peer:
            return {}
        backend, found = self.found.choose(name)[0], dict[str, float | None]()
        for size, calls in self.inputs.items():
            try:
                found[size] = error_on(backend, calls, self.found.tally)
            except BackendUnavailable:
                # One that reads a layer which h3-nano hasn't.
                found[size] = None
        return found

    def _say(self, name: str) -> None:
        if name in self.faults:
            told = self.faults[name]
        else:
            trial = self.trials[name]
            nano = ", ".join(f"nano {size} {_told(error)}" for size, error in trial.nano.items())
            told = f"error {trial.error:.2e}, {trial.first_ms:.2f} ms, first call {trial.first_s:.1f} s {nano}"
        print(f"{name}: {told}", file=sys.stderr, flush=True)

    def report(self, times: dict[str, list[float]], device_name: str, runs: int) -> dict[str, Any]:
        """times: {} as long as there are none but each backend's first."""
        listing = self.found.listing("", "")
        exact = {backend.name for backend in self.found.backends if backend.exact} | set(PEERS)
        rows = [
            _row(
                name,
                listing.grades.get(name, "peer"),
                times.get(name, [trial.first_ms]),
                trial,
                self.shape,
                self.ceilings,
                name in exact,
            )
            for name, trial in self.trials.items()
        ]
        if self.peer in self.trials:
            base = next(row.ms for row in rows if row.name == self.peer)
            rows = [replace(row, ratio=base / row.ms) for row in rows]
        runs = runs if times else 1
        unavailable = {**listing.unavailable, **self.faults}
        return _report(self.shape, device_name, self.device, rows, self.ceilings, unavailable, self.peer, runs)


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


class Judge:
    """What is right, in fp32, on `JUDGED_ROWS` rows spread over all: made once, held against every backend."""

    def __init__(self, qkv: Sequence[torch.Tensor]) -> None:
        q, k, v = qkv
        self.rows = torch.linspace(0, q.shape[1] - 1, min(JUDGED_ROWS, q.shape[1]), device=q.device).long()
        heads = (slice(head, head + 1) for head in range(q.shape[2]))
        self.wanted = torch.cat([reference(q[:, self.rows, one], k[:, :, one], v[:, :, one]) for one in heads], dim=2)

    def error_of(self, out: torch.Tensor) -> float:
        """Relative L2; NaN if anything is."""
        return relative_error(out[:, self.rows], self.wanted)


def error_of(out: torch.Tensor, qkv: Sequence[torch.Tensor]) -> float:
    """Relative L2 on `JUDGED_ROWS` rows."""
    return Judge(qkv).error_of(out)


def error_on(backend: Any, calls: Sequence[Recorded], tally: Tally) -> float | None:
    """Relative L2 over all rows of the calls that the backend runs itself; None where it gives all to another one."""
    off, whole = 0.0, 0.0
    for call in calls:
        before = sum(tally.fallbacks.values())
        q, k, v = call.qkv
        out = attend_at(backend, q, k, v, layout=call.layout, step=call.step, place=Place(call.block))
        if sum(tally.fallbacks.values()) == before:
            wanted = reference(q, k, v)
            off += float((out.float() - wanted).square().sum())
            whole += float(wanted.square().sum())
    return float((off / whole) ** 0.5) if whole else None


def timed(calls: dict[str, Call], runs: int, device: torch.device, beat: Beat | None = None) -> dict[str, list[float]]:
    """Milliseconds of each, `runs` of them after one that isn't counted, each round once through all."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for counts in range(runs + 1):
        for name, call in calls.items():
            if beat is not None:
                beat.at(name)
            took = _once(call, device)
            if counts:
                found[name].append(took)
    return found


def table(report: dict[str, Any]) -> str:
    """For people, in Markdown, fastest first; below it what can't run."""
    sizes = list(dict.fromkeys(size for row in report["rows"] for size in row["nano"]))
    head = ["backend", "grade", "ms", "least..most", "TFLOP/s", "of ceiling", "error"]
    head += [*(f"nano {size}" for size in sizes), "first s", "ratio"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in sorted(report["rows"], key=lambda row: row["ms"]):
        spread, ratio = f"{row['least_ms']:.2f}..{row['most_ms']:.2f}", row["ratio"]
        cells = [row["name"], row["grade"], f"{row['ms']:.2f}", spread, f"{row['tflops']:.3g}"]
        cells += [f"{row['ceiling_percent']:.0f} % of {row['ceiling']}", f"{row['error']:.2e}"]
        cells += [*(_told(row["nano"].get(size)) for size in sizes), f"{row['first_s']:.1f}"]
        lines.append("| " + " | ".join([*cells, "" if ratio is None else f"{ratio:.2f}x"]) + " |")
    below = [f"{name}: {reason}" for name, reason in report["unavailable"].items()]
    below += [f"{name}: in another process of this machine" for name in report.get("joined", ())]
    return "\n".join([*lines, "", *below])


def _joined(report: dict[str, Any], paths: Sequence[Path]) -> dict[str, Any]:
    """With the rows of other reports at the same shape that this one lacks; of those reports that there are."""
    rows, unavailable = list(report["rows"]), dict(report["unavailable"])
    joined: list[str] = []
    for path in (path for path in paths if path.is_file()):
        other = json.loads(path.read_text())
        if other["shape"] == report["shape"]:
            here = {row["name"] for row in rows}
            new = [row for row in other["rows"] if row["name"] not in here]
            rows, joined = rows + new, joined + [row["name"] for row in new]
    unavailable = {name: why for name, why in unavailable.items() if name not in joined}
    return report | {"rows": rows, "unavailable": unavailable, "joined": joined}


def _write(report: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(report, indent=2) + "\n")


def _told(error: float | None) -> str:
    return "-" if error is None else f"{error:.2e}"


def _first_line(fault: Exception) -> str:
    return str(fault).strip().partition("\n")[0][:200]


def _is_lost(device: torch.device) -> bool:
    """Whether every later call would fail too."""
    try:
        _wait(device)
    except RuntimeError:
        return True
    return False


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
    trial: Trial,
    shape: Shape,
    ceilings: dict[str, float],
    is_exact: bool,
) -> Row:
    ms = median(times)
    tflops = shape.operations / (ms * 1e9)
    ceiling = "bf16" if is_exact or "fp8" not in ceilings else "fp8"
    percent = 100 * tflops / ceilings[ceiling]
    least, most = min(times), max(times)
    return Row(name, grade, ms, least, most, tflops, ceiling, percent, trial.error, trial.first_s, trial.nano)


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
    parser.add_argument("--nano", action="store_true", help="Errors on what h3-nano's blocks give, too.")
    parser.add_argument("--output", type=Path, metavar="R.json", help="Also write JSON.")
    parser.add_argument(
        "--join", type=Path, nargs="+", default=(), metavar="R.json", help="Add rows of earlier runs of this shape."
    )
    parser.add_argument("--without", type=_reasoned, action="append", default=[], metavar="NAME=WHY", help="Leave out.")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE, metavar="S", help="Seconds without a sign of life, on a GPU."
    )
    parser.add_argument("--watched", type=Path, help=argparse.SUPPRESS)
    add_flags(parser.add_argument_group("settings"), frozenset(Settings.model_fields) - ATTENTION_ONLY - {"device"})
    return parser


def _reasoned(text: str) -> tuple[str, str]:
    name, _, why = text.partition("=")
    return name, why or "left out by --without"


if __name__ == "__main__":
    sys.exit(main())
