"""Frames to bytes to YUV planes, the loudness rule, the trim, and what the written container says of itself.

The planes are proved twice: what ffmpeg's scaler makes of the bytes with our filters (both versions of the fixture),
and what a lossless clip from `ClipWriter` really holds (the current version).
"""

import subprocess
import tempfile
from fractions import Fraction
from pathlib import Path

import ffmpeg
import numpy as np
import soundfile
from numpy.typing import NDArray

from h3runtime.core import EncodeSettings
from h3runtime.media.colour import to_words, to_yuv
from h3runtime.media.ffmpeg import FFmpeg, find_ffmpeg
from h3runtime.media.mux import ClipShape, ClipWriter
from h3runtime.media.probe import ClipFacts, probe_clip, read_planes
from h3runtime.media.sound import comfyui_loudness, prepare, samples_for, trim, wav_bytes
from h3runtime.vae.video_pixels import to_bytes
from tests.parity.fixture import Fixture

MATRICES = {"A": "bt601", "N": "bt709"}


def check(fixture: Fixture) -> None:
    rgb = fixture["out.rgb24"].numpy()
    assert np.array_equal(to_bytes(fixture["in.frames"].float()).numpy(), rgb)
    if "out.rgb48_10bit" in fixture:
        assert np.array_equal(to_words(fixture["in.frames"].numpy()), fixture["out.rgb48_10bit"].numpy())
    _trim(fixture)
    tool = find_ffmpeg()
    for version, matrix in MATRICES.items():
        if f"out.yuv420p_{version}" in fixture:
            _near(_scaled(tool, rgb, matrix), fixture[f"out.yuv420p_{version}"].numpy())
    with tempfile.TemporaryDirectory() as folder:
        _clip(fixture, tool, rgb, Path(folder))
        for j in range(len(fixture.meta["audio_cases"])):
            _sound(fixture, tool, j, Path(folder))


def _near(got: NDArray, want: NDArray) -> None:
    assert got.shape == want.shape
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1


def _scaled(tool: FFmpeg, rgb: NDArray[np.uint8], matrix: str) -> NDArray[np.uint8]:
    count, height, width, _ = rgb.shape
    raw = ffmpeg.input("pipe:0", format="rawvideo", pix_fmt="rgb24", video_size=(width, height), framerate=24)
    out = ffmpeg.output(to_yuv(raw, matrix=matrix), "pipe:1", format="rawvideo", pix_fmt="yuv420p")
    command = [str(tool.path), "-loglevel", "error", *ffmpeg.get_args(out)]
    planes = subprocess.run(command, input=rgb.tobytes(), capture_output=True, check=True).stdout
    return np.frombuffer(planes, np.uint8).reshape(count, height * 3 // 2, width)


def _trim(fixture: Fixture) -> None:
    for frames, given, muxed in fixture["out.trim"].tolist():
        assert min(samples_for(frames), given) == muxed
        assert trim(np.zeros((2, given), np.float32), frames).shape[-1] == muxed


def _clip(fixture: Fixture, tool: FFmpeg, rgb: NDArray[np.uint8], folder: Path) -> None:
    lossless = _written(tool, rgb, None, folder / "lossless.mp4", EncodeSettings(crf=0))
    _near(read_planes(lossless), fixture["out.yuv420p_N"].numpy())
    facts, want = probe_clip(_written(tool, rgb, None, folder / "clip.mp4")), fixture.meta["container_N"]
    assert facts.container == want["container"]
    _tags(facts, want["video"])


def _tags(facts: ClipFacts, want: dict) -> None:
    assert (facts.codec, facts.profile, facts.pixel_format) == (want["codec"], want["profile"], want["pix_fmt"])
    assert facts.frames == want["frames"] and facts.rate == Fraction(want["rate"])
    tags = facts.primaries, facts.transfer, facts.matrix, facts.range
    assert tags == tuple(want[f"color_{name}"] for name in ("primaries", "transfer", "matrix", "range"))


def _sound(fixture: Fixture, tool: FFmpeg, j: int, folder: Path) -> None:
    case = fixture.meta["audio_cases"][j]
    waveform, muxed = fixture[f"in.{j}.waveform"].numpy(), fixture[f"out.{j}.muxed"].numpy()
    # The bound is a relative L2 of 1e-6; the same accumulation as torch's makes it bit-equal.
    assert np.array_equal(comfyui_loudness(waveform), fixture[f"out.{j}.node"].numpy())
    handed = prepare(waveform[0], case["F"], "comfyui")
    assert np.array_equal(handed, muxed) and handed.shape[-1] == case["samples_muxed"]
    _wav_is_exact(handed, folder / f"{j}.wav")
    frames = np.zeros((case["F"], 32, 32, 3), np.uint8)
    facts = probe_clip(_written(tool, frames, handed, folder / f"{j}.mp4")).sound
    assert facts is not None and facts.samples >= case["samples_muxed"]
    want = case["container"]
    assert [facts.codec, facts.profile, facts.rate, facts.layout] == [
        want[k] for k in ("codec", "profile", "rate", "layout")
    ]


def _wav_is_exact(handed: NDArray[np.float32], path: Path) -> None:
    path.write_bytes(wav_bytes(handed))
    back, rate = soundfile.read(path, dtype="float32", always_2d=True)
    assert rate == 32000 and np.array_equal(back.T, handed)


def _written(
    tool: FFmpeg,
    rgb: NDArray[np.uint8],
    sound: NDArray[np.float32] | None,
    output: Path,
    encode: EncodeSettings = EncodeSettings(),  # noqa: B008  # frozen
) -> Path:
    shape = ClipShape(rgb.shape[2], rgb.shape[1], len(rgb))
    with ClipWriter(tool, output, output.parent, shape, sound, encode=encode) as writer:
        writer.put(rgb)
        writer.finish()
    return output
