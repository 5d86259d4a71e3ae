"""A clip at a glance, as a PNG: its prompt, frames in a grid with their times, the waveform of each channel below.

Does: lay out and draw with Pillow and the font that it ships. Does not: read files (`clip_sketch` does) or write them.
Fed by the command line with the clip that was written, so the sheet shows what is in the file.

    title          the prompt, three lines at most
    note           size, length and whatever the caller adds, in grey
    grid           columns by the canvas's shape, frames left to right and down; each has its time below it
    waveforms      one lane a channel, from the first frame's start to the last one's end; light lines mark the moments
                   of the grid's frames. All lanes share one scale: their peak, or `QUIET` if that is less, fills a lane
    axis           seconds

The sheet is always 1,280 pixels wide, so pictures of any size are brought to the width of a column.
"""

from __future__ import annotations

import io
import math
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from h3runtime.media.clip_sketch import ClipSketch, SoundSketch, sketch_clip

WIDTH: Final = 1280
MARGIN: Final = 24
INNER: Final = WIDTH - 2 * MARGIN
GAP: Final = 10
SIDE: Final = 210
"""Pictures are as large as a square of this side, about."""
PICTURES: Final = 12
LANE: Final = 84
TICKS: Final = 10
QUIET: Final = 0.05
"""A softer sound (-26 dBFS) is drawn softer; any louder one fills its lane."""
SILENT: Final = 1e-4
"""-80 dBFS: what an encoder makes of nothing."""
PAPER, INK, FAINT, LINE = (255, 255, 255), (28, 30, 34), (116, 122, 132), (222, 226, 232)
LANES: Final = ((38, 98, 168), (178, 82, 30))
"""Left and right; further channels take turns. Told apart by people who don't see red or green, and in grey."""
TITLE_LINES: Final = 3
MOST_CHARACTERS: Final = 600
RUN_LENGTHS: Final = 3
"""zlib's Z_RLE. A sheet of the demo's clip takes 0.06 s instead of 0.29 s so, and is not larger."""

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True, slots=True)
class Grid:
    columns: int
    rows: int

    @classmethod
    def of(cls, aspect: float) -> Grid:
        """aspect: width over height. Wide pictures get few columns, tall ones many; about `PICTURES` in all."""
        columns = min(10, max(2, round(INNER / (SIDE * math.sqrt(aspect)))))
        return cls(columns, max(1, round(PICTURES / columns)))

    @property
    def count(self) -> int:
        return self.columns * self.rows

    @property
    def picture_width(self) -> int:
        return (INNER - GAP * (self.columns - 1)) // self.columns


def sheet_png(clip: Path, title: str, note: str = "") -> bytes:
    """The sheet of a written clip. `BadMedia` where it can't be read."""
    sketch = sketch_clip(clip, lambda aspect: Grid.of(aspect).count, INNER)
    held = io.BytesIO()
    draw_sheet(sketch, title, note).save(held, format="PNG", compress_level=1, compress_type=RUN_LENGTHS)
    return held.getvalue()


def draw_sheet(sketch: ClipSketch, title: str, note: str = "") -> Image.Image:
    """RGB, `WIDTH` wide and as high as it takes."""
    page = _Page()
    page.write(_lines(title, page.large, INNER), page.large, INK)
    page.write([" · ".join(filter(None, (_told(sketch), note)))], page.small, FAINT)
    page.skip(GAP)
    page.put_pictures(sketch)
    page.put_sound(sketch)
    return page.finish()


class _Page:
    """Paper that grows downwards."""

    def __init__(self) -> None:
        self.large, self.small = ImageFont.load_default(size=22), ImageFont.load_default(size=15)
        self._image = Image.new("RGB", (WIDTH, 512), PAPER)
        self._y = MARGIN

    def finish(self) -> Image.Image:
        return self._image.crop((0, 0, WIDTH, self._y + MARGIN))

    def skip(self, height: int) -> None:
        self._y += height

    def write(self, lines: list[str], font: Font, colour: tuple[int, int, int]) -> None:
        for line in lines:
            self._room(height := _height(font)).text((MARGIN, self._y), line, colour, font)
            self.skip(height)

    def put_pictures(self, sketch: ClipSketch) -> None:
        grid = Grid.of(sketch.width / sketch.height)
        size = grid.picture_width, max(1, round(grid.picture_width * sketch.height / sketch.width))
        below = _height(self.small) + GAP // 2
        for begin in range(0, len(sketch.pictures), grid.columns):
            pen = self._room(size[1] + below)
            for column, number in enumerate(range(begin, min(begin + grid.columns, len(sketch.pictures)))):
                x = MARGIN + column * (size[0] + GAP)
                picture = Image.fromarray(sketch.pictures[number]).resize(size, Image.Resampling.LANCZOS)
                self._image.paste(picture, (x, self._y))
                time = f"{float(sketch.indices[number] / sketch.rate):.2f} s"
                pen.text((x, self._y + size[1] + 2), time, FAINT, self.small)
            self.skip(size[1] + below)

    def put_sound(self, sketch: ClipSketch) -> None:
        self.write([_loudness(sketch.sound)], self.small, FAINT)
        if sketch.sound is None:
            return
        channels = len(sketch.sound.least)
        self.skip(2)
        height = channels * (LANE + 2)
        pen = self._room(height + _height(self.small) + 8)
        for index in sketch.indices:
            x = _at(float(index / sketch.rate), sketch.seconds)
            pen.line((x, self._y, x, self._y + height), LINE)
        for channel in range(channels):
            self._put_lane(pen, sketch.sound, channel)
            self.skip(LANE + 2)
        self._put_axis(pen, sketch.seconds)

    def _put_lane(self, pen: ImageDraw.ImageDraw, sound: SoundSketch, channel: int) -> None:
        middle, half = self._y + LANE // 2, LANE // 2 - 2
        scale = half / max(sound.peak, QUIET)
        upper = np.round(middle - sound.greatest[channel] * scale).astype(int).tolist()
        lower = np.round(middle - sound.least[channel] * scale).astype(int).tolist()
        for x, (top, bottom) in enumerate(zip(upper, lower, strict=True), MARGIN):
            pen.line((x, top, x, bottom), LANES[channel % len(LANES)])
        name = "LR"[channel] if len(sound.least) == 2 else str(channel + 1)
        pen.text((8, middle - _height(self.small) // 2), name, FAINT, self.small)

    def _put_axis(self, pen: ImageDraw.ImageDraw, seconds: float) -> None:
        pen.line((MARGIN, self._y, MARGIN + INNER - 1, self._y), FAINT)
        step = tick_step(seconds)
        for number in range(math.floor(seconds / step + 1e-9) + 1):
            x = _at(number * step, seconds)
            pen.line((x, self._y, x, self._y + 5), FAINT)
            told = f"{number * step:.10g} s"
            x -= min(x - MARGIN, int(pen.textlength(told, self.small)) // 2)
            x = min(x, MARGIN + INNER - int(pen.textlength(told, self.small)))
            pen.text((x, self._y + 7), told, FAINT, self.small)
        self.skip(8 + _height(self.small))

    def _room(self, height: int) -> ImageDraw.ImageDraw:
        """A pen, and paper down to `height` below the current line."""
        if self._y + height + MARGIN > self._image.height:
            longer = Image.new("RGB", (WIDTH, self._y + height + 512), PAPER)
            longer.paste(self._image)
            self._image = longer
        return ImageDraw.Draw(self._image)


def tick_step(seconds: float) -> float:
    """The least of 1, 2, 5 x 10^n seconds, at least 0.1, that makes `TICKS` spans at most."""
    least = max(seconds / TICKS, 0.1)
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))


def _lines(text: str, font: Font, width: int) -> list[str]:
    """Words on lines of at most `width` pixels; a longer word is cut, a longer text ends in an ellipsis."""
    words = "".join(c if c.isprintable() or c.isspace() else "\ufffd" for c in text[:MOST_CHARACTERS]).split()
    lines: list[str] = []
    line = ""
    for word in words:
        longer = f"{line} {word}" if line else word
        if line and font.getlength(longer) > width:
            lines.append(line)
            longer = word
        line = longer
    lines = [*lines, line] if line else lines
    if len(lines) > TITLE_LINES or len(text) > MOST_CHARACTERS:
        lines = [*lines[: TITLE_LINES - 1], lines[min(TITLE_LINES, len(lines)) - 1] + "…"]
    return [_cut(line, font, width) for line in lines]


def _cut(line: str, font: Font, width: int) -> str:
    if font.getlength(line) <= width:
        return line
    fits = bisect_right(range(len(line)), width, key=lambda n: math.ceil(font.getlength(line[:n] + "…")))
    return line[: max(fits - 1, 0)] + "…"


def _told(sketch: ClipSketch) -> str:
    sound = sketch.sound
    heard = f"{sound.rate / 1000:g} kHz, {len(sound.least)} channels" if sound else ""
    shape = f"{sketch.width}x{sketch.height} · {sketch.frames} frames · {sketch.seconds:.2f} s"
    return f"{shape} · {heard}" if heard else shape


def _loudness(sound: SoundSketch | None) -> str:
    if sound is None:
        return "no sound"
    return "silence" if sound.peak < SILENT else f"sound, peak {20 * math.log10(sound.peak):.1f} dBFS"


def _at(time: float, seconds: float) -> int:
    return MARGIN + round(time / seconds * (INNER - 1))


def _height(font: Font) -> int:
    """Of a line, with letters that hang below it."""
    return round(1.35 * (font.getbbox("Ágj")[3]))
