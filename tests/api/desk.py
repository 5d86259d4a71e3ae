"""Admission without a server: one call from a request to a job in line, or to everything that is wrong with it.

Clips and sounds are made up: a few bytes that say what a file would measure, and a stand-in for the process that would
measure it. So the rules are tried on a 15 s clip without one being made. Pictures are real ones.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from h3runtime.api.admission import Admission
from h3runtime.api.body import Delivery
from h3runtime.api.inputs import opening
from h3runtime.core import EngineFacts, GenerateSpec
from h3runtime.errors import BadMedia, EngineDead, InvalidRequest, Offence
from h3runtime.jobs.files import Folders
from h3runtime.jobs.outputs import staged
from h3runtime.jobs.queue import JobQueue
from h3runtime.jobs.table import Job, JobTable
from h3runtime.media.ffmpeg import FFmpeg, find_ffmpeg
from h3runtime.media.intake.examine import Ask, ClipMeasure, Measured, SoundMeasure
from h3runtime.quality.shelf import Shelf
from h3runtime.settings import Settings
from tests.api.server import SMALL
from tests.fake_engine import FakeEngine


def clip(
    seconds: float = 3.0,
    width: int = 128,
    height: int = 64,
    sound: float | None = None,
    truth: dict[str, Any] | None = None,
) -> bytes:
    """sound: seconds of it. truth: what a full decode finds instead, or `broken`."""
    made = {"seconds": seconds, "width": width, "height": height, "sound": sound}
    return json.dumps({"clip": True, **made, "truth": truth or {}}).encode()


def sound(seconds: float = 3.0, rate: int = 48_000) -> bytes:
    return json.dumps({"clip": False, "sound": seconds, "rate": rate, "truth": {}}).encode()


def data_url(data: bytes, kind: str = "application/octet-stream") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def medium(data: bytes) -> dict[str, str]:
    return {"data": data_url(data)}


@dataclass
class Examiner:
    """Stands in for `media.intake.examine`; `asked` are the fields of each call by its name."""

    asked: list[tuple[str, list[str]]] = field(default_factory=list)

    def measure(self, asks: Sequence[Ask]) -> list[Measured | BadMedia]:
        self.asked.append(("measure", [ask.field for ask in asks]))
        return [self._answer(ask, {}) for ask in asks]

    def verify(self, asks: Sequence[Ask]) -> list[Measured | BadMedia]:
        self.asked.append(("verify", [ask.field for ask in asks]))
        return [self._answer(ask, json.loads(ask.path.read_bytes())["truth"]) for ask in asks]

    @property
    def verified(self) -> list[str]:
        return [name for way, names in self.asked if way == "verify" for name in names]

    def _answer(self, ask: Ask, truth: dict[str, Any]) -> Measured | BadMedia:
        try:
            said = json.loads(ask.path.read_bytes()) | truth
        except ValueError:
            return self._bad(ask, "it is not a clip or sound")
        if (
            said.get("broken")
            or (ask.kind == "clip" and not said["clip"])
            or (ask.kind == "sound" and not said["sound"])
        ):
            return self._bad(ask, "it is broken")
        heard = None
        if said["sound"]:
            rate = said.get("rate", 48_000)
            heard = SoundMeasure(rate, 2, round(said["sound"] * rate), said["sound"])
        if ask.kind == "sound":
            return Measured(None, heard)
        frames = round(said["seconds"] * 24)
        return Measured(ClipMeasure(said["width"], said["height"], 0, 24.0, frames, frames, frames / 24), heard)

    @staticmethod
    def _bad(ask: Ask, why: str) -> BadMedia:
        return BadMedia(f"{ask.field}: {why}", [Offence(ask.field, why, "a whole clip")])


class NoCallbacks:
    """Stands in for `api.callbacks`: any address will do."""

    def judge(self, url: str) -> Offence | None:  # noqa: ARG002  # the interface's
        return None


@cache
def ffmpeg() -> FFmpeg:
    """Looked for once in all tests."""
    return find_ffmpeg()


@dataclass
class Desk:
    """One admission with folders of its own."""

    folders: Folders
    queue: JobQueue
    admission: Admission
    examiner: Examiner
    facts: EngineFacts

    def admit(self, request: dict[str, Any], files: dict[str, bytes] | None = None) -> Job:
        """The job is in line; a request without size and length gets small ones."""
        body = dict(request)
        if not {"width", "height", "aspect_ratio", "short_edge"} & body.keys():
            body |= {"width": 64, "height": 64}
        paths = {}
        for name, data in (files or {}).items():
            paths[name] = self.folders.tmp / f"part-{name}"
            paths[name].write_bytes(data)
        return self.admission.admit(Delivery({"prompt": SMALL["prompt"], **body}, paths), self.facts)

    def spec(self, files: dict[str, bytes] | None = None, **request: Any) -> GenerateSpec:
        return self.admit(request, files).spec

    def bare(self, **request: Any) -> GenerateSpec:
        """With the canvas that the server chooses."""
        return self.admission.admit(Delivery({"prompt": "x", **request}), self.facts).spec

    def refused(self, files: dict[str, bytes] | None = None, **request: Any) -> InvalidRequest:
        with pytest.raises(InvalidRequest) as raised:
            self.admit(request, files)
        return raised.value

    def offences(self, **request: Any) -> dict[str, Offence]:
        """By field; the last of several on one field."""
        return {offence.field: offence for offence in self.refused(**request).offences}

    def succeed(self, job: Job, tail: bytes | None = None, output: bytes | None = None) -> str:
        """Let a job that waits have made its files; others that wait fail. Its id."""
        while (taken := self.queue.take(self.facts, first=False)) is not None and taken.id != job.id:
            self.queue.failed(taken.id, EngineDead("not wanted"))
        told = staged(job.spec)
        made = FakeEngine()._publish(told, {}, {})
        if output is not None:
            told.output.write_bytes(output)
        if tail is not None:
            assert job.spec.tail is not None
            job.spec.tail.path.write_bytes(tail)
        self.queue.succeeded(job.id, made)
        return job.id


def open_desk(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Desk:
    examiner = Examiner()
    monkeypatch.setattr(opening, "measure", examiner.measure)
    monkeypatch.setattr(opening, "verify", examiner.verify)
    chosen = Settings(**{"data_dir": folder / "data", "disk_floor_bytes": 0, "queue_limit": 1000} | settings)
    folders = Folders(chosen)
    queue = JobQueue(JobTable(), folders, chosen.queue_limit)
    admission = Admission(chosen, queue, folders, FakeEngine(), NoCallbacks(), ffmpeg(), Shelf(chosen.data_dir))
    return Desk(folders, queue, admission, examiner, FakeEngine().facts())
