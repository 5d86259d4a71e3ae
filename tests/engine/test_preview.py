"""The cheap look at a clip while it is sampled: its colours, its size, and what it may cost."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from h3runtime.core import Progress
from h3runtime.engine.preview import ColourMap, Poster, Previews, as_png, coarse_latent
from h3runtime.media.probe import read_frames
from h3runtime.packing.layout import pack
from h3runtime.vae.video_pixels import denormalise

CPU = torch.device("cpu")
LAYOUT = pack(7, 4, 6, 37, np.ones(3, dtype=np.int64))
VIDEO = 24 * 7 * 4 * 6


@pytest.fixture(scope="module")
def colours(engine) -> ColourMap:
    return ColourMap.of(engine.models.vaes.video)


@pytest.fixture
def previewing(engine, colours, monkeypatch):
    monkeypatch.setattr(engine, "_colours", colours)
    return engine


def opened(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


def test_colours_are_fitted_to_the_decoder_alike_every_time(engine, colours) -> None:
    vae = engine.models.vaes.video
    assert torch.equal(ColourMap.of(vae).weights, colours.weights)
    latent = coarse_latent(24).repeat_interleave(2, -1).repeat_interleave(2, -2)
    frames = denormalise(vae.decode_piece(vae.denormalised(latent)))
    real = frames.view(7, 4, 8, 16, 8, 16, 3).mean((1, 3, 5))
    told = torch.stack([colours.colours(latent[0, :, frame]) for frame in range(7)]).float() / 255
    assert (told - real).square().mean() < 0.5 * (real - real.mean((0, 1, 2))).square().mean()


def test_a_run_shows_the_middle_of_its_estimate(previewing, make_spec) -> None:
    seen: list[Progress] = []
    spec = make_spec(width=96, height=64, steps=4)
    previewing.generate(spec, seen.append, lambda: False)
    shown = [p for p in seen if p.preview]
    assert [p.stage for p in shown] == ["sampling"] * (len(shown) - 1) + ["video_decode"]
    *sampled, decoded = shown
    assert sampled[-1].step == 4 and [p.step for p in sampled] == sorted({p.step for p in sampled})
    assert opened(sampled[-1].preview).shape == (4 * 4, 4 * 6, 3)
    middle = read_frames(spec.output)[spec.frames // 2].astype(int)
    assert abs(opened(decoded.preview) - middle).mean() < 6, "measured: 4.1, and 7.7 of the frames beside it"


def test_previews_change_nothing(engine, colours, make_spec, monkeypatch) -> None:
    spec = make_spec(steps=2, overwrite=True)
    plain = engine.generate(spec, lambda _: None, lambda: False).sha256
    monkeypatch.setattr(engine, "_colours", colours)
    assert engine.generate(spec, lambda _: None, lambda: False).sha256 == plain


def test_without_anybody_to_see_them_there_are_none(engine, make_spec) -> None:
    seen: list[Progress] = []
    engine.generate(make_spec(), seen.append, lambda: False)
    assert not [p for p in seen if p.preview]


def test_pictures_take_a_hundredth_of_the_time_and_the_last_one_always_comes(colours) -> None:
    """Each reading of the clock is 1 ms later: a picture takes one, so the next is due 100 readings on."""
    ticks = iter(range(10**6))
    previews = Previews(colours, LAYOUT, 24, CPU, clock=lambda: next(ticks) / 1000)
    packed = torch.randn(VIDEO + 32 * 2 * 37)
    made = [previews.look(packed, is_last=step == 399) is not None for step in range(400)]
    assert made[0] and made[-1]
    assert 3 <= sum(made) <= 6


def test_the_middle_frame_is_shown(colours) -> None:
    packed = torch.zeros(VIDEO + 32 * 2 * 37)
    packed[:VIDEO].view(24, 7, 4, 6)[:, 3] = torch.randn(24, 4, 6)
    frame = packed[:VIDEO].view(24, 7, 4, 6)[:, 3]
    made = Previews(colours, LAYOUT, 24, CPU).look(packed, is_last=True)
    assert made == as_png(colours.colours(frame))


def test_a_poster_is_the_middle_frame_whatever_the_chunks() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (39, 8, 12, 3), np.uint8)
    poster = Poster(39)
    found = [poster.found_in(frames[begin : begin + 17]) for begin in (0, 17, 34)]
    assert [png is not None for png in found] == [False, True, False]
    assert np.array_equal(opened(found[1]), frames[19])
    large = np.zeros((1, 768, 1344, 3), np.uint8)
    assert opened(Poster(1).found_in(large)).shape == (293, 512, 3)


@pytest.mark.parametrize(("cells", "size"), [((4, 6), (16, 24)), ((48, 84), (192, 336)), ((48, 256), (96, 512))])
def test_four_pixels_a_cell_and_512_at_most(cells, size) -> None:
    assert opened(as_png(torch.zeros(*cells, 3, dtype=torch.uint8))).shape == (*size, 3)
