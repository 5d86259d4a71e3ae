"""What is heard: presence, pitches, envelopes, onsets, places and timbres, with noise and by itself."""

from __future__ import annotations

import numpy as np
import pytest

from h3runtime.core import FPS, SAMPLE_RATE
from h3runtime.nano.hearing import listen
from h3runtime.nano.sounds import voice
from h3runtime.nano.world import PITCHES, SHAPES, TIMBRES, Scene, track
from tests.nano.clips import clip, lone
from tests.nano.damage import damaged_sound

ENVELOPES = {"bounce": "plucks", "appear": "begins", "grow": "rising", "shrink": "falling", "still": "steady"}


@pytest.mark.parametrize("timbre", TIMBRES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_lone_voice_has_its_pitch_and_timbre(shape: str, timbre: str) -> None:
    heard = listen(voice(timbre, PITCHES[shape], 40).numpy(), 24)
    assert heard.present
    assert [tone.shape for tone in heard.tones] == [shape]
    assert heard.timbre == timbre


@pytest.mark.parametrize("motion", ENVELOPES)
def test_an_envelope_is_known_through_noise(motion: str) -> None:
    scene, _, samples = clip(Scene((lone("red", "box", motion),), "grey", timbre="bright"), 64, 64)
    for heard in listen(samples, 22), listen(damaged_sound(samples, np.random.default_rng(0)), 22):
        (tone,) = heard.tones
        assert tone.envelope == ENVELOPES[motion]
        assert heard.timbre == scene.timbre


def test_plucks_are_heard_when_they_come() -> None:
    actor = lone("red", "ring", "bounce", first=3.7, period=10)
    _, _, samples = clip(Scene((actor,), "grey"), 64, 64, 39)
    (tone,) = listen(samples, 39).tones
    assert np.allclose(tone.onsets, track(actor, 39).impacts, atol=0.01)


def test_a_tone_begins_with_its_actor() -> None:
    actor = lone("red", "ring", "appear", first=0.5)
    _, _, samples = clip(Scene((actor,), "grey"), 64, 64)
    (tone,) = listen(samples, 22).tones
    assert tone.onsets[0] == pytest.approx(11 / FPS, abs=0.02)
    assert np.isnan(tone.x[:9]).all()


@pytest.mark.parametrize("motion", ["left", "right"])
def test_a_tone_is_heard_where_its_actor_is(motion: str) -> None:
    actor = lone("red", "ball", motion)
    _, _, samples = clip(Scene((actor,), "grey"), 64, 64)
    (tone,) = listen(samples, 22).tones
    assert np.abs(tone.x - track(actor, 22).x).max() < 0.02


@pytest.mark.parametrize("timbre", TIMBRES)
def test_two_tones_are_two_pitches_with_their_own_rhythm(timbre: str) -> None:
    late = lone("red", "box", "bounce", x=0.25, first=15.5, period=16)
    steady = lone("blue", "triangle", "still", x=0.75)
    _, _, samples = clip(Scene((late, steady), "grey", timbre=timbre), 64, 64)
    low, high = listen(samples, 22).tones
    assert (low.shape, low.envelope, high.shape, high.envelope) == ("box", "plucks", "triangle", "steady")
    assert np.allclose(low.onsets, 15.5 / FPS, atol=0.02)
    assert np.nanmean(low.x) == pytest.approx(0.25, abs=0.03)
    assert np.nanmean(high.x) == pytest.approx(0.75, abs=0.03)
    assert listen(samples, 22).timbre is None


def test_silence_noise_and_other_pitches_are_no_tone() -> None:
    quiet = np.full((2, SAMPLE_RATE), 0.001, np.float32)
    assert not listen(quiet, 24).present
    noise = np.random.default_rng(0).standard_normal((2, SAMPLE_RATE)).astype(np.float32) * 0.2
    assert listen(noise, 24).present
    assert not listen(noise, 24).tones
    assert not listen(voice("pure", 260.0, 40).numpy(), 24).tones
    assert listen(voice("pure", 325.0, 40).numpy(), 24).tones[0].shape == "ball"
    assert not listen(np.zeros((2, 0), np.float32), 0).present
