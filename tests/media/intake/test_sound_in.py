"""Sounds of every rate and kind arrive as 32 kHz stereo, in pitch and in time; what can't is a typed error."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from PIL import Image

from h3runtime.core import MediaFile, SoundInput
from h3runtime.errors import BadMedia
from h3runtime.media.intake.sound_in import read_sound_in
from tests.media.made import beeps, damage, make_clip, make_sound, onsets, tone


def read(path: Path, start: float = 0.0, seconds: float | None = None):
    return read_sound_in(SoundInput(MediaFile(path, "references[0].source"), start, seconds))


def pitch(samples: np.ndarray) -> float:
    """Hz of the strongest tone of float32 [n] at 32 kHz, to a fraction of a hertz."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), 1 << 20))
    return float(spectrum.argmax()) * 32_000 / (1 << 20)


@pytest.mark.parametrize("rate", [8_000, 24_000, 44_100, 48_000, 96_000, 192_000])
def test_a_tone_keeps_its_pitch(tmp_path: Path, rate: int) -> None:
    """A19: mono, 2.5 s."""
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(2.5, rate), rate, subtype="PCM_16")
    sound = read(path)
    assert sound.dtype == np.float32 and sound.shape == (2, 80_000)
    assert abs(pitch(sound[0]) - 440) < 0.1
    assert np.array_equal(sound[0], sound[1])
    assert abs(np.abs(sound[0, 1000:-1000]).max() - 0.5) < 0.01


KINDS = [
    ("a.mp3", "libmp3lame", 44_100),
    ("a.m4a", "aac", 44_100),
    ("a.aac", "aac", 48_000),
    ("a.mka", "aac", 48_000),
    ("a.flac", "flac", 44_100),
    ("a.ogg", "libopus", 48_000),
    ("a.ogg", "vorbis", 44_100),
    ("a.webm", "libopus", 48_000),
    ("a.wav", "pcm_s24le", 96_000),
    ("a.wav", "pcm_u8", 22_050),
    ("a.wav", "pcm_f64le", 48_000),
    ("a.aiff", "pcm_s16be", 16_000),
]


@pytest.mark.parametrize(("name", "codec", "rate"), KINDS)
def test_every_kind_in_pitch_and_with_its_lead_in_left_out(tmp_path: Path, name: str, codec: str, rate: int) -> None:
    samples = np.stack([beeps([0.25, 0.75], 1.0, rate), tone(1.0, rate)])
    if codec == "vorbis":
        soundfile.write(tmp_path / name, samples.T, rate, format="OGG", subtype="VORBIS")
    else:
        make_sound(tmp_path / name, codec, samples, rate, "stereo")
    sound = read(tmp_path / name)
    assert abs(pitch(sound[1, 1600:30_000]) - 440) < 1
    # A raw AAC stream has no place to say how long its lead-in is: 1024 samples.
    late = 1024 / rate if name.endswith(".aac") else 0.0
    heard = onsets(np.where(np.abs(sound[0]) > 0.2, sound[0], 0))
    assert np.allclose(heard, [0.25 + late, 0.75 + late], atol=0.002)


def test_24_bits_are_exact(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    want = np.random.default_rng(0).integers(-(1 << 23), 1 << 23, (3200, 2)) / float(1 << 23)
    soundfile.write(path, want, 32_000, subtype="PCM_24")
    assert np.array_equal(read(path), want.T.astype(np.float32))


def test_of_surround_the_first_two_channels(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    channels = np.stack([tone(0.5, 32_000, 200.0 * (i + 1)) for i in range(6)])
    make_sound(path, "pcm_s16le", channels, 32_000, "5.1")
    sound = read(path)
    assert [round(pitch(channel) / 10) * 10 for channel in sound] == [200, 400]


def test_a_part_is_cut_out_on_the_file_clock(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, beeps([0.5, 1.2], 2.0, 44_100), 44_100)
    whole = read(path)
    part = read(path, start=1 / 3, seconds=0.5)
    assert part.shape == (2, 16_000)
    assert np.array_equal(part, whole[:, 10_667:26_667])
    assert read(path, start=1.75, seconds=9.0).shape == (2, 8_000)


def test_nothing_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(0.5, 8_000), 8_000)
    with pytest.raises(BadMedia, match=r"references\[0\].source: it has no sound 0.5 s from its beginning"):
        read(path, start=0.5)


@pytest.mark.parametrize("start", [0.0, 0.3, -0.3])
def test_sound_is_aligned_to_the_first_picture(tmp_path: Path, start: float) -> None:
    """The beep is 0.4 s after the sound's own beginning, which is `start` after the first picture."""
    times = range(24, 48) if start < 0 else range(24)
    shift = 1.0 + start if start < 0 else start
    sound = beeps([0.4], 0.8, 48_000)
    path = make_clip(tmp_path / "a.mkv", times=times, sound=sound, sound_codec="pcm_s16le", sound_start=shift)
    got = read(path)
    assert np.allclose(onsets(got[0]), [0.4 + start], atol=0.002)
    assert got.shape[1] == round((0.8 + start) * 32_000)


def test_aac_beside_pictures_in_mp4_is_on_time(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", times=range(24), sound=beeps([0.0, 0.5], 1.0, 48_000))
    assert np.allclose(onsets(read(path)[0]), [0.0, 0.5], atol=0.002)


def test_a_gap_in_time_is_silence(tmp_path: Path) -> None:
    """Two WAV blocks half a second apart on a Matroska clock."""
    path = tmp_path / "a.mka"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=32_000, layout="mono")
        for begin in (0, 32_000):
            block = av.AudioFrame.from_ndarray((tone(0.5, 32_000)[None] * 32_767).astype(np.int16), "s16", "mono")
            block.sample_rate, block.pts, block.time_base = 32_000, begin, Fraction(1, 32_000)
            container.mux(stream.encode(block))
        container.mux(stream.encode())
    sound = read(path)
    assert sound.shape == (2, 48_000)
    assert np.abs(sound[0, 16_000:32_000]).max() == 0 and np.abs(sound[0, 32_000:]).max() > 0.4


@pytest.mark.parametrize(
    "value,told",
    [(np.nan, "not finite"), (np.inf, "not finite"), (-1e30, "beyond 100 times"), (101.0, "beyond 100 times")],
)
def test_values_that_nothing_can_be_made_of_are_refused(tmp_path: Path, value: float, told: str) -> None:
    path = tmp_path / "a.wav"
    samples = tone(0.5, 48_000)
    samples[777] = value
    soundfile.write(path, samples, 48_000, subtype="FLOAT")
    with pytest.raises(BadMedia, match=told):
        read(path)


def test_a_rate_that_changes_is_refused(tmp_path: Path) -> None:
    both = tmp_path / "both.mp3"
    for rate in (44_100, 32_000):
        make_sound(tmp_path / f"{rate}.mp3", "libmp3lame", tone(0.5, rate)[None], rate)
    both.write_bytes((tmp_path / "44100.mp3").read_bytes() + (tmp_path / "32000.mp3").read_bytes())
    with pytest.raises(BadMedia, match="changes its rate"):
        read(both)


def test_damage_in_the_middle_is_refused_and_tags_at_the_end_are_not(tmp_path: Path) -> None:
    whole = make_sound(tmp_path / "a.m4a", "aac", tone(1.0, 44_100)[None], 44_100)
    with pytest.raises(BadMedia, match="damaged"):
        read(damage(whole))
    tagged = make_sound(tmp_path / "a.mp3", "libmp3lame", tone(0.5, 44_100)[None], 44_100)
    want = read(tagged)
    tagged.write_bytes(tagged.read_bytes() + b"TAG" + b"title".ljust(125, b"\0"))
    assert np.array_equal(read(tagged), want)


def test_a_cover_is_no_picture_of_a_clip(tmp_path: Path) -> None:
    """The cover's time must not move the sound."""
    path, cover = tmp_path / "a.mp3", tmp_path / "cover.jpg"
    Image.new("RGB", (32, 32), "teal").save(cover)
    with av.open(str(path), "w") as container, av.open(str(cover)) as pictures:
        stream = container.add_stream("libmp3lame", rate=44_100, layout="mono")
        copy = container.add_stream_from_template(pictures.streams.video[0])
        copy.disposition = av.stream.Disposition.attached_pic
        block = av.AudioFrame.from_ndarray(beeps([0.25], 0.5, 44_100)[None], "fltp", "mono")
        block.sample_rate, block.pts, block.time_base = 44_100, 0, Fraction(1, 44_100)
        packets = [*stream.encode(block), *stream.encode()]
        for packet in pictures.demux(pictures.streams.video[0]):
            if packet.size:
                packet.stream = copy
                container.mux(packet)
        container.mux(packets)
    assert np.allclose(onsets(read(path)[0]), [0.25], atol=0.002)


def test_pictures_and_clips_without_sound_have_none(tmp_path: Path) -> None:
    silent = make_clip(tmp_path / "a.mp4", times=range(2))
    with pytest.raises(BadMedia, match="it has no sound"):
        read(silent)
