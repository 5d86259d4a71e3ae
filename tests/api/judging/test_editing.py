"""`source` and `masks`: how long, what is kept, and what can't be masked."""

from __future__ import annotations

from typing import Any

import pytest

from h3runtime.core import ClipInput, MaskSpan, SoundInput, Task
from tests.api.desk import Desk, clip, medium
from tests.api.server import picture


def span(start: float, end: float, value: float = 0.0) -> dict[str, float]:
    return {"start": start, "end": end, "value": value}


@pytest.mark.parametrize(("frames", "length"), [(72, 56), (22, 22), (500, 362), (5, 5)])
def test_a_source_gives_the_length(desk: Desk, frames: int, length: int) -> None:
    spec = desk.spec(source=medium(clip(frames / 24)), masks={"video": medium(picture(8, 8))})
    assert spec.frames == length and spec.task is Task.T2VA
    assert spec.source is not None and spec.source.clip == ClipInput(spec.source.clip.file, 0, length)
    assert (spec.source.sound, spec.source.audio_mask) == (None, None)


def test_a_source_gives_the_canvas(desk: Desk) -> None:
    spec = desk.bare(source=medium(clip(1, 128, 64)))
    assert (spec.width, spec.height) == (1440, 704)
    still = medium(picture(64, 64))
    assert desk.bare(source=medium(clip(1, 128, 64)), first_frame=still).width == 768


def test_a_longer_source_is_used_as_far_as_the_clip_goes(desk: Desk) -> None:
    source = desk.spec(source=medium(clip(3)), frames=22).source
    assert source is not None and source.clip.frames == 22
    assert desk.offences(source=medium(clip(3)), frames=73).keys() == {"source"}
    assert desk.offences(source=medium(clip(4 / 24))).keys() == {"source"}


def test_masks(desk: Desk) -> None:
    masks = {"video": medium(clip(0.5)), "audio": [span(0.5, 0.6, 0.5), span(0, 0.25)]}
    source = desk.spec(source=medium(clip(1, sound=1.0)), masks=masks).source
    assert source is not None and isinstance(source.video_mask, ClipInput)
    assert source.video_mask == ClipInput(source.video_mask.file, 0, 12)
    assert source.sound == SoundInput(source.clip.file, 0.0, 22 / 24)
    assert source.audio_mask == (MaskSpan(0, 0.25, 0), MaskSpan(0.5, 0.6, 0.5))


def test_sound_that_is_all_made_anew_is_not_read(desk: Desk) -> None:
    masks = {"audio": [span(0, 0.5, 1.0)]}
    source = desk.spec(source=medium(clip(1, sound=1.0)), masks=masks).source
    assert source is not None and source.sound is None and source.video_mask is None


def test_a_picture_as_mask(desk: Desk) -> None:
    source = desk.spec(source=medium(clip(1)), masks={"video": medium(picture(8, 8, mode="L"))}).source
    assert source is not None and source.video_mask is not None and not isinstance(source.video_mask, ClipInput)
    assert source.video_mask.field == "masks.video"
    assert "masks.video" not in desk.examiner.verified


@pytest.mark.parametrize(
    ("request_", "offenders"),
    [
        ({"masks": {"video": medium(picture(8, 8))}}, {"masks"}),
        ({"source": medium(clip(1)), "masks": {"audio": [span(0, 0.5)]}}, {"masks.audio"}),
        ({"source": medium(clip(1, sound=1.0)), "masks": {"audio": [span(0, 0.5), span(0.4, 0.6)]}}, None),
        ({"source": medium(clip(1, sound=1.0)), "masks": {"audio": [span(0, 1.5)]}}, {"masks.audio[0].end"}),
        ({"source": medium(clip(1)), "masks": {"video": medium(b"neither")}}, {"masks.video"}),
        ({"source": medium(clip(1)), "masks": {"video": medium(picture(64, 64)[:-20])}}, {"masks.video"}),
        ({"source": medium(picture(8, 8))}, {"source"}),
    ],
)
def test_what_cant_be_masked(desk: Desk, request_: dict[str, Any], offenders: set[str] | None) -> None:
    assert desk.offences(**request_).keys() == (offenders or {"masks.audio[1].start"})


def test_a_source_alone_keeps_nothing_and_says_so(desk: Desk) -> None:
    assert any("nothing of it is kept" in w for w in desk.admit({"source": medium(clip(1))}).warnings)


def test_a_jobs_clip_is_a_source(desk: Desk) -> None:
    job = desk.admit({"frames": 22})
    desk.succeed(job, output=clip(22 / 24, 64, 64))
    source = desk.spec(source={"job": job.id}).source
    assert source is not None
    job.spec.output.unlink()
    assert source.clip.file.path.read_bytes() == clip(22 / 24, 64, 64)
