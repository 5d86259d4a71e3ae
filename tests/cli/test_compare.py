"""`compare` on made-up inputs with known answers: figures, joins, limits, files, and every way to be refused."""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from h3runtime.__main__ import main
from h3runtime.cli.comparison import inputs
from h3runtime.cli.comparison.inputs import Pictures
from h3runtime.cli.comparison.media import compare_pictures
from h3runtime.errors import InvalidRequest
from h3runtime.media.frames import write_frames
from h3runtime.media.similarity import ssim
from tests.clips import moving, noisy, tones, write_clip

JOINS = [17, 18, 19, 20, 21]
"""Of 39 frames: two chunks."""
Compare = Callable[..., tuple[int, dict, str]]


@pytest.fixture
def compare(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compare:
    """Run it in `tmp_path`; exit code, the line of stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, dict, str]:
        code = main(["compare", *arguments])
        out, err = capsys.readouterr()
        assert len(out.splitlines()) <= 1 and "Traceback" not in err
        return code, json.loads(out) if out else {}, err

    return run


def write_latents(path: Path, frames: int = 12, seed: int = 0, **changes: torch.Tensor) -> Path:
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        "video": torch.randn(1, 24, frames, 4, 6, generator=generator),
        "audio": torch.randn(1, 32, 2, 65, generator=generator),
    }
    save_file(tensors | changes, path)
    return path


def write_steps(path: Path, steps: int = 3, size: int = 50, scale: float = 1.0) -> Path:
    names = [f"step{i}.{which}" for i in range(steps) for which in ("x", "denoised")]
    save_file({name: scale * torch.arange(1.0, size + 1) for name in names}, path)
    return path


def test_folders_of_frames(compare: Compare, tmp_path: Path) -> None:
    a, b = moving(39), noisy(moving(39), 4)
    b[19] = noisy(moving(39), 12)[19]
    for name, frames in (("a", a), ("b", b)):
        write_frames([frames], tmp_path / name)
    code, facts, err = compare("a", "b", "--worst", "3")
    difference = b.astype(float) - a
    assert (code, err, facts["kind"], facts["frames"], facts["identical"]) == (0, "", "frames", 39, False)
    assert facts["max"] == np.abs(difference).max() and facts["mean"] == pytest.approx(np.abs(difference).mean())
    assert facts["rmse"] == pytest.approx(np.sqrt((difference**2).mean()))
    assert facts["rel_l2"] == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(a.astype(float)))
    assert facts["psnr"] == pytest.approx(10 * np.log10(255**2 / (difference**2).mean()))
    assert facts["ssim"] == pytest.approx(np.mean([ssim(x, y) for x, y in zip(a, b, strict=True)]))
    assert facts["streams"]["video"]["rmse"] == facts["rmse"]
    assert [point["frame"] for point in facts["per_frame"]] == list(range(39))
    assert facts["per_frame"][7]["psnr"] == pytest.approx(10 * np.log10(255**2 / (difference[7] ** 2).mean()))
    assert facts["per_frame"][12]["seconds"] == 0.5
    assert facts["worst"][0]["frame"] == 19 and facts["worst"][0]["join"] and len(facts["worst"]) == 3


def test_joins_are_told_apart(compare: Compare, tmp_path: Path) -> None:
    a = moving(39)
    b = a.copy()
    b[JOINS] = noisy(a, 10)[JOINS]
    for name, frames in (("a", a), ("b", b)):
        write_frames([frames], tmp_path / name)
    _, facts, _ = compare("a", "b")
    assert facts["joins"]["frames"] == JOINS and facts["joins"]["count"] == 5 and facts["others"]["count"] == 34
    assert [point["frame"] for point in facts["per_frame"] if point["join"]] == JOINS
    assert facts["joins"]["psnr"] < 40 and facts["joins"]["ssim"] < 1
    assert (facts["others"]["psnr"], facts["others"]["identical"], facts["others"]["ssim"]) == (None, True, 1)
    assert sorted(point["frame"] for point in facts["worst"]) == JOINS


def test_one_chunk_has_no_joins(compare: Compare, tmp_path: Path) -> None:
    write_frames([moving(22)], tmp_path / "a")
    _, facts, _ = compare("a", "a")
    assert facts["joins"] is None and facts["others"]["count"] == 22


def test_clips_with_sound(compare: Compare, tmp_path: Path) -> None:
    frames, sound = moving(24), tones(32_000)
    write_clip(tmp_path / "a.mkv", frames, sound)
    write_clip(tmp_path / "b.nut", noisy(frames, 3), 0.5 * sound)
    code, facts, _ = compare("a.mkv", "b.nut")
    assert (code, facts["kind"], facts["width"], facts["height"], facts["frames"]) == (0, "clips", 48, 32, 24)
    assert (facts["fps"], facts["sample_rate"], facts["channels"]) == (24, 32_000, 2)
    audio = facts["streams"]["audio"]
    assert (audio["samples"], audio["max"]) == (32_000, pytest.approx(0.15, abs=1e-4))
    assert audio["rel_l2"] == pytest.approx(0.5, abs=1e-6) and audio["cosine"] == pytest.approx(1)
    assert 0 < audio["log_mel_db"] <= 20 * np.log10(2) + 1e-6
    assert facts["rmse"] == facts["streams"]["video"]["rmse"] == pytest.approx(3, abs=0.2)


def test_sounds_alone(compare: Compare, tmp_path: Path) -> None:
    write_clip(tmp_path / "a.wav", None, tones(9000))
    write_clip(tmp_path / "b.wav", None, 2 * tones(9000))
    _, facts, _ = compare("a.wav", "b.wav")
    assert facts["rel_l2"] == pytest.approx(1) and "psnr" not in facts and "per_frame" not in facts


def test_a_little_more_sound_is_a_warning(compare: Compare, tmp_path: Path) -> None:
    write_clip(tmp_path / "a.wav", None, tones(9000))
    write_clip(tmp_path / "b.wav", None, tones(9100))
    _, facts, _ = compare("a.wav", "b.wav")
    assert facts["streams"]["audio"]["identical"] and facts["streams"]["audio"]["samples"] == 9000
    assert not facts["identical"] and "9100" in facts["warnings"][0]


def test_another_rate_has_no_joins(compare: Compare, tmp_path: Path) -> None:
    write_clip(tmp_path / "a.mkv", moving(39), fps=30)
    _, facts, _ = compare("a.mkv", "a.mkv")
    assert (
        facts["joins"] is None
        and facts["others"] is None
        and "24" in facts["warnings"][0]
        and facts["per_frame"][15]["seconds"] == 0.5
    )


def test_latents(compare: Compare, tmp_path: Path) -> None:
    a, b = write_latents(tmp_path / "a.safetensors"), write_latents(tmp_path / "b.safetensors", seed=1)
    code, facts, err = compare(a.name, b.name)
    assert (code, err, facts["kind"], facts["frames"], facts["latent_frames"]) == (0, "", "latents", 39, 12)
    assert facts["shapes"] == {"video": [1, 24, 12, 4, 6], "audio": [1, 32, 2, 65]}
    for stream in ("video", "audio"):
        assert facts["streams"][stream]["rel_l2"] == pytest.approx(2**0.5, abs=0.1)
        assert abs(facts["streams"][stream]["cosine"]) < 0.1
    assert "psnr" not in facts
    points = facts["per_latent_frame"]
    assert [point["latent"] for point in points if point["join"]] == facts["joins"]["latents"] == [5, 6]
    assert points[5]["seconds"] == 17 / 24 and facts["per_audio_latent"][40]["seconds"] == 1
    assert [point["rel_l2"] for point in facts["worst"]] == sorted((p["rel_l2"] for p in points), reverse=True)[:5]


def test_the_whole_is_both_streams_together(compare: Compare, tmp_path: Path) -> None:
    video, audio = torch.ones(1, 24, 2, 2, 2), torch.ones(1, 32, 2, 8)
    write_latents(tmp_path / "a.safetensors", video=video, audio=audio)
    write_latents(tmp_path / "b.safetensors", video=3 * video, audio=audio)
    _, facts, _ = compare("a.safetensors", "b.safetensors")
    count = video.numel() + audio.numel()
    assert facts["mean"] == pytest.approx(2 * video.numel() / count)
    assert facts["rel_l2"] == pytest.approx((4 * video.numel() / count) ** 0.5)
    assert facts["streams"]["audio"]["identical"] and not facts["identical"]


def test_steps(compare: Compare, tmp_path: Path) -> None:
    write_steps(tmp_path / "a.steps.safetensors", 12)
    write_steps(tmp_path / "b.steps.safetensors", 12, scale=1.5)
    _, facts, _ = compare("a.steps.safetensors", "b.steps.safetensors")
    assert (facts["kind"], facts["steps"]) == ("steps", 12)
    assert [point["step"] for point in facts["per_step_x"]] == list(range(12))
    assert {point["rel_l2"] for point in facts["per_step_denoised"]} == {0.5}
    assert facts["rel_l2"] == pytest.approx(0.5) and facts["cosine"] == pytest.approx(1)


@pytest.mark.parametrize("kind", ["latents", "steps", "clips", "frames"])
def test_an_input_is_identical_with_itself(compare: Compare, tmp_path: Path, kind: str) -> None:
    made = {
        "latents": lambda: write_latents(tmp_path / "a.latents.safetensors"),
        "steps": lambda: write_steps(tmp_path / "a.steps.safetensors"),
        "clips": lambda: write_clip(tmp_path / "a.mkv", moving(24), tones(32_000)),
        "frames": lambda: write_frames([moving(24)], tmp_path / "a") and tmp_path / "a",
    }[kind]()
    limits = ["--max-rel-l2", "0"] + (["--min-psnr", "99", "--min-ssim", "1"] if kind in ("clips", "frames") else [])
    code, facts, err = compare(str(made), str(made), *limits, "--plot", "p.png")
    assert (code, err, facts["kind"], facts["identical"], facts["passed"]) == (0, "", kind, True, True)
    assert (facts["max"], facts["rmse"], facts["cosine"], facts["rel_l2"], facts["worst"]) == (0, 0, 1, 0, [])
    if "psnr" in facts:
        assert (facts["psnr"], facts["ssim"]) == (None, 1)
    with Image.open(tmp_path / "p.png") as drawn:
        assert drawn.size == (1200, 720)


def test_a_zero_reference_has_no_finite_distance(compare: Compare, tmp_path: Path) -> None:
    write_latents(tmp_path / "a.safetensors", audio=torch.zeros(1, 32, 2, 65))
    write_latents(tmp_path / "b.safetensors")
    code, facts, err = compare("a.safetensors", "b.safetensors", "--max-rel-l2", "1000", "--plot", "p.svg")
    assert facts["streams"]["audio"]["rel_l2"] is None and facts["streams"]["audio"]["cosine"] is None
    assert code == 1 and err == "failed: rel_l2 of audio infinite is above --max-rel-l2 1000\n"


def test_broken_limits_are_told_in_one_line(compare: Compare, tmp_path: Path) -> None:
    write_clip(tmp_path / "a.mkv", moving(24), tones(32_000))
    write_clip(tmp_path / "b.mkv", noisy(moving(24), 10), 0.1 * tones(32_000))
    limits = ("--min-psnr", "40", "--min-ssim", "0.999", "--max-rel-l2", "0.01", "--max-log-mel", "0.5")
    code, facts, err = compare("a.mkv", "b.mkv", *limits)
    assert code == 1 and not facts["passed"] and len(facts["failures"]) == 5
    assert facts["limits"] == {"min_psnr": 40, "min_ssim": 0.999, "max_rel_l2": 0.01, "max_log_mel": 0.5}
    (line,) = err.splitlines()
    assert line.startswith("failed: psnr 2")
    for flag in limits[::2]:
        assert flag in line
    kept = ("--min-psnr", "20", "--min-ssim", "0.1", "--max-rel-l2", "1", "--max-log-mel", "30")
    assert compare("a.mkv", "b.mkv", *kept)[0] == 0


def test_report_and_plot_are_written(compare: Compare, tmp_path: Path) -> None:
    write_frames([moving(39)], tmp_path / "a")
    write_frames([noisy(moving(39), 2)], tmp_path / "b")
    _, facts, _ = compare("a", "b", "--output", "r.json", "--plot", "p.svg")
    assert json.loads((tmp_path / "r.json").read_text()) == facts
    drawn = (tmp_path / "p.svg").read_text()
    assert drawn.startswith("<?xml") and "svg" in drawn
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "p.svg", "r.json"]
    code, facts, err = compare("a", "b", "--output", "r.json")
    assert code == 1 and facts == {} and "--overwrite" in err
    assert compare("a", "b", "--output", "r.json", "--plot", "p.svg", "--overwrite", "--quiet") == (0, {}, "")


def test_joins_show_in_the_plot(compare: Compare, tmp_path: Path) -> None:
    """Their shade is on the picture of 39 frames, and not on that of 22."""
    shares = []
    for frames in (39, 22):
        write_frames([moving(frames)], tmp_path / f"a{frames}")
        write_frames([noisy(moving(frames), 2)], tmp_path / f"b{frames}")
        compare(f"a{frames}", f"b{frames}", "--plot", f"{frames}.png")
        with Image.open(tmp_path / f"{frames}.png") as drawn:
            pixels = np.asarray(drawn.convert("RGB")).astype(int)
        shares.append((np.abs(pixels - [255, 223, 195]).max(axis=2) <= 2).mean())
    assert shares[0] > 0.05 and shares[1] == 0


def test_a_table_for_a_person(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for index, levels in enumerate((0, 6)):
        write_clip(tmp_path / f"{index}.mkv", noisy(moving(39), levels), tones(52_000))
    assert main(["compare", "0.mkv", "1.mkv", "--table", "--worst", "39"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("clips: width 48, height 32, frames 39, fps 24")
    assert sum(line.endswith("  join") for line in lines) == 5
    assert any(line.startswith("  joins (5)") for line in lines)
    assert any(line.startswith("  others (34)") for line in lines)
    for kind in (write_latents, write_steps):
        kind(tmp_path / "a.safetensors")
        assert main(["compare", "a.safetensors", "a.safetensors", "--table"]) == 0
        assert "rel. L2" in capsys.readouterr().out


def refusals(tmp_path: Path) -> None:
    """One input of each kind and many that don't go with them."""
    frames, sound = moving(24), tones(32_000)
    write_clip(tmp_path / "a.mkv", frames, sound)
    write_clip(tmp_path / "mute.mkv", frames)
    write_clip(tmp_path / "wide.mkv", moving(24, 32, 64), sound)
    write_clip(tmp_path / "long.mkv", moving(29), sound)
    write_clip(tmp_path / "fast.mkv", frames, sound, fps=25)
    write_clip(tmp_path / "mono.mkv", frames, sound[:1])
    write_clip(tmp_path / "44k.mkv", frames, sound, sample_rate=44_100)
    write_clip(tmp_path / "loud.mkv", frames, tones(64_000))
    write_clip(tmp_path / "a.wav", None, sound)
    write_clip(tmp_path / "b.wav", None, tones(64_000))
    write_frames([frames], tmp_path / "a")
    write_frames([frames[:, :10, :10]], tmp_path / "tiny")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.mp4").write_text("no clip")
    (tmp_path / "broken.safetensors").write_text("no header")
    write_latents(tmp_path / "a.safetensors")
    write_latents(tmp_path / "short.safetensors", 7)
    write_latents(tmp_path / "nan.safetensors", video=torch.full((1, 24, 12, 4, 6), torch.nan))
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    write_steps(tmp_path / "a.steps.safetensors")
    write_steps(tmp_path / "few.steps.safetensors", 2)
    write_steps(tmp_path / "small.steps.safetensors", size=20)
    write_steps(tmp_path / "inf.steps.safetensors", scale=float("inf"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("gone.mkv", "a.mkv"), ["a: there is no gone.mkv", "a folder of frames"]),
        (("gone", "away"), ["a: there is no gone", "b: there is no away"]),
        (("a.mkv", "a"), ["a.mkv is a clip and a is a folder of frames", "one kind"]),
        (("a.safetensors", "a.steps.safetensors"), ["saved latents", "latents of steps", "one kind"]),
        (("a.mkv", "broken.mp4"), ["b (broken.mp4): it can't be decoded", "a whole clip"]),
        (("a.mkv", "mute.mkv"), ["sound: a has sound and b has none"]),
        (("a.wav", "a.mkv"), ["pictures: b has pictures and a has none"]),
        (("a.mkv", "wide.mkv"), ["width: a has 48 and b has 64", "the same in both"]),
        (("a.mkv", "long.mkv"), ["frames: a has 24 and b has 29"]),
        (("a.mkv", "fast.mkv"), ["fps: a has 24 and b has 25"]),
        (("a.mkv", "mono.mkv"), ["channels: a has 2 and b has 1"]),
        (("a.mkv", "44k.mkv"), ["sample_rate: a has 32000 and b has 44100"]),
        (("a.mkv", "loud.mkv"), ["sound: a has 1.00 s and b has 2.00 s", "0.25 s"]),
        (("a.wav", "b.wav"), ["sound: a has"]),
        (("a", "empty"), ["b (empty): there are no pictures in it"]),
        (("tiny", "tiny"), ["size: a side has 10 pixels", "at least 11"]),
        (("a.safetensors", "short.safetensors"), ["video: a has shape [1, 24, 12, 4, 6]", "[1, 24, 7, 4, 6]"]),
        (("a.safetensors", "nan.safetensors"), ["b: nan.safetensors", "tensor video is not finite", "finite values"]),
        (("model.safetensors", "a.safetensors"), ["a: model.safetensors holds neither", "tensor audio is missing"]),
        (("a.safetensors", "broken.safetensors"), ["b: broken.safetensors can't be read"]),
        (("a.steps.safetensors", "few.steps.safetensors"), ["step2.x: a has shape [50] and b has none"]),
        (("a.steps.safetensors", "small.steps.safetensors"), ["step0.denoised", "[50]", "[20]"]),
        (("a.steps.safetensors", "inf.steps.safetensors"), ["b: tensor step0", "not finite"]),
        (("a", "a", "--worst", "-1"), ["worst: -1", "0..1000"]),
        (("a", "a", "--min-psnr", "nan"), ["min_psnr: nan is out of range", "a number from 0"]),
        (("a", "a", "--min-ssim", "1.5"), ["min_ssim: 1.5", "from -1 to 1"]),
        (("a", "a", "--max-rel-l2", "-1"), ["max_rel_l2: -1"]),
        (("a", "a", "--max-log-mel", "1"), ["max_log_mel: frames have no such figure", "min_ssim"]),
        (("a.safetensors", "a.safetensors", "--min-psnr", "1"), ["min_psnr: latents have", "max_rel_l2"]),
        (("mute.mkv", "mute.mkv", "--max-log-mel", "1"), ["max_log_mel: the inputs have no audio", "video"]),
        (("a.wav", "a.wav", "--min-ssim", "1"), ["min_ssim: the inputs have no video", "audio"]),
        (("a.wav", "a.wav", "--plot", "p.png"), ["plot: the inputs have no pictures"]),
        (("a", "a", "--plot", "p.gif"), ["plot: p.gif", ".png or .svg"]),
        (("a", "a", "--output", "no/r.json"), ["output:", "is not a folder"]),
        (("a", "a", "--output", "empty"), ["output: empty exists"]),
        (("a.mkv", "a.mkv", "--output", "a.mkv", "--overwrite"), ["output: a.mkv is also", "a name of its own"]),
        (("a", "a", "--output", "x.png", "--plot", "x.png"), ["plot: x.png is also output"]),
    ],
)
def test_refusals_name_the_field_and_what_is_legal(
    compare: Compare, tmp_path: Path, arguments: tuple[str, ...], told: list[str]
) -> None:
    refusals(tmp_path)
    before = sorted(tmp_path.iterdir())
    code, facts, err = compare(*arguments)
    assert (code, facts) == (1, {}) and len(err.splitlines()) <= 2
    for words in told:
        assert words in err
    assert sorted(tmp_path.iterdir()) == before


def pictures(frames: int) -> Pictures:
    """Flat frames of 64x64, each made when it is asked for."""

    def read() -> Iterator[np.ndarray]:
        for index in range(frames):
            yield np.full((64, 64, 3), index % 250, np.uint8)

    return Pictures(64, 64, Fraction(24), frames, read)


@pytest.mark.parametrize(("a", "b", "told"), [(3, 5, "a ends after 3"), (5, 4, "b ends after 4"), (0, 0, "none in")])
def test_lengths_that_only_decoding_tells(a: int, b: int, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told) as caught:
        compare_pictures(pictures(a), pictures(b), lambda: None)
    assert caught.value.offences[0].field == "frames" and caught.value.offences[0].legal


def test_a_picture_that_breaks_in_the_middle_is_named(compare: Compare, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_frames([moving(5)], tmp_path / name)
    (tmp_path / "b" / "frame_00003.png").write_bytes(b"broken")
    code, _, err = compare("a", "b", "--output", "r.json")
    assert code == 1 and "b (b), frame_00003.png" in err and not (tmp_path / "r.json").exists()


def test_memory_does_not_grow_with_the_clip() -> None:
    peaks = []
    for frames in (5, 150):
        tracemalloc.start()
        compare_pictures(pictures(frames), pictures(frames), lambda: None)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # 145 frames more, less than 1 KiB each: their figures, and none of their 12 KiB of pixels.
    assert peaks[1] - peaks[0] < 145 * 1024


def test_frames_are_counted_by_decoding_if_packets_disagree(
    compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with a packet that shows nothing has as many frames as one without."""
    write_clip(tmp_path / "a.mkv", moving(5))
    write_clip(tmp_path / "b.mkv", moving(5))
    real = inputs.outline

    def one_more(path: Path, field: str) -> object:
        seen = real(path, field)
        assert seen.pictures is not None
        extra = path.name == "b.mkv"
        return replace(seen, pictures=replace(seen.pictures, frames=seen.pictures.frames + extra))

    monkeypatch.setattr(inputs, "outline", one_more)
    code, facts, _ = compare("a.mkv", "b.mkv")
    assert (code, facts["frames"], facts["identical"]) == (0, 5, True)
