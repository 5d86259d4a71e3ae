"""A contract as a request that an engine takes.

Does: fit the prompt to the loaded tokenizer, make the media that the request refers to and fill a `GenerateSpec`. Loads
nothing. Fed and read by `measure`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.contract import Contract
from benchmarks.made_media import write_clip, write_picture, write_sound
from h3runtime.core import FPS, ClipInput, GenerateSpec, MediaFile, ReferenceInput, SamplerSettings, SoundInput
from h3runtime.errors import Offence, invalid
from h3runtime.packing import geometry
from h3runtime.packing.geometry import Size


def spec_of(contract: Contract, prompt: str, folder: Path) -> GenerateSpec:
    """The request; its clip and scraps lie in `folder`, each clip replacing the one before."""
    sampling = contract.sampling
    return GenerateSpec(
        job_id=contract.name,
        task=contract.task,
        prompt=prompt,
        width=contract.width,
        height=contract.height,
        frames=contract.frames,
        sampling=SamplerSettings(
            steps=sampling.steps,
            sampler=sampling.sampler,
            scheduler=sampling.scheduler,
            shift=sampling.shift,
            audio_shift=sampling.audio_shift,
            seed=int(sampling.seed),
        ),
        output=folder / "clip.mp4",
        scratch=folder,
        overwrite=True,
        references=tuple(_reference(contract, index, folder) for index in range(len(contract.references))),
    )


def _reference(contract: Contract, index: int, folder: Path) -> ReferenceInput:
    """Made, and sized as admission sizes it (conditioning contract §3.3)."""
    medium, field = contract.references[index], f"references[{index}]"
    path = folder / f"reference-{index}"
    if medium.type == "audio":
        made = MediaFile(write_sound(path.with_suffix(".wav"), medium.seconds or 0), field)
        return ReferenceInput(field, "audio", sound=SoundInput(made))
    width, height = medium.width or 0, medium.height or 0
    if medium.type == "image":
        made = MediaFile(write_picture(path.with_suffix(".png"), width, height, 20 * index), field)
        size = geometry.reference_image_size(width, height, Size(contract.width, contract.height), "match")
        return ReferenceInput(field, "image", size.width, size.height, picture=made)
    seconds = medium.seconds or 0
    made = MediaFile(write_clip(path.with_suffix(".mp4"), width, height, seconds, sound=medium.sound), field)
    size = geometry.reference_video_size(width, height)
    frames = geometry.reference_frames(round(seconds * FPS), contract.frames)
    assert frames is not None
    sound = SoundInput(made) if medium.sound else None
    return ReferenceInput(field, "video", size.width, size.height, clip=ClipInput(made, 0, frames), sound=sound)


def fit_prompt(prompt: str, rows: int, count: Callable[[str], int]) -> str:
    """`prompt` if it has that many rows, else the longest beginning of its repetitions that does.

    count: text rows that a tokenizer makes of a prompt. A row is 20 characters at the very most, or the prompt is none
    of this language; InvalidRequest if no beginning has the rows.
    """
    if count(prompt) == rows:
        return prompt
    endless = " ".join([prompt] * (1 + 20 * rows // len(prompt)))
    for length in range(min(len(endless), 20 * rows), 0, -1):
        if count(endless[:length]) == rows:
            return endless[:length]
    told = f"no beginning of it has {rows} rows with the loaded tokenizer"
    raise invalid([Offence("prompt", told, "a tokenizer that reads English")])
