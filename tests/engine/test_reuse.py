"""Requests that reuse steps, through the engine: the clip, its progress and its diagnostics tell what ran."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from h3runtime.core import StepReuse
from h3runtime.denoiser.dit import Dit
from tests.engine.conditioned import generate, latents_of, same

MODES = pytest.mark.parametrize("mode", ["easycache", "h3_cache", "first_block"])
STEPS = 6


def widest(mode: str, threshold: float) -> StepReuse:
    return StepReuse(mode, threshold, 0.0, 1.0)  # type: ignore[arg-type]


@pytest.fixture
def spec(make_spec):
    return make_spec(width=64, height=64, frames=5, steps=STEPS)


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """Steps of whole forwards."""
    seen: list[int] = []
    forward = Dit.forward

    def counted(self, *given, step=0, **named):
        seen.append(step)
        return forward(self, *given, step=step, **named)

    monkeypatch.setattr(Dit, "forward", counted)
    return seen


@MODES
def test_the_clip_tells_what_ran(engine, spec, calls, mode) -> None:
    told = []
    asked = replace(spec, reuse=widest(mode, 3.0), diagnostics=True)
    clip = engine.generate(asked, told.append, lambda: False)
    skipped = [step for step in range(STEPS) if step not in calls]
    assert (clip.forwards, clip.skipped_steps) == (len(calls), len(skipped)) == (1, STEPS - 1)
    assert clip.diagnostics is not None and clip.diagnostics["reuse"]["skipped"] == skipped
    assert clip.diagnostics["reuse"]["changes"].keys() == {str(step) for step in skipped}
    assert len(clip.diagnostics["step_seconds"]) == STEPS
    sampled = [p for p in told if p.stage == "sampling"]
    assert sampled[-1].step == STEPS and list(sampled[-1].skipped) == skipped
    assert all(list(p.skipped) == [s for s in skipped if s < p.step] for p in sampled)


@MODES
def test_a_threshold_of_nothing_changes_no_bit(engine, spec, calls, mode) -> None:
    exact = latents_of(engine, spec)
    assert same(latents_of(engine, replace(spec, reuse=widest(mode, 0.0))), exact)
    assert calls == [*range(STEPS)] * 2


def test_each_clip_of_a_request_reuses_by_itself(engine, spec, calls) -> None:
    clip = engine.generate(replace(spec, n=2, reuse=widest("h3_cache", 3.0)), lambda _: None, lambda: False)
    assert calls == [0, 0]
    assert [(each.forwards, each.skipped_steps) for each in (clip, *clip.variants)] == [(1, STEPS - 1)] * 2


def test_a_plan_of_attention_is_counted_over_all_steps(engine, spec, calls) -> None:
    plan = ("sdpa",) * STEPS
    clip = generate(engine, replace(spec, attention_plan=plan, reuse=widest("easycache", 3.0)))
    assert (clip.forwards, calls) == (1, [0])


def test_step_latents_hold_the_reused_steps_too(engine, spec) -> None:
    from safetensors.torch import load_file

    asked = replace(spec, reuse=widest("h3_cache", 3.0), diagnostics=True, diagnostic_latents=True)
    clip = generate(engine, asked)
    assert clip.diagnostics is not None
    held = load_file(spec.output.with_name(clip.diagnostics["step_latents"]))
    assert {f"step{step}.{what}" for step in range(STEPS) for what in ("x", "denoised")} == held.keys()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in held.values())


def test_an_estimate_counts_what_is_likely_to_run(engine, spec) -> None:
    long = replace(spec, sampling=replace(spec.sampling, steps=20))
    plain = engine.estimate(long)
    spared = engine.estimate(replace(long, reuse=StepReuse("easycache", 0.2)))
    assert (plain.forwards, spared.forwards) == (20, 12)
    assert spared.work.stages["sampling"] < 0.65 * plain.work.stages["sampling"]
    assert spared.memory["sampling_bytes"] >= plain.memory["sampling_bytes"]
    first = engine.estimate(replace(long, reuse=StepReuse("first_block", 0.2)))
    assert first.forwards == 20 and first.memory["sampling_bytes"] >= plain.memory["sampling_bytes"]
