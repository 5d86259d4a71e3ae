"""One measurement of one level as a file of JSON, and a reader that takes nothing else.

    what it counts for     level, weights, partition, device, version, bucket, sampling
    what was measured      the choice, SSIM and sound with their bounds, time ratio, forwards
    how                    prompts and their hash, seeds, the clip's size, what the exact clips were made with

`id` is a hash of all the rest, so that a damaged or edited file is known as such. `weights` is a hash over the SHA-256
of the files that take part: the partition's transformer, the text encoder and both VAEs, whatever else is loaded.
`calibrate` writes; `shelf` reads.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from h3runtime.core import EngineFacts
from h3runtime.errors import CheckpointError, Offence
from h3runtime.quality.bucket import Bucket, Sampling
from h3runtime.quality.levels import LEVELS, Choice, LevelName

KIND: Final = "h3runtime quality evidence 2"
EARLIER: Final = ("h3runtime quality evidence 1",)
"""SSIM of every third frame, and nothing of the settings of a backend."""
ID_DIGITS: Final = 16
MOST_BYTES: Final = 2**16
COMPONENTS: Final = ("transformer", "text_encoder", "video_vae", "audio_vae")
"""What makes a clip."""


@dataclass(frozen=True, slots=True)
class Least:
    """How much has to be measured: prompts, and seeds of each."""

    prompts: int
    seeds: int


LEAST: Final = Least(16, 2)
"""Issue 8.6."""


@dataclass(frozen=True, slots=True)
class Notes:
    """Of the backends of a choice (`core.BackendChoice.notes`); empty where there is none."""

    attention: str = ""
    linear: str = ""

    @classmethod
    def of(cls, choice: Choice, facts: EngineFacts) -> Notes:
        return cls(facts.attention.notes.get(choice.attention, ""), facts.linear.notes.get(choice.linear, ""))


@dataclass(frozen=True, slots=True)
class Figure:
    """Over all clips. bound: of the mean, 95 %, on the bad side. worst: of one clip."""

    mean: float
    bound: float
    worst: float


@with_config(ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
@dataclass(frozen=True, slots=True)
class Evidence:
    """choice_notes: what its attention and linear said of themselves, settings that change their numbers among it.
    exact_attention, exact_linear: of the clips compared with. ssim: of a clip, the mean over all frames. time_ratio:
    seconds of sampling of an exact clip over those of one by `choice`, medians of clips that were made in turn where
    one engine can make both. forwards, skipped_steps: means."""

    kind: Literal["h3runtime quality evidence 2"]
    level: LevelName
    weights: str
    partition: str
    device: str
    version: str
    bucket: Bucket
    sampling: Sampling
    choice: Choice
    choice_notes: Notes
    ssim: Figure
    audio_db: Figure
    time_ratio: float
    exact_seconds: float
    seconds: float
    forwards: float
    skipped_steps: float
    prompts: int
    prompts_sha256: str
    seeds: int
    width: int
    height: int
    frames: int
    steps: int
    exact_attention: str
    exact_linear: str
    transformer: str
    made_at: str

    @property
    def id(self) -> str:
        return _id(asdict(self))

    @property
    def file_name(self) -> str:
        """One for each thing that it counts for and each linear that is loaded for: a newer one takes its place."""
        key = json.dumps([self.weights, self.partition, self.device, self.version, asdict(self.sampling)])
        digest = hashlib.sha256(key.encode()).hexdigest()[:ID_DIGITS]
        return f"{self.level}-{self.bucket.name}-{self.choice.linear}-{digest}.json"

    @property
    def told(self) -> dict[str, Any]:
        """For jobs and `/ready`."""
        return {
            "id": self.id,
            "level": self.level,
            "bucket": self.bucket.name,
            **asdict(self.sampling),
            "partition": self.partition,
            "device": self.device,
            "transformer": self.transformer,
            "choice": asdict(self.choice),
            "ssim": asdict(self.ssim),
            "audio_db": asdict(self.audio_db),
            "time_ratio": self.time_ratio,
            "forwards": self.forwards,
            "skipped_steps": self.skipped_steps,
            "prompts": self.prompts,
            "seeds": self.seeds,
            "measured": f"{self.width}x{self.height}x{self.frames}, {self.steps} steps",
        }


def weights_of(facts: EngineFacts, partition: str) -> str:
    """Hex digits of a SHA-256 over those of the files that make a clip on `partition`."""
    parts = sorted(
        (part.component, part.sha256)
        for part in facts.components
        if part.component in COMPONENTS and part.partition in (None, partition)
    )
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def write_evidence(folder: Path, evidence: Evidence) -> Path:
    """Whole or not at all; the folder is made. OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / evidence.file_name
    unfinished = folder / f".{path.name}.{uuid.uuid4().hex}"
    try:
        unfinished.write_text(json.dumps({"id": evidence.id, **asdict(evidence)}, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def read_evidence(path: Path, least: Least = LEAST) -> Evidence:
    """CheckpointError naming the file and why: not ours, damaged, or no proof of its level."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        found = json.loads(data) if len(data) <= MOST_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise _refused(path, f"can't be read: {error}") from None
    if isinstance(found, dict) and found.get("kind") in EARLIER:
        raise _refused(path, "was measured in another way by an earlier version: calibrate again")
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise _refused(path, "is not evidence of this runtime")
    told = found.pop("id", None)
    try:
        evidence = _adapter().validate_json(json.dumps(found))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _refused(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if told != evidence.id:
        raise _refused(path, "its id isn't that of its content: it was damaged or edited")
    if (why := _unproven(evidence, least)) is not None:
        raise _refused(path, why)
    return evidence


def _unproven(evidence: Evidence, least: Least) -> str | None:
    level = LEVELS[evidence.level]
    if evidence.prompts < least.prompts or evidence.seeds < least.seeds:
        return f"{evidence.prompts} prompts and {evidence.seeds} seeds are less than {least.prompts} and {least.seeds}"
    if evidence.ssim.bound < level.ssim:
        return f"its SSIM, {evidence.ssim.bound}, is below the {level.ssim} of {level.name!r}"
    if evidence.audio_db.bound > level.audio_db:
        return f"its sound, {evidence.audio_db.bound} dB, is above the {level.audio_db} of {level.name!r}"
    if evidence.bucket != Bucket.of(evidence.width, evidence.height, evidence.frames, evidence.steps):
        return "its bucket isn't that of its clips"
    return None


def _id(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]


def _refused(path: Path, why: str) -> CheckpointError:
    told = f"quality evidence {path.name}: {why}"
    return CheckpointError(told, [Offence(path.name, why)])


@cache
def _adapter() -> TypeAdapter[Evidence]:
    return TypeAdapter(Evidence)
