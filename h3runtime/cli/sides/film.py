"""A, B and their difference side by side as an MP4: labels above, time and figures below, curves with a moving mark.

    head     what each side is; by how much the difference is amplified
    panels   A | B | |A - B| x gain, enlarged where the canvas is small, brought down where three of it pass `WIDEST`
    foot     time and frame, SSIM and PSNR of the frame, and over the whole clip SSIM and the distance of the sound

Sound: A on the left, B on the right, each mixed to one channel after the loudness rule, so that headphones tell them
apart; the head says so. Frames come from the lossless files, one at a time. Fed by the command with what was found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from h3runtime.cli.comparison.found import OnPart, Point
from h3runtime.cli.sides.chart import amplified, gain_of
from h3runtime.cli.sides.found import SidesFound
from h3runtime.cli.sides.making import Made
from h3runtime.cli.sides.paper import Box, Colour, Page, even_axis, fitted
from h3runtime.core import FPS, SAMPLE_RATE, ShouldStop
from h3runtime.media.clip_stream import each_block, each_frame
from h3runtime.media.ffmpeg import find_ffmpeg
from h3runtime.media.mux import ClipShape, ClipWriter
from h3runtime.media.similarity import psnr
from h3runtime.media.sound import comfyui_loudness

NIGHT: Final[Colour] = (18, 20, 24)
CHALK: Final[Colour] = (236, 238, 242)
DIM: Final[Colour] = (150, 156, 166)
RULE: Final[Colour] = (52, 56, 64)
PICTURE: Final[Colour] = (98, 164, 236)
SOUND: Final[Colour] = (240, 150, 84)
MARGIN, GAP = 16, 8
HEAD, FOOT = 56, 104
SMALLEST, WIDEST = 384, 1264
"""Pixels that a panel is wide, at least by whole factors, and at most: three make 3,840."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The film's sizes. w, h: of a panel, both even."""

    w: int
    h: int

    @classmethod
    def of(cls, width: int, height: int) -> Stage:
        factor = math.ceil(SMALLEST / width) if width < SMALLEST else min(1.0, WIDEST / width)
        return cls(2 * round(width * factor / 2), 2 * round(height * factor / 2))

    @property
    def shape(self) -> tuple[int, int]:
        """Width and height of the film, both even."""
        return 3 * self.w + 2 * GAP + 2 * MARGIN, HEAD + self.h + FOOT

    def left(self, panel: int) -> int:
        return MARGIN + panel * (self.w + GAP)


def write_film(found: SidesFound, path: Path, on_part: OnPart, stop: ShouldStop) -> None:
    """24 fps, as many frames as the clips. Errors of `ClipWriter`."""
    spec = found.a.spec
    stage = Stage.of(spec.width, spec.height)
    shape = ClipShape(*stage.shape, spec.frames)
    with ClipWriter(find_ffmpeg(), path, path.parent, shape, sound_of(found), should_stop=stop) as writer:
        for index, frame in enumerate(frames_of(found, stage)):
            writer.put(frame[None])
            on_part(index + 1, spec.frames)
        writer.finish()


def sound_of(found: SidesFound) -> NDArray[np.float32]:
    """float32 [2, n] at 32 kHz: A left, B right."""
    a, b = (_mixed(made) for made in (found.a, found.b))
    return np.stack([a, b])


def frames_of(found: SidesFound, stage: Stage) -> Iterator[NDArray[np.uint8]]:
    """uint8 [H, W, 3] of the whole film, in order."""
    backdrop, gain = _backdrop(found, stage), gain_of(found)
    points = found.clips.pictures.series[0].points
    font = ImageFont.load_default(size=15)
    with closing(each_frame(found.a.lossless, "a")) as first, closing(each_frame(found.b.lossless, "b")) as second:
        for point, a, b in zip(points, first, second, strict=True):
            picture = backdrop.copy()
            for panel, pixels in enumerate((a, b, amplified(a, b, gain))):
                picture.paste(_sized(pixels, stage), (stage.left(panel), HEAD))
            _put_foot(picture, stage, point, len(points), font)
            yield np.asarray(picture)


def _mixed(made: Made) -> NDArray[np.float32]:
    """float32 [n]."""
    blocks = list(each_block(made.lossless, made.name))
    delivered = (
        comfyui_loudness(np.concatenate(blocks, axis=1))
        if made.spec.encode.loudness == "comfyui"
        else np.concatenate(blocks, axis=1)
    )
    mixed: NDArray[np.float32] = delivered.mean(axis=0, dtype=np.float32)
    return mixed


def _sized(pixels: NDArray[np.uint8], stage: Stage) -> Image.Image:
    """Whole pixels where it is enlarged, so that nothing is invented."""
    picture = Image.fromarray(pixels)
    size = stage.w, stage.h
    if picture.size == size:
        return picture
    way = Image.Resampling.NEAREST if stage.w > picture.width else Image.Resampling.LANCZOS
    return picture.resize(size, way)


def _backdrop(found: SidesFound, stage: Stage) -> Image.Image:
    """All that stands still."""
    width, height = stage.shape
    page = Page(width, height, NIGHT)
    far = "nothing differs" if found.clips.pictures.identical else f"their difference, {gain_of(found)} times as much"
    heads = [(made.name.upper(), made.half.side.label) for made in (found.a, found.b)] + [("|A - B|", far)]
    ears = ("left ear", "right ear", "")
    for panel, (name, told) in enumerate(heads):
        x = stage.left(panel)
        page.text(x, 10, name, 20, CHALK)
        page.text(x, 34, told, 14, DIM, most=stage.w - 70)
        page.text(x + stage.w, 35, ears[panel], 13, DIM, anchor="ra")
    _put_curves(page, found, stage)
    page.y = height
    return page.finished()


def _put_curves(page: Page, found: SidesFound, stage: Stage) -> None:
    """SSIM and the sound's distance over the clip, under all three panels."""
    points, spans = found.clips.pictures.series[0].points, found.clips.sound
    box = _curve_box(stage)
    page.line([(box.x, box.y + box.h), (box.x + box.w, box.y + box.h)], RULE)
    up = even_axis(min([0.999, *(p.ssim or 0.0 for p in points)]), 1.0, 2)
    loud = even_axis(0.0, max([span.log_mel_db for span in spans] + [0.1]), 2)
    seconds = len(points) / FPS
    places = [
        (box.x + box.w * (s.start + s.stop) / 2 / SAMPLE_RATE / seconds, 1 - loud.share(s.log_mel_db)) for s in spans
    ]
    page.line([(min(x, box.x + box.w), box.y + box.h * y) for x, y in places], SOUND, 1.6)
    each = box.w / len(points)
    page.line(
        [(box.x + (p.index + 0.5) * each, box.y + box.h * (1 - up.share(p.ssim or 0.0))) for p in points], PICTURE, 1.6
    )
    page.text(box.x, box.y - 18, f"SSIM {up.low:g} to 1", 13, PICTURE)
    page.text(box.x + 130, box.y - 18, f"sound 0 to {loud.high:g} dB apart", 13, SOUND)


def _curve_box(stage: Stage) -> Box:
    width, height = stage.shape
    return Box(MARGIN, height - FOOT + 54, width - 2 * MARGIN, 40)


def _put_foot(
    picture: Image.Image, stage: Stage, point: Point, count: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont
) -> None:
    pen, top = ImageDraw.Draw(picture), HEAD + stage.h + 8
    ratio = psnr(point.sums.mean_square)
    told = f"SSIM {point.ssim:.4f}   PSNR " + ("infinite" if ratio is None else f"{ratio:.1f} dB")
    pen.text((stage.left(0), top), f"{point.index / FPS:.2f} s   frame {point.index + 1}/{count}", CHALK, font)
    pen.text((stage.left(2), top), fitted(told, font, stage.w), CHALK, font)
    box = _curve_box(stage)
    x = box.x + box.w * (point.index + 0.5) / count
    pen.line((x, box.y - 2, x, box.y + box.h), CHALK, 2)
