"""Bundles as a picture: how alike their clips are to the exact ones over what they save, beside what levels promise.

Left SSIM, right the sound; a dot is the mean, the line to it from the bound that is held to the promise. SSIM is drawn
by its distance to 1, since that is where all of it happens. Over full size's seconds where they are known of all
bundles, else over forwards. Drawn by matplotlib without a window system. Fed by `quality_bundles`.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from benchmarks.quality_plan import EXACT
from h3runtime.quality.levels import LEVELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

    from benchmarks.quality_bundles import Bundle

WIDE, HIGH, DOTS = 11.0, 4.6, 90
TICKS: Final = (0.7, 0.8, 0.9, 0.95, 0.97, 0.99, 0.995, 0.999)
COLOURS: Final = {"high": "tab:green", "medium": "tab:orange", "low": "tab:red"}
OTHERS: Final = "tab:blue"
NEAREST: Final = 1e-4
"""The least distance to 1 that is drawn: equal clips have none."""
DOT: Final = 3
"""Half of one, in pixels."""
PLACES: Final[tuple[dict[str, Any], ...]] = (
    {"xytext": (6, 3)},
    {"xytext": (6, -11)},
    {"xytext": (-6, 3), "ha": "right"},
    {"xytext": (-6, -11), "ha": "right"},
    {"xytext": (6, 14)},
    {"xytext": (6, -22)},
    {"xytext": (-6, 14), "ha": "right"},
    {"xytext": (-6, -22), "ha": "right"},
)
"""Of a name beside its dot, in points."""


def plot_of(bundles: Sequence[Bundle]) -> bytes:
    """A PNG; the exact bundle is where everything begins and isn't drawn."""
    from matplotlib.figure import Figure

    drawn = [each for each in bundles if each.way != EXACT]
    at_full_size = all(each.full_size is not None for each in drawn)
    figure = Figure(figsize=(WIDE, HIGH), layout="constrained")
    left, right = figure.subplots(1, 2)

    def saved(each: Bundle) -> float:
        return each.full_size if at_full_size and each.full_size is not None else each.saved

    for each in drawn:
        colour, x = COLOURS.get(each.name.split()[0], OTHERS), saved(each)
        left.plot([x, x], [_apart(each), max(NEAREST, 1 - each.ssim.bound)], color=colour)
        right.plot([x, x], [each.audio_db.mean, each.audio_db.bound], color=colour)
    what = "seconds at H3's own size" if at_full_size else "forwards"
    for axes, height in ((left, _apart), (right, _sound)):
        for each in drawn:
            axes.plot(saved(each), height(each), "o", color=COLOURS.get(each.name.split()[0], OTHERS))
        axes.grid(alpha=0.3)
        axes.margins(0.15, 0.1)
        axes.set_xlabel(f"{what}, exact over these")
    for name, level in LEVELS.items():
        left.axhline(1 - level.ssim, color=COLOURS[name], linestyle="--", linewidth=1)
        right.axhline(level.audio_db, color=COLOURS[name], linestyle="--", linewidth=1)
    left.set_yscale("log")
    left.invert_yaxis()
    left.set_yticks([1 - tick for tick in TICKS], [f"{tick:g}" for tick in TICKS])
    left.minorticks_off()
    left.set_title("SSIM to the exact clip; dashed: promised by high, medium, low", fontsize="medium")
    right.set_title("log-mel distance of the sound, dB", fontsize="medium")
    right.set_ylim(bottom=0)
    figure.draw_without_rendering()
    for axes, height in ((left, _apart), (right, _sound)):
        _name_dots(axes, [(each.name, saved(each), height(each)) for each in drawn])
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DOTS)
    return picture.getvalue()


def _apart(each: Bundle) -> float:
    return max(NEAREST, 1 - each.ssim.mean)


def _sound(each: Bundle) -> float:
    return each.audio_db.mean


def _name_dots(axes: Axes, dots: Sequence[tuple[str, float, float]]) -> None:
    """Each name where it covers no dot and no other name, if there is such a place."""
    from matplotlib.transforms import Bbox

    taken = [Bbox.from_bounds(x - DOT, y - DOT, 2 * DOT, 2 * DOT) for x, y in axes.transData.transform(_places(dots))]
    for name, x, y in dots:
        tried = [axes.annotate(name, (x, y), textcoords="offset points", fontsize="small", **place) for place in PLACES]
        boxes = [label.get_window_extent() for label in tried]
        free = [not any(box.overlaps(other) for other in taken) and _is_inside(axes, box) for box in boxes]
        best = free.index(True) if any(free) else 0
        taken.append(boxes[best])
        for index, label in enumerate(tried):
            if index != best:
                label.remove()


def _places(dots: Sequence[tuple[str, float, float]]) -> list[tuple[float, float]]:
    return [(x, y) for _, x, y in dots]


def _is_inside(axes: Axes, box: Bbox) -> bool:
    whole = axes.get_window_extent()
    return bool(whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1)
