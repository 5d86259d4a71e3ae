"""A verdict as text: one table of stages, and a line for everything else that a reader must know.

Fed and printed by `compare`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.contract import STAGES, Contract, Figure
from benchmarks.judge import Verdict, is_judged, machine_of, plain
from benchmarks.result import Result


def report(
    result: Result, contract: Contract, baseline: Result | None, verdict: Verdict, tolerance: float
) -> Iterator[str]:
    """Line by line, the verdict last."""
    yield from _what_ran(result, contract)
    yield ""
    yield from _table([_heads(result, baseline), *_lines(result, baseline)])
    yield ""
    start, peaks = result.start, result.peaks
    yield f"start       cold {start.cold_start_seconds:.3f} s, first request {start.first_request_seconds:.3f} s"
    yield f"peaks       host {_size(peaks.host_bytes)}, device {_size(peaks.device_bytes)}"
    yield from (f"figure      {_figure(figure, result, contract)}" for figure in contract.figures)
    yield from (f"note        {note}" for note in _notes(result, baseline))
    yield from (f"mismatch    {mismatch}" for mismatch in verdict.mismatches)
    yield from (f"regression  {regression}; allowed {tolerance:+.1%}" for regression in verdict.regressions)
    yield f"verdict     {_word(verdict)}"


def _what_ran(result: Result, contract: Contract) -> Iterator[str]:
    run, rows, runtime, machine = result.run, result.run.rows, result.runtime, result.machine
    commit = "" if runtime.commit is None else f" at {runtime.commit[:12]}{' and changes' if runtime.changed else ''}"
    driver = "" if machine.driver is None else f", driver {machine.driver}"
    yield f"contract    {contract.name}: {contract.question}"
    yield f"machine     {machine_of(machine)}, torch {machine.torch}{driver}"
    yield f"software    h3runtime {runtime.version}{commit}, {plain(result.backends)}"
    yield f"precision   {plain(result.precision)}; approximations: {', '.join(result.approximations) or 'none'}"
    parts = f"{rows.text} text, {rows.references} references, {rows.audio} audio, {rows.video} video"
    yield f"rows        {rows.total} ({parts}), {run.sampling.forwards} forwards"
    yield f"samples     {result.repeats}, after {run.warm_up_runs} to warm up; seconds, the median counts"


def _heads(result: Result, baseline: Result | None) -> list[str]:
    peer = [] if result.peer is None else [result.peer.name, "times ours"]
    return ["stage", "median", "least", "most", *([] if baseline is None else ["baseline", "change"]), *peer]


def _lines(result: Result, baseline: Result | None) -> Iterator[list[str]]:
    for stage in STAGES:
        here, taken = result.median(stage), result.samples.of(stage)
        line = [stage, *(f"{seconds:.4f}" for seconds in (here, min(taken), max(taken)))]
        if baseline is not None:
            before = baseline.median(stage)
            line += [f"{before:.4f}", f"{here / before - 1:+.1%}"]
        if result.peer is not None:
            theirs = result.peer.samples.get(stage)
            line += ["-", "-"] if theirs is None else [f"{median(theirs):.4f}", f"{median(theirs) / here:.2f}"]
        yield line


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Names to the left, numbers to the right, columns as wide as they must be."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *cells])


def _figure(figure: Figure, result: Result, contract: Contract) -> str:
    who = ", ".join(part for part in (figure.peer, figure.version, figure.precision, figure.attention) if part)
    stage = figure.stage or "a stage that its source does not name"
    use = "judged" if is_judged(figure, result, contract) else "shown only"
    return f"{figure.value:g} {figure.unit} for {stage}, {figure.forwards} forwards: {figure.machine}, {who} ({use})"


def _notes(result: Result, baseline: Result | None) -> Iterator[str]:
    if any(file.synthetic for file in result.checkpoints):
        yield "the weights are made up: times of dense work hold, those of sparse work and of reuse don't"
    for name in ("precision", "approximations", "backends") if baseline is not None else ():
        here, there = getattr(result, name), getattr(baseline, name)
        if here != there:
            yield f"{name} are not the baseline's: {plain(here) or 'none'}; were {plain(there) or 'none'}"


def _size(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**20:,.0f} MiB"


def _word(verdict: Verdict) -> str:
    if not verdict.mismatches and not verdict.regressions:
        return "as it should be"
    return f"{len(verdict.mismatches)} mismatches, {len(verdict.regressions)} regressions"
