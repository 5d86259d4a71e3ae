"""Adapters of a request: names, fits, alphas, and the contracts of published ones, each fault under its field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from h3runtime.api.request import read_body
from h3runtime.api.rules import Verdict, judge_loras
from h3runtime.core import AdapterContract, AdapterFacts, AdapterFit, AdapterUse, BackendChoice, EngineFacts, Task

PLAIN = BackendChoice("x", "it is there", ("x",), {"x": "reference"}, {})
FITS = {"fl2va": AdapterFit(208, 208), "ref2va": AdapterFit(208, 208)}
TURBO = AdapterContract(
    "fl2v_turbo_4step_v1.0_768p", "its name", "the vendor", (4,), (6.0,), (3.0,), ("euler",), ("simple", "linear"),
    ("t2va", "i2va"), 128.0,
)  # fmt: skip
STYLE = AdapterFacts("style", "style.safetensors", "5" * 64, 10, "comfyui", 64, (64,), 32.0, 0.5, fits=FITS)
STRIPPED = AdapterFacts(
    "stripped", "s.safetensors", "6" * 64, 10, "diffusers", 128, (128,), needs_alpha=True, fits=FITS
)
FAST = replace(STYLE, name="fast", rank=128, alpha=128.0, ratio=1.0, contract=TURBO)
PART = replace(STYLE, name="part", fits={"fl2va": AdapterFit(3, 4, unmatched=("blocks.60.mlp.fc1",))})
NARROW = replace(STYLE, name="narrow", fits={"fl2va": AdapterFit(208, 259, skipped=("blocks.0.adaln_proj.linear",))})
UNFIT = replace(STYLE, name="unfit", fits={"fl2va": AdapterFit(0, 4, "unfit.safetensors: matches none")})
BROKEN = AdapterFacts("broken", "broken.safetensors", "", 0, fault="is no safetensors file")
VARIED = replace(STYLE, name="varied", alpha=None, ratio=None)
ALL = (STYLE, STRIPPED, FAST, PART, NARROW, UNFIT, BROKEN, VARIED)
FACTS = EngineFacts("cpu", "x", (), PLAIN, PLAIN, {}, {}, adapters=ALL)
AS_TRAINED = {"steps": 4, "shift": 6, "sampler": "euler", "scheduler": "simple"}


def judged(task: Task = Task.T2VA, **fields: Any) -> tuple[tuple[AdapterUse, ...], Verdict]:
    read = read_body({"prompt": "x", **fields})
    assert not read.offences
    verdict = Verdict(read)
    return judge_loras(read.body, task, FACTS, verdict), verdict


def offences(task: Task = Task.T2VA, **fields: Any) -> dict[str, tuple[str, str]]:
    return {o.field: (o.message, o.legal) for o in judged(task, **fields)[1].offences}


def test_what_is_used_is_told_with_its_effective_scale() -> None:
    (use, other), verdict = judged(loras=[{"name": "style", "strength": 0.5}, {"name": "varied", "strength": 2}])
    assert use == AdapterUse("style", 0.5, "5" * 64, 32.0, 64, 0.25, 208, 208)
    assert (other.alpha, other.scale) == (None, None) and not verdict.offences


def test_an_alpha_that_no_file_has_is_asked_for() -> None:
    """A13: a rank-128 file whose alpha metadata was stripped."""
    ((message, legal),) = offences(loras=[{"name": "stripped"}]).values()
    assert "no alpha" in message and "rank 128" in message and "trained with" in legal
    (use,), verdict = judged(loras=[{"name": "stripped", "alpha": 8}])
    assert not verdict.offences
    assert (use.alpha, use.alpha_given, use.rank, use.scale) == (8.0, 8.0, 128, 8 / 128)


def test_no_scale_is_told_where_an_alpha_is_for_some_layers_alone() -> None:
    mixed = replace(STRIPPED, name="mixed", mixed_alpha=True)
    read = read_body({"prompt": "x", "loras": [{"name": "mixed", "alpha": 8}]})
    verdict = Verdict(read)
    (use,) = judge_loras(read.body, Task.T2VA, replace(FACTS, adapters=(mixed,)), verdict)
    assert not verdict.offences and (use.alpha, use.alpha_given, use.scale) == (None, 8.0, None)


@pytest.mark.parametrize(
    ("lora", "field", "told"),
    [
        ({"name": "nobody"}, "name", "no adapter 'nobody'"),
        ({"name": "broken"}, "name", "is no safetensors file"),
        ({"name": "unfit"}, "name", "doesn't fit the fl2va transformer"),
        ({"name": "part"}, "partial", "3 of 4 layers"),
        ({"name": "style", "alpha": 8}, "alpha", "says 32"),
        ({"name": "varied", "alpha": 8}, "alpha", "says its own"),
    ],
)
def test_each_fault_has_its_field(lora: dict[str, Any], field: str, told: str) -> None:
    found = offences(loras=[lora])
    assert list(found) == [f"loras[0].{field}"] and told in found[f"loras[0].{field}"][0]


def test_names_are_listed_and_an_empty_server_names_its_setting() -> None:
    assert "style" in offences(loras=[{"name": "nobody"}])["loras[0].name"][1]
    read = read_body({"prompt": "x", "loras": [{"name": "a"}]})
    verdict = Verdict(read)
    judge_loras(read.body, Task.T2VA, replace(FACTS, adapters=()), verdict)
    assert "H3_LORA_DIR" in verdict.offences[0].legal


def test_one_adapter_is_named_once() -> None:
    assert "twice" in offences(loras=[{"name": "style"}, {"name": "style"}])["loras[1].name"][0]


def test_what_does_not_match_is_left_out_on_request_and_told() -> None:
    (use,), verdict = judged(loras=[{"name": "part", "partial": True}])
    assert (use.matched, use.total) == (3, 4) and "blocks.60.mlp.fc1" in verdict.warnings[0] and not verdict.offences


def test_adaln_of_another_width_warns_once_and_needs_no_consent() -> None:
    uses, verdict = judged(loras=[{"name": "narrow"}])
    assert len(uses) == 1 and not verdict.offences
    assert len(verdict.warnings) == 1 and "AdaLN" in verdict.warnings[0]


def test_a_contract_that_is_kept_is_silent() -> None:
    assert offences(loras=[{"name": "fast"}], **AS_TRAINED) == {}
    assert offences(loras=[{"name": "fast"}], **AS_TRAINED | {"scheduler": "linear"}) == {}
    assert offences(loras=[{"name": "fast", "strength": 0}]) == {}


@pytest.mark.parametrize(
    ("changed", "field", "legal"),
    [
        ({"steps": 5}, "steps", "4"),
        ({"steps": 20}, "steps", "4"),
        ({"shift": 12}, "shift", "6"),
        ({"audio_shift": 4}, "audio_shift", "3"),
        ({"sampler": "res_multistep"}, "sampler", "euler"),
        ({"scheduler": "beta"}, "scheduler", "simple or linear"),
    ],
)
def test_a_contract_that_is_broken_names_the_field(changed: dict[str, Any], field: str, legal: str) -> None:
    """A15: a four-step adapter with other steps, another shift."""
    found = offences(loras=[{"name": "fast"}], **AS_TRAINED | changed)
    assert list(found) == [field] and found[field][1] == legal and "fl2v_turbo_4step" in found[field][0]


def test_what_is_only_advised_warns() -> None:
    advised = replace(FAST, contract=replace(TURBO, schedulers=(), advised=("simple", "linear")))
    for scheduler, warnings in (("simple", 0), ("beta", 1)):
        read = read_body({"prompt": "x", "loras": [{"name": "fast"}], **AS_TRAINED, "scheduler": scheduler})
        verdict = Verdict(read)
        judge_loras(read.body, Task.T2VA, replace(FACTS, adapters=(advised,)), verdict)
        assert not verdict.offences and len(verdict.warnings) == warnings


def test_a_contract_knows_its_tasks() -> None:
    found = offences(Task.REF2VA, loras=[{"name": "fast"}], **AS_TRAINED)
    assert list(found) == ["task"] and found["task"][1] == "t2va or i2va"


def test_a_published_alpha_is_held_to() -> None:
    stripped = replace(STRIPPED, contract=replace(TURBO, steps=(), shift=(), samplers=(), schedulers=(), alpha=8.0))
    read = read_body({"prompt": "x", "loras": [{"name": "stripped", "alpha": 128}]})
    verdict = Verdict(read)
    judge_loras(read.body, Task.T2VA, replace(FACTS, adapters=(stripped,)), verdict)
    assert [(o.field, o.legal) for o in verdict.offences] == [("loras[0].alpha", "8")]
