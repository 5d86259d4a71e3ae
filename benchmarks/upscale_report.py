"""The clips of `upscale` as rows, JSON and Markdown, and what is out of bounds.

A row is of one size, kind and way: means over prompts, shares of all items of all clips. `lost`, in points with its
90 % interval, is by how much fewer items are right than in the small clips. Fed by `upscale`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.upscale_bounds import TRAINED, bounds_of, broken, findings, lost_interval
from benchmarks.upscale_clips import SMALL, Record

FIGURES = ("overshoot", "high_frequency", "chroma_edge", "psnr", "ssim")


@dataclass(frozen=True, slots=True)
class Row:
    """judged, identity: shares of all items of all clips, of which there are `items`. lost: share, and interval."""

    size: str
    kind: str
    way: str
    clips: int
    items: int
    judged: float | None
    identity: float | None
    lost: tuple[float, float, float] | None
    figures: Mapping[str, float]


def rows_of(records: Sequence[Record]) -> list[Row]:
    return [_row(key, records) for key in dict.fromkeys((r.size, r.kind, r.way) for r in records)]


def _row(key: tuple[str, str, str], records: Sequence[Record]) -> Row:
    size, kind, way = key
    same = [record for record in records if (record.size, record.kind, record.way) == key]
    small = [record for record in records if (record.size, record.kind, record.way) == (size, "made", SMALL)]
    verdicts = [value for r in same if r.verdict for value in r.verdict.values() if value is not None]
    alike = [value for r in same if r.same is not None for value in r.same.values()]
    figures = {name: float(np.mean([r.figures[name] for r in same])) for name in FIGURES if same[0].figures}
    lost = lost_interval(small, same) if verdicts else None
    return Row(size, kind, way, len(same), len(verdicts), _share(verdicts), _share(alike), lost, figures)


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None


def markdown(rows: Sequence[Row]) -> str:
    heads = ("size", "clips", "way", "n", "judged right", "points lost", "as the small clip", *FIGURES)
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        judged, identity = ("" if share is None else f"{share:.3f}" for share in (row.judged, row.identity))
        lost = "" if row.lost is None else "{:.2f} ({:.2f} to {:.2f})".format(*(100 * share for share in row.lost))
        figures = [f"{row.figures[name]:.3f}" if name in row.figures else "" for name in FIGURES]
        cells = [row.size, row.kind, row.way, str(row.clips), judged, lost, identity, *figures]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Held:
    """What was held to the bounds. broken: what isn't within, in words; none of it passes."""

    size: str
    way: str
    found: Mapping[str, float]
    broken: Sequence[str]


def held(records: Sequence[Record], ways: Sequence[str]) -> list[Held]:
    """Every size that was made, each way."""
    there = dict.fromkeys((r.size, r.way) for r in records if r.kind == "made" and r.way in ways)
    return [_held(size, way, [r for r in records if r.size == size]) for size, way in there]


def _held(size: str, way: str, records: Sequence[Record]) -> Held:
    found = findings(records, way)
    return Held(size, way, found, broken(found, bounds_of(size)))


def told(found: Sequence[Held]) -> str:
    heads = ("size", "way", *TRAINED, "")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for size in dict.fromkeys(each.size for each in found):
        legal = [f"{bound.low:g} to {bound.high:g}" for bound in bounds_of(size).values()]
        lines.append("| " + " | ".join([size, "bounds", *legal, ""]) + " |")
    for each in found:
        cells = [f"{value:.3f}" for value in each.found.values()]
        lines.append(
            "| " + " | ".join([each.size, each.way, *cells, "out of bounds" if each.broken else "passes"]) + " |"
        )
    return "\n".join(lines) + "\n"
