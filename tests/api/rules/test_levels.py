"""Quality, reuse, adapters, refining, several clips, priority: what is taken, and what is refused under which name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from h3runtime.api.judging.resolve import sampling_of
from h3runtime.api.request import MAX_SEED, read_body
from h3runtime.api.rules import Verdict, judge_backends, judge_count, judge_levels, judge_upscaler
from h3runtime.core import BackendChoice, EngineFacts

FAST = BackendChoice("sage", "it is there", ("sage", "sdpa"), {"sage": "validated", "sdpa": "reference"}, {"fa": "no"})
PLAIN = BackendChoice("dequant", "it is there", ("dequant",), {"dequant": "reference"}, {})
FACTS = EngineFacts("cpu", "x", (), FAST, PLAIN, {}, {})


def offences(**fields: Any) -> dict[str, str]:
    read = read_body({"prompt": "x", **fields})
    verdict = Verdict(read)
    judge_levels(read.body, verdict)
    judge_upscaler(read.body, None, FACTS, verdict)
    judge_count(read.body, verdict)
    judge_backends(read.body, FACTS, verdict)
    return {offence.field: offence.message for offence in (*read.offences, *verdict.offences)}


@pytest.mark.parametrize(
    "fields",
    [
        {"quality": "exact"},
        {"quality": "exact", "attention": "sdpa", "linear": "dequant", "cache_mode": "none"},
        {"quality": "exact", "attention_plan": [{"steps": "0-11", "attention": "sdpa"}]},
        {"cache_mode": "none"},
        {"cache_mode": "easycache"},
        {"cache_mode": "h3_cache", "cache_threshold": 0, "cache_subsample_factor": 1},
        {"cache_mode": "first_block", "cache_threshold": 3, "cache_start_percent": 0, "cache_end_percent": 1},
        {"cache_mode": "easycache", "cache_forecast": "delta"},
        {"loras": []},
        {"refine": None},
        {"n": 10, "seed": MAX_SEED - 9},
        {"n": 1, "seed": MAX_SEED},
        {"n": 10, "seed": -1},
        {"priority": -10},
        {"priority": 10},
    ],
)
def test_what_can_be_done_is_taken(fields: dict[str, Any]) -> None:
    assert offences(**fields) == {}


@pytest.mark.parametrize(
    ("fields", "field", "told"),
    [
        ({"quality": "best"}, "quality", "not one of the legal values"),
        ({"quality": None}, "quality", "null"),
        ({"quality": "exact", "attention": "sage"}, "attention", "contradicts quality"),
        ({"quality": "exact", "cache_mode": "easycache"}, "cache_mode", "contradicts quality"),
        (
            {"quality": "exact", "attention_plan": [{"steps": "0-11", "attention": "sage"}]},
            "attention_plan[0].attention",
            "contradicts quality",
        ),
        ({"attention_plan": [{"steps": "0-11", "attention": "fa"}]}, "attention_plan[0].attention", "'fa': no"),
        ({"attention_plan": [{"steps": "0-11", "attention": "?"}]}, "attention_plan[0].attention", "not known"),
        ({"quality": "exact", "cache_mode": "first_block"}, "cache_mode", "contradicts quality"),
        ({"cache_mode": "x"}, "cache_mode", "not one of the legal values"),
        ({"cache_threshold": 0.1}, "cache_threshold", "does nothing"),
        ({"cache_mode": "none", "cache_subsample_factor": 8}, "cache_subsample_factor", "does nothing"),
        ({"cache_start_percent": 2}, "cache_start_percent", "too large"),
        ({"cache_mode": "h3_cache", "cache_threshold": -0.1}, "cache_threshold", "too small"),
        ({"cache_mode": "h3_cache", "cache_threshold": 3.5}, "cache_threshold", "too large"),
        ({"cache_mode": "h3_cache", "cache_threshold": "0.1"}, "cache_threshold", "not a number"),
        ({"cache_mode": "h3_cache", "cache_subsample_factor": 0}, "cache_subsample_factor", "too small"),
        ({"cache_mode": "h3_cache", "cache_subsample_factor": 65}, "cache_subsample_factor", "too large"),
        ({"cache_mode": "h3_cache", "cache_subsample_factor": 1.5}, "cache_subsample_factor", "not a whole number"),
        ({"cache_mode": "easycache", "cache_end_percent": 0.1}, "cache_end_percent", "not above cache_start_percent"),
        ({"cache_mode": "easycache", "cache_start_percent": 0.95}, "cache_start_percent", "not below cache_end"),
        (
            {"cache_mode": "easycache", "cache_start_percent": 0.5, "cache_end_percent": 0.5},
            "cache_end_percent",
            "not above",
        ),
        ({"cache_forecast": "hold"}, "cache_forecast", "does nothing"),
        ({"cache_mode": "h3_cache", "cache_forecast": "x"}, "cache_forecast", "not one of the legal values"),
        ({"cache_mode": "first_block", "cache_forecast": "hold"}, "cache_forecast", "forecasts nothing"),
        ({"loras": [{"strength": 1}]}, "loras[0].name", "missing"),
        ({"loras": ["style"]}, "loras[0]", "not an object"),
        ({"refine": {"scale": 2}}, "refine", "no upscaler"),
        ({"refine": {"scale": 3}}, "refine.scale", "too large"),
        ({"n": 0}, "n", "too small"),
        ({"n": 11}, "n", "too large"),
        ({"n": "2"}, "n", "not a whole number"),
        ({"n": True}, "n", "not a whole number"),
        ({"n": 2, "seed": MAX_SEED}, "seed", "go beyond"),
        ({"n": 10, "seed": str(MAX_SEED - 8)}, "seed", "go beyond"),
        ({"priority": 11}, "priority", "too large"),
        ({"priority": 1.0}, "priority", "not a whole number"),
        ({"priority": None}, "priority", "null"),
        ({"callback_url": 1}, "callback_url", "not a text"),
    ],
)
def test_what_can_not_is_refused_by_name(fields: dict[str, Any], field: str, told: str) -> None:
    found = offences(**fields)
    assert found.keys() == {field} and told in found[field]


def test_exact_takes_an_exact_backend_where_the_default_is_none() -> None:
    read = read_body({"prompt": "x", "quality": "exact"})
    chosen = judge_backends(read.body, FACTS, Verdict(read))
    assert (chosen.attention, chosen.linear) == ("sdpa", None)
    read = read_body({"prompt": "x"})
    assert judge_backends(read.body, FACTS, Verdict(read)).attention is None


def test_exact_takes_what_a_family_says_is_exact_best_first() -> None:
    fast = replace(FAST, available=("sage", "fa4", "sdpa"), exact=("fa4", "sdpa"))
    facts = replace(FACTS, attention=fast)
    read = read_body({"prompt": "x", "quality": "exact"})
    assert judge_backends(read.body, facts, Verdict(read)).attention == "fa4"
    settled = replace(facts, attention=replace(fast, default="sdpa"))
    assert judge_backends(read.body, settled, Verdict(read)).attention is None
    read = read_body({"prompt": "x", "quality": "exact", "attention": "fa4"})
    verdict = Verdict(read)
    assert judge_backends(read.body, facts, verdict).attention == "fa4" and verdict.offences == []


def test_exact_is_refused_where_the_weights_were_encoded_for_something_else() -> None:
    facts = replace(FACTS, linear=BackendChoice("fp8", "asked for", ("fp8",), {"fp8": "validated"}, {}))
    read = read_body({"prompt": "x", "quality": "exact"})
    verdict = Verdict(read)
    judge_backends(read.body, facts, verdict)
    assert [offence.field for offence in verdict.offences] == ["quality"] and "fp8" in verdict.offences[0].message


def test_a_drawn_seed_leaves_room_for_all_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.randbelow", lambda below: below - 1)
    assert sampling_of(read_body({"prompt": "x", "n": 10}).body).seed + 9 == MAX_SEED
    assert sampling_of(read_body({"prompt": "x"}).body).seed == MAX_SEED
