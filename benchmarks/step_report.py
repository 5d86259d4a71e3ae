"""The report of the benchmark of a step: figures to JSON, and tables for people. Computes no time itself.

Fed by `step` with what it has found so far; `table` also reads a report back from its file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final, Protocol

from benchmarks.attention import PEERS
from benchmarks.step_floor import Part, floor_ms
from benchmarks.step_loop import Loop
from benchmarks.step_sampling import Sampling
from benchmarks.step_workload import Workload
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes
from h3runtime.quality.levels import NARROW_ATTENTIONS, NARROW_LINEARS, SPARSE

GIB: Final = 2**30


@dataclass(slots=True)
class Measured:
    """Forwards of one runner in the order of the rounds, milliseconds. peak_bytes: the most above what was held."""

    times: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    error: float = math.nan

    def add(self, ms: float, peak_bytes: int | None) -> None:
        self.times.append(ms)
        if peak_bytes is not None:
            self.peak_bytes = max(peak_bytes, self.peak_bytes or 0)

    @property
    def ms(self) -> float:
        return median(self.times)


@dataclass(frozen=True, slots=True)
class Work:
    """Operations of one forward's blocks: products and attention (performance.md)."""

    rows: int
    linear: float
    attention: float

    @property
    def operations(self) -> float:
        return self.linear + self.attention

    @classmethod
    def of(cls, sizes: TransformerSizes, rows: int) -> Work:
        inner = sizes.heads * sizes.head_dim
        parameters = sizes.hidden * (4 * inner + 3 * sizes.ffn)
        return cls(rows, 2.0 * rows * parameters * sizes.layers, 4.0 * rows**2 * inner * sizes.layers)


@dataclass(frozen=True, slots=True)
class Growth:
    """One forward on another workload: how much longer, and how much more work."""

    lane: str
    workload: str
    rows: int
    ms: float
    times: float
    work: float

    @property
    def excess_percent(self) -> float:
        return 100 * (self.times / self.work - 1)

    @classmethod
    def of(
        cls, lane: str, given: Workload, ms: float, measured: Mapping[str, Measured], there: Work, here: Work
    ) -> Growth:
        work = there.operations / here.operations
        return cls(lane, given.name, given.layout.rows, ms, ms / measured[lane].ms, work)


class Findings(Protocol):
    """What `step` has found so far, by runner's name."""

    measured: dict[str, Measured]
    faults: dict[str, str]
    floors: dict[str, list[Part]]
    loops: dict[str, Loop]
    samplings: dict[str, list[Sampling]]
    between: list[float]
    growths: list[Growth]
    ceilings: dict[str, float]
    left_out: list[str]


def report_of(
    head: dict[str, Any], work: Work, chosen: Mapping[str, tuple[str, str, str]], found: Findings
) -> dict[str, Any]:
    """Ready for JSON. chosen: attention, linear and producers of each lane."""
    return {
        **head,
        "rows_packed": work.rows,
        "operations": asdict(work),
        "ceilings_tflops": found.ceilings,
        "rows": [_row(name, work, chosen.get(name), found) for name in found.measured],
        "parts": {lane: [asdict(part) for part in parts] for lane, parts in found.floors.items()},
        "loops": {lane: asdict(loop) for lane, loop in found.loops.items()},
        "samplings": _samplings(found),
        "peer_forwards_between_ms": list(found.between),
        "growth": [{**asdict(growth), "excess_percent": growth.excess_percent} for growth in found.growths],
        "faults": found.faults,
        "left_out": found.left_out,
    }


def _row(name: str, work: Work, chosen: tuple[str, str, str] | None, found: Findings) -> dict[str, Any]:
    measured = found.measured[name]
    floor = floor_ms(found.floors[name]) if name in found.floors else None
    loop = found.loops.get(name)
    ratios = {peer: ratio_of(other.times, measured.times) for peer, other in _peers(found.measured)}
    return {
        "name": name,
        "attention": None if chosen is None else chosen[0],
        "linear": None if chosen is None else chosen[1],
        "producers": None if chosen is None else chosen[2],
        "times_ms": list(measured.times),
        "ms": measured.ms,
        "least_ms": min(measured.times),
        "most_ms": max(measured.times),
        "tflops": None if _leaves_out(chosen) else work.operations / (measured.ms * 1e9),
        "ceiling_percent": _ceiling_percent(work, chosen, found.ceilings, measured.ms),
        "ratios": ratios,
        "floor_ms": floor,
        "above_floor_percent": None if floor is None else 100 * (measured.ms / floor - 1),
        "overhead_percent": None if loop is None else loop.overhead_percent,
        "loop_ms": None if loop is None else loop.wall_ms / loop.steps,
        "loop_ratios": {} if loop is None else _loop_ratios(loop, found.measured),
        "waits": None if loop is None or loop.waits is None else sum(loop.waits.values()),
        "peak_bytes": measured.peak_bytes,
        "error": None if math.isnan(measured.error) else measured.error,
    }


def _samplings(found: Findings) -> dict[str, dict[str, Any]]:
    """By lane and peer, milliseconds. ratios: of the peer's time over the median of these, with the least and most of
    them: of its own whole sampling, and of the median of all its forwards times the schedule's."""
    bases = _bases(found)
    rows = {}
    for name, made in found.samplings.items():
        walls = [one.wall_ms for one in made]
        rows[name] = {
            "walls_ms": walls,
            "ms": median(walls),
            "least_ms": min(walls),
            "most_ms": max(walls),
            "steps": len(made[0].steps),
            "forwards": [one.forwards for one in made],
            "skipped": [list(one.skipped) for one in made],
            "peak_bytes": max((one.peak_bytes or 0 for one in made), default=0) or None,
            "took": [asdict(step) for step in made[-1].steps],
            "ratios": {} if name.startswith(PEERS) else {of: _over(ms, walls) for of, ms in bases(len(made[0].steps))},
        }
    return rows


def _bases(found: Findings) -> Callable[[int], list[tuple[str, float]]]:
    """What the peer takes for so many steps, by how that is known."""

    def of(steps: int) -> list[tuple[str, float]]:
        told = []
        for name, measured in _peers(found.measured):
            forwards = [*measured.times, *(found.between if name in PEERS else ())]
            told.append((f"{name}, {steps} x median forward", steps * median(forwards)))
            if whole := found.samplings.get(name):
                told.append((f"{name}, whole", median(one.wall_ms for one in whole)))
        return told

    return of


def _over(base: float, walls: Sequence[float]) -> dict[str, float]:
    return {"median": base / median(walls), "least": base / max(walls), "most": base / min(walls)}


def _loop_ratios(loop: Loop, measured: Mapping[str, Measured]) -> dict[str, float]:
    """As many of the peer's forwards, which are all that its loop does, over the whole loop."""
    return {peer: other.ms * loop.steps / loop.wall_ms for peer, other in _peers(measured)}


def _peers(measured: Mapping[str, Measured]) -> Iterator[tuple[str, Measured]]:
    return ((name, one) for name, one in measured.items() if name.startswith(PEERS))


def ratio_of(peer: Sequence[float], own: Sequence[float]) -> dict[str, float]:
    """Of the rounds that both ran: median, least and most."""
    ratios = [theirs / ours for theirs, ours in zip(peer, own, strict=False)]
    return {"median": median(ratios), "least": min(ratios), "most": max(ratios)}


def _ceiling_percent(
    work: Work, chosen: tuple[str, str, str] | None, ceilings: Mapping[str, float], ms: float
) -> float | None:
    """What the work takes at the ceilings of its own arithmetic, over what it took; None where a part isn't done."""
    if not ceilings or _leaves_out(chosen):
        return None
    attention, linear, _ = chosen or ("", "", "")
    least = work.linear / _ceiling(ceilings, linear in NARROW_LINEARS)
    least += work.attention / _ceiling(ceilings, attention in NARROW_ATTENTIONS)
    return 100 * least / (ms * 1e9)


def _leaves_out(chosen: tuple[str, str, str] | None) -> bool:
    """Whether its attention reads a part of the keys alone: all of the work over its time would be no rate."""
    return chosen is not None and chosen[0] in SPARSE


def _ceiling(ceilings: Mapping[str, float], is_narrow: bool) -> float:
    return ceilings["fp8" if is_narrow and "fp8" in ceilings else "bf16"]


def table(report: Mapping[str, Any]) -> str:
    """For people, in Markdown: lanes and peers, parts, growth, and what to know of them."""
    blocks = [_lanes_table(report), _samplings_table(report), _parts_table(report), _growth_table(report)]
    blocks.append("\n".join(_notes(report)))
    return "\n\n".join(block for block in blocks if block)


def _lanes_table(report: Mapping[str, Any]) -> str:
    peers = [row["name"] for row in report["rows"] if row["name"].startswith(PEERS)]
    head = [
        "lane",
        "attention, linear, producers",
        "forward ms",
        "least..most",
        *(f"ratio to {name}" for name in peers),
    ]
    head += ["floor ms", "above", "TFLOP/s", "of ceiling", "loop ms a step", "overhead", "waits", "peak GiB", "error"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in report["rows"]:
        made_of = ", ".join(row[key] for key in ("attention", "linear", "producers") if row[key])
        cells = [row["name"], made_of, f"{row['ms']:.1f}", f"{row['least_ms']:.1f}..{row['most_ms']:.1f}"]
        cells += [told_ratio(row["ratios"][name]) for name in peers]
        cells += [_told(row["floor_ms"], ".1f"), _told(row["above_floor_percent"], "+.1f", " %")]
        cells += [_told(row["tflops"], ".3g"), _told(row["ceiling_percent"], ".0f", " %")]
        cells += [_loop_cell(row), _told(row["overhead_percent"], ".2f", " %"), _told(row["waits"], "d")]
        peak = None if row["peak_bytes"] is None else row["peak_bytes"] / GIB
        lines.append("| " + " | ".join([*cells, _told(peak, ".1f"), _told(row["error"], ".1e")]) + " |")
    return "\n".join(lines)


def _loop_cell(row: Mapping[str, Any]) -> str:
    ratios = ", ".join(f"{ratio:.3f}x" for ratio in row["loop_ratios"].values())
    return _told(row["loop_ms"], ".1f") + (f" ({ratios})" if ratios else "")


def _samplings_table(report: Mapping[str, Any]) -> str:
    """Whole samplings of a request."""
    if not (rows := report.get("samplings")):
        return ""
    ratios = list(dict.fromkeys(of for row in rows.values() for of in row["ratios"]))
    head = ["whole sampling", "runs", "ms", "least..most", "steps", "forwards", "steps reused", *ratios, "peak GiB"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, row in rows.items():
        cells = [name, str(len(row["walls_ms"])), f"{row['ms']:.0f}", f"{row['least_ms']:.0f}..{row['most_ms']:.0f}"]
        cells += [str(row["steps"]), _either(row["forwards"]), _either(row["skipped"])]
        cells += [told_ratio(row["ratios"][of]) if of in row["ratios"] else "" for of in ratios]
        peak = None if row["peak_bytes"] is None else row["peak_bytes"] / GIB
        lines.append("| " + " | ".join([*cells, _told(peak, ".1f")]) + " |")
    return "\n".join([*lines, "", *_steps_lines(rows, report["approximations"])])


def _either(each: Sequence[Any]) -> str:
    """Of all runs, where they are alike once."""
    told = (", ".join(map(str, one)) if isinstance(one, list) else str(one) for one in each)
    return " / ".join(dict.fromkeys(told))


def _steps_lines(rows: Mapping[str, Any], approximations: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """What was approximated, and the last run step by step."""
    for name, row in rows.items():
        if name in approximations:
            yield f"{name}, approximated: {'; '.join(approximations[name]) or 'nothing'}"
        yield f"{name}, ms by step: {', '.join(map(_step_told, row['took']))}"
        yield from (f"{name}, attention of steps {line}" for line in _attention_told(row["took"]))


def _step_told(step: Mapping[str, Any]) -> str:
    """Milliseconds, and what reuse saw: the change of picture and sound."""
    change = "" if step["change"] is None else f" {step['change'][0]:.3f}/{step['change'][1]:.3f}"
    told = f"{'reused' * step['reused']}{change}".strip()
    return f"{step['ms']:.0f}" + (f" ({told})" if told else "")


def _attention_told(steps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Calls by backend, and the share of cubes that sparse ones read; steps with the same ones together."""
    found: dict[str, list[int]] = {}
    for number, step in enumerate(steps):
        shares = step["attention"].get("kept_share", {})
        calls = step["attention"].get("dispatches", {})
        told = (f"{count} {name}{f' at {shares[name]:.1%}' if name in shares else ''}" for name, count in calls.items())
        found.setdefault(" + ".join(told), []).append(number)
    return (f"{', '.join(map(str, numbers))}: {calls}" for calls, numbers in found.items() if calls)


def _parts_table(report: Mapping[str, Any]) -> str:
    """One forward's parts, a column for each lane: milliseconds of one. Lanes may call different ones."""
    if not (lanes := list(report["parts"])):
        return ""
    found = {lane: _numbered(parts) for lane, parts in report["parts"].items()}
    longest = max(found.values(), key=len)
    keys = dict.fromkeys([*longest, *(key for parts in found.values() for key in parts)])
    lines = [
        "| part | a forward | " + " | ".join(f"{lane} ms" for lane in lanes) + " |",
        "|" + "---|" * (2 + len(lanes)),
    ]
    for key in keys:
        parts = [found[lane].get(key) for lane in lanes]
        count = next(part["count"] for part in parts if part is not None)
        times = ("" if part is None else f"{part['ms']:.3f}" for part in parts)
        lines.append("| " + " | ".join([key[0], str(count), *times]) + " |")
    return "\n".join(lines)


def _numbered(parts: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], Mapping[str, Any]]:
    """By name and how many of that name came before."""
    seen: Counter[str] = Counter()
    found: dict[tuple[str, int], Mapping[str, Any]] = {}
    for part in parts:
        found[part["name"], seen[part["name"]]] = part
        seen[part["name"]] += 1
    return found


def _growth_table(report: Mapping[str, Any]) -> str:
    if not report["growth"]:
        return ""
    lines = ["| lane | workload | rows | forward ms | longer | work | beyond the work |", "|" + "---|" * 7]
    for row in report["growth"]:
        cells = [row["lane"], row["workload"], str(row["rows"]), f"{row['ms']:.0f}", f"{row['times']:.2f}x"]
        lines.append("| " + " | ".join([*cells, f"{row['work']:.2f}x", f"{row['excess_percent']:+.1f} %"]) + " |")
    return "\n".join(lines)


def _notes(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"{report['asked']['workload']}: {report['rows_packed']} rows"
    for name, fault in report["faults"].items():
        yield f"{name}: {fault}"
    for lane, told in report["passed"].items():
        yield from (f"{lane}: {line}" for line in told)
    for lane, loop in report["loops"].items():
        yield from (f"{lane}: the host waited {count} times at {line}" for line, count in (loop["waits"] or {}).items())
    yield from (f"left out: {line}" for line in report["left_out"])


def told_ratio(ratio: Mapping[str, float]) -> str:
    return f"{ratio['median']:.3f}x ({ratio['least']:.3f}..{ratio['most']:.3f})"


def _told(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"
