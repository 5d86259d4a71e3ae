"""A finished clip as the one JSON line of the command line: the answer of `POST /generate` without its queue."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from h3runtime import __version__
from h3runtime.api.answers import check_answer, lora_answer, refine_answer
from h3runtime.core import FPS, Clip, EngineFacts, GenerateSpec


def clip_facts(spec: GenerateSpec, clip: Clip, warnings: tuple[str, ...], facts: EngineFacts) -> dict[str, Any]:
    """Field names and units are those of service-contract, "The answer"; `output` is the path as it can be opened."""
    sampling = spec.sampling
    told: dict[str, Any] = {
        "status": "succeeded",
        "task": spec.task.value,
        "output": str(clip.output),
        "sha256": clip.sha256,
        "bytes": clip.bytes,
        "outputs": [_output(index, made) for index, made in enumerate((clip, *clip.variants))],
        "width": clip.width,
        "height": clip.height,
        "frames": clip.frames,
        "seconds": clip.frames / FPS,
        "fps": spec.encode.fps,
        "format": asdict(spec.encode),
        "samples": clip.samples,
        "seed": str(clip.seed),
        "steps": sampling.steps,
        "forwards": clip.forwards,
        "skipped_steps": clip.skipped_steps,
        "sampler": sampling.sampler,
        "scheduler": sampling.scheduler,
        "attention": clip.attention,
        "linear": clip.linear,
        "quality": spec.request.get("quality"),
        "evidence": None if spec.evidence is None else dict(spec.evidence),
        "loras": [lora_answer(use) for use in spec.loras],
        "refine": refine_answer(spec.refine, clip),
        "checkpoint": facts.checkpoint,
        "device": facts.device,
        "version": __version__,
        "prompt": spec.prompt,
        "warnings": [*warnings, *clip.warnings],
        "checks": {name: check_answer(check) for name, check in clip.checks.items()},
        "timings": dict(clip.timings),
        "memory": dict(clip.memory),
        "startup": dict(facts.startup),
    }
    if clip.latents_output is not None:
        told["latents"] = str(clip.latents_output)
    if clip.diagnostics is not None:
        told["diagnostics"] = dict(clip.diagnostics)
    return told


def _output(index: int, clip: Clip) -> dict[str, Any]:
    return {
        "index": index,
        "seed": str(clip.seed),
        "output": str(clip.output),
        "sha256": clip.sha256,
        "bytes": clip.bytes,
    }
