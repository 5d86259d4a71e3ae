"""Rows of every segment of twelve mixed requests: what `pack` lays out, what `segment_rows` counts, the sums below.

The sums are written out here from the contracts and share nothing with the code. Canvas 160x96 is 10x6 latents, so a
latent frame is 15 rows; as a picture that the text encoder sees it is 5x3 features. One character is one text row.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from h3runtime.conditioning.pieces import (
    AudioReference,
    ImageReference,
    MediaReference,
    VideoReference,
    keyframe_pieces,
    reference_pieces,
)
from h3runtime.conditioning.presentation import present
from h3runtime.core import (
    ClipInput,
    GenerateSpec,
    GuideInput,
    MaskSpan,
    MediaFile,
    ReferenceInput,
    SamplerSettings,
    SoundInput,
    SourceInput,
    Task,
)
from h3runtime.packing import geometry
from h3runtime.packing.layout import pack
from h3runtime.packing.rows import keyframe_shape, reference_shape, segment_rows

Rows = list[tuple[str, int, int]]
"""Kind, rows, source of each segment, in packed order."""
PROMPT = "a cat"
FRAME = 6 // 2 * 10 // 2
"""Rows of one latent frame of the canvas."""
BLOCK = 96 // 32 * 160 // 32 + 2
"""Text rows of a shown picture of the canvas: features and two markers."""
LEAST = 2 * 3 + 2
"""Of one of 64x32, which is enlarged to 96x64: the encoder sees 3136 pixels at least."""
NUMBERED = len("<Picture 1>: ")
SOUND = len("<Audio 1>: ")
CLIP = len("<Video 1>: ")
STAMP = len("<0.2 seconds>")
FILE = MediaFile(Path("/nowhere"), "here")


def clip(frames: int) -> ClipInput:
    return ClipInput(FILE, 0, frames)


def heard() -> SoundInput:
    return SoundInput(FILE)


FIRST = GuideInput("first_frame", 0, picture=FILE, fit="stretch", shown=True)
LAST = GuideInput("last_frame", 21, picture=FILE, shown=True)
IMAGE = ReferenceInput("references[0]", "image", 160, 96, picture=FILE)
SMALL = ReferenceInput("references[1]", "image", 64, 32, picture=FILE)
TRACK = ReferenceInput("references[2]", "video", 96, 64, clip=clip(39), sound=heard())
SILENT = ReferenceInput("references[3]", "video", 32, 128, clip=clip(5))
VOICE = ReferenceInput("references[4]", "audio", sound=heard())
SOUNDS = {"references[2]": 70, "references[4]": 85}


@dataclass(frozen=True)
class Request:
    """22 frames (T = 7, A = 37) unless it says otherwise. text: rows. want: what is between text and target."""

    task: Task
    text: int
    want: Rows
    guides: tuple[GuideInput, ...] = ()
    references: tuple[ReferenceInput, ...] = ()
    sounds: dict[str, int] | None = None
    source: SourceInput | None = None
    frames: int = 22
    target: tuple[int, int] = (2 * 37, 7 * FRAME)


REQUESTS = {
    "t2va": Request(Task.T2VA, 5, []),
    "i2va": Request(Task.I2VA, 5 + NUMBERED + BLOCK, [("cond", FRAME, 0)], (FIRST,)),
    "l2va": Request(Task.L2VA, 5 + NUMBERED + BLOCK, [("cond", FRAME, 0)], (LAST,)),
    "fl2va": Request(Task.FL2VA, 5 + 2 * (NUMBERED + BLOCK), [("cond", FRAME, 0), ("cond", FRAME, 1)], (FIRST, LAST)),
    "a clip with its sound at frame 56, a picture at the end": Request(
        Task.I2VA,
        5,
        # 22 frames are 7 latents. 124 frames have 207 latents of sound, 207 - 5/3 * 56 = 113.67 behind frame 56.
        [("cond", 7 * FRAME, 0), ("cond_audio", 2 * 113, 0), ("cond", FRAME, 1)],
        (
            GuideInput("keyframes[0]", 56, clip=clip(22), sound=heard()),
            GuideInput("keyframes[1]", 123, picture=FILE),
        ),
        sounds={"keyframes[0]": 200},
        frames=124,
        target=(2 * 207, 37 * FRAME),
    ),
    "sound alone, and a clip too short to be one": Request(
        Task.I2VA,
        5,
        [("cond_audio", 2 * 9, 0), ("cond", FRAME, 1)],
        (GuideInput("keyframes[0]", 3, sound=heard()), GuideInput("keyframes[1]", 8, clip=clip(1))),
        sounds={"keyframes[0]": 9},
    ),
    "continued from 5 frames and their sound": Request(
        Task.I2VA,
        5,
        [("cond", 2 * FRAME, 0), ("cond_audio", 2 * 8, 0)],
        (GuideInput("continue_from", 0, clip=clip(5), sound=heard()),),
        sounds={"continue_from": 8},
    ),
    "ref2va, pictures": Request(
        Task.REF2VA,
        5 + 2 * NUMBERED + BLOCK + LEAST,
        [("ref_img", FRAME, 0), ("ref_img", 1 * 2, 1)],
        references=(IMAGE, SMALL),
    ),
    "ref2va, a voice before a clip with its sound": Request(
        Task.REF2VA,
        # The clip shows frames 0, 12, 24 and 36: two blocks of 2x3 features.
        5 + SOUND + SOUND + CLIP + 2 * (STAMP + 2 * 3 + 2),
        [("ref_audio", 2 * 85, 0), ("ref_audio", 2 * 70, 1), ("ref_img", 12 * (2 * 3), 1)],
        references=(VOICE, TRACK),
        sounds=SOUNDS,
    ),
    "ref2va, everything": Request(
        Task.REF2VA,
        # 5 silent frames show the first one, doubled: one block of 4x1 features.
        5 + 2 * NUMBERED + BLOCK + LEAST + 2 * SOUND + 2 * CLIP + 2 * (STAMP + 8) + (STAMP + 4 + 2),
        [
            ("ref_audio", 2 * 70, 0),
            ("ref_img", 12 * (2 * 3), 0),
            ("ref_img", 1 * 2, 1),
            ("ref_audio", 2 * 85, 2),
            ("ref_img", 2 * (4 * 1), 3),
            ("ref_img", FRAME, 4),
        ],
        references=(TRACK, SMALL, VOICE, SILENT, IMAGE),
        sounds=SOUNDS,
    ),
    "hybrid": Request(
        Task.REF2VA,
        # With references the text encoder sees them alone.
        5 + NUMBERED + BLOCK + SOUND,
        [
            ("cond", FRAME, 0),
            ("cond", 2 * FRAME, 1),
            # 37 - 5/3 * 17 = 8.67
            ("cond_audio", 2 * 8, 1),
            ("ref_img", FRAME, 0),
            ("ref_audio", 2 * 85, 1),
        ],
        (
            GuideInput("first_frame", 0, picture=FILE, fit="stretch"),
            GuideInput("keyframes[0]", 17, clip=clip(5), sound=heard()),
        ),
        (IMAGE, VOICE),
        SOUNDS | {"keyframes[0]": 37},
    ),
    "masks": Request(
        Task.I2VA,
        5 + NUMBERED + BLOCK,
        [("cond", FRAME, 0)],
        (FIRST,),
        # What is kept has no rows of its own.
        source=SourceInput(clip(22), heard(), FILE, (MaskSpan(0.0, 0.5, 0.0),)),
    ),
}


def spec_of(request: Request) -> GenerateSpec:
    return GenerateSpec(
        job_id="rows",
        task=request.task,
        prompt=PROMPT,
        width=160,
        height=96,
        frames=request.frames,
        sampling=SamplerSettings(steps=1),
        output=Path("/nowhere/out.mp4"),
        scratch=Path("/nowhere"),
        guides=request.guides,
        references=request.references,
        source=request.source,
    )


def wanted(request: Request) -> Rows:
    audio, video = request.target
    return [("text", request.text, -1), *request.want, ("audio", audio, -1), ("video", video, -1)]


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_rows_are_counted_by_the_closed_formula(request_) -> None:
    found = segment_rows(spec_of(request_), len(PROMPT), request_.sounds or {})
    assert [(s.kind.value, s.rows, s.source) for s in found] == wanted(request_)


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_rows_are_laid_out_by_the_closed_formula(byte_tokenizer, request_) -> None:
    """The text as it is presented, the rest as shapes of latents say."""
    tags = present(pieces_of(request_), byte_tokenizer).tags
    sounds = request_.sounds or {}
    layout = pack(
        geometry.latent_frames(request_.frames),
        96 // 16,
        160 // 16,
        geometry.audio_latents(request_.frames),
        tags,
        [keyframe_shape(guide, request_.frames, sounds.get(guide.field, 0)) for guide in request_.guides],
        [reference_shape(reference, sounds.get(reference.field, 0)) for reference in request_.references],
    )
    assert [(s.kind.value, s.stop - s.start, s.source) for s in layout.segments] == wanted(request_)
    assert layout.rows == sum(rows for _, rows, _ in wanted(request_))


def pieces_of(request: Request):
    if request.references:
        return reference_pieces(PROMPT, [shown(reference) for reference in request.references])
    return keyframe_pieces(PROMPT, [pixels(1, 96, 160) for guide in request.guides if guide.shown])


def shown(reference: ReferenceInput) -> MediaReference:
    if reference.clip is not None:
        frames = pixels(reference.clip.frames, reference.height, reference.width)
        return VideoReference(frames, soundtrack=reference.sound is not None)
    return (
        AudioReference() if reference.picture is None else ImageReference(pixels(1, reference.height, reference.width))
    )


def pixels(frames: int, height: int, width: int) -> np.ndarray:
    return np.zeros((frames, height, width, 3), dtype=np.uint8)


def test_a_hybrid_sits_on_one_clock() -> None:
    """dit-contract §3.4, in numbers: 30 text rows, then references that last 1, 70 and 85; guides count from the
    target's own start. ComfyUI's layout gives the same for 400 mixed layouts, bit for bit."""
    request = REQUESTS["hybrid"]
    references = (IMAGE, TRACK, VOICE)
    layout = pack(
        7,
        6,
        10,
        37,
        np.ones(30, dtype=np.int64),
        [keyframe_shape(guide, 22, 37) for guide in request.guides],
        [reference_shape(reference, SOUNDS.get(reference.field, 0)) for reference in references],
    )
    starts = [(s.kind.value, float(layout.position_ids[s.start, 0])) for s in layout.segments]
    origin = 30 + 1 + 70 + 85
    assert starts == [
        ("text", 0),
        ("cond", origin),
        ("cond", origin + 5 / 3 * 17),
        ("cond_audio", origin + 5 / 3 * 17),
        ("ref_img", 30),
        ("ref_audio", 31),
        ("ref_img", 31),
        ("ref_audio", 101),
        ("audio", origin),
        ("video", origin),
    ]
