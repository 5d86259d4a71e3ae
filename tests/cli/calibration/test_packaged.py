"""The package's own evidence against the engine as it is now: reuse or a backend that has changed would show.

Every clip of a calibration is at least as close as its worst, so that any of its prompts made again must be.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from h3runtime.cli.calibration.making import EngineMaker, Requests
from h3runtime.cli.calibration.prompts import Prompts, read_prompts
from h3runtime.cli.calibration.size import Size
from h3runtime.core import SamplerSettings
from h3runtime.engine.resident import ResidentEngine
from h3runtime.quality.bucket import Bucket
from h3runtime.quality.evidence import Evidence
from h3runtime.quality.levels import LEVELS, exact_choice
from h3runtime.quality.shelf import PACKAGED, Held, Shelf
from h3runtime.settings import Settings

ROUNDING = 1e-3
"""Of SSIM, and ten times as much of dB: another CPU adds up in another order."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResidentEngine]:
    made = ResidentEngine(
        Settings(device="cpu", data_dir=tmp_path_factory.mktemp("data")), 1, warm_up=False, partitions=("fl2va",)
    )
    made.load(lambda _: None)
    yield made
    made.close()


@pytest.fixture
def held() -> Held:
    return Shelf(Path("nowhere")).held


@pytest.fixture
def prompts() -> Prompts:
    return read_prompts(PACKAGED / "nano-prompts.txt", 16)


@pytest.mark.parametrize("level", LEVELS)
def test_each_level_is_there_for_the_embedded_model(
    engine: ResidentEngine, held: Held, prompts: Prompts, level: str
) -> None:
    found = held.of(level, engine.facts())
    assert {evidence.bucket for evidence in found} == {Bucket.of(128, 128, 22, 12), Bucket.of(192, 192, 39, 12)}
    assert {evidence.prompts_sha256 for evidence in found} == {prompts.sha256}


@pytest.mark.parametrize("size", [(128, 128, 22), (192, 192, 39)])
@pytest.mark.parametrize("level", ["medium", "low"])
def test_a_clip_made_again_is_as_close_as_it_was(
    engine: ResidentEngine, held: Held, prompts: Prompts, level: str, size: tuple[int, int, int], tmp_path: Path
) -> None:
    (evidence,) = (each for each in held.of(level, engine.facts()) if each.bucket == Bucket.of(*size, 12))
    maker = EngineMaker(engine, requests(evidence, prompts, tmp_path), lambda: False)
    exact = exact_choice(engine.facts())
    assert exact is not None and (exact.attention, exact.linear) == (evidence.exact_attention, evidence.exact_linear)
    for prompt in (0, 5):
        made = maker.sampled(evidence.choice, prompt, 0)
        apart = maker.apart(maker.sampled(exact, prompt, 0).latents, made.latents)
        assert apart.ssim >= evidence.ssim.worst - ROUNDING, (prompt, apart)
        assert apart.audio_db <= evidence.audio_db.worst + 10 * ROUNDING, (prompt, apart)
        assert made.forwards + made.skipped_steps == evidence.steps and made.skipped_steps > 0


def requests(evidence: Evidence, prompts: Prompts, scratch: Path) -> Requests:
    schedule = evidence.sampling
    sampling = SamplerSettings(
        evidence.steps,
        schedule.sampler,  # type: ignore[arg-type]
        schedule.scheduler,  # type: ignore[arg-type]
        schedule.shift,
        schedule.audio_shift,
    )
    return Requests(prompts, Size(evidence.width, evidence.height, evidence.frames), sampling, scratch)
