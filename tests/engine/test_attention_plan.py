"""A plan runs each step with the attention that it names, and the job tells it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from h3runtime.backends.attention.options import AttentionOptions
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.backends.attention.select import Attentions
from h3runtime.backends.attention.sparse.sla_topk import PERCENTS
from h3runtime.denoiser.schedule import forwards, step_numbers
from h3runtime.denoiser.stepped import told_plan
from h3runtime.errors import BackendUnavailable, InvalidRequest
from tests.engine.conditioned import generate

OTHER = "twice"


class Counted(SdpaAttention):
    """The same numbers under another name; counts calls by step, those of the blocks alone."""

    def __init__(self, name: str) -> None:
        self.name, self.calls = name, Counter[int]()

    def attend(self, q, k, v, *, layout, step) -> torch.Tensor:
        self.calls[step] += layout is not None
        return super().attend(q, k, v, layout=layout, step=step)


@pytest.fixture
def backends(engine, monkeypatch) -> dict[str, Counted]:
    found = {name: Counted(name) for name in ("sdpa", OTHER)}
    monkeypatch.setattr(engine, "attentions", Attentions(engine.device, backends=tuple(found.values())))
    monkeypatch.setattr(engine, "attention", found["sdpa"])
    return found


def test_each_step_runs_with_its_own(engine, make_spec, backends) -> None:
    plan = ("sdpa", OTHER, OTHER, "sdpa")
    spec = make_spec(width=64, height=64, frames=5, steps=4)
    plain = generate(engine, spec).sha256
    backends["sdpa"].calls.clear()
    clip = generate(engine, replace(spec, attention_plan=plan))
    blocks = len(engine.models.transformer_of(spec.task).blocks)
    assert +backends["sdpa"].calls == {0: blocks, 3: blocks}
    assert +backends[OTHER].calls == {1: blocks, 2: blocks}
    assert clip.attention == "sdpa 0, twice 1-2, sdpa 3"
    assert clip.sha256 == plain


def test_a_plan_of_one_name_is_that_backend(engine, make_spec, backends) -> None:
    spec = make_spec(width=64, height=64, frames=5, steps=2, attention="sdpa", attention_plan=(OTHER, OTHER))
    assert generate(engine, spec).attention == OTHER
    assert sum(backends["sdpa"].calls.values()) == 0


@pytest.mark.usefixtures("backends")
def test_an_unknown_name_is_refused_before_any_work(engine, make_spec) -> None:
    seen = []
    with pytest.raises(InvalidRequest, match="attention"):
        engine.generate(make_spec(steps=2, attention_plan=("sdpa", "none")), seen.append, lambda: False)
    assert [p.stage for p in seen] == []


def test_a_plan_over_slices_of_heads_is_the_plain_run(engine, make_spec, monkeypatch) -> None:
    options = AttentionOptions(slice_backend="sdpa", slice_size=2)
    monkeypatch.setattr(engine, "attentions", Attentions(engine.device, options))
    monkeypatch.setattr(engine, "attention", engine.attentions.choose("sdpa")[0])
    plan = ("kj_head_sliced", "sdpa", "kj_head_sliced")
    spec = replace(make_spec(width=64, height=64, frames=5, steps=3), diagnostics=True)
    plain, clip = generate(engine, spec), generate(engine, replace(spec, attention_plan=plan))
    assert clip.sha256 == plain.sha256 and clip.attention == "kj_head_sliced 0, sdpa 1, kj_head_sliced 2"
    network = engine.models.transformer_of(spec.task)
    blocks, slices = len(network.blocks), -(-network.config.heads // 2)
    assert clip.diagnostics["attention"] == {
        "dispatches": {"kj_head_sliced": 2 * blocks, "sdpa": blocks * (1 + 2 * slices)},
        "fallbacks": [],
    }
    assert plain.diagnostics["attention"] == {"dispatches": {"sdpa": 3 * blocks}, "fallbacks": []}


def test_what_can_t_run_is_refused_before_any_work(engine, make_spec) -> None:
    """With the settings as they come, slices go through sage2, which this machine hasn't."""
    seen = []
    for fields in ({"attention": "kj_head_sliced"}, {"attention_plan": ("sdpa", "kj_head_sliced")}):
        with pytest.raises(BackendUnavailable, match="H3_HEAD_SLICE_BACKEND=sage2"):
            engine.generate(make_spec(steps=2, **fields), seen.append, lambda: False)
    assert [p.stage for p in seen] == []


class Hungry(SdpaAttention):
    """It says that it takes more than anything else of a block."""

    name = "hungry"
    copies = 1e4


def test_the_estimate_knows_what_a_backend_takes(engine, make_spec, monkeypatch) -> None:
    both = Attentions(engine.device, backends=(SdpaAttention(), Hungry()))
    monkeypatch.setattr(engine.estimator, "_attentions", both)
    spec = make_spec(width=64, height=64, frames=5, steps=2)

    def sampling(**fields) -> int:
        return engine.estimate(replace(spec, **fields)).memory["sampling_bytes"]

    assert sampling() == sampling(attention="sdpa") < sampling(attention="hungry")
    assert sampling(attention="hungry") == sampling(attention_plan=("sdpa", "hungry"))


def test_ready_has_all_of_them_with_reasons(engine) -> None:
    choice = engine.facts().attention
    sparse = tuple(f"sla_topk_{percent}" for percent in PERCENTS)
    assert (choice.default, choice.available, choice.exact) == ("sdpa", ("sdpa", *sparse), ("sdpa",))
    assert set(choice.grades) == {*choice.available, *choice.unavailable} and len(choice.grades) == 24
    assert "it wasn't trained for video sparse attention" in choice.unavailable["vsa"]
    assert "sage2" in choice.notes["kj_head_sliced"] and "sage2" in choice.notes["sol_attn"]


@pytest.mark.parametrize(
    ("steps", "scheduler"), [(1, "beta"), (12, "beta"), (139, "beta"), (200, "beta"), (38, "simple")]
)
def test_merged_steps_are_left_out_of_the_plan(make_spec, steps, scheduler) -> None:
    settings = make_spec(steps=steps, scheduler=scheduler).sampling
    numbers = step_numbers(settings)
    assert len(numbers) == forwards(settings)
    assert list(numbers) == sorted(set(numbers)) and numbers[0] == 0 and numbers[-1] < steps
    assert (len(numbers) == steps) == (steps <= 138 or scheduler != "beta")


def test_a_run_of_part_of_the_noise_counts_its_own_steps(make_spec) -> None:
    settings = replace(make_spec(steps=8).sampling, denoise=0.5)
    assert step_numbers(settings) == tuple(range(8))


def test_a_plan_is_told_by_its_runs() -> None:
    assert told_plan(["a"] * 12) == "a"
    assert told_plan(["a", "a", "b", "a"]) == "a 0-1, b 2, a 3"
