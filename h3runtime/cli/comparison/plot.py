"""A comparison as a picture: PSNR and SSIM over the frames, or relative L2 over latents or steps; joins are shaded.

Drawn by matplotlib, which is imported when a plot is asked for. No window system and no global state: a `Figure` of its
own is rendered to bytes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from h3runtime.cli.comparison.found import Found, Point, Series
from h3runtime.media.similarity import psnr

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCHES = (10.0, 6.0)
DOTS = 120
"""An inch: 1200x720 pixels."""
LINE, JOIN, SAME = "tab:blue", "tab:orange", "tab:green"
SHADE = 0.25


def plot_of(found: Found, kind: str) -> bytes:
    """`kind` is `png` or `svg`. `found` has at least one series."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, layout="constrained")
    figure.suptitle(f"a: {found.a.name}    b: {found.b.name}", fontsize="medium")
    panels = _panels(found)
    axes = figure.subplots(len(panels), squeeze=False)[:, 0]
    for ax, (series, label) in zip(axes, panels, strict=True):
        _draw(ax, series, label)
    told = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if told:
        figure.legend(told.values(), told.keys(), loc="outside lower center", ncols=len(told), fontsize="small")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=kind, dpi=DOTS, metadata={"Date": None} if kind == "svg" else None)
    return drawn.getvalue()


def _panels(found: Found) -> list[tuple[Series, str]]:
    if found.has_pictures:
        return [(found.series[0], "PSNR (dB)"), (found.series[0], "SSIM")]
    return [(series, "relative L2: " + series.name.removeprefix("per_").replace("_", " ")) for series in found.series]


def _draw(ax: Axes, series: Series, label: str) -> None:
    """A dot for each point, in the places that have a finite value; the others are told at the upper edge."""
    places = [_place(point) for point in series.points]
    values = [_value(point, label) for point in series.points]
    known = [(x, y) for x, y in zip(places, values, strict=True) if y is not None]
    ax.plot([x for x, _ in known], [y for _, y in known], color=LINE, marker=".", linewidth=1)
    _shade_joins(ax, series.points, places)
    _mark_infinite(ax, [x for x, y in zip(places, values, strict=True) if y is None], label)
    if not known:
        ax.set_yticks([])
    ax.set_ylabel(label)
    ax.set_xlabel("step" if series.noun == "step" else "seconds")
    ax.grid(alpha=0.3)


def _place(point: Point) -> float:
    return point.index if point.seconds is None else point.seconds


def _value(point: Point, label: str) -> float | None:
    if label == "SSIM":
        return point.ssim
    return psnr(point.sums.mean_square) if label.startswith("PSNR") else point.sums.rel_l2


def _shade_joins(ax: Axes, points: Sequence[Point], places: Sequence[float]) -> None:
    """From the middle before the first frame of a join to the middle after its last."""
    half = (places[1] - places[0]) / 2 if len(places) > 1 else 0.5
    runs: list[list[float]] = []
    for point, place in zip(points, places, strict=True):
        if point.is_join:
            begins = not (runs and points[point.index - 1].is_join)
            runs += [[place, place]] if begins else []
            runs[-1][1] = place
    for number, (first, last) in enumerate(runs):
        ax.axvspan(first - half, last + half, color=JOIN, alpha=SHADE, label=None if number else "chunk joins")


def _mark_infinite(ax: Axes, places: Sequence[float], label: str) -> None:
    if places:
        told = "identical (infinite)" if label.startswith("PSNR") else "infinite"
        level = [0.97] * len(places)
        ax.plot(places, level, "^", color=SAME, transform=ax.get_xaxis_transform(), label=told, markersize=4)
