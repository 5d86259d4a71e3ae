"""Recorded layouts, positions and geometry reached from requests: JSON -> task's body -> rules -> spec -> layout.

The other tests of this folder build layouts from recorded shapes. Here a request that leads to the same shapes goes
through the code that judges a client's, and what comes out must be the same layout, row for row.
"""

from typing import Any

import numpy as np
import pytest
import torch

from h3runtime.core import GenerateSpec, PackedLayout, Task
from h3runtime.media import pictures
from h3runtime.packing import geometry
from h3runtime.packing.layout import pack
from h3runtime.packing.rows import keyframe_shape, reference_shape
from tests.parity import dit_case
from tests.parity.dit_case import conditions_of
from tests.parity.fixture import DIRECTORY, RECORDED, Fixture, assert_equal
from tests.parity.request_case import Asked, asked_for, cases_of
from tests.parity.test_fixtures import FILES

TASKS = {"t2va": Task.T2VA, "i2va": Task.I2VA, "fl2va": Task.FL2VA, "ref2va": Task.REF2VA, "guide": Task.I2VA}
FIT = {"disabled": "stretch", "center": "cover"}


def files_of(*kinds: str) -> list[Any]:
    found = [Fixture(path) for path in FILES if path.suffix == ".safetensors"]
    return [pytest.param(f, id=f.path.stem) for f in found if f.kind in kinds]


def layout_of(spec: GenerateSpec, sounds: dict[str, int], tags: np.ndarray) -> PackedLayout:
    return pack(
        geometry.latent_frames(spec.frames),
        geometry.latent_side(spec.height),
        geometry.latent_side(spec.width),
        geometry.audio_latents(spec.frames),
        tags,
        [keyframe_shape(guide, spec.frames, sounds.get(guide.field, 0)) for guide in spec.guides],
        [reference_shape(reference, sounds.get(reference.field, 0)) for reference in spec.references],
    )


@pytest.mark.parametrize("ends", [False, True], ids=["keyframes", "ends"])
@pytest.mark.parametrize("fixture", files_of("positions_and_tags", "dit_forward", "sampler_trajectory"))
def test_a_request_leads_to_the_recorded_layout(fixture, ends) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in fixture.tensors.items()}
    for name, size, payload in cases_of(fixture.meta, shapes):
        asked = asked_for(size, payload, ends=ends)
        assert asked is not None or DIRECTORY != RECORDED, f"{name}: no request leads there"
        if asked is None:
            continue
        spec = asked.spec()
        task = (fixture.meta["cases"][name] if name else fixture.meta).get("task")
        assert spec.task == TASKS.get(task, spec.task), name
        tags = np.ones(size["text_len"], dtype=np.int64) if name else fixture["in.text_tags"].numpy().astype(np.int64)
        layout = layout_of(spec, asked.sounds, tags)
        check_layout(fixture, name, layout)
        if fixture.kind == "dit_forward":
            check_network_reads_it(fixture, layout)


def check_layout(fixture: Fixture, name: str, layout: PackedLayout) -> None:
    """Against whatever of a layout the file holds: segments in its metadata or as rows, positions."""
    recorded = (fixture.meta["cases"][name] if name else fixture.meta).get("segments")
    if recorded is not None:
        assert [[s.start, s.stop, str(s.kind)] for s in layout.segments] == recorded, name
    positions = f"out.{name}.position_ids" if name else "out.position_ids"
    if positions in fixture:
        got = torch.from_numpy(layout.position_ids).float()
        assert_equal(f"{name} positions", got, fixture[positions].float())


def check_network_reads_it(fixture: Fixture, layout: PackedLayout) -> None:
    """It is the very layout with which `dit_forward` compares every output of the network."""
    used = dit_case.layout_of(fixture["in.video"], fixture["in.audio"], fixture["in.text_tags"], conditions_of(fixture))
    assert layout.segments == used.segments
    np.testing.assert_array_equal(layout.position_ids, used.position_ids)
    np.testing.assert_array_equal(layout.text_tags, used.text_tags)


@pytest.mark.parametrize("fixture", files_of("geometry"))
def test_lengths_of_requests_are_the_recorded_ones(fixture) -> None:
    for length, want in fixture.meta["temporal"].items():
        spec = Asked({"seconds": int(length) / 24, "width": 64, "height": 64}).spec()
        layout = layout_of(spec, {}, np.ones(1, dtype=np.int64))
        assert [spec.frames, layout.latent_frames, layout.audio_latents] == want, length


@pytest.mark.parametrize("fixture", files_of("geometry"))
def test_references_of_requests_have_the_recorded_sizes(fixture) -> None:
    for case, want in fixture.meta["ref_image_size"].items():
        target, source, mode = case.split(":")
        width, height = sides(target)
        asked = Asked({"width": width, "height": height, "frames": 5})
        picture = asked.picture("references[0].source", *sides(source))
        asked.json["references"] = [{"type": "image", "source": picture, "size": mode}]
        assert size_of_reference(asked) == want, case


@pytest.mark.parametrize("fixture", files_of("geometry"))
def test_clips_of_requests_have_the_recorded_canvases(fixture) -> None:
    """A clip smaller than its canvas keeps its own size, so small ones are asked for four times as wide."""
    for source, want in fixture.meta["adapt_canvas"].items():
        width, height = sides(source)
        times = 1 if width * height >= want[0] * want[1] else 4
        asked = Asked({"frames": 5, "width": 64, "height": 64})
        clip = asked.clip("references[0].source", 72, times * width, times * height)
        asked.json["references"] = [{"type": "video", "source": clip}]
        assert size_of_reference(asked) == want, source


@pytest.mark.parametrize("fixture", files_of("geometry"))
def test_first_and_last_frame_are_fitted_as_recorded(fixture) -> None:
    """The first is stretched, the last covers: the guide says which, and the pixels are the recorded ones."""
    for index, case in enumerate(fixture.meta["images"]):
        (height, width), name = case["out_hw"], {"disabled": "first_frame", "center": "last_frame"}[case["crop"]]
        asked = Asked({"frames": 5, "width": 64, "height": 64})
        asked.json[name] = asked.picture(name, *case["in_hw"][::-1])
        (guide,) = asked.spec().guides
        assert (guide.fit, guide.shown) == (FIT[case["crop"]], True)
        pixels = (fixture[f"in.image.{index}"][0].numpy() * 255).clip(0, 255).astype(np.uint8)
        want = np.rint(fixture[f"out.image.{index}.{case['crop']}"][0].numpy() * 255).astype(np.uint8)
        np.testing.assert_array_equal(getattr(pictures, guide.fit)(pixels, width, height), want)


def size_of_reference(asked: Asked) -> list[int]:
    (reference,) = asked.spec().references
    return [reference.width, reference.height]


def sides(text: str) -> tuple[int, int]:
    width, height = text.split("x")
    return int(width), int(height)
