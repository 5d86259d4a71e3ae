"""Every medium of a request, taken in and judged: what could be opened, by the field that names it.

    wanted_of      which fields hold a medium, and of what kind
    open_inputs    a copy of each; pictures decoded, clips and sounds measured by their packets, nothing of them decoded
    verify_inputs  clips and sounds decoded to their end, in a child process; what they really hold takes over

Between the two the caller judges limits, so that what is too long or too much is never decoded. All is judged before a
job exists: a bad medium is a refused request, never a failed job. Fields are bracketed, as in errors:
`keyframes[0].image`, `references[1].source`, `masks.video`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from h3runtime.api.faults import Faults
from h3runtime.api.inputs.copies import Intake
from h3runtime.api.inputs.job_clips import JobClips
from h3runtime.api.request import GenerateBody, MediaBody
from h3runtime.core import MediaFile
from h3runtime.errors import BadMedia, Offence, invalid
from h3runtime.media.intake.examine import Ask, Measured, measure, verify
from h3runtime.media.intake.moving_picture import is_moving
from h3runtime.media.pictures import measure_picture
from h3runtime.packing.geometry import Size

MAX_MEDIA = 64
"""Media of one request: as many as a form may have parts."""
REFERENCE_KINDS: Mapping[str, Kind] = {"image": "picture", "video": "clip", "audio": "sound"}

Kind = Literal["picture", "clip", "sound"]


@dataclass(frozen=True, slots=True)
class OpenedPicture:
    """file: our copy. size: upright, in pixels."""

    file: MediaFile
    size: Size


@dataclass(frozen=True, slots=True)
class OpenedClip:
    """measured.clip is there, measured.sound if the clip has sound."""

    file: MediaFile
    measured: Measured

    @property
    def size(self) -> Size:
        assert self.measured.clip is not None
        return Size(self.measured.clip.width, self.measured.clip.height)

    @property
    def frames(self) -> int:
        """On the 24 fps clock."""
        assert self.measured.clip is not None
        return self.measured.clip.frames


@dataclass(frozen=True, slots=True)
class OpenedSound:
    """measured.sound is there; the file may be a clip's."""

    file: MediaFile
    measured: Measured


@dataclass(frozen=True, slots=True)
class Inputs:
    """What could be opened. is_whole: that is everything the request names."""

    pictures: Mapping[str, OpenedPicture] = field(default_factory=dict)
    clips: Mapping[str, OpenedClip] = field(default_factory=dict)
    sounds: Mapping[str, OpenedSound] = field(default_factory=dict)
    is_whole: bool = True

    def size_of(self, name: str) -> Size | None:
        """Of the picture or clip in a field."""
        opened = self.pictures.get(name) or self.clips.get(name)
        return None if opened is None else opened.size


@dataclass(frozen=True, slots=True)
class Wanted:
    """A field that holds a medium, or the id of a job. kind: None for a mask, which may be a picture or a clip."""

    field: str
    kind: Kind | None
    medium: MediaBody | None
    job: str | None = None


def wanted_of(body: GenerateBody) -> list[Wanted]:
    """In the order of the packed sequence."""
    return [*_wanted_guides(body), *_wanted_references(body), *_wanted_edit(body)]


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
            files[item.field] = item.kind or _kind_of_mask(file), file
    pictures = _measured_pictures([file for kind, file in files.values() if kind == "picture"], faults)
    asks = [Ask(file.path, file.field, kind) for kind, file in files.values() if kind != "picture"]
    found = _answers(measure, asks, faults)
    opened = len(pictures) + len(found)
    return _inputs(files, pictures, found, is_whole=opened == len(wanted))


def verify_inputs(inputs: Inputs, faults: Faults) -> Inputs:
    """Decode every clip and sound to its end; those that can't be are faults and left out."""
    asks = [
        *(Ask(clip.file.path, clip.file.field, "clip") for clip in inputs.clips.values()),
        *(Ask(sound.file.path, sound.file.field, "sound") for sound in inputs.sounds.values()),
    ]
    found = _answers(verify, asks, faults)
    files: dict[str, tuple[Kind, MediaFile]] = {
        **{name: ("clip", clip.file) for name, clip in inputs.clips.items()},
        **{name: ("sound", sound.file) for name, sound in inputs.sounds.items()},
    }
    return _inputs(files, inputs.pictures, found, is_whole=inputs.is_whole and len(found) == len(asks))


def _wanted_guides(body: GenerateBody) -> Iterator[Wanted]:
    for name, picture in (("first_frame", body.first_frame), ("last_frame", body.last_frame)):
        if picture is not None:
            yield Wanted(name, "picture", picture)
    if (continued := body.continue_from) is not None:
        yield Wanted("continue_from", "clip", continued.medium, continued.job)
    for index, guide in enumerate(body.keyframes):
        at = f"keyframes[{index}]"
        if guide.image is not None:
            yield Wanted(f"{at}.image", "picture", guide.image)
        if guide.video is not None:
            yield Wanted(f"{at}.video", "clip", guide.video)
        if isinstance(guide.audio, MediaBody):
            yield Wanted(f"{at}.audio", "sound", guide.audio)


def _wanted_references(body: GenerateBody) -> Iterator[Wanted]:
    for index, reference in enumerate(body.references):
        at = f"references[{index}]"
        yield Wanted(f"{at}.source", REFERENCE_KINDS[reference.type], reference.source)
        if isinstance(reference.audio, MediaBody) and reference.type == "video":
            yield Wanted(f"{at}.audio", "sound", reference.audio)


def _wanted_edit(body: GenerateBody) -> Iterator[Wanted]:
    if body.source is not None:
        yield Wanted("source", "clip", body.source.medium, body.source.job)
    if body.masks is not None and body.masks.video is not None:
        yield Wanted("masks.video", None, body.masks.video)


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


def _kind_of_mask(file: MediaFile) -> Kind:
    try:
        # An animation is a clip, and so is all that is no picture; what is a picture that stands still is an error.
        is_moving(file.path, file.field)
    except BadMedia:
        return "picture"
    return "clip"


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


def _inputs(
    files: Mapping[str, tuple[Kind, MediaFile]],
    pictures: Mapping[str, OpenedPicture],
    found: Mapping[str, Measured],
    *,
    is_whole: bool,
) -> Inputs:
    clips, sounds = {}, {}
    for name, measured in found.items():
        kind, file = files[name]
        if kind == "clip":
            clips[name] = OpenedClip(file, measured)
        else:
            sounds[name] = OpenedSound(file, measured)
    return Inputs(pictures, clips, sounds, is_whole)
