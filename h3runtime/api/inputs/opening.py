"""Every medium of a request, taken in and judged: what could be opened, by the field that names it.

    open_inputs    a copy of each; pictures decoded, clips and sounds measured by their packets, nothing of them decoded
    verify_inputs  clips and sounds decoded to their end, in a child process; what they really hold takes over

Between the two the caller judges limits, so that what is too long or too much is never decoded. All is judged before a
job exists: a bad medium is a refused request, never a failed job. Fed by `admission` and the command line; `wanted`
says where media are, `copies` and `job_clips` have them, `media.intake.examine` reads clips and sounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from h3runtime.api.faults import Faults
from h3runtime.api.inputs.copies import Intake
from h3runtime.api.inputs.job_clips import JobClips
from h3runtime.api.inputs.opened import Inputs, OpenedClip, OpenedPicture, OpenedSound
from h3runtime.api.inputs.wanted import Kind, Wanted, wanted_of
from h3runtime.api.request import MAX_MEDIA, GenerateBody
from h3runtime.core import MediaFile
from h3runtime.errors import BadMedia, Offence, invalid
from h3runtime.media.intake.examine import Ask, Measured, measure, verify
from h3runtime.media.intake.moving_picture import picture_kind
from h3runtime.media.pictures import measure_picture
from h3runtime.packing.geometry import Size


def open_inputs(body: GenerateBody, intake: Intake, jobs: JobClips | None, faults: Faults) -> Inputs:
    """jobs: whose clips may be named; None where there are none."""
    wanted = wanted_of(body)
    if len(wanted) > MAX_MEDIA:
        field_name = "references" if len(body.references) > MAX_MEDIA else "keyframes"
        message = f"the request names {len(wanted)} media"
        faults.add(invalid([Offence(field_name, message, f"at most {MAX_MEDIA} media in a request")]))
        return Inputs(is_whole=False)
    files: dict[str, tuple[Kind, MediaFile]] = {}
    for item in wanted:
        with faults.collect():
            file = _taken(item, intake, jobs)
            files[item.field] = item.kind or _kind_of_mask(file.path), file
    pictures = _measured_pictures([file for kind, file in files.values() if kind == "picture"], faults)
    asks = [Ask(file.path, file.field, kind) for kind, file in files.values() if kind != "picture"]
    found = _answers(measure, asks, faults)
    clips = {name: OpenedClip(files[name][1], there) for name, there in found.items() if files[name][0] == "clip"}
    sounds = {name: OpenedSound(files[name][1], there) for name, there in found.items() if files[name][0] == "sound"}
    return Inputs(pictures, clips, sounds, is_whole=len(pictures) + len(found) == len(wanted))


def verify_inputs(inputs: Inputs, faults: Faults) -> Inputs:
    """Decode every clip and sound to its end; those that can't be are faults and left out."""
    asks = [
        *(Ask(clip.file.path, clip.file.field, "clip") for clip in inputs.clips.values()),
        *(Ask(sound.file.path, sound.file.field, "sound") for sound in inputs.sounds.values()),
    ]
    found = _answers(verify, asks, faults)
    clips = {name: replace(clip, measured=found[name]) for name, clip in inputs.clips.items() if name in found}
    sounds = {name: replace(sound, measured=found[name]) for name, sound in inputs.sounds.items() if name in found}
    return Inputs(inputs.pictures, clips, sounds, is_whole=inputs.is_whole and len(found) == len(asks))


def _taken(item: Wanted, intake: Intake, jobs: JobClips | None) -> MediaFile:
    if item.medium is not None:
        return intake.take(item.field, item.medium)
    assert item.job is not None
    if jobs is None:
        raise invalid([Offence(f"{item.field}.job", "there are no jobs here", "upload, data, path or url")])
    path = jobs.clip_of(item.job, item.field) if item.field == "source" else jobs.tail_of(item.job, item.field)
    try:
        return intake.keep(item.field, path)
    except FileNotFoundError:
        raise jobs.gone(item.job, item.field) from None


def _kind_of_mask(path: Path) -> Kind:
    """An animation is a clip, and so is all that is no picture: whoever reads clips says what is wrong with it."""
    return "picture" if picture_kind(path) == "still" else "clip"


def _measured_pictures(files: Sequence[MediaFile], faults: Faults) -> dict[str, OpenedPicture]:
    """Each file is decoded once, however many fields name it."""
    sizes: dict[Path, Size] = {}
    opened = {}
    for file in files:
        with faults.collect():
            if file.path not in sizes:
                facts = measure_picture(file.path, file.field)
                sizes[file.path] = Size(facts.width, facts.height)
            opened[file.field] = OpenedPicture(file, sizes[file.path])
    return opened


def _answers(
    look: Callable[[Sequence[Ask]], list[Measured | BadMedia]], asks: Sequence[Ask], faults: Faults
) -> dict[str, Measured]:
    """By field. Each file is looked at once, however many fields name it; all of them are told of its faults."""
    once: dict[tuple[Path, str], Ask] = {}
    for ask in asks:
        once.setdefault((ask.path, ask.kind), ask)
    answers = dict(zip(once, look(list(once.values())) if once else (), strict=True))
    found = {}
    for ask in asks:
        answer = answers[ask.path, ask.kind]
        if isinstance(answer, Measured):
            found[ask.field] = answer
        else:
            told = [replace(offence, field=ask.field) for offence in answer.offences]
            faults.add(BadMedia(f"{ask.field}: {told[0].message}", told))
    return found
