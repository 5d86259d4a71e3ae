"""Paper and pens for the plot and the film: text that fits, charts with axes, and cells coloured by size.

Does: draw with Pillow and the font that it ships, at twice the size, so that lines come out smooth once it is halved.
Does not: know what it draws. Fed by `chart` and `film`. Coordinates are pixels of the finished picture.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

SCALE: Final = 2
PAPER: Final[Colour] = (255, 255, 255)
INK: Final[Colour] = (28, 30, 34)
FAINT: Final[Colour] = (116, 122, 132)
LINE: Final[Colour] = (226, 229, 234)
SHADE: Final[Colour] = (245, 238, 226)
VIDEO: Final[Colour] = (38, 98, 168)
AUDIO: Final[Colour] = (200, 96, 32)
"""Told apart by people who don't see red or green, and in grey."""
SMALLEST: Final = 1e-6
"""Of a logarithmic axis: what is less is drawn as that."""
RAMP: Final[tuple[Colour, ...]] = (
    (247, 249, 252),
    (196, 216, 238),
    (110, 160, 212),
    (38, 98, 168),
    (84, 40, 110),
    (40, 10, 40),
)
"""From nothing to much; darker is more, in grey too."""


@dataclass(frozen=True, slots=True)
class Box:
    """left, top, width, height."""

    x: float
    y: float
    w: float
    h: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Points (x, y) in order; a y of None is left out."""

    name: str
    colour: Colour
    points: Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class Axis:
    """From low to high; log: by powers of ten. ticks: where, and what stands there."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies between low, 0, and high, 1; held to that."""
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = (math.log10(max(each, SMALLEST)) for each in (low, high, value))
        return min(1.0, max(0.0, (at - low) / (high - low)))


class Page:
    """Paper that grows downwards; `y` is where it goes on."""

    def __init__(self, width: int, height: int = 512, colour: Colour = PAPER, *, scale: int = SCALE) -> None:
        self.width, self.colour, self.scale = width, colour, scale
        self.y = 0.0
        self._image = Image.new("RGB", (width * scale, height * scale), colour)
        self._pen = ImageDraw.Draw(self._image)

    def font(self, size: float) -> Font:
        return ImageFont.load_default(size=size * self.scale)

    def room(self, height: float) -> None:
        """Paper for so much more."""
        wanted = math.ceil((self.y + height) * self.scale)
        if wanted > self._image.height:
            longer = Image.new("RGB", (self._image.width, wanted + 512 * self.scale), self.colour)
            longer.paste(self._image)
            self._image, self._pen = longer, ImageDraw.Draw(longer)

    def text(
        self, x: float, y: float, told: str, size: float, colour: Colour = INK, *, most: float = 0, anchor: str = "la"
    ) -> None:
        """most: pixels; a longer text ends in an ellipsis. anchor: of Pillow."""
        font = self.font(size)
        if most:
            told = fitted(told, font, most * self.scale)
        self._pen.text((x * self.scale, y * self.scale), told, colour, font, anchor=anchor)

    def width_of(self, told: str, size: float) -> float:
        return float(self.font(size).getlength(told)) / self.scale

    def fill(self, box: Box, colour: Colour) -> None:
        x, y, w, h = (each * self.scale for each in (box.x, box.y, box.w, box.h))
        self._pen.rectangle((x, y, x + max(w, 1) - 1, y + max(h, 1) - 1), colour)

    def line(self, points: Sequence[tuple[float, float]], colour: Colour, width: float = 1) -> None:
        scaled = [(x * self.scale, y * self.scale) for x, y in points]
        self._pen.line(scaled, colour, max(1, round(width * self.scale)), joint="curve")

    def dot(self, x: float, y: float, radius: float, colour: Colour) -> None:
        x, y, r = (each * self.scale for each in (x, y, radius))
        self._pen.ellipse((x - r, y - r, x + r, y + r), colour)

    def paste(self, picture: Image.Image, box: Box) -> None:
        size = round(box.w * self.scale), round(box.h * self.scale)
        self._image.paste(
            picture.resize(size, Image.Resampling.LANCZOS), (round(box.x * self.scale), round(box.y * self.scale))
        )

    def chart(
        self,
        box: Box,
        title: str,
        across: Axis,
        up: Axis,
        curves: Sequence[Curve],
        shades: Sequence[tuple[float, float]] = (),
    ) -> None:
        """Title and names of the curves above, axes with ticks, the curves. shades: spans of the axis across."""
        inner = Box(box.x + 44, box.y + 26, box.w - 52, box.h - 26 - 20)
        self._head(box, title, curves)
        for low, high in shades:
            left, right = (inner.x + inner.w * across.share(at) for at in (low, high))
            self.fill(Box(left, inner.y, right - left, inner.h), SHADE)
        for value, told in up.ticks:
            y = inner.y + inner.h * (1 - up.share(value))
            self.line([(inner.x, y), (inner.x + inner.w, y)], LINE)
            self.text(inner.x - 5, y, told, 11, FAINT, anchor="rm")
        for value, told in across.ticks:
            self.text(inner.x + inner.w * across.share(value), inner.y + inner.h + 5, told, 11, FAINT, anchor="ma")
        for curve in curves:
            self._curve(inner, across, up, curve)

    def _head(self, box: Box, title: str, curves: Sequence[Curve]) -> None:
        right = box.x + box.w
        for curve in reversed(curves) if len(curves) > 1 else ():
            right -= self.width_of(curve.name, 12)
            self.text(right, box.y + 2, curve.name, 12, curve.colour)
            right -= 14
        self.text(box.x, box.y, title, 14, INK, most=right - box.x)

    def _curve(self, inner: Box, across: Axis, up: Axis, curve: Curve) -> None:
        """Dots too where there are few points."""
        places = [
            (inner.x + inner.w * across.share(x), inner.y + inner.h * (1 - up.share(y)))
            for x, y in curve.points
            if y is not None
        ]
        if len(places) > 1:
            self.line(places, curve.colour, 1.6)
        if len(places) <= 60:
            for x, y in places:
                self.dot(x, y, 2.2, curve.colour)

    def bars(self, box: Box, values: Sequence[float], up: Axis, colour: Colour) -> None:
        """Side by side over the whole width, from the bottom up."""
        each = box.w / max(len(values), 1)
        for index, value in enumerate(values):
            height = box.h * up.share(value) if value else 0
            if height:
                self.fill(Box(box.x + index * each + 1, box.y + box.h - height, max(each - 2, 1), height), colour)

    def finished(self, margin: float = 0) -> Image.Image:
        """At its real size, down to where it goes on."""
        height = math.ceil(self.y + margin)
        whole = self._image.crop((0, 0, self._image.width, height * self.scale))
        return whole if self.scale == 1 else whole.reduce(self.scale)


def png(picture: Image.Image) -> bytes:
    held = io.BytesIO()
    picture.save(held, format="PNG", optimize=False, compress_level=6)
    return held.getvalue()


def fitted(told: str, font: Font, width: float) -> str:
    """Cut where it is longer, with an ellipsis."""
    if font.getlength(told) <= width:
        return told
    kept = len(told)
    while kept and font.getlength(told[:kept].rstrip() + "…") > width:
        kept -= 1
    return told[:kept].rstrip() + "…"


def ramp(share: float) -> Colour:
    """0..1 -> a colour of `RAMP`, in between linear."""
    at = min(1.0, max(0.0, share)) * (len(RAMP) - 1)
    low = min(int(at), len(RAMP) - 2)
    red, green, blue = (round(a + (b - a) * (at - low)) for a, b in zip(RAMP[low], RAMP[low + 1], strict=True))
    return red, green, blue


def log_axis(values: Sequence[float]) -> Axis:
    """Whole powers of ten around all positive values."""
    positive = [max(value, SMALLEST) for value in values if value > 0] or [0.1]
    low, high = math.floor(math.log10(min(positive)) - 1e-9), math.ceil(math.log10(max(positive)) + 1e-9)
    low = min(low, high - 1)
    ticks = [(10.0**power, f"{10.0**power:g}") for power in range(low, high + 1)]
    return Axis(10.0**low, 10.0**high, ticks, log=True)


def even_axis(low: float, high: float, most: int = 5) -> Axis:
    """Ticks at 1, 2 or 5 x 10^n, the ends moved out to ticks."""
    span = max(high - low, 1e-9)
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(m * power for m in (1, 2, 5, 10) if m * power * most >= span * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    ticks = [(number * step, f"{number * step:.6g}") for number in range(first, last + 1)]
    return Axis(first * step, last * step, ticks)
