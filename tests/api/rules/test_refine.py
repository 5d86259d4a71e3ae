"""`refine`: which canvas the clip gets, what is too large, what the second pass does, and who upscales it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from h3runtime.api.answers import refine_answer
from h3runtime.api.judging.resolve import Resolved, resolve_request
from h3runtime.api.request import read_body
from h3runtime.api.rules import Verdict, judge_upscaler
from h3runtime.api.rules.refine import DENOISE, STEPS
from h3runtime.core import AREA_CAP, Clip, Refined, RefinePass, UpscalerFacts
from tests.api.rules.test_levels import FACTS

UPSCALER = UpscalerFacts("up.safetensors", "ab" * 32, "fp16", 4, synthetic=False, embedded=False)


def resolved(max_area: int = AREA_CAP, **fields: Any) -> tuple[Resolved, Verdict]:
    read = read_body({"prompt": "x", "width": 128, "height": 96, **fields})
    assert not read.offences, read.offences
    verdict = Verdict(read)
    return resolve_request(read.body, {}, max_area, 362, verdict), verdict


def offences(**fields: Any) -> dict[str, str]:
    read = read_body({"prompt": "x", "width": 128, "height": 96, **fields})
    verdict = Verdict(read)
    found = resolve_request(read.body, {}, AREA_CAP, 362, verdict)
    judge_upscaler(read.body, found.refine, replace(FACTS, upscaler=UPSCALER), verdict)
    return {o.field: f"{o.message}; {o.legal}" for o in (*read.offences, *verdict.offences)}


@pytest.mark.parametrize(("scale", "size"), [(2, (256, 192)), (1.5, (192, 128)), (1.75, (224, 160)), (1.6, (192, 160))])
def test_the_clip_s_sides_are_whole_multiples_of_32_near_the_scale(scale: float, size: tuple[int, int]) -> None:
    found, verdict = resolved(refine={"scale": scale})
    assert not verdict.offences and not verdict.warnings
    assert found.size == (128, 96) and found.clip_size == size
    assert found.refine == RefinePass(128, 96, scale, STEPS, DENOISE)


def test_what_is_said_of_the_second_pass_is_what_it_does() -> None:
    found, _ = resolved(refine={"scale": 1.5, "steps": 7, "denoise": 0.125})
    assert found.refine == RefinePass(128, 96, 1.5, 7, 0.125)
    assert resolved()[0].refine is None and resolved(refine=None)[0].clip_size == (128, 96)
    assert resolved(refine={})[0].clip_size == (256, 192)


@pytest.mark.parametrize(
    ("fields", "field", "told"),
    [
        ({"width": 1344, "height": 768, "refine": {}}, "refine.scale", "2688x1536, 4128768 pixels, more than 1032192"),
        ({"width": 1344, "height": 768, "refine": {}}, "refine.scale", "a canvas of at most 458752 pixels"),
        ({"width": 768, "height": 448, "refine": {}}, "refine.scale", "1.5..1.75 at this size"),
        ({"quality": "high", "refine": {}}, "quality", "no evidence of refined clips"),
        ({"refine": {"scale": 1.4}}, "refine.scale", "1.5..2"),
        ({"refine": {"scale": 2.1}}, "refine.scale", "1.5..2"),
        ({"refine": {"steps": 0}}, "refine.steps", "too small"),
        ({"refine": {"steps": 201}}, "refine.steps", "too large"),
        ({"refine": {"denoise": 0}}, "refine.denoise", "0.001..1"),
        ({"refine": {"denoise": 1.01}}, "refine.denoise", "0.001..1"),
        ({"refine": {"strength": 1}}, "refine.strength", "scale, steps, denoise"),
        ({"refine": True}, "refine", "{scale, steps, denoise}"),
    ],
)
def test_what_can_t_be_done_is_told_under_its_name(fields: dict[str, Any], field: str, told: str) -> None:
    found = offences(**fields)
    assert set(found) == {field} and told in found[field]


def test_a_canvas_that_the_server_allows_beyond_the_trained_one_warns() -> None:
    found, verdict = resolved(4 * AREA_CAP, width=1344, height=768, refine={})
    assert found.clip_size == (2688, 1536) and not verdict.offences
    assert any("refined pixels are more than" in warning for warning in verdict.warnings)


def test_a_request_is_held_to_the_upscaler_that_is_there() -> None:
    read = read_body({"prompt": "x", "refine": {}})
    refine, verdict = RefinePass(64, 64, 2.0, 4, 0.5), Verdict(read)
    held = judge_upscaler(read.body, refine, replace(FACTS, upscaler=UPSCALER), verdict)
    assert held == replace(refine, upscaler=UPSCALER.sha256) and not verdict.offences


def test_without_an_upscaler_that_is_all_that_is_told() -> None:
    read = read_body({"prompt": "x", "width": 1344, "height": 768, "refine": {}})
    verdict = Verdict(read)
    refine = resolve_request(read.body, {}, AREA_CAP, 362, verdict).refine
    assert judge_upscaler(read.body, refine, FACTS, verdict) is None
    assert [(o.field, o.message) for o in verdict.offences] == [("refine", "no upscaler is configured")]


def test_the_answer_has_what_was_asked_and_what_it_took() -> None:
    refine = RefinePass(128, 96, 2.0, 4, 0.25, upscaler="ab")
    assert refine_answer(None, None) is None
    waiting = refine_answer(refine, None)
    assert waiting == {
        "scale": 2.0,
        "steps": 4,
        "denoise": 0.25,
        "width": 128,
        "height": 96,
        "forwards": None,
        "upscaling_seconds": None,
        "sampling_seconds": None,
    }
    clip = Clip.__new__(Clip)
    object.__setattr__(clip, "refined", Refined(3, 0.5, 2.0))
    done = refine_answer(refine, clip)
    assert done is not None and (done["forwards"], done["sampling_seconds"]) == (3, 2.0)
