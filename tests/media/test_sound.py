"""The loudness rule, the length rule, and sound files that hold the samples they were given."""

import errno
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.errors import InvalidRequest, JobDiskFull, NumericalError, OutputExists
from h3runtime.media.sound import comfyui_loudness, prepare, samples_for, trim, wav_bytes, write_sound


def noise(scale: float, channels: int = 2, samples: int = 6400) -> np.ndarray:
    return np.random.default_rng(1).normal(0, scale, (channels, samples)).astype(np.float32)


def test_a_quiet_sound_is_left_bit_for_bit() -> None:
    quiet = noise(0.15)
    assert np.array_equal(comfyui_loudness(quiet), quiet)


def test_a_loud_sound_ends_at_a_deviation_of_a_fifth() -> None:
    assert np.std(comfyui_loudness(noise(0.7)).astype(np.float64), ddof=1) == pytest.approx(0.2, rel=1e-6)


def test_each_item_of_a_batch_has_its_own_rule() -> None:
    batch = np.stack([noise(0.1), noise(0.7)])
    got = comfyui_loudness(batch)
    assert np.array_equal(got[0], batch[0]) and np.array_equal(got[1], comfyui_loudness(batch[1]))


def test_the_deviation_is_unbiased() -> None:
    pair = np.array([[0.5, -0.5]], np.float32)
    # Unbiased: sqrt(0.5); biased would be 0.5.
    assert comfyui_loudness(pair)[0, 0] == pytest.approx(0.5 / (5 * math.sqrt(0.5)), rel=1e-6)


@given(st.integers(1, 5000))
def test_the_length_is_the_exact_ceiling(frames: int) -> None:
    assert samples_for(frames) == math.ceil(Fraction(32000, 24) * frames)


@given(st.integers(0, 40), st.integers(0, 60_000))
def test_trimming_never_pads_and_never_touches_what_stays(frames: int, given: int) -> None:
    waveform = np.arange(given, dtype=np.float32)[None]
    got = trim(waveform, frames)
    assert got.shape[1] == min(given, math.ceil(Fraction(4000, 3) * frames))
    assert np.array_equal(got, waveform[:, : got.shape[1]])


# conditioning contract §0: F, decoded samples, samples kept
@pytest.mark.parametrize(
    ("frames", "decoded", "kept"),
    [(5, 6400, 6400), (22, 29600, 29334), (124, 165600, 165334), (260, 346400, 346400), (362, 482400, 482400)],
)
def test_the_contract_table(frames: int, decoded: int, kept: int) -> None:
    assert trim(np.zeros((2, decoded), np.float32), frames).shape == (2, kept)


def test_the_rule_sees_the_whole_sound_before_the_cut() -> None:
    waveform = np.concatenate([noise(0.1, samples=29334), noise(3.0, samples=266)], axis=1)
    assert np.array_equal(prepare(waveform, 22, "comfyui"), comfyui_loudness(waveform)[:, :29334])
    assert np.array_equal(prepare(waveform, 22, "none"), waveform[:, :29334])


def test_what_is_not_finite_is_counted_and_refused() -> None:
    waveform = noise(0.1)
    waveform[0, :3] = np.nan
    with pytest.raises(NumericalError, match="3 of 12800"):
        prepare(waveform, 5, "comfyui")


@pytest.mark.parametrize("channels", [1, 2])
def test_wav_keeps_every_bit(tmp_path: Path, channels: int) -> None:
    waveform = noise(0.9, channels)
    (tmp_path / "a.wav").write_bytes(wav_bytes(waveform))
    back, rate = soundfile.read(tmp_path / "a.wav", dtype="float32", always_2d=True)
    assert rate == 32000 and np.array_equal(back.T, waveform)


@pytest.mark.parametrize(("suffix", "worst"), [(".wav", 0.0), (".flac", 2**-23)])
def test_sound_files(tmp_path: Path, suffix: str, worst: float) -> None:
    waveform = np.clip(noise(0.3), -0.99, 0.99)
    write_sound(tmp_path / f"a{suffix}", waveform)
    back, rate = soundfile.read(tmp_path / f"a{suffix}", dtype="float32")
    assert rate == 32000 and np.abs(back.T - waveform).max() <= worst
    assert [p.name for p in tmp_path.iterdir()] == [f"a{suffix}"]


def test_flac_clips_at_full_scale(tmp_path: Path) -> None:
    write_sound(tmp_path / "a.flac", np.array([[2.0, -2.0]], np.float32))
    back, _ = soundfile.read(tmp_path / "a.flac", dtype="float32")
    assert back == pytest.approx([1.0, -1.0], abs=1e-6)


def test_a_sound_file_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"mine")
    with pytest.raises(OutputExists):
        write_sound(tmp_path / "a.wav", noise(0.1))
    assert (tmp_path / "a.wav").read_bytes() == b"mine"
    write_sound(tmp_path / "a.wav", noise(0.1), overwrite=True)
    assert soundfile.info(tmp_path / "a.wav").frames == 6400


def test_other_suffixes_name_the_legal_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        write_sound(tmp_path / "a.mp3", noise(0.1))
    assert caught.value.offences[0].legal == ".wav or .flac"


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    def full(path: Path, _: bytes) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(JobDiskFull):
        write_sound(tmp_path / "a.wav", noise(0.1))
    assert list(tmp_path.iterdir()) == []
