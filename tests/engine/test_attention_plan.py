"""A plan runs each step with the attention that it names, and the job tells it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from h3runtime.backends.attention import select
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.denoiser.schedule import forwards, step_numbers
from h3runtime.denoiser.stepped import told_plan
from h3runtime.errors import InvalidRequest
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
    monkeypatch.setattr(select, "attention_backends", lambda: tuple(found.values()))
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
