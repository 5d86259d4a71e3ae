"""Finished clips and an engine's facts -> a result. Everything in it was counted or asked for, nothing is taken over
from the contract.

Fed by `measure`. Rows and forwards come from the warm-up clips' diagnostics, latent shapes from the latents that the
last of them saved; times come from the timed clips, which were made without either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch

from benchmarks.contract import CountedRows, LatentShapes, Sampling, Signed
from benchmarks.machine import this_machine, this_runtime
from benchmarks.result import Backends, Checkpoint, Peaks, Precision, Result, Run, Samples, Start
from h3runtime.core import BackendChoice, Clip, ComponentFacts, EngineFacts, GenerateSpec, Latents

EXACT_GRADE = "reference"
"""A backend of this grade is plain PyTorch; whatever else is told as an approximation, with its grade."""


@dataclass(frozen=True, slots=True)
class Session:
    """One process from its start on. warm: with diagnostics; timed: without.

    saved: latents of the last warm-up clip. compute: dtype of the transformer's activations. cold_seconds: until the
    engine was loaded. host_bytes: most that were resident at any time outside a clip. prompt_rows: of its text.
    """

    facts: EngineFacts
    spec: GenerateSpec
    warm: tuple[Clip, ...]
    timed: tuple[Clip, ...]
    saved: Latents
    compute: torch.dtype
    cold_seconds: float
    host_bytes: int
    prompt_rows: int

    @property
    def on_device(self) -> bool:
        return "device_total_bytes" in self.facts.memory

    @property
    def counted(self) -> Mapping[str, Any]:
        found = self.warm[-1].diagnostics
        assert found is not None
        return found

    def peak(self) -> int:
        """Most bytes of any stage of any clip: of the device, or of the process where there is none."""
        clips = (*self.warm, *self.timed)
        return max(size for clip in clips for name, size in clip.memory.items() if name.endswith("allocated_bytes"))


def result_of(signed: Signed, session: Session) -> Result:
    facts, on_device = session.facts, session.on_device
    cuda = torch.version.cuda if on_device else None
    device_bytes = facts.memory.get("device_total_bytes")
    return Result(
        contract=signed.contract.name,
        contract_sha256=signed.sha256,
        recorded_at=datetime.now(UTC),
        runtime=this_runtime(),
        machine=this_machine(facts.device, device_bytes, torch.get_num_threads(), torch.__version__, cuda),
        checkpoints=tuple(_checkpoint(component) for component in facts.components),
        backends=Backends(attention=session.timed[-1].attention, linear=session.timed[-1].linear),
        precision=_precision(facts, session.compute),
        approximations=approximations(facts, session.timed[-1]),
        run=_run(session),
        samples=_samples(session.timed),
        start=Start(
            cold_start_seconds=session.cold_seconds,
            load_seconds=sum(component.load_seconds for component in facts.components),
            first_request_seconds=session.warm[0].timings["total"],
        ),
        peaks=Peaks(
            host_bytes=session.host_bytes if on_device else max(session.host_bytes, session.peak()),
            device_bytes=session.peak() if on_device else None,
        ),
    )


def approximations(facts: EngineFacts, clip: Clip) -> tuple[str, ...]:
    """The backends that a clip was made with and that are no reference, with their grades."""
    used: tuple[tuple[str, str, BackendChoice], ...] = (
        ("attention", clip.attention, facts.attention),
        ("linear", clip.linear, facts.linear),
    )
    graded = ((kind, name, choice.grades.get(name, "of no grade")) for kind, name, choice in used)
    return tuple(f"{kind} {name}: {grade}" for kind, name, grade in graded if grade != EXACT_GRADE)


def _run(session: Session) -> Run:
    clip, sampling = session.timed[-1], session.spec.sampling
    latents = LatentShapes(video=_shape(session.saved.video), audio=_shape(session.saved.audio))
    return Run(
        task=session.spec.task,
        width=clip.width,
        height=clip.height,
        frames=clip.frames,
        latents=latents,
        rows=_rows(latents, session.prompt_rows, session.counted["rows"]["total"]),
        sampling=Sampling(
            seed=str(clip.seed),
            sampler=sampling.sampler,
            scheduler=sampling.scheduler,
            steps=sampling.steps,
            forwards=len(session.counted["step_seconds"]),
            shift=sampling.shift,
            audio_shift=sampling.audio_shift,
        ),
        prompt_sha256=hashlib.sha256(session.spec.prompt.encode()).hexdigest(),
        prompt_cache="off",
        warm_up_runs=len(session.warm),
    )


def _rows(latents: LatentShapes, text: int, total: int) -> CountedRows:
    """What neither the prompt nor the two latents account for came from references."""
    rest = total - text - latents.audio_rows - latents.video_rows
    return CountedRows(text=text, video=latents.video_rows, audio=latents.audio_rows, references=rest, total=total)


def _shape(latent: torch.Tensor) -> tuple[Any, ...]:
    """Without the batch."""
    return tuple(latent.shape[1:])


def _checkpoint(facts: ComponentFacts) -> Checkpoint:
    return Checkpoint(
        component=facts.component,
        file=facts.file,
        sha256=facts.sha256,
        format=facts.format,
        bytes=facts.bytes,
        synthetic=facts.synthetic,
    )


def _precision(facts: EngineFacts, compute: torch.dtype) -> Precision:
    formats = {component.component: component.format for component in facts.components}
    return Precision(compute=str(compute).removeprefix("torch."), **formats)


def _samples(clips: tuple[Clip, ...]) -> Samples:
    taken = {stage: tuple(clip.timings[stage] for clip in clips) for stage in clips[0].timings if stage != "total"}
    return Samples(**taken, end_to_end=tuple(clip.timings["total"] for clip in clips))
