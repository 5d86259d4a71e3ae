"""A comparison as a few lines for a person. The same figures as the JSON, fewer digits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from h3runtime.cli.comparison.found import Found, Series

DIFFERENCES = {"max": "max", "mean": "mean", "rmse": "RMSE", "cosine": "cosine", "rel_l2": "rel. L2"}
LIKENESS = {"psnr": "PSNR dB", "ssim": "SSIM"}
NOT_SHOWN = frozenset({"shapes"})
INFINITE = frozenset({"psnr", "rel_l2"})
"""Null stands for infinity here, and for `undefined` in a cosine."""


def table_of(found: Found, facts: Mapping[str, Any]) -> str:
    """`facts` are the report's."""
    return "\n".join(_lines(found, facts))


def _lines(found: Found, facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found.kind}: " + ", ".join(f"{k} {v:g}" for k, v in found.facts.items() if k not in NOT_SHOWN)
    yield f"  a  {found.a}"
    yield f"  b  {found.b}"
    yield ""
    yield _row("", DIFFERENCES.values())
    rows: dict[str, Any] = dict(facts["streams"])
    if len(rows) > 1 and found.kind in ("latents", "steps"):
        rows["all"] = facts
    for name, figures in rows.items():
        yield _row(name, _shown(DIFFERENCES, figures))
    if found.log_mel_db is not None:
        yield f"log-mel distance of the sound: {found.log_mel_db:.4g} dB"
    if found.series:
        yield ""
        yield from _main(found.series[0], facts)
    yield from (f"warning: {warning}" for warning in found.warnings)


def _main(series: Series, facts: Mapping[str, Any]) -> Iterator[str]:
    """All, joins and others, then the worst points."""
    columns = LIKENESS | {"max": "max"} if series.noun == "frame" else {"rel_l2": "rel. L2", "cosine": "cosine"}
    yield _row("", columns.values())
    whole = facts if series.noun == "frame" else next(iter(facts["streams"].values()))
    yield _row(_counted(len(series.points), series), _shown(columns, whole))
    for name in ("joins", "others"):
        if facts.get(name) is not None:
            yield _row(f"  {name} ({facts[name]['count']})", _shown(columns, facts[name]))
    if facts["worst"]:
        yield "worst"
    for point in facts["worst"]:
        seconds = f"{point['seconds']:9.3f} s" if "seconds" in point else ""
        mark = "  join" if point.get("join") else ""
        yield _row(f"  {series.noun} {point[series.noun]:>4}{seconds}", _shown(columns, point)) + mark


def _counted(count: int, series: Series) -> str:
    return f"{count} {series.noun}{'s' if count != 1 else ''}"


def _shown(columns: Mapping[str, str], figures: Mapping[str, Any]) -> Iterator[str]:
    for key in columns:
        value = figures[key]
        yield ("inf" if key in INFINITE else "-") if value is None else f"{value:.6g}"


def _row(name: str, cells: Any) -> str:
    return (f"{name:<26}" + "".join(f"{cell:>14}" for cell in cells)).rstrip()
