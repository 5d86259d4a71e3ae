"""`compare` on what a tiny model made: two seeds, two dtypes of the VAE, the same thing twice."""

import json
from pathlib import Path

import pytest

from h3runtime.__main__ import main
from h3runtime.core import GenerateSpec, SamplerSettings, Task
from h3runtime.engine.decode import DecodeJob, decode
from h3runtime.engine.resident import ResidentEngine
from h3runtime.settings import Settings
from tests.tiny_set import tiny_paths

JOINS = [17, 18, 19, 20, 21]


@pytest.fixture(scope="module")
def made(engine: ResidentEngine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips and latents of two seeds, and the first one's frames from a VAE in each dtype."""
    folder = tmp_path_factory.mktemp("made")
    for seed in (5, 6):
        spec = GenerateSpec(
            job_id=str(seed),
            task=Task.T2VA,
            prompt="night falls",
            width=96,
            height=64,
            frames=39,
            sampling=SamplerSettings(steps=2, seed=seed),
            output=folder / f"{seed}.mp4",
            scratch=folder,
            save_latents=True,
        )
        engine.generate(spec, lambda _: None, lambda: False)
    for dtype in ("float16", "float32"):
        job = DecodeJob(folder / "5.mp4.latents.safetensors", frames=folder / dtype)
        decode(Settings(device="cpu", vae_dtype=dtype, **tiny_paths()), job, lambda _: None)
    return folder


def compare(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict, str]:
    code = main(["compare", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else {}, err


def test_two_seeds_are_far_apart(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, clips, _ = compare(capsys, made / "5.mp4", made / "6.mp4", "--plot", tmp_path / "p.png")
    assert (code, clips["frames"], clips["joins"]["frames"]) == (0, 39, JOINS)
    assert clips["psnr"] < 30 and clips["ssim"] < 0.95 and clips["streams"]["audio"]["log_mel_db"] > 1
    assert (tmp_path / "p.png").stat().st_size > 10_000
    _, latents, _ = compare(capsys, *(made / f"{seed}.mp4.latents.safetensors" for seed in (5, 6)))
    assert latents["frames"] == 39 and latents["rel_l2"] > 0.1 and latents["streams"]["audio"]["rel_l2"] > 0.1


def test_two_dtypes_are_close(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, facts, _ = compare(capsys, made / "float16", made / "float32", "--min-psnr", "50", "--min-ssim", "0.99")
    assert code == 0 and facts["passed"] and not facts["identical"] and facts["max"] <= 4
    assert facts["joins"]["count"] == 5 and facts["others"]["count"] == 34


def test_a_script_is_told_by_the_exit_code(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ("--min-psnr", "50", "--max-rel-l2", "0.001")
    code, facts, err = compare(capsys, made / "5.mp4", made / "6.mp4", *limits)
    assert code == 1 and not facts["passed"]
    assert err.splitlines()[-1].startswith("failed: psnr") and "--max-rel-l2" in err
    assert compare(capsys, made / "5.mp4", made / "5.mp4", *limits, "--quiet") == (0, {}, "")
