"""The commands as a person types them: one line of JSON, an MP4, two lines for an error, nothing left behind."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from h3runtime.cli.demo import STEPS
from h3runtime.media.probe import probe_clip, read_frames, read_sound
from tests.e2e.commands import TIMEOUT, run


def succeed(*arguments: str, folder: Path) -> dict:
    done = run(*arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    return json.loads(line)


TINY = ("--width", "96", "--height", "64", "--frames", "22", "--steps", "2", "--seed", "5")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `night.mp4` and its latents."""
    folder = tmp_path_factory.mktemp("made")
    succeed("generate", "--prompt", "night falls", *TINY, "--output", "night.mp4", "--save-latents", folder=folder)
    return folder


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The demo in an interpreter of its own, and its folder. After the facts it says how many KiB it took at most."""
    folder = tmp_path_factory.mktemp("demo")
    program = (
        "import resource, sys; from h3runtime.__main__ import main; code = main(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(code)"
    )
    command = [sys.executable, "-c", program, "demo", "--output", "demo.mp4", "--progress", "--profile-memory"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT), folder


def test_the_demo_ends_in_a_clip(demo: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, folder = demo
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[0])
    clip = probe_clip(folder / "demo.mp4")
    assert (clip.frames, clip.width, clip.height) == (facts["frames"], facts["width"], facts["height"])
    assert f"sampling {STEPS}/{STEPS}" in done.stderr and "h3-nano" in done.stderr
    assert facts["memory"]["peak_video_decode_allocated_bytes"] > 0
    assert not any("trained on" in warning for warning in facts["warnings"]), "its length is the embedded model's own"
    assert sorted(p.name for p in folder.iterdir()) == ["demo.mp4", "demo.png"]
    assert facts["sheet"] == str(folder / "demo.png")
    with Image.open(folder / "demo.png") as sheet:
        assert sheet.format == "PNG" and sheet.width == 1280


def test_the_demo_stays_small(demo: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    """2 GiB at most, everything included (this delivery's bound for two cores)."""
    _, told = demo[0].stdout.splitlines()
    assert int(told) * 1024 < 2 * 2**30


def test_quiet_says_nothing(tmp_path: Path) -> None:
    done = run("generate", "--prompt", "x", *TINY, "--output", "a.mp4", "--quiet", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "a.mp4").is_file()


def test_pictures_choose_task_and_canvas(tmp_path: Path) -> None:
    Image.new("RGB", (800, 1200), (200, 30, 60)).save(tmp_path / "portrait.png")
    sizes = ("--short-edge", "256", "--frames", "5", "--steps", "1")
    facts = succeed("generate", "--prompt", "x", "--last-frame", "portrait.png", *sizes, folder=tmp_path)
    assert facts["task"] == "l2va" and facts["height"] > facts["width"] == 256
    assert Path(facts["output"]).parent == tmp_path


def test_decoding_saved_latents_gives_the_same_clip(made: Path, tmp_path: Path) -> None:
    latents = str(made / "night.mp4.latents.safetensors")
    facts = succeed("decode", latents, "--output", str(tmp_path / "again.mp4"), folder=made)
    assert facts["frames"] == 22
    assert np.array_equal(read_frames(tmp_path / "again.mp4"), read_frames(made / "night.mp4"))
    assert np.array_equal(read_sound(tmp_path / "again.mp4")[0], read_sound(made / "night.mp4")[0])


def test_decoding_to_sound_and_to_pictures(made: Path, tmp_path: Path) -> None:
    latents = str(made / "night.mp4.latents.safetensors")
    succeed("decode", latents, "--audio-only", str(tmp_path / "night.wav"), folder=made)
    succeed("decode", latents, "--frames", str(tmp_path / "night"), folder=made)
    assert (tmp_path / "night.wav").stat().st_size > 29_334 * 2 * 4
    pictures = sorted((tmp_path / "night").iterdir())
    assert len(pictures) == 22
    with Image.open(pictures[0]) as picture:
        assert picture.size == (96, 64)


def test_the_vae_can_be_told_otherwise(made: Path, tmp_path: Path) -> None:
    latents = str(made / "night.mp4.latents.safetensors")
    for index, flags in enumerate([("--vae-dtype", "float32"), ("--vae-tile-size", "64", "--vae-tile-force")]):
        output = tmp_path / f"{index}.mp4"
        succeed("decode", latents, "--output", str(output), *flags, folder=made)
        assert not np.array_equal(read_frames(output), read_frames(made / "night.mp4"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("generate", "--prompt", "x", "--frames", "81"), ["frames: 81", "73 or 90"]),
        (("generate", "--prompt", "x", "--width", "848", "--height", "480", "--seed", "1.5"), ["848", "1.5"]),
        (("generate", "--prompt", " "), ["prompt"]),
        (("generate", "--prompt", "x", "--first-frame", "none.png"), ["first_frame", "none.png"]),
        (("generate", "--prompt", "x", "--output", "a.avi"), [".mp4"]),
        (("demo", "--vae-dtype", "bfloat16"), ["bfloat16", "float16, float32"]),
        (("demo", "--vae-tile-size", "512"), ["256"]),
        (("demo", "--attention", "flash9"), ["flash9", "sdpa"]),
        (("demo", "--linear", "fp1"), ["fp1", "dequant"]),
        (("demo", "--model-path", "x.safetensors"), ["x.safetensors", "no such file"]),
        (("demo", "--device", "cuda:7"), ["cuda:7"]),
        (("decode", "nothing.safetensors"), ["nothing.safetensors"]),
    ],
)
def test_an_error_is_two_lines_at_most(tmp_path: Path, arguments: tuple[str, ...], told: list[str]) -> None:
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    lines = done.stderr.splitlines()
    begins = next(index for index, line in enumerate(lines) if line.startswith("error: "))
    assert len(lines) - begins <= 2
    for words in told:
        assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_setting_is_named(tmp_path: Path) -> None:
    done = run("demo", folder=tmp_path, H3_VEA_DTYPE="float32")
    assert done.returncode == 1 and "H3_VAE_DTYPE" in done.stderr


def test_an_existing_output_is_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.mp4").write_text("mine")
    done = run("generate", "--prompt", "x", *TINY, "--output", "mine.mp4", folder=tmp_path)
    assert done.returncode == 1 and "--overwrite" in done.stderr
    assert (tmp_path / "mine.mp4").read_text() == "mine"


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "h3runtime",
        "generate",
        "--prompt",
        "x",
        *("--width", "320", "--height", "192", "--frames", "39", "--steps", "200"),
        "--progress",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process.stderr:
        for line in process.stderr:
            if line.startswith("sampling"):
                break
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.wait(TIMEOUT) == 130
    assert rest.splitlines()[-1:] == ["interrupted"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["serve", "generate", "demo", "decode"])
def test_help_tells_every_setting_that_the_command_reads(command: str, tmp_path: Path) -> None:
    text = run(command, "--help", folder=tmp_path).stdout
    assert "--vae-dtype" in text and "H3_VAE_DTYPE" in text and "--linear" in text
    assert ("--queue-limit" in text) == (command == "serve")
    assert ("--attention" in text) == (command != "decode")
