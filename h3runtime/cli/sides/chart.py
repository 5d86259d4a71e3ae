"""The comparison as a picture: frames of both sides and of what differs, how far they part step by step and in which
block and part, and how far the clips are apart over time.

    head        the prompt, a line for each side
    frames      A, B and their difference, at moments spread over the clip
    steps       relative L2 of the estimate and, of one schedule, of the latents; picture and sound, logarithmic
    time        SSIM and PSNR of frames, chunk joins shaded; log-mel distance of spans of sound
    blocks      for each chosen step: bars of what each block adds, below them its parts as cells; darker is more

Reads the frames that it shows from the lossless files. Fed by the command with all that was found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from h3runtime.cli.comparison.found import Point
from h3runtime.cli.sides.attribution import StepBlocks
from h3runtime.cli.sides.found import SidesFound
from h3runtime.cli.sides.making import Made
from h3runtime.cli.sides.paper import (
    AUDIO,
    FAINT,
    INK,
    LINE,
    PAPER,
    VIDEO,
    Axis,
    Box,
    Curve,
    Page,
    even_axis,
    log_axis,
    png,
    ramp,
)
from h3runtime.cli.sides.parts import PARTS
from h3runtime.cli.sides.steps import STREAMS, StepPoint
from h3runtime.core import FPS, SAMPLE_RATE
from h3runtime.media.clip_stream import each_frame
from h3runtime.media.similarity import psnr

WIDTH: Final = 1280
MARGIN: Final = 28
INNER: Final = WIDTH - 2 * MARGIN
GAP: Final = 8
MOMENTS, MOST_MOMENTS = 6, 12
TALLEST: Final = 220
"""Of a frame: tall canvases get narrower pictures."""
CHART: Final = 190
CELL: Final = 16
ROOMY: Final = 44
"""Pixels of a cell that a figure fits into."""
BARS: Final = 46
LABELS: Final = 88
"""Left of the cells: the parts' names."""
COLOURS: Final = {"video": VIDEO, "audio": AUDIO}
NAMES: Final = {"video": "picture", "audio": "sound"}
MOST_GAIN: Final = 64


def chart_png(found: SidesFound) -> bytes:
    page = Page(WIDTH)
    page.y = MARGIN
    _put_head(page, found)
    _put_frames(page, found)
    _put_steps(page, found)
    _put_time(page, found)
    _put_blocks(page, found)
    return png(page.finished(MARGIN))


def gain_of(found: SidesFound) -> int:
    """What differences are multiplied with to be seen: the largest power of two, up to 64, that brings four times their
    RMSE to at most full white."""
    rmse = found.clips.pictures.streams["video"].rmse
    gain = MOST_GAIN
    while gain > 1 and 4 * rmse * gain > 255:
        gain //= 2
    return gain


def amplified(a: NDArray[np.uint8], b: NDArray[np.uint8], gain: int) -> NDArray[np.uint8]:
    """uint8 [H, W, 3] twice -> |a - b| * gain, black where nothing differs."""
    apart = np.abs(a.astype(np.int32) - b) * gain
    held: NDArray[np.uint8] = np.minimum(apart, 255).astype(np.uint8)
    return held


def told_side(made: Made) -> str:
    """`linear=fp8 · 12 forwards · 8.31 s`."""
    clip = made.clip
    steps = f"{clip.forwards} forwards" + (f", {len(made.reused)} steps reused" if made.reused else "")
    ran = f"{steps} · {clip.linear} · {clip.attention} · {clip.timings.get('total', 0.0):.2f} s"
    return f"{made.half.side.label}   ·   {ran}"


def _put_head(page: Page, found: SidesFound) -> None:
    page.text(MARGIN, page.y, found.a.spec.prompt, 22, INK, most=INNER)
    page.y += 34
    for made in (found.a, found.b):
        page.text(MARGIN, page.y, made.name.upper(), 16, INK)
        page.text(MARGIN + 24, page.y + 1, told_side(made), 15, FAINT, most=INNER - 24)
        page.y += 23
    spec, pictures = found.a.spec, found.clips.pictures
    ratio = "infinite" if pictures.psnr is None else f"{pictures.psnr:.1f} dB"
    told = f"{spec.width}x{spec.height}, {spec.frames} frames, seed {spec.sampling.seed}"
    far = f"SSIM {pictures.ssim:.4f}, PSNR {ratio}, sound {pictures.log_mel_db or 0.0:.2f} dB apart"
    page.text(MARGIN, page.y + 1, "identical · " + told if found.identical else f"{far} · {told}", 15, INK, most=INNER)
    page.y += 34


def _put_frames(page: Page, found: SidesFound) -> None:
    spec, gain = found.a.spec, gain_of(found)
    aspect = spec.width / spec.height
    columns = min(MOST_MOMENTS, max(MOMENTS, int((INNER - LABELS / 2 + GAP) / (TALLEST * aspect + GAP))))
    indices = moments(spec.frames, columns)
    w = min((INNER - LABELS / 2 - GAP * (columns - 1)) / columns, TALLEST * aspect)
    h = w / aspect
    page.room(3 * (h + GAP) + 30)
    shown = dict(zip(indices, _pictures(found, indices), strict=True))
    for row, label in enumerate(("A", "B", f"x{gain}")):
        top = page.y + row * (h + GAP)
        page.text(MARGIN, top + h / 2, label, 16, INK, anchor="lm")
        for column, index in enumerate(indices):
            a, b = shown[index]
            pixels = (a, b, amplified(a, b, gain))[row]
            page.paste(Image.fromarray(pixels), Box(MARGIN + LABELS / 2 + column * (w + GAP), top, w, h))
    page.y += 3 * (h + GAP)
    for column, index in enumerate(indices):
        page.text(MARGIN + LABELS / 2 + column * (w + GAP), page.y - 2, f"{index / FPS:.2f} s", 12, FAINT)
    page.y += 30


def moments(frames: int, most: int) -> list[int]:
    """Frames in the middle of as many equal parts."""
    count = min(most, frames)
    return [int((index + 0.5) * frames / count) for index in range(count)]


def _pictures(found: SidesFound, indices: Sequence[int]) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    wanted = set(indices)
    with closing(each_frame(found.a.lossless, "a")) as first, closing(each_frame(found.b.lossless, "b")) as second:
        yield from (pair for index, pair in enumerate(zip(first, second, strict=True)) if index in wanted)


def _put_steps(page: Page, found: SidesFound) -> None:
    steps = found.steps
    paired = "" if steps.pairing == "step" else "; A's step / B's of the nearest sigma"
    half = (INNER - 24) / 2
    reused = [i for i, point in enumerate(steps.denoised) if point.a in found.a.reused or point.b in found.b.reused]
    told = f"estimate at each step, relative L2{paired}" + ("; shaded: reused" if reused else "")
    is_one = steps.pairing == "sigma"
    left = Box(MARGIN, page.y, INNER if is_one else half, CHART)
    page.room(CHART + 24)
    _put_far(page, left, told, steps.denoised, [(i - 0.5, i + 0.5) for i in reused])
    if not is_one:
        right = Box(MARGIN + half + 24, page.y, half, CHART)
        _put_far(page, right, "latents, relative L2; the last is final", steps.latents)
    page.y += CHART + 24


def _put_far(
    page: Page, box: Box, title: str, points: Sequence[StepPoint], shades: Sequence[tuple[float, float]] = ()
) -> None:
    curves = [
        Curve(NAMES[s], COLOURS[s], [(i, _positive(point.streams[s].rel_l2)) for i, point in enumerate(points)])
        for s in STREAMS
    ]
    values = [y for curve in curves for _, y in curve.points if y is not None]
    every = max(1, len(points) // 12)
    told = [f"{p.a}" if p.a == p.b else f"{p.a} / {p.b}" for p in points]
    ticks = [(float(i), told[i]) for i in range(0, len(points), every)]
    page.chart(
        box,
        title if values else f"{title}: no difference",
        Axis(0, max(len(points) - 1, 1), ticks),
        log_axis(values),
        curves,
        shades,
    )


def _positive(value: float | None) -> float | None:
    """What a logarithmic axis has a place for."""
    return value if value else None


def _put_time(page: Page, found: SidesFound) -> None:
    points, sound = found.clips.pictures.series[0].points, found.clips.sound
    seconds = len(points) / FPS
    across = even_axis(0, seconds, 6)
    across = Axis(0, seconds, [(at, f"{told} s") for at, told in across.ticks if at <= seconds])
    shades = _joins(points)
    ssims: list[tuple[float, float | None]] = [(p.index / FPS, p.ssim) for p in points]
    ratios: list[tuple[float, float | None]] = [(p.index / FPS, psnr(p.sums.mean_square)) for p in points]
    spans: list[tuple[float, float | None]] = [((s.start + s.stop) / 2 / SAMPLE_RATE, s.log_mel_db) for s in sound]
    known = [y for _, y in ratios if y is not None]
    least = min(p.ssim or 0.0 for p in points)
    width = (INNER - 48) / 3
    page.room(CHART + 24)
    panels = (
        ("SSIM of frames", even_axis(min(least, 0.999), 1.0, 4), ssims, VIDEO, shades),
        (
            "PSNR of frames, dB" if known else "PSNR: infinite",
            even_axis(min(known, default=0), max(known, default=60), 4),
            ratios,
            VIDEO,
            shades,
        ),
        (
            "log-mel distance of the sound, dB",
            even_axis(0, max([y or 0 for _, y in spans] + [0.1]), 4),
            spans,
            AUDIO,
            (),
        ),
    )
    for column, (title, up, curve, colour, shaded) in enumerate(panels):
        box = Box(MARGIN + column * (width + 24), page.y, width, CHART)
        page.chart(box, title, across, up, [Curve("", colour, curve)], shaded)
    page.y += CHART + 26


def _joins(points: Sequence[Point]) -> list[tuple[float, float]]:
    return [((p.index - 0.5) / FPS, (p.index + 0.5) / FPS) for p in points if p.is_join]


@dataclass(frozen=True, slots=True)
class _Heat:
    """What all steps share. parts: those that add anything anywhere. up: of the bars. colours: of the cells."""

    parts: tuple[str, ...]
    up: Axis
    colours: Axis

    @classmethod
    def of(cls, steps: Sequence[StepBlocks]) -> _Heat:
        blocks = [block for step in steps for block in step.blocks]
        far = {part: [block.parts[part].rel_l2 or 0.0 for block in blocks if part in block.parts] for part in PARTS}
        parts = tuple(part for part in PARTS if any(far[part]))
        values = [value for part in parts for value in far[part]]
        return cls(
            parts, even_axis(0, max([block.whole.rel_l2 or 0.0 for block in blocks] + [1e-4]), 2), log_axis(values)
        )


def _put_blocks(page: Page, found: SidesFound) -> None:
    if not found.blocks:
        why = found.why_no_blocks or "none was asked for"
        page.room(30)
        page.text(MARGIN, page.y, f"blocks are not compared: {why}", 14, FAINT, most=INNER)
        page.y += 24
        return
    heat = _Heat.of(found.blocks)
    if not heat.parts:
        at = ", ".join(str(step.step) for step in found.blocks)
        page.room(30)
        page.text(MARGIN, page.y, f"no block adds anything at steps {at}, given A's own input", 14, FAINT, most=INNER)
        page.y += 24
        return
    for step in found.blocks:
        _put_step(page, step, heat)
    _put_legend(page, heat)


def _put_step(page: Page, step: StepBlocks, heat: _Heat) -> None:
    page.room(BARS + CELL * len(PARTS) + 70)
    page.text(MARGIN, page.y, f"blocks at step {step.step}, each on A's own input: {_told(step)}", 14, INK, most=INNER)
    page.y += 26
    area = Box(MARGIN + LABELS, page.y, INNER - LABELS, BARS)
    page.text(area.x - 6, area.y + BARS - 8, "whole block", 11, FAINT, anchor="rm")
    page.text(area.x - 6, area.y + 2, f"{heat.up.high:g}", 11, FAINT, anchor="rm")
    page.line([(area.x, area.y), (area.x + area.w, area.y)], LINE)
    page.bars(area, [block.whole.rel_l2 or 0.0 for block in step.blocks], heat.up, VIDEO)
    page.y += BARS + 3
    for part in heat.parts:
        _put_part(page, step, part, area, heat)
        page.y += CELL
    each = area.w / len(step.blocks)
    for index in range(0, len(step.blocks), max(1, round(24 / each))):
        page.text(area.x + (index + 0.5) * each, page.y + 3, str(index), 11, FAINT, anchor="ma")
    page.y += 30


def _told(step: StepBlocks) -> str:
    if step.worst is None:
        return "no block adds anything"
    found = step.blocks[step.worst]
    return f"block {step.worst} adds most" + (f", its {found.worst} most of all" if found.worst else "")


def _put_part(page: Page, step: StepBlocks, part: str, area: Box, heat: _Heat) -> None:
    """A row of cells; with figures in them where there is room."""
    each = area.w / len(step.blocks)
    page.text(area.x - 6, page.y + CELL / 2, part, 11, FAINT, anchor="rm")
    for index, block in enumerate(step.blocks):
        far = block.parts[part].rel_l2 if part in block.parts else 0.0
        share = 1.0 if far is None else heat.colours.share(far) if far else 0.0
        page.fill(Box(area.x + index * each, page.y, each - 1, CELL - 1), ramp(share))
        if each >= ROOMY and far:
            middle = area.x + (index + 0.5) * each
            page.text(middle, page.y + CELL / 2, f"{far:.3g}", 10, PAPER if share > 0.45 else INK, anchor="mm")


def _put_legend(page: Page, heat: _Heat) -> None:
    left, width = MARGIN + LABELS, 240
    page.room(30)
    for index in range(width):
        page.fill(Box(left + index, page.y, 1, 10), ramp(index / width))
    for value, told in heat.colours.ticks:
        page.text(left + width * heat.colours.share(value), page.y + 13, told, 11, FAINT, anchor="ma")
    silent = [part for part in PARTS if part not in heat.parts]
    told = "relative L2 that a part adds by itself" + (f"; nothing: {', '.join(silent)}" if silent else "")
    page.text(left + width + 20, page.y - 1, told, 12, FAINT, most=INNER - LABELS - width - 20)
    page.y += 26
