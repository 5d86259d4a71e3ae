"""Bundles as a picture: how alike their clips are to the exact ones over what they save, beside what levels promise.

Left SSIM, right the sound; a dot is the mean, the line to it from the bound that is held to the promise. SSIM is drawn
by its distance to 1, since that is where all of it happens. Over full size's seconds where they are known of all
bundles, else over forwards. Drawn by matplotlib without a window system. Fed by `quality_bundles`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from benchmarks.quality_plan import EXACT
from h3runtime.quality.levels import LEVELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from benchmarks.quality_bundles import Bundle

WIDE, HIGH, DOTS = 11.0, 4.6, 90
TICKS: Final = (0.7, 0.8, 0.9, 0.95, 0.97, 0.99, 0.995, 0.999)
COLOURS: Final = {"high": "tab:green", "medium": "tab:orange", "low": "tab:red"}
OTHERS: Final = "tab:blue"


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
        left.plot([x, x], [1 - each.ssim.mean, 1 - each.ssim.bound], color=colour)
        right.plot([x, x], [each.audio_db.mean, each.audio_db.bound], color=colour)
    for axes, height in ((left, _apart), (right, _sound)):
        _dots(axes, drawn, saved, height)
        axes.grid(alpha=0.3)
        axes.margins(0.12)
        what = "seconds of H3's own size" if at_full_size else "forwards"
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
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DOTS)
    return picture.getvalue()


def _apart(each: Bundle) -> float:
    return 1 - each.ssim.mean


def _sound(each: Bundle) -> float:
    return each.audio_db.mean


def _dots(
    axes: Axes, drawn: Sequence[Bundle], saved: Callable[[Bundle], float], height: Callable[[Bundle], float]
) -> None:
    for each in drawn:
        colour = COLOURS.get(each.name.split()[0], OTHERS)
        axes.plot(saved(each), height(each), "o", color=colour)
        axes.annotate(
            each.name, (saved(each), height(each)), textcoords="offset points", xytext=(6, 3), fontsize="small"
        )
