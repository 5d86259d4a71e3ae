"""Evidence and engine facts that nobody measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from h3runtime import __version__
from h3runtime.core import BackendChoice, ComponentFacts, EngineFacts
from h3runtime.quality.bucket import Bucket, Sampling
from h3runtime.quality.evidence import KIND, Evidence, Figure, Notes, weights_of
from h3runtime.quality.levels import Choice

ATTENTION = BackendChoice("sdpa", "", ("sdpa", "sage2"), {"sdpa": "reference", "sage2": "validated"}, {"fa4": "no"})
LINEAR = BackendChoice(
    "dequant", "", ("dequant", "int8"), {"dequant": "reference", "int8": "validated"}, {"fp8": "not loaded for"}
)


def component(name: str, sha256: str, partition: str | None = None) -> ComponentFacts:
    return ComponentFacts(name, f"{name}.safetensors", sha256, "bf16", 1, 0.0, False, partition)


COMPONENTS = (
    component("transformer", "a", "fl2va"),
    component("transformer", "b", "ref2va"),
    component("text_encoder", "c"),
    component("video_vae", "d"),
    component("audio_vae", "e"),
)
FACTS = EngineFacts("cpu", "x", COMPONENTS, ATTENTION, LINEAR, {}, {})


def evidence(facts: EngineFacts = FACTS, **changes: Any) -> Evidence:
    """Of `high` for 128x128x22 at 8 steps, on FL2VA's transformer."""
    made = Evidence(
        kind=KIND,
        level="high",
        weights=weights_of(facts, "fl2va"),
        partition="fl2va",
        device=facts.device,
        version=__version__,
        bucket=Bucket.of(128, 128, 22, 8),
        sampling=Sampling("res_multistep", "beta", 12.0, 3.0),
        choice=Choice("sage2", "int8"),
        choice_notes=Notes(),
        ssim=Figure(0.99, 0.98, 0.9),
        audio_db=Figure(0.3, 0.4, 1.1),
        time_ratio=1.5,
        exact_seconds=3.0,
        seconds=2.0,
        forwards=8.0,
        skipped_steps=0.0,
        prompts=16,
        prompts_sha256="00",
        seeds=2,
        width=128,
        height=128,
        frames=22,
        steps=8,
        exact_attention="sdpa",
        exact_linear="dequant",
        transformer="transformer.safetensors",
        made_at="2026-11-30T19:00:00+00:00",
    )
    return replace(made, **changes)
