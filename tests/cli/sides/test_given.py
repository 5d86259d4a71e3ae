"""Sides as they are written: what they mean, and every way to be refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.api.request import GenerateBody
from h3runtime.cli.sides.given import (
    OF_BOTH,
    SETTINGS_OF_BOTH,
    read_side,
    request_fields,
    setting_fields,
    split,
    told_by,
)
from h3runtime.errors import BackendUnavailable, InvalidRequest, Offence, SettingsError
from h3runtime.settings import Settings


def test_fields_of_requests_and_settings() -> None:
    side = read_side("b", ["linear=nvfp4_emulated, steps=8,cache-threshold=0.1", ["model_path=/x", "y.safetensors"][0]])
    assert side.request == {"linear": "nvfp4_emulated", "steps": 8, "cache_threshold": 0.1}
    assert side.settings == {"model_path": "/x"} and side.label.startswith("linear=nvfp4_emulated, steps=8")


def test_adapters_and_plans() -> None:
    plan = '[{"steps": "0-1", "attention": "sdpa"}, {"steps": "2", "attention": "math"}]'
    side = read_side("a", [f"lora=kohya:0.5,lora=style:two,attention_plan={plan}"])
    assert side.request["loras"] == [{"name": "kohya", "strength": 0.5}, {"name": "style:two"}]
    assert [entry["attention"] for entry in side.request["attention_plan"]] == ["sdpa", "math"]


def test_nothing_is_the_request_as_it_is() -> None:
    assert read_side("a", []) == read_side("a", [" , "]) and read_side("a", []).label == "the request as it is"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("linaer=fp8", "b.linaer: there is no such field; did you mean linear?"),
        ("steps", "b.steps: has no value"),
        ("steps=", "b.steps: has no value"),
        ("steps=4,steps=8", "b.steps: is given twice"),
        ("width=64", "b.width: is of both sides: give it as a flag"),
        ("port=1", "b.port: is of both sides"),
        ("linear=fp8,sampelr=euler,steps", "b.sampelr: there is no such field; did you mean sampler?; b.steps: has no"),
    ],
)
def test_what_is_no_side_is_refused_by_name(text: str, told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_side("b", [text])
    assert told in caught.value.message and all(offence.legal for offence in caught.value.offences)


def test_every_field_is_of_a_side_or_of_both() -> None:
    """A field that is added to requests or settings is a side's until somebody says otherwise."""
    assert {*request_fields()} | OF_BOTH == {*GenerateBody.model_fields} and not {*request_fields()} & OF_BOTH
    assert {"cache_mode", "cache_threshold", "quality", "linear", "attention"} <= {*request_fields()}
    assert {*setting_fields()} <= {"embedded", *Settings.model_fields} and not {*setting_fields()} & SETTINGS_OF_BOTH


@given(st.lists(st.text(st.characters(exclude_characters='",[]{}'), min_size=1).filter(str.strip)))
def test_commas_separate(pieces: list[str]) -> None:
    assert split(",".join(pieces)) == pieces
    assert split("[" + ",".join(pieces) + "]") == ["[" + ",".join(pieces) + "]"]


def test_faults_are_told_under_the_side_that_has_them() -> None:
    side = read_side("b", ["linear=fp8,fused=triton"])
    with pytest.raises(BackendUnavailable) as caught, told_by(side):
        raise BackendUnavailable("linear: fp8: no", [Offence("linear", "no", "dequant"), Offence("width", "odd")])
    assert caught.value.message == "side b: linear: fp8: no"
    assert [offence.field for offence in caught.value.offences] == ["b.linear", "width"]
    with pytest.raises(SettingsError) as refused, told_by(side):
        raise SettingsError("H3_FUSED: no", [Offence("H3_FUSED", "no")])
    assert refused.value.offences[0].field == "b.fused"
