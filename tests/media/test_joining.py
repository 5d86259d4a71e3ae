"""Sounds of a chain: in their places to the sample, with no jump, no dip and no sample more at the cuts."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.media.joining import FADE, Fade, Place, join, rising, sample_at
from h3runtime.media.sound import samples_for


def tone(seconds: float, at: float = 0.0, hertz: float = 440.0, level: float = 0.5) -> np.ndarray:
    """Stereo, its phase that of a tone which began `at` seconds earlier."""
    t = at + np.arange(round(32000 * seconds)) / 32000
    return np.stack([level * np.sin(2 * np.pi * hertz * t)] * 2).astype(np.float32)


def constant(samples: int, value: float) -> np.ndarray:
    return np.full((2, samples), value, np.float32)


def sounds_of(places: list[Place], surplus: list[int], value: float = 1.0) -> list[np.ndarray]:
    lengths = [
        sample_at(p.stop) - sample_at(p.start - p.overlap) + more for p, more in zip(places, surplus, strict=True)
    ]
    return [constant(length, value) for length in lengths]


@given(st.integers(0, 100_000))
def test_a_frame_begins_at_the_nearest_sample(frame: int) -> None:
    assert sample_at(frame) == round(Fraction(32000, 24) * frame)


@pytest.mark.parametrize("surplus", [0, 300, 5000])
def test_an_equal_sound_keeps_its_level(surplus: int) -> None:
    places = [Place(0, 124), Place(124, 249, 22), Place(249, 300, 22)]
    got = join(places, sounds_of(places, [surplus] * 3))
    assert got.shape == (2, samples_for(300))
    assert np.abs(got - 1).max() <= 2**-23


def test_a_tone_goes_on_through_the_cut() -> None:
    places = [Place(0, 48), Place(48, 96, 22)]
    parts = [tone(2.2), tone(3.2, at=sample_at(48 - 22) / 32000)]
    assert np.abs(join(places, parts) - tone(4.0)).max() < 1e-6


def test_only_the_fade_differs_from_the_clips() -> None:
    places = [Place(0, 48), Place(48, 96, 22)]
    old, new = np.random.default_rng(1).normal(0, 0.2, (2, 2, 96000)).astype(np.float32)
    got = join(places, [old, new])
    cut, begins = sample_at(48), sample_at(26)
    assert np.array_equal(got[:, : cut - FADE // 2], old[:, : cut - FADE // 2])
    assert np.array_equal(got[:, cut + FADE // 2 :], new[:, cut + FADE // 2 - begins : sample_at(96) - begins])
    middle = got[:, cut - 1 : cut + 1]
    expected = (old[:, cut - 1 : cut + 1] + new[:, cut - 1 - begins : cut + 1 - begins]) / 2
    assert np.abs(middle - expected).max() < 1e-3


def test_without_a_surplus_the_fade_lies_before_the_cut() -> None:
    places = [Place(0, 48), Place(48, 96, 22)]
    cut, begins = sample_at(48), sample_at(26)
    # An audio latent may end up to 400 samples before its last frame does.
    for missing in (0, 400):
        old, new = constant(cut - missing, 1.0), constant(sample_at(96) - begins, 0.0)
        faded = join(places, [old, new])[0]
        assert np.flatnonzero(faded != 1)[0] == cut - missing - FADE and faded[cut - missing] == 0
        assert np.all(np.diff(faded) <= 0)


def test_a_hard_cut_keeps_the_power_over_the_surplus() -> None:
    places = [Place(0, 48), Place(48, 96)]
    old, new = constant(sample_at(48) + 2000, 1.0), constant(sample_at(48), 0.0)
    only_old, only_new = join(places, [old, new])[0], join(places, [0 * old, new + 1])[0]
    assert np.allclose(only_old**2 + only_new**2, 1, atol=1e-6)
    assert only_old[sample_at(48) - 1] == 1 and only_old[sample_at(48) + FADE // 2] == 0


def test_a_hard_cut_without_surplus_does_not_click() -> None:
    places = [Place(0, 48), Place(48, 96)]
    got = join(places, sounds_of(places, [0, 0]))[0]
    cut = sample_at(48)
    assert len(got) == samples_for(96) and np.abs(np.diff(got)).max() < 0.02
    assert np.all(got[: cut - 200] == 1) and np.all(got[cut + 200 :] == 1) and got[cut] < 0.02


def test_the_end_is_cut_and_never_padded() -> None:
    assert join([Place(0, 5)], [constant(6400, 1.0)]).shape == (2, 6400)
    assert join([Place(0, 5)], [constant(7000, 1.0)]).shape == (2, 6667)


def test_a_part_of_a_chain_starts_at_its_own_first_frame() -> None:
    places = [Place(50, 124, 22), Place(124, 200, 22)]
    parts = [tone(5, at=sample_at(28) / 32000), tone(5, at=sample_at(102) / 32000)]
    got = join(places, parts)
    assert got.shape == (2, samples_for(150))
    assert np.abs(got - tone(7, at=sample_at(50) / 32000)[:, : got.shape[1]]).max() < 1e-6


@pytest.mark.parametrize("level", [True, False])
def test_weights_and_their_mirror(level: bool) -> None:
    weights = rising(Fade(10, 1610, level)).astype(np.float64)
    mirrored = weights[::-1]
    assert np.allclose(weights + mirrored if level else weights**2 + mirrored**2, 1, atol=1e-6)
    assert weights[0] < 0.002 and np.all(np.diff(weights) >= 0)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.sampled_from([0, 1, 5, 22]), st.integers(-400, 25_000)), min_size=1),
)
def test_any_chain_has_its_exact_length_and_never_gets_louder(clips: list[tuple[int, int, int]]) -> None:
    places, start = [], 0
    for length, overlap, _ in clips[:12]:
        places.append(Place(start, start + length, min(overlap, start)))
        start += length
    surplus = [more if p.stop - p.start > 1 else max(0, more) for p, (_, _, more) in zip(places, clips, strict=False)]
    got = join(places, sounds_of(places, surplus))
    assert got.shape[1] in (samples_for(start), sample_at(start) + min(0, surplus[-1]))
    assert got.shape[1] >= math.ceil(4000 / 3 * start) - 401
    # Of equal sounds a hard cut's equal power makes at most sqrt(2); an overlap's fade nothing.
    if all(p.overlap for p in places[1:]):
        assert np.abs(got - 1).max() <= 2**-23
    assert got.min() >= 0 and got.max() <= (math.sqrt(2) if any(not p.overlap for p in places[1:]) else 1) + 1e-6
