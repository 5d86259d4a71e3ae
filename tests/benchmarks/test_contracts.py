"""The contracts are the canonical workloads, true to our own packing and schedule, and a false number is found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.contract import CONTRACTS, Contract, Unreadable, contract_names, read_contract
from benchmarks.schemas import FOLDER, KINDS, schema_text
from h3runtime.core import SamplerSettings, SegmentKind
from h3runtime.denoiser.schedule import forwards
from h3runtime.packing.geometry import audio_latents, latent_frames, latent_side
from h3runtime.packing.layout import pack
from tests.parity.kinds import tokenizer as recorded

WORKLOADS = {
    "t2va-1344x768-124f": (37_296, 414, 37_810, 12, "440407"),
    "ref2va-960x544-124f": (18_870, 414, 19_384, 12, "440202"),
    "t2va-1344x768-362f": (107_856, 1_206, 109_162, 4, "440407"),
    "t2va-864x480-141f": (17_010, 470, 17_580, 12, "440407"),
    "smoke-320x192-22f": (420, 74, 594, 2, "440407"),
}
"""Video rows, audio rows, all with 100 of text, forwards, seed."""


def contract(name: str) -> Contract:
    return read_contract(name).contract


def test_the_canonical_workloads_are_all_there_and_no_others() -> None:
    assert contract_names() == sorted(WORKLOADS)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_the_canonical_one(name: str) -> None:
    found = contract(name)
    rows, sampling = found.rows, found.sampling
    assert (rows.video, rows.audio, rows.total, sampling.forwards, sampling.seed) == WORKLOADS[name]
    assert (rows.text, sampling.sampler, sampling.scheduler) == (100, "res_multistep", "beta")
    assert (sampling.shift, sampling.audio_shift) == (12.0, 3.0)
    assert (found.measuring.minimum_samples, found.measuring.statistic) == (3, "median")
    sizes = re.fullmatch(r"\w+-(\d+)x(\d+)-(\d+)f", name)
    assert sizes is not None and [found.width, found.height, found.frames] == [int(n) for n in sizes.groups()]


@pytest.mark.parametrize("name", WORKLOADS)
def test_our_packing_makes_the_rows(name: str) -> None:
    found = contract(name)
    layout = pack(
        latent_frames(found.frames),
        latent_side(found.height),
        latent_side(found.width),
        audio_latents(found.frames),
        np.ones(found.rows.text, np.int64),
    )
    counted = {kind: sum(s.stop - s.start for s in layout.of_kind(kind)) for kind in SegmentKind}
    assert counted[SegmentKind.VIDEO] == found.rows.video
    assert counted[SegmentKind.AUDIO] == found.rows.audio
    assert (layout.text_rows, layout.rows) == (found.rows.text, found.rows.total)


@pytest.mark.parametrize("name", WORKLOADS)
def test_our_schedule_makes_the_forwards(name: str) -> None:
    sampling = contract(name).sampling
    settings = SamplerSettings(sampling.steps, sampling.sampler, sampling.scheduler, sampling.shift)
    assert forwards(settings) == sampling.forwards


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_prompt_has_the_rows_with_the_published_tokenizer(name: str) -> None:
    found = contract(name)
    assert len(recorded.tokenizer().encode(found.prompt)) == found.rows.text


def test_the_figures_from_the_field() -> None:
    figures = {name: contract(name).figures for name in WORKLOADS}
    (gb10,), (rtx,) = figures.pop("t2va-1344x768-124f"), figures.pop("ref2va-960x544-124f")
    assert not any(figures.values())
    assert (gb10.value, gb10.unit, gb10.device, gb10.precision, gb10.attention, gb10.forwards) == (
        (255.447, "s", "GB10", "nvfp4", "SageAttention 2", 12)
    )
    assert (rtx.value, rtx.unit, rtx.device, rtx.peer, rtx.attention) == (
        (49.893, "s", "RTX PRO 6000", "ComfyUI", "SageAttention 3")
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_committed_schema_is_the_models(kind: str) -> None:
    text = (FOLDER / f"{kind}.schema.json").read_text()
    assert text == schema_text(kind), "run benchmarks/schemas.py"
    schema = json.loads(text)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["additionalProperties"] is False


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "rows": (lambda c: c["rows"].update(video=421, total=595), "rows.video is 421, but 320x192x22 gives 420"),
    "sum": (lambda c: c["rows"].update(total=595), "total is 595, but the rows add up to 594"),
    "latents": (lambda c: c["latents"].update(video=[24, 7, 12, 22]), "latents.video is (24, 7, 12, 22)"),
    "frames": (lambda c: c.update(frames=23), "frames is 23, which is not 17n+5"),
    "references": (lambda c: c["rows"].update(references=None), "rows.references is None"),
    "extra": (lambda c: c.update(colour="red"), "colour: Extra inputs are not permitted"),
    "number as text": (lambda c: c.update(width="320"), "width: Input should be a valid integer"),
    "seed as number": (lambda c: c["sampling"].update(seed=440407), "sampling.seed"),
    "statistic": (lambda c: c["measuring"].update(statistic="mean"), "measuring.statistic"),
    "missing": (lambda c: c.pop("sampling"), "sampling: Field required"),
    "name": (lambda c: c.update(name="other"), "its name is other"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_false_contract_is_named(tmp_path: Path, change: str) -> None:
    name = "smoke-320x192-22f"
    text = json.loads((CONTRACTS / f"{name}.json").read_text())
    alter, told = CHANGES[change]
    alter(text)
    (tmp_path / f"{name}.json").write_text(json.dumps(text))
    with pytest.raises(Unreadable, match=re.escape(told)) as caught:
        read_contract(name, tmp_path)
    assert str(caught.value).startswith(f"{name}.json: ")


def test_a_contract_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=r"none\.json: No such file"):
        read_contract("none", tmp_path)
