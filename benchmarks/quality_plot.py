"""Rows as a picture: over forwards where there are several, else a bar for each way and schedule.

Panels: share of clips in which the judge finds nothing wrong, share of single items, SSIM and sound distance to the
exact clip of the same schedule, and to the anchor where there is one. One task, split and size a picture. Drawn by
matplotlib without a window system. Fed by `quality`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from benchmarks.quality_report import Row
from h3runtime.nano.judge import ITEMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE = 7.0
HIGH = 3.8
DOTS = 110
DASHES = ("-", "--", "-.", ":", (0, (1, 3)), (0, (5, 1, 1, 1, 1, 1)))
Panel = tuple[str, Callable[[Row], float | None]]


def plot_of(rows: Sequence[Row]) -> bytes:
    """A PNG of rows of one task, split and size."""
    from matplotlib.figure import Figure

    panels = [panel for panel in _panels() if any(panel[1](row) is not None for row in rows)]
    lines = -(-len(panels) // 2)
    figure = Figure(figsize=(2 * WIDE, lines * HIGH), layout="constrained")
    task, split, size = rows[0].group
    figure.suptitle(f"{task}, {split} combinations, {size.name}, {max(row.clips for row in rows)} clips")
    axes = figure.subplots(lines, 2, squeeze=False).ravel()
    by_steps = len({row.schedule.steps for row in rows}) > 1
    for ax, (title, value) in zip(axes, panels, strict=False):
        (_lines if by_steps else _bars)(ax, rows, value)
        ax.set_title(title, fontsize="medium")
        ax.grid(alpha=0.3)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    if by_steps:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DOTS)
    return drawn.getvalue()


def _panels() -> list[Panel]:
    def judged(item: str) -> Callable[[Row], float | None]:
        return lambda row: 100 * row.judged[item][0] if item in row.judged else None

    return [
        ("nothing wrong, % of clips", judged("all")),
        ("mean of all items, %", _mean_item),
        ("SSIM to the exact clip of the same schedule", lambda row: row.exact.get("ssim")),
        ("log-mel distance to it, dB", lambda row: row.exact.get("log_mel_db")),
        ("SSIM to the anchor", lambda row: row.anchor.get("ssim")),
        ("log-mel distance to the anchor, dB", lambda row: row.anchor.get("log_mel_db")),
    ]


def _mean_item(row: Row) -> float | None:
    shares = [row.judged[item][0] for item in ITEMS if item in row.judged]
    return 100 * sum(shares) / len(shares) if shares else None


def _lines(ax: Axes, rows: Sequence[Row], value: Callable[[Row], float | None]) -> None:
    """A colour for each way, a dash for each sampler and scheduler."""
    ways = list(dict.fromkeys(row.way for row in rows))
    walks = list(dict.fromkeys((row.schedule.sampler, row.schedule.scheduler) for row in rows))
    for way in ways:
        for walk in walks:
            found = {
                row.schedule.steps: value(row)
                for row in rows
                if row.way == way and (row.schedule.sampler, row.schedule.scheduler) == walk
            }
            points = sorted((steps, y) for steps, y in found.items() if y is not None)
            ax.plot(
                [steps for steps, _ in points],
                [y for _, y in points],
                color=f"C{ways.index(way)}",
                linestyle=DASHES[walks.index(walk) % len(DASHES)],
                marker=".",
                label=f"{way.label}, {' '.join(walk)}",
            )
    ax.set_xscale("log")
    steps = sorted({row.schedule.steps for row in rows})
    ax.set_xticks(steps, [str(step) for step in steps])
    ax.minorticks_off()
    ax.set_xlabel("forwards")


def _bars(ax: Axes, rows: Sequence[Row], value: Callable[[Row], float | None]) -> None:
    walks = len({row.schedule for row in rows}) > 1
    names = [f"{row.way.label}\n{row.schedule.name}" if walks else row.way.label for row in rows]
    values = [value(row) for row in rows]
    ax.barh(range(len(rows)), [0.0 if y is None else y for y in values], color="tab:blue")
    ax.bar_label(ax.containers[0], ["" if y is None else f"{y:.4g}" for y in values], fontsize="small", padding=2)  # type: ignore[arg-type]
    ax.set_yticks(range(len(rows)), names, fontsize="small")
    ax.invert_yaxis()
    ax.margins(x=0.12)
    ax.set_xlim(left=0)
