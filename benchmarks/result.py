"""A result: what one run of a contract did and how long it took, with everything a reader must know to compare it.

Does: say what a result's file holds, and judge that it agrees with itself. Does not: look at the contract; `compare`
does. Written by `measure`, or by whoever times something else under the same contract.

Units: seconds on the host's clock with the device waited for, bytes, packed rows.
"""

from __future__ import annotations

from statistics import median
from typing import Annotated, Self

from pydantic import AwareDatetime, ConfigDict, Field, model_validator

from benchmarks.contract import (
    STAGES,
    Count,
    CountedRows,
    LatentShapes,
    Name,
    Positive,
    Sampling,
    Seconds,
    Stage,
    Strict,
)
from h3runtime.core import Task

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Measured = Annotated[tuple[Seconds, ...], Field(min_length=1)]


class Runtime(Strict):
    """What ran. commit, changed: of the checkout, null where there is none; `changed` tells of files not committed."""

    version: str
    commit: str | None
    changed: bool | None


class Machine(Strict):
    """Where it ran. device: as it names itself, `cpu` for none. driver, cuda, device_bytes: null without a device."""

    device: str
    device_count: Positive
    device_bytes: Positive | None
    driver: str | None
    cuda: str | None
    cpu: str
    cores: Positive
    threads: Positive
    system: str
    python: str
    torch: str

    @property
    def kind(self) -> tuple[object, ...]:
        """Two machines of one kind are as fast as each other, if the software is."""
        processor = (self.cpu, self.threads) if self.device == "cpu" else ()
        return (self.device, self.device_count, *processor)


class Checkpoint(Strict):
    """One loaded file. `synthetic`: its weights are made up."""

    component: str
    file: str
    sha256: Sha256
    format: str
    bytes: Positive
    synthetic: bool


class Run(Strict):
    """What was computed, as it was counted, not as it was asked for. `rows.references` is a number here."""

    task: Task
    width: Positive
    height: Positive
    frames: Positive
    latents: LatentShapes
    rows: CountedRows
    sampling: Sampling
    prompt_sha256: Sha256
    prompt_cache: str
    warm_up_runs: Count

    @model_validator(mode="after")
    def _rows_are_known(self) -> Self:
        if self.rows.references is None:
            raise ValueError("rows.references is null: a run knows its rows")
        return self


class Backends(Strict):
    """Names as `/ready` shows them."""

    attention: str
    linear: str


class Precision(Strict):
    """compute: dtype of the transformer's activations. The others: number format of each component's weights."""

    compute: str
    transformer: str
    text_encoder: str
    video_vae: str
    audio_vae: str


class Start(Strict):
    """Three different numbers: from nothing to ready, of which `load_seconds` read weights; and the first request."""

    cold_start_seconds: Seconds
    load_seconds: Seconds
    first_request_seconds: Seconds


class Peaks(Strict):
    """Most bytes at any time. host: resident. device: allocated by tensors, weights included; null without a device."""

    host_bytes: Positive
    device_bytes: Positive | None


class Peer(Strict):
    """Somebody else's code on this machine, in this run, the samples taken in turn with ours."""

    name: str
    version: str
    settings: str = Field(description="Precision, attention and every approximation.")
    forwards: Positive
    rows: Positive
    samples: dict[Stage, Measured]


class Samples(Strict):
    """Seconds of each timed request, in order of time; as many for every stage."""

    conditioning: Measured
    sampling: Measured
    video_decode: Measured
    audio_decode: Measured
    mux: Measured
    end_to_end: Measured

    @model_validator(mode="after")
    def _are_of_the_same_requests(self) -> Self:
        counts = {stage: len(self.of(stage)) for stage in STAGES}
        if len(set(counts.values())) > 1:
            raise ValueError(f"differ in number: {counts}")
        return self

    def of(self, stage: Stage) -> tuple[float, ...]:
        taken: tuple[float, ...] = getattr(self, stage)
        return taken


class Result(Strict):
    """One run of a contract."""

    model_config = ConfigDict(title="h3runtime benchmark result", populate_by_name=True)

    schema_path: str = Field(default="schema/result.schema.json", alias="$schema")
    contract: Name
    contract_sha256: Sha256 = Field(description="Of the bytes of the contract's file.")
    recorded_at: AwareDatetime
    runtime: Runtime
    machine: Machine
    checkpoints: tuple[Checkpoint, ...] = Field(min_length=1)
    backends: Backends
    precision: Precision
    approximations: tuple[str, ...] = Field(
        description="Whatever makes the numbers others than plain PyTorch's on the same weights; empty if nothing does."
    )
    run: Run
    samples: Samples
    start: Start
    peaks: Peaks
    peer: Peer | None = None

    @property
    def repeats(self) -> int:
        return len(self.samples.end_to_end)

    def median(self, stage: Stage) -> float:
        """Seconds."""
        return median(self.samples.of(stage))
