"""A contract: one workload, complete enough that two runs of it may be compared.

Does: say what a contract's file holds, and judge that its numbers agree with each other and with H3's grids. Does not:
run anything. Fed with the files beside this module; read by `compare`, `measure` and `schemas`.

Units: pixels, frames at 24 a second, seconds. Shapes: video latents [24, T, h, w], audio latents [32, 2, A].
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from h3runtime.core import Task
from h3runtime.packing.geometry import audio_latents, is_legal_frames, latent_frames, latent_side
from h3runtime.packing.layout import PATCH

CONTRACTS = Path(__file__).parent
VIDEO_CHANNELS, AUDIO_CHANNELS, SIDES = 24, 32, 2
"""Latents of H3's VAEs (conditioning contract §0); left and right are an axis of their own."""

Stage = Literal["conditioning", "sampling", "video_decode", "audio_decode", "mux", "end_to_end"]
STAGES: tuple[Stage, ...] = ("conditioning", "sampling", "video_decode", "audio_decode", "mux", "end_to_end")
"""What is reported apart (performance.md); `end_to_end` is a whole request without its queue."""
ModelT = TypeVar("ModelT", bound=BaseModel)
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[str, Field(pattern=r"^[0-9]{1,20}$", description="Decimal, as in a request's answer.")]


class Unreadable(Exception):
    """A file that can't be read or isn't what it should be; the message names it and every fault."""


class Strict(BaseModel):
    """Frozen; unknown fields, numbers as text, NaN and Infinity are faults."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class LatentShapes(Strict):
    """`video` [24, T, h, w], `audio` [32, 2, A]."""

    video: tuple[Positive, Positive, Positive, Positive]
    audio: tuple[Positive, Positive, Positive]

    @property
    def video_rows(self) -> int:
        """Packed rows: a patch of latents each (dit-contract §2.2)."""
        _, time, height, width = self.video
        return time * (height // PATCH) * (width // PATCH)

    @property
    def audio_rows(self) -> int:
        """Packed rows: one a latent of either side."""
        return self.audio[1] * self.audio[2]


class CountedRows(Strict):
    """Rows of the packed sequence as a run counted them. `references`: what references add, text rows that show them
    included; null leaves it open. That they add up is the contract's to say: a run of other rows is a mismatch."""

    text: Positive
    video: Positive
    audio: Positive
    references: Count | None
    total: Positive


class Rows(CountedRows):
    """As a contract wants them. `total`: the sum of what is given."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.total != (wanted := self.text + self.video + self.audio + (self.references or 0)):
            raise ValueError(f"total is {self.total}, but the rows add up to {wanted}")
        return self


class Sampling(Strict):
    """`forwards`: evaluations of the network that `steps` becomes. `shift`, `audio_shift`: sigma shifts."""

    seed: Seed
    sampler: str
    scheduler: str
    steps: Positive
    forwards: Positive
    shift: Annotated[float, Field(gt=0)]
    audio_shift: Annotated[float, Field(gt=0)]


class Requires(Strict):
    """What a run must use; null leaves it open, and the result names what it used."""

    precision: str | None = Field(description="Format of the transformer's weights, as /ready names it.")
    attention: str | None
    linear: str | None


class Measuring(Strict):
    """How a figure comes about: runs before the first sample, samples at least, and what is reported of them.

    prompt_cache: `off` means that every sample encodes the prompt anew.
    """

    warm_up_runs: Positive
    minimum_samples: Positive
    statistic: Literal["median"]
    prompt_cache: Literal["off"]


class Figure(Strict):
    """What somebody else measured. Judged against a result of the same device and precision only; shown otherwise.

    device: is part of the name that the device gives itself. stage: null where the source doesn't say which it is.
    shares: of the transformer's block time, by kind of work.
    """

    value: Seconds
    unit: Literal["s"]
    stage: Stage | None
    forwards: Positive
    machine: str
    device: str
    peer: str | None
    version: str | None
    precision: str | None
    attention: str | None
    shares: dict[str, Annotated[float, Field(gt=0, le=1)]] | None
    remark: str


class ReferenceMedium(Strict):
    """A medium that is made for the run and referred to. A picture has a size, a clip a size and a length, and its own
    track if `sound` says so; a sound has a length."""

    type: Literal["image", "video", "audio"]
    width: Positive | None = None
    height: Positive | None = None
    seconds: Seconds | None = None
    sound: bool = False

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        has = (self.width is not None, self.height is not None, self.seconds is not None, self.sound)
        wants = {"image": (True, True, False), "video": (True, True, True), "audio": (False, False, True)}[self.type]
        if has[:3] != wants or (self.sound and self.type != "video"):
            raise ValueError(f"{self.type}: width and height go with pictures, seconds with time, sound with a clip")
        return self


class Contract(Strict):
    """One workload. `references`: in the request's order. `rows.references`: null leaves their rows open."""

    model_config = ConfigDict(title="h3runtime benchmark contract", populate_by_name=True)

    schema_path: str = Field(default="schema/contract.schema.json", alias="$schema")
    name: Name
    question: str = Field(description="What this workload is measured for.")
    task: Task
    width: Positive
    height: Positive
    frames: Positive
    latents: LatentShapes
    prompt: str = Field(
        min_length=1,
        description="Gives rows.text rows with the published tokenizer. With another, the longest beginning of its "
        "repetitions that does is used instead.",
    )
    references: tuple[ReferenceMedium, ...] = ()
    rows: Rows
    sampling: Sampling
    requires: Requires
    measuring: Measuring
    figures: tuple[Figure, ...]

    @model_validator(mode="after")
    def _is_one_workload(self) -> Self:
        faults = [
            f"{name} is {has}, but {self.width}x{self.height}x{self.frames} gives {wants}"
            for name, has, wants in self._derived()
            if has != wants
        ]
        if not is_legal_frames(self.frames):
            faults.append(f"frames is {self.frames}, which is not 17n+5")
        if (self.rows.references == 0) != (self.task is not Task.REF2VA):
            faults.append(f"rows.references is {self.rows.references}, which no {self.task.value} has")
        if bool(self.references) != (self.task is Task.REF2VA):
            faults.append(f"{len(self.references)} references, which no {self.task.value} has")
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def _derived(self) -> list[tuple[str, object, object]]:
        time, height, width = latent_frames(self.frames), latent_side(self.height), latent_side(self.width)
        sound = audio_latents(self.frames)
        return [
            ("latents.video", self.latents.video, (VIDEO_CHANNELS, time, height, width)),
            ("latents.audio", self.latents.audio, (AUDIO_CHANNELS, SIDES, sound)),
            ("rows.video", self.rows.video, self.latents.video_rows),
            ("rows.audio", self.rows.audio, self.latents.audio_rows),
        ]


@dataclass(frozen=True, slots=True)
class Signed:
    """A contract and the SHA-256 of its file's bytes, which a result carries."""

    contract: Contract
    sha256: str


def contract_names(folder: Path = CONTRACTS) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.json"))


def read_contract(name: str, folder: Path = CONTRACTS) -> Signed:
    """The contract of that name. Unreadable if it isn't one, or is filed under another name."""
    path = folder / f"{name}.json"
    data = read_bytes(path)
    contract = parse(Contract, data, path)
    if contract.name != name:
        raise Unreadable(f"{path.name}: its name is {contract.name}")
    return Signed(contract, hashlib.sha256(data).hexdigest())


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror or error}") from error


def parse(kind: type[ModelT], data: bytes, path: Path) -> ModelT:
    """JSON text -> a value of that kind. Unreadable names every field that is wrong."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors(include_url=False)]
        raise Unreadable(f"{path.name}: " + "; ".join(faults)) from error
