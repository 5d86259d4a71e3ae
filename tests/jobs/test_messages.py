"""Whatever crosses from the engine process to the server arrives as it was sent: every error, every message."""

from __future__ import annotations

import dataclasses
import pickle
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from h3runtime import errors
from h3runtime.core import (
    BackendChoice,
    Check,
    Clip,
    ComponentFacts,
    EncodeSettings,
    EngineFacts,
    Estimate,
    GenerateSpec,
    GuideInput,
    MediaFile,
    Progress,
    SamplerSettings,
    Task,
    Work,
)
from h3runtime.errors import H3Error, JobError, JobTimeout, Offence
from h3runtime.jobs import messages
from h3runtime.jobs.messages import (
    Advanced,
    Beat,
    Compute,
    Failed,
    Leave,
    Loaded,
    LoadFailed,
    Made,
    Stop,
    Weigh,
    Weighed,
)

OFFENCES = (Offence("width", "847 is not legal", "832 or 864"), Offence("prompt", "is missing"))
BACKENDS = BackendChoice("sdpa", "auto", ("sdpa",), {"sdpa": "reference"}, {"sage2": "no GPU"})
PART = ComponentFacts("transformer", "dit.safetensors", "ab" * 32, "nvfp4", 10, 0.5, True, "fl2va")
FACTS = EngineFacts("cpu", "dit:ab", (PART,), BACKENDS, BACKENDS, {"warmup_seconds": 0.1}, {"free": 5}, ("odd",))
SPEC = GenerateSpec(
    job_id="a",
    task=Task.FL2VA,
    prompt="x",
    width=64,
    height=64,
    frames=5,
    sampling=SamplerSettings(4, seed=2**64 - 1),
    output=Path("/out/a.mp4"),
    scratch=Path("/tmp/a"),
    guides=(GuideInput("first_frame", 0, picture=MediaFile(Path("/in/a"), "first_frame", "ab" * 32), shown=True),),
    encode=EncodeSettings(crf=20, audio_bitrate=128_000, loudness="none"),
    diagnostics=True,
    request={"prompt": "x", "format": {"crf": 20}},
)
CLIP = Clip(
    output=Path("/out/a.mp4"),
    sha256="ab" * 32,
    bytes=1,
    width=64,
    height=64,
    frames=5,
    samples=100,
    seed=2**64 - 1,
    forwards=4,
    attention="sdpa",
    linear="dequant",
    timings={"sampling": 1.0},
    memory={"peak": 1},
    checks={"video": Check({"finite": True, "luma": 1.5}, (("warn", "dark"),))},
    diagnostics={"step_seconds": [0.1]},
)
TIMEOUT = JobTimeout("silent", OFFENCES, stage="sampling", step=3)
MESSAGES = (
    Compute(SPEC),
    Stop("a"),
    Weigh(1, SPEC),
    Leave(),
    Beat(),
    Advanced(None, Progress("loading", 1, 4, 0.5, 2.0)),
    Loaded(FACTS),
    LoadFailed(errors.CheckpointError("dit.safetensors: x is missing", OFFENCES)),
    Made("a", CLIP),
    Failed("a", TIMEOUT),
    Weighed(1, Estimate({"text": 5}, 4, Work({"sampling": 1e12}), {"weights": 3}, 5, 4, "64x64")),
)


def kinds_of(root: type[H3Error]) -> Iterator[type[H3Error]]:
    yield root
    for kind in root.__subclasses__():
        yield from kinds_of(kind)


def facts_of(error: H3Error) -> dict[str, Any]:
    return {"type": type(error), "args": error.args, "code": error.code, "status": error.status, **vars(error)}


@pytest.mark.parametrize("kind", [kind for kind in kinds_of(H3Error) if kind.__module__ == errors.__name__])
def test_an_error_keeps_its_class_and_all_it_says(kind: type[H3Error]) -> None:
    where = {"stage": "sampling", "step": 3} if issubclass(kind, JobError) else {}
    error = kind("it broke", OFFENCES, **where)
    assert facts_of(pickle.loads(pickle.dumps(error))) == facts_of(error)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message: object) -> None:
    arrived = pickle.loads(pickle.dumps(message))
    if isinstance(message, Failed | LoadFailed):
        assert facts_of(arrived.error) == facts_of(message.error)
        arrived = dataclasses.replace(arrived, error=message.error)
    assert arrived == message


def test_every_message_is_among_those_sent_here() -> None:
    declared = {*typing.get_args(messages.ToEngine), *typing.get_args(messages.FromEngine)}
    assert {type(message) for message in MESSAGES} == declared
