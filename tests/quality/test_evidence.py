"""Evidence as a file: what comes back, and what is refused under its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from h3runtime.core import SamplerSettings
from h3runtime.errors import CheckpointError
from h3runtime.quality.bucket import Bucket, Sampling
from h3runtime.quality.evidence import EARLIER, Figure, Least, read_evidence, write_evidence
from tests.quality.made import evidence


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    made = evidence()
    path = write_evidence(tmp_path / "new", made)
    assert read_evidence(path) == made and read_evidence(path).id == made.id
    assert [file.name for file in path.parent.iterdir()] == [path.name] and path.name.startswith("high-16384px-16f-8s")


def test_a_newer_one_takes_the_place_of_what_counts_for_the_same(tmp_path: Path) -> None:
    write_evidence(tmp_path, evidence())
    path = write_evidence(tmp_path, evidence(time_ratio=2.0))
    assert [read_evidence(file).time_ratio for file in tmp_path.iterdir()] == [2.0]
    assert write_evidence(tmp_path, evidence(device="NVIDIA H200")) != path


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    def edit(text: str) -> str:
        told = json.loads(text)
        change(told)
        return json.dumps(told)

    return edit


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda text: text[:-20], "can't be read"),
        (lambda _: "[]", "is not evidence"),
        (lambda _: '{"kind": "another"}', "is not evidence"),
        (lambda text: text.replace('"time_ratio": 1.5', '"time_ratio": 2.5'), "damaged or edited"),
        (edited(lambda told: told.update(kind=EARLIER[0])), "earlier version: calibrate again"),
        (edited(lambda told: told.pop("id")), "damaged or edited"),
        (edited(lambda told: told.pop("ssim")), "ssim: "),
        (edited(lambda told: told.update(more=1)), "more: "),
        (edited(lambda told: told["choice"].update(attention=None)), "choice.attention: "),
        (edited(lambda told: told.update(time_ratio=float("nan"))), "time_ratio: "),
        (edited(lambda told: told.update(level="best")), "level: "),
        (lambda text: text + " " * 2**16, "is not evidence"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, damage: Callable[[str], str], told: str) -> None:
    path = write_evidence(tmp_path, evidence())
    path.write_text(damage(path.read_text()))
    with pytest.raises(CheckpointError, match=path.name) as caught:
        read_evidence(path)
    assert told in caught.value.message


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"prompts": 15}, "15 prompts and 2 seeds"),
        ({"seeds": 1}, "16 prompts and 1 seeds"),
        ({"ssim": Figure(0.99, 0.969, 0.9)}, "its SSIM, 0.969"),
        ({"audio_db": Figure(0.9, 1.01, 3.0)}, "its sound, 1.01 dB"),
        ({"width": 512}, "its bucket"),
    ],
)
def test_what_proves_nothing_is_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    path = write_evidence(tmp_path, evidence(**changes))
    with pytest.raises(CheckpointError) as caught:
        read_evidence(path)
    assert told in caught.value.message


def test_a_test_may_measure_less(tmp_path: Path) -> None:
    path = write_evidence(tmp_path, evidence(prompts=2, seeds=1))
    assert read_evidence(path, Least(2, 1)).prompts == 2


def test_a_bucket_is_an_octave_of_each() -> None:
    assert Bucket.of(1344, 768, 124, 12) == Bucket(2**19, 64, 8) == Bucket.of(960, 576, 64, 15)
    assert Bucket.of(960, 544, 124, 12).pixels == 2**18 and Bucket.of(64, 64, 5, 1) == Bucket(4096, 4, 1)
    assert Bucket(4096, 4, 1).told == "4096 to 8191 pixels, 4 to 7 frames, 1 to 1 steps"
    assert Sampling.of(SamplerSettings(9, seed=5)) == Sampling("res_multistep", "beta", 12.0, 3.0)
