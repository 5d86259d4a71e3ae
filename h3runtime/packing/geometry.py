"""Every rule that turns wishes about size and length into H3's grids; integers and Python floats only.

Does frame counts, latent grids, audio counts, canvases and reference sizes. Does no pictures (media fits those) and
rejects nothing: `api` asks here what is legal and words the error. Read by `api`, `engine`, `packing` and the tests.

    F frames are 17 k + 5; T = 5 k + 2 latent frames of 1, 4, 4, 4, 4, 1, 4.. frames; A = round(F / 24 * 40) audio
    latents. Pixels are multiples of 32: the VAE divides by 16 and the DiT's patch by 2.

Rounding is Python's half-to-even everywhere, as in ComfyUI (conditioning contract §0).
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

from h3runtime.core import (
    AREA_CAP,
    CHUNK_FRAMES,
    CHUNK_LATENTS,
    FPS,
    MIN_FRAMES,
    MIN_SIDE,
    PIXELS_PER_LATENT,
    SAMPLE_RATE,
    SAMPLES_PER_LATENT,
    SIDE_MULTIPLE,
)

FRAMES_PER_LATENT: Final = (1, 4, 4, 4, 4)
"""Pixel frames that latent frame k stands for, by k mod 5 (dit-contract §3.3)."""
JOIN_FRAMES: Final = 5
"""Frames in which one decoded chunk is faded into the next (conditioning contract §4.7)."""
LATENTS_PER_SECOND: Final = SAMPLE_RATE // SAMPLES_PER_LATENT
SECONDS_SLACK: Final = 0.001
"""A duration may be this much longer than the clip that serves it (service-contract, `seconds`)."""

SHORT_EDGE: Final = 768
MAX_ASPECT: Final = 4.0
"""Aspects from 1:4 to 4:1 (conditioning contract §0)."""
REFERENCE_SHORT_EDGE: Final = 2048


class Size(NamedTuple):
    """Pixels."""

    width: int
    height: int

    @property
    def area(self) -> int:
        return self.width * self.height


def is_legal_frames(frames: int) -> bool:
    return frames >= MIN_FRAMES and frames % CHUNK_FRAMES == MIN_FRAMES


def frames_at_least(frames: int) -> int:
    """The least legal F not below `frames`."""
    return MIN_FRAMES + CHUNK_FRAMES * max(0, -(-(frames - MIN_FRAMES) // CHUNK_FRAMES))


def frames_at_most(frames: int) -> int | None:
    """The greatest legal F not above `frames`; None below 5."""
    return None if frames < MIN_FRAMES else frames - (frames - MIN_FRAMES) % CHUNK_FRAMES


def legal_neighbours(frames: int, max_frames: int) -> tuple[int, ...]:
    """The legal F on both sides of an illegal one, ascending, none above `max_frames`: 81 -> (73, 90)."""
    below = frames_at_most(min(frames, max_frames))
    above = frames_at_least(frames)
    return tuple(f for f in (below, above) if f is not None and f <= max_frames)


def frames_for_seconds(seconds: float) -> int:
    """The least legal F with F/24 >= seconds - 0.001."""
    frames = frames_at_least(math.ceil((seconds - SECONDS_SLACK) * FPS))
    # The product may round to either side of a whole frame: settle it by the rule's own comparison.
    if frames / FPS < seconds - SECONDS_SLACK:
        return frames + CHUNK_FRAMES
    if frames > MIN_FRAMES and (frames - CHUNK_FRAMES) / FPS >= seconds - SECONDS_SLACK:
        return frames - CHUNK_FRAMES
    return frames


def latent_frames(frames: int) -> int:
    """T of a legal F."""
    return (frames - MIN_FRAMES) // CHUNK_FRAMES * CHUNK_LATENTS + 2


def pixel_frames(latents: int) -> int:
    """Pixel frames that the first `latents` latent frames stand for (conditioning contract §4.7).

    That is F of a T, and also the first pixel frame of latent frame `latents`.
    """
    chunks, rest = divmod(latents, CHUNK_LATENTS)
    return chunks * CHUNK_FRAMES + sum(FRAMES_PER_LATENT[:rest])


def latent_of_pixel(frame: int) -> int:
    """The latent frame that holds pixel frame `frame`."""
    chunks, rest = divmod(frame, CHUNK_FRAMES)
    return chunks * CHUNK_LATENTS + -(-rest // 4)


def is_join(frame: int, frames: int) -> bool:
    """Whether the decoder made pixel frame `frame` of a clip of F `frames` by fading one chunk into the next.

    N = ceil((F - 5) / 17) chunks; chunk i > 0 begins at frame 17 i, and its first five frames are shared with the one
    before. The five frames after the last chunk are its own (conditioning contract §4.7).
    """
    chunk, rest = divmod(frame, CHUNK_FRAMES)
    chunks = -(-(frames - MIN_FRAMES) // CHUNK_FRAMES)
    return rest < JOIN_FRAMES and 1 <= chunk < chunks


def audio_latents(frames: int) -> int:
    """A of F frames: 40 latents a second."""
    return round(frames / FPS * LATENTS_PER_SECOND)


def guide_frames(frames: int) -> int:
    """Frames of a guide clip that are used: cut down to the grid, or one if there are fewer than 5 (§3.2)."""
    return frames_at_most(frames) or 1


def guide_latent_frames(frames: int) -> int:
    """Latent frames of a guide of `guide_frames`: one for a still."""
    return 1 if frames == 1 else latent_frames(frames)


def guide_audio_latents(audio: int, target_audio: int, frame: int) -> int:
    """How many of a guide's audio latents fit behind pixel frame `frame` of a target with `target_audio` (§3.2)."""
    return max(0, min(audio, math.floor(target_audio - 5 / 3 * frame)))


def reference_frames(frames: int, target_frames: int) -> int | None:
    """Frames of a reference clip that are used, at 24 fps: at most the target's, cut down to the grid; None below 5."""
    return frames_at_most(min(frames, target_frames))


def is_legal_aspect(width: float, height: float) -> bool:
    return height <= width * MAX_ASPECT and width <= height * MAX_ASPECT


def nearest_multiple(side: float) -> int:
    """The nearest multiple of 32, at least 32; ties to the even one."""
    return max(SIDE_MULTIPLE, round(side / SIDE_MULTIPLE) * SIDE_MULTIPLE)


def canvas(width: float, height: float, short_edge: int = SHORT_EDGE) -> Size:
    """The canvas rule: aspect width:height at `short_edge`, scaled down to the area cap, sides to the nearest 32."""
    aspect = width / height
    nominal = (short_edge * aspect, short_edge) if aspect >= 1 else (short_edge, short_edge / aspect)
    area = nominal[0] * nominal[1]
    scale = math.sqrt(AREA_CAP / area) if area > AREA_CAP else 1.0
    return Size(nearest_multiple(nominal[0] * scale), nearest_multiple(nominal[1] * scale))


def derived_canvas(width: float, height: float, short_edge: int = SHORT_EDGE, max_area: int = AREA_CAP) -> Size:
    """The target canvas that the service derives: the canvas rule, then 32 off the longer side (the width if they are
    equal) while the area is over min(1344x768, `max_area`). It is legal when sent back (service-contract, `width`)."""
    size = canvas(width, height, short_edge)
    while size.area > min(AREA_CAP, max_area) and max(size) > MIN_SIDE:
        wide = size.width >= size.height
        size = Size(size.width - SIDE_MULTIPLE * wide, size.height - SIDE_MULTIPLE * (not wide))
    return size


def upscaled_canvas(size: Size, scale: float) -> Size:
    """`size` as a latent upscaler enlarges it: each side times `scale`, to the nearest multiple of 32 (dit-contract
    §9)."""
    return Size(nearest_multiple(size.width * scale), nearest_multiple(size.height * scale))


def reference_image_size(width: int, height: int, target: Size, mode: Literal["match", "max"]) -> Size:
    """Size to which a reference picture is stretched: shrunk to the target's area or to a 2048 short edge, never
    enlarged (conditioning contract §3.3)."""
    if mode == "match":
        scale = min(1.0, math.sqrt(target.area / (width * height)))
    else:
        scale = min(1.0, REFERENCE_SHORT_EDGE / min(width, height))
    return Size(nearest_multiple(width * scale), nearest_multiple(height * scale))


def reference_video_size(width: int, height: int) -> Size:
    """Size to which a reference clip is stretched: the canvas of its own aspect, or its own size if that is smaller."""
    full = canvas(width, height)
    if width * height < full.area:
        return Size(nearest_multiple(width), nearest_multiple(height))
    return full


def latent_side(pixels: int) -> int:
    """Latent rows or columns of a canvas side."""
    return pixels // PIXELS_PER_LATENT
