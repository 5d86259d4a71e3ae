"""From a delivery to a job in line, or to one error that lists everything wrong with it.

Runs in a worker thread. The order: fields, media, rules between fields, then the output's name; nothing reaches the
engine before all of it is settled, so two bad requests can't harm a good one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ulid import ULID

from h3runtime.api import rules
from h3runtime.api.body import Delivery
from h3runtime.api.guides import guides_of
from h3runtime.api.media import MediaSource, OpenedPicture, open_picture
from h3runtime.api.request import FormatBody, GenerateBody, ReadBody, read_body
from h3runtime.api.resolve import Resolved, resolve_request, sampling_of
from h3runtime.core import EncodeSettings, EngineFacts, GenerateSpec
from h3runtime.errors import BadMedia, DiskFull, InvalidRequest, Offence, invalid
from h3runtime.jobs.files import Folders
from h3runtime.jobs.queue import JobQueue, outputs_of
from h3runtime.jobs.table import Job
from h3runtime.packing.geometry import Size
from h3runtime.settings import Settings


class Admission:
    """Judges deliveries for one server."""

    def __init__(self, settings: Settings, queue: JobQueue, folders: Folders) -> None:
        self._settings = settings
        self._queue = queue
        self._folders = folders

    def admit(self, delivery: Delivery, facts: EngineFacts) -> Job:
        """A job in line. `InvalidRequest`, `BadMedia`, `OutputExists`, `QueueFull`, `Draining`, `DiskFull`."""
        self._queue.check_room()
        if self._folders.is_full():
            raise DiskFull("free disk space is below the floor that this server keeps")
        job_id = str(ULID())
        try:
            return self._admit(job_id, delivery, facts)
        except BaseException:
            self._folders.forget(job_id)
            raise

    def _admit(self, job_id: str, delivery: Delivery, facts: EngineFacts) -> Job:
        read = read_body(delivery.request)
        faults = _Faults(list(delivery.offences) + list(read.offences))
        faults.offences += _stray_parts(delivery)
        pictures = self._open_pictures(job_id, read, delivery, faults)
        verdict = rules.Verdict(read)
        resolved = self._resolve(read.body, {name: picture.size for name, picture in pictures.items()}, facts, verdict)
        faults.offences += verdict.offences
        faults.raise_any()
        spec = self._spec(job_id, read.body, resolved, pictures, delivery.request)
        with self._queue.promise_outputs(outputs_of(spec), read.body.overwrite):
            spec.scratch.mkdir(parents=True, exist_ok=True)
            return self._queue.admit(spec, tuple(verdict.warnings), facts.checkpoint)

    def _open_pictures(
        self, job_id: str, read: ReadBody, delivery: Delivery, faults: _Faults
    ) -> dict[str, OpenedPicture]:
        limit = self._settings.max_upload_bytes
        source = MediaSource(delivery.files, self._settings.media_root, limit)
        opened = {}
        for name in rules.FRAMES:
            medium = getattr(read.body, name)
            if medium is not None:
                with faults.collect():
                    opened[name] = open_picture(name, medium, source, self._folders.inputs_of(job_id))
        return opened

    def _resolve(
        self, body: GenerateBody, pictures: Mapping[str, Size], facts: EngineFacts, verdict: rules.Verdict
    ) -> Resolved:
        resolved = resolve_request(body, pictures, self._settings.max_area, self._settings.max_frames, verdict)
        rules.judge_backend("attention", body.attention, facts.attention, verdict)
        rules.judge_backend("linear", body.linear, facts.linear, verdict)
        rules.judge_output(body.output, self._folders.outputs, verdict)
        return resolved

    def _spec(
        self,
        job_id: str,
        body: GenerateBody,
        resolved: Resolved,
        pictures: Mapping[str, OpenedPicture],
        words: Mapping[str, Any],
    ) -> GenerateSpec:
        return GenerateSpec(
            job_id=job_id,
            task=resolved.task,
            prompt=str(body.prompt),
            width=resolved.size.width,
            height=resolved.size.height,
            frames=resolved.frames,
            sampling=sampling_of(body),
            output=self._folders.outputs / (body.output or f"{job_id}{rules.SUFFIX}"),
            scratch=self._folders.scratch_of(job_id),
            guides=guides_of({name: picture.file for name, picture in pictures.items()}, resolved.frames),
            attention=body.attention,
            linear=body.linear,
            encode=_encode(body.format or FormatBody()),
            overwrite=body.overwrite,
            save_latents=body.save_latents,
            diagnostics=body.diagnostics is not None,
            diagnostic_latents=body.diagnostics is not None and body.diagnostics.latents,
            request=_without_media(words),
        )


class _Faults:
    """Offences from every stage of the judgement, and whether all of them are about the content of media."""

    def __init__(self, offences: list[Offence]) -> None:
        self.offences = offences
        self._media: list[Offence] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        try:
            yield
        except BadMedia as error:
            self._media += error.offences
        except InvalidRequest as error:
            self.offences += error.offences

    def raise_any(self) -> None:
        """In the order found; `BadMedia` if nothing else is wrong."""
        if self.offences:
            raise invalid([*self.offences, *self._media])
        if self._media:
            raise BadMedia("; ".join(f"{o.field}: {o.message}" for o in self._media), self._media)


def _stray_parts(delivery: Delivery) -> list[Offence]:
    """Every upload must be named by a field: a part that nobody reads is a mistake of the client's."""
    media = [delivery.request.get(name) for name in rules.FRAMES]
    named = {medium.get("upload") for medium in media if isinstance(medium, dict)}
    legal = 'parts that a field names by {"upload": PART}'
    return [
        Offence(name, "no field of the request names this part", legal) for name in delivery.files if name not in named
    ]


def _encode(form: FormatBody) -> EncodeSettings:
    return EncodeSettings(loudness=form.loudness, crf=form.crf, audio_bitrate=form.audio_bitrate)


def _without_media(words: Mapping[str, Any]) -> dict[str, Any]:
    """The client's own words, with each picture that they held replaced by its hash."""
    return {name: _told_medium(value) if name in rules.FRAMES else value for name, value in words.items()}


def _told_medium(medium: Any) -> Any:
    if not isinstance(medium, dict) or "data" not in medium:
        return medium
    return {"data": "sha256:" + hashlib.sha256(medium["data"].encode()).hexdigest()}
