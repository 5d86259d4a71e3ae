"""Requests that reuse steps, through the engine: the clip, its progress and its diagnostics tell what ran.

Forwards are counted where all of them pass, at the DiT's last block, whatever calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from h3runtime.checkpoint.synthetic.adapters import adapter
from h3runtime.checkpoint.synthetic.tiny import TRANSFORMER
from h3runtime.core import (
    Clip,
    GenerateSpec,
    GuideInput,
    MaskSpan,
    Progress,
    SourceInput,
    StepReuse,
    Task,
)
from h3runtime.engine.adapters import AdapterShelf
from h3runtime.engine.resident import ResidentEngine
from h3runtime.errors import JobCancelled
from tests.e2e.conftest import MakeSpec
from tests.engine.conditioned import clip_reference, generate, image_reference, latents_of, same, voice_reference
from tests.engine.conftest import Media
from tests.engine.refining import refined, upscaler_file, with_upscaler
from tests.engine.test_adapters import use_of

MODES = pytest.mark.parametrize("mode", ["easycache", "h3_cache", "first_block"])
STEPS = 6
ALWAYS = 1e9
"""Above what a request may name: what random weights answer changes wildly."""


def first_reused(mode: str) -> int:
    """What latents foretell is known once two steps are computed, what a first block adds from one."""
    return 1 if mode == "first_block" else 2


def widest(mode: str, threshold: float) -> StepReuse:
    return StepReuse(mode, threshold, 0.0, 1.0)  # type: ignore[arg-type]


class Counted:
    """Forwards that reach the last block of a transformer."""

    def __init__(self, engine: ResidentEngine) -> None:
        self.all = 0
        self._hooks = [
            network.blocks[-1].register_forward_hook(self._count) for network in engine.models.transformers.values()
        ]

    def _count(self, *_: object) -> None:
        self.all += 1

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


@pytest.fixture
def spec(make_spec: MakeSpec) -> GenerateSpec:
    return make_spec(width=64, height=64, frames=5, steps=STEPS)


@pytest.fixture
def counted(engine: ResidentEngine) -> Iterator[Counted]:
    found = Counted(engine)
    yield found
    found.remove()


@MODES
def test_the_clip_tells_what_ran(engine, spec, counted, mode) -> None:
    told: list[Progress] = []
    asked = replace(spec, reuse=widest(mode, ALWAYS), diagnostics=True)
    clip = engine.generate(asked, told.append, lambda: False)
    computed = first_reused(mode)
    skipped = list(range(computed, STEPS))
    assert (clip.forwards, clip.skipped_steps) == (counted.all, len(skipped)) == (computed, STEPS - computed)
    assert clip.diagnostics is not None and clip.diagnostics["reuse"]["skipped"] == skipped
    assert clip.diagnostics["reuse"]["changes"].keys() == {str(step) for step in skipped}
    assert len(clip.diagnostics["step_seconds"]) == STEPS
    sampled = [p for p in told if p.stage == "sampling"]
    assert sampled[-1].step == STEPS and list(sampled[-1].skipped) == skipped
    assert all(list(p.skipped) == [s for s in skipped if s < p.step] for p in sampled)


Make = Callable[[MakeSpec, Media], GenerateSpec]


def kept(make: MakeSpec, media: Media) -> GenerateSpec:
    clip = media.clip("source", 5)
    picture = np.zeros((64, 64), np.uint8)
    picture[:, 32:] = 255
    source = SourceInput(clip, media.sound_of(clip), media.mask(picture), (MaskSpan(0.0, 0.1, 1.0),))
    return make(width=64, height=64, frames=5, steps=STEPS, source=source)


def referred(make: MakeSpec, media: Media) -> GenerateSpec:
    references = (clip_reference(media, 0), image_reference(media, 1), voice_reference(media, 2))
    made = make(width=64, height=64, frames=5, steps=STEPS)
    return replace(made, task=Task.REF2VA, references=references)


def guided(make: MakeSpec, media: Media) -> GenerateSpec:
    guide = GuideInput("first_frame", 0, picture=media.picture("first_frame", 1), shown=True)
    return replace(make(width=64, height=64, frames=5, steps=STEPS), task=Task.FL2VA, guides=(guide,))


def planned(make: MakeSpec, _: Media) -> GenerateSpec:
    plan = ("sdpa",) * 2 + ("sla_topk_50",) * (STEPS - 2)
    return make(width=64, height=64, frames=5, steps=STEPS, attention_plan=plan)


def several(make: MakeSpec, _: Media) -> GenerateSpec:
    return make(width=64, height=64, frames=5, steps=STEPS, n=2)


def euler(make: MakeSpec, _: Media) -> GenerateSpec:
    return make(width=64, height=64, frames=5, steps=STEPS, sampler="euler", scheduler="simple")


@MODES
@pytest.mark.parametrize("threshold", [0.0, 0.5, ALWAYS])
@pytest.mark.parametrize("make", [kept, referred, guided, planned, several, euler])
def test_forwards_are_true_whatever_is_asked(engine, make_spec, media, counted, make, threshold, mode) -> None:
    asked = make(make_spec, media)
    clip = generate(engine, replace(asked, reuse=widest(mode, threshold), diagnostics=True))
    assert_true(clip, counted.all, asked.n * STEPS, clips=asked.n)
    if threshold == 0.0:
        assert clip.skipped_steps == 0
    if threshold == ALWAYS:
        assert clip.skipped_steps == STEPS - first_reused(mode)


def assert_true(clip: Clip, ran: int, steps: int, clips: int = 1) -> None:
    """What all clips of a request tell is what was counted."""
    each = (clip, *clip.variants)
    assert len(each) == clips and sum(one.forwards for one in each) == ran
    assert sum(one.forwards + one.skipped_steps for one in each) == steps
    assert clip.diagnostics is not None and len(clip.diagnostics["reuse"]["skipped"]) == clip.skipped_steps


@MODES
@pytest.mark.parametrize("layout", ["comfyui_turbo", "pdd_comfyui"])
def test_forwards_are_those_that_ran_beside_an_adapter(engine, spec, counted, tmp_path, mode, layout) -> None:
    """A head bank decodes each step by its own number, reused or not."""
    folder = tmp_path / "adapters"
    folder.mkdir()
    adapter(layout, TRANSFORMER).write(folder / f"{layout}.safetensors")
    own, shelf = engine.adapters, AdapterShelf(folder, 2**30, engine.device)
    shelf.list(engine.models.transformers)
    engine.adapters = engine.estimator._adapters = shelf
    try:
        asked = replace(spec, loras=(use_of(shelf, layout),), diagnostics=True)
        exact = generate(engine, asked)
        before = counted.all
        nothing = generate(engine, replace(asked, reuse=widest(mode, 0.0)))
        assert exact.diagnostics is not None and nothing.diagnostics is not None
        assert nothing.diagnostics["latents_sha256"] == exact.diagnostics["latents_sha256"]
        assert (before, counted.all) == (STEPS, 2 * STEPS)
        clip = generate(engine, replace(asked, reuse=widest(mode, ALWAYS)))
        assert_true(clip, counted.all - 2 * STEPS, STEPS)
        assert clip.skipped_steps == STEPS - first_reused(mode)
    finally:
        engine.adapters = engine.estimator._adapters = own


@MODES
def test_the_second_pass_computes_every_step(engine, make_spec, counted, tmp_path, mode) -> None:
    with with_upscaler(engine, upscaler_file(tmp_path / "upscaler.safetensors")):
        asked = refined(make_spec)
        asked = replace(asked, sampling=replace(asked.sampling, steps=STEPS))
        assert asked.refine is not None
        clip = generate(engine, replace(asked, reuse=widest(mode, ALWAYS)))
    assert clip.refined is not None and clip.refined.forwards == asked.refine.steps
    assert clip.forwards == counted.all == first_reused(mode) + asked.refine.steps
    assert clip.skipped_steps == STEPS - first_reused(mode)


@MODES
def test_a_run_that_was_stopped_leaves_nothing_to_the_next(engine, spec, counted, mode) -> None:
    asked = replace(spec, reuse=widest(mode, 0.5), diagnostics=True)
    whole = generate(engine, asked)
    seen: list[Progress] = []
    with pytest.raises(JobCancelled):
        engine.generate(
            replace(asked, overwrite=True, sampling=replace(asked.sampling, seed=77)),
            seen.append,
            lambda: any(p.stage == "sampling" and p.step >= 4 for p in seen),
        )
    before = counted.all
    again = generate(engine, asked)
    assert (again.forwards, again.skipped_steps) == (whole.forwards, whole.skipped_steps)
    assert counted.all - before == again.forwards
    assert whole.diagnostics is not None and again.diagnostics is not None
    assert again.diagnostics["latents_sha256"] == whole.diagnostics["latents_sha256"]
    assert again.diagnostics["reuse"] == whole.diagnostics["reuse"]


@MODES
def test_a_threshold_of_nothing_changes_no_bit(engine, spec, counted, mode) -> None:
    exact = latents_of(engine, spec)
    assert same(latents_of(engine, replace(spec, reuse=widest(mode, 0.0))), exact)
    assert counted.all == 2 * STEPS


def test_each_clip_of_a_request_reuses_by_itself(engine, spec, counted) -> None:
    """The second one's steps are those that it has alone."""
    asked = replace(spec, reuse=widest("h3_cache", 0.5))
    both = generate(engine, replace(asked, n=2))
    ran, seed = counted.all, asked.sampling.seed
    alone = generate(engine, replace(asked, sampling=replace(asked.sampling, seed=seed + 1)))
    second = both.variants[0]
    assert (second.sha256, second.forwards) == (alone.sha256, counted.all - ran)
    assert both.forwards + second.forwards == ran


def test_step_latents_hold_the_reused_steps_too(engine, spec) -> None:
    from safetensors.torch import load_file

    asked = replace(spec, reuse=widest("h3_cache", ALWAYS), diagnostics=True, diagnostic_latents=True)
    clip = generate(engine, asked)
    assert clip.diagnostics is not None
    held = load_file(spec.output.with_name(clip.diagnostics["step_latents"]))
    assert {f"step{step}.{what}" for step in range(STEPS) for what in ("x", "denoised")} == held.keys()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in held.values())


def test_an_estimate_counts_what_is_likely_to_run(engine, spec) -> None:
    long = replace(spec, sampling=replace(spec.sampling, steps=20))
    plain = engine.estimate(long)
    spared = engine.estimate(replace(long, reuse=StepReuse("easycache", 0.2)))
    assert (plain.forwards, spared.forwards) == (20, 10)
    assert spared.work.stages["sampling"] < 0.55 * plain.work.stages["sampling"]
    assert spared.memory["sampling_bytes"] >= plain.memory["sampling_bytes"]
    first = engine.estimate(replace(long, reuse=StepReuse("first_block", 0.2)))
    assert first.forwards == 20 and first.memory["sampling_bytes"] >= plain.memory["sampling_bytes"]
