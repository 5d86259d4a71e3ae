"""What the scripts' reports have in common, as rows of one table. Reads JSON; measures and judges nothing.

A report that lacks what a row is made of is told in the row's place, not guessed. Fed by `table` with a folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

from h3runtime.cli.profile import TITLES

HEAD: Final = ("of", "what", "ms", "least..most", "ratio", "of ceiling", "error", "remark")
Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """How a script ended. seconds: that it took. told: `done`, or what went wrong."""

    name: str
    done: bool
    told: str
    seconds: float
    command: str


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table, as text; "" where a script doesn't measure it. ratio: over what the remark or its script
    says, above 1 is faster."""

    what: str
    ms: str = ""
    spread: str = ""
    ratio: str = ""
    ceiling: str = ""
    error: str = ""
    remark: str = ""


def table(folder: Path, runs: Sequence[Run]) -> tuple[str, bool]:
    """Markdown, and whether every part is there and was done."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    below, whole, machine = [], bool(runs), ""
    for run in runs:
        report, fault = _read(folder / f"{run.name}.json")
        rows, more = _rows(run.name, report) if report is not None else ([], [])
        fault = fault or next((row.remark for row in rows if not row.ms and row.remark.startswith("unreadable")), "")
        machine = machine or _machine(report or {})
        lines += ["| " + " | ".join(_cells(run.name, row)) + " |" for row in rows]
        below += [f"{run.name}: {line}" for line in more]
        if not run.done or fault:
            whole = False
            below.append(f"{run.name}: {'; '.join(told for told in (run.told, fault) if told and told != 'done')}")
    took = f"{sum(run.seconds for run in runs):.0f} s in all"
    return "\n".join([f"{machine or 'no machine was told'}; {took}", "", *lines, "", *below]).rstrip(), whole


def _read(path: Path) -> tuple[Report | None, str]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None, "it left no report"
    except (OSError, ValueError) as error:
        return None, f"its report can't be read: {error}"
    return (found, "") if isinstance(found, dict) else (None, "its report is no object")


def _rows(name: str, report: Report) -> tuple[list[Row], list[str]]:
    rows, notes = READERS[name]
    try:
        return list(rows(report)), list(notes(report))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        return [Row("", remark=f"unreadable: {type(error).__name__}: {error}")], []


def _cells(name: str, row: Row) -> tuple[str, ...]:
    return name, row.what, row.ms, row.spread, row.ratio, row.ceiling, row.error, row.remark


def _machine(report: Report) -> str:
    machine, runtime = report.get("machine"), report.get("runtime") or {}
    if not machine:
        return ""
    commit = (runtime.get("commit") or "no commit")[:12]
    return f"{machine['device']}, torch {machine['torch']}, {machine['cores']} cores, {commit}"


def _timed(row: Mapping[str, Any], digits: int = 3) -> tuple[str, str]:
    return f"{row['ms']:.{digits}f}", f"{row['least_ms']:.{digits}f}..{row['most_ms']:.{digits}f}"


def _attention(report: Report) -> Iterator[Row]:
    for row in sorted(report["rows"], key=lambda row: row["ms"]):
        ceiling = f"{row['ceiling_percent']:.0f} % of {row['ceiling']}"
        yield Row(row["name"], *_timed(row, 2), _ratio(row["ratio"]), ceiling, f"{row['error']:.1e}", row["grade"])


def _gemm(report: Report) -> Iterator[Row]:
    for row in report["rows"]:
        what, ceiling = f"{row['shape']}, {row['name']}", f"{row['ceiling_percent']:.0f} % of {row['ceiling']}"
        yield Row(what, *_timed(row), _ratio(row["ratio"]), ceiling, f"{row['error']:.1e}", row["grade"])


def _elementwise(report: Report) -> Iterator[Row]:
    for row in report["rows"]:
        what, ceiling = f"{row['operation']}, {row['family']}", f"{row['copy_percent']:.0f} % of copy"
        yield Row(what, *_timed(row), _ratio(row["ratio"]), ceiling, f"{row['differs']:.1e}", "ratio to plain PyTorch")


def _block(report: Report) -> Iterator[Row]:
    chosen = ", ".join(report[key] for key in ("attention", "linear", "fused"))
    for block in report["blocks"]:
        for part, title in TITLES.items():
            found = block["parts"][part]
            remark = chosen if part == "total" else f"{100 * found['share']:.1f} % of the block"
            yield Row(f"block {block['block']}, {title}", *_timed(found), remark=remark)


def _step(report: Report) -> Iterator[Row]:
    peer = report["asked"]["peer"]
    for row in report["rows"]:
        ratio = row["ratios"].get(peer)
        told = "" if ratio is None else f"{ratio['median']:.3f}x ({ratio['least']:.3f}..{ratio['most']:.3f})"
        ceiling = "" if row["ceiling_percent"] is None else f"{row['ceiling_percent']:.0f} %"
        error = "" if row["error"] is None else f"{row['error']:.1e}"
        yield Row(f"forward, {row['name']}", *_timed(row, 1), told, ceiling, error, "; ".join(_of_lane(row)))
    for row in report["growth"]:
        remark = f"{row['times']:.2f}x for {row['work']:.2f}x the work: {row['excess_percent']:+.1f} %"
        yield Row(f"forward, {row['lane']}, {row['workload']}", f"{row['ms']:.1f}", remark=remark)


def _medium(report: Report) -> Iterator[Row]:
    """Whole samplings, where the ratio is of the peer's own whole one, or else of as many of its forwards."""
    yield from _step(report)
    for name, row in report["samplings"].items():
        ratios = sorted(row["ratios"].items(), key=lambda one: not one[0].endswith("whole"))
        ratio, of = ("", "")
        if ratios:
            of, found = ratios[0]
            ratio = f"{found['median']:.3f}x ({found['least']:.3f}..{found['most']:.3f})"
        skipped = "; ".join(dict.fromkeys(", ".join(map(str, one)) for one in row["skipped"] if one))
        told = [
            f"{'/'.join(dict.fromkeys(map(str, row['forwards'])))} forwards",
            *report["approximations"].get(name, ()),
        ]
        told += [f"steps {skipped} reused"] * bool(skipped) + [f"to {of}"] * bool(of)
        what = f"sampling of {row['steps']} steps, {name}"
        yield Row(what, *_timed(row, 0), ratio, remark="; ".join(told))


def _of_lane(row: Mapping[str, Any]) -> Iterator[str]:
    if row["attention"] is not None:
        yield ", ".join(row[key] for key in ("attention", "linear", "producers"))
    if row["floor_ms"] is not None:
        yield f"{row['above_floor_percent']:+.1f} % above its floor of {row['floor_ms']:.1f} ms"
    if row["loop_ms"] is not None:
        ratios = "".join(f", {ratio:.3f}x {peer}" for peer, ratio in row["loop_ratios"].items())
        yield f"in the loop {row['loop_ms']:.1f} ms a step{ratios}"
    if row["overhead_percent"] is not None:
        yield f"host overhead {row['overhead_percent']:.2f} %"
    if row["waits"] is not None:
        yield f"{row['waits']} wait{'s' * (row['waits'] != 1)} of the host"
    if (compiled := row["ratios"].get("diffusers, compiled")) is not None and row["attention"] is not None:
        yield f"{compiled['median']:.3f}x compiled"


def _vae(report: Report) -> Iterator[Row]:
    for row in report["rows"]:
        near = "same" if row["psnr"] is None else f"{row['psnr']:.1f} dB"
        error = near if row["error"] is None else f"{row['error']:.1e}"
        remark = f"{row['frames_per_second']:.1f} frames/s"
        yield Row(f"{row['half']}, {row['name']}", *_timed(row, 1), _ratio(row["ratio"]), "", error, remark)


def _request(report: Report) -> Iterator[Row]:
    """The peer encodes its prompt, and so do the fresh clips: that ratio alone means something."""
    peer = (report.get("peer") or {}).get("clips", [])
    theirs = [clip["total"] for clip in peer]
    for name, made in {**report["clips"], **({"diffusers": peer} if peer else {})}.items():
        totals = [1e3 * clip["total"] for clip in made]
        stages = dict.fromkeys(stage for clip in made for stage in clip["stages"])
        shares = (f"{stage} {median(clip['stages'].get(stage, 0.0) for clip in made):.2f}" for stage in stages)
        ratio = 1e3 * median(theirs) / median(totals) if theirs and name in ("fresh", "diffusers") else None
        spread, remark = f"{min(totals):.0f}..{max(totals):.0f}", f"seconds: {', '.join(shares)}"
        yield Row(f"{name} clip", f"{median(totals):.0f}", spread, _ratio(ratio), remark=remark)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _unavailable(report: Report) -> Iterator[str]:
    return (f"{name}: {reason}" for name, reason in report.get("unavailable", {}).items())


def _step_notes(report: Report) -> Iterator[str]:
    yield from (f"{name}: {fault}" for name, fault in report["faults"].items())
    yield from (f"left out: {line}" for line in report["left_out"])


Reader = tuple[Callable[[Report], Iterator[Row]], Callable[[Report], Iterator[str]]]
READERS: Final[Mapping[str, Reader]] = MappingProxyType(
    {
        "attention": (_attention, _unavailable),
        "gemm": (_gemm, _unavailable),
        "elementwise": (_elementwise, _unavailable),
        "block": (_block, _unavailable),
        "block_fp8": (_block, _unavailable),
        "step": (_step, _step_notes),
        "medium": (_medium, _step_notes),
        "vae": (_vae, _unavailable),
        "request": (_request, _unavailable),
    }
)
"""By part: its rows, and what to say below the table."""
