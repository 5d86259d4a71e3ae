"""What passed before isn't asked again on the same machine, and is as soon as anything differs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from h3runtime.backends.attention.facts import DeviceFacts
from h3runtime.core import SelfTest
from h3runtime.engine.self_test import identity
from h3runtime.engine.self_test.check import Check
from h3runtime.engine.self_test.identity import identity_of
from h3runtime.engine.self_test.proving import prove
from h3runtime.engine.self_test.record import Record
from h3runtime.errors import H3Error

CPU = torch.device("cpu")
GB10 = DeviceFacts(
    "cuda", "NVIDIA GB10", (12, 1), "2.11.0", 91_900, {"triton": "3.6.0"}, frozenset({"h3_kernels/attention8"})
)
LOADED: dict[str, Any] = {"chosen": ["sage2", "nvfp4"], "sizes": [5376], "weights": ["ab"], "options": {"a": "b"}}


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_driver", lambda: "580.95.05")


class Asked:
    """Checks that count how often they are asked."""

    def __init__(self, error: float = 0.001) -> None:
        self.error, self.count = error, 0

    def measure(self) -> float:
        self.count += 1
        return self.error

    @property
    def check(self) -> Check:
        return Check("attention", "sage2", "65536 rows", 0.1, self.measure)


def run(folder: Path | None, asked: Asked, told: dict[str, Any] | None = None) -> SelfTest:
    return prove([asked.check], Record(folder, told or identity_of(GB10, LOADED)), CPU)


def test_a_second_start_asks_nothing(tmp_path: Path) -> None:
    asked = Asked()
    first, second = run(tmp_path, asked), run(tmp_path, asked)
    assert asked.count == 1
    assert [check.cached for found in (first, second) for check in found.checks] == [False, True]
    assert second.checks[0].error == first.checks[0].error == 0.001
    assert second.checks[0].seconds == first.checks[0].seconds
    assert first.kept == second.kept and first.kept.startswith("self-test/")
    assert list((tmp_path / "self-test").iterdir()) == [tmp_path / first.kept]


@pytest.mark.parametrize(
    "facts",
    [
        replace(GB10, name="NVIDIA RTX PRO 6000"),
        replace(GB10, capability=(12, 0)),
        replace(GB10, torch="2.12.0"),
        replace(GB10, cudnn=92_000),
        replace(GB10, libraries={"triton": "3.7.0"}),
        replace(GB10, libraries={"triton": "3.6.0", "sageattention": "2.2.0"}),
        replace(GB10, parts=frozenset()),
    ],
)
def test_another_machine_or_library_is_asked_anew(tmp_path: Path, facts: DeviceFacts) -> None:
    asked = Asked()
    run(tmp_path, asked)
    run(tmp_path, asked, identity_of(facts, LOADED))
    assert asked.count == 2


@pytest.mark.parametrize("key", sorted(LOADED))
def test_another_choice_size_checkpoint_or_setting_is_asked_anew(tmp_path: Path, key: str) -> None:
    asked = Asked()
    run(tmp_path, asked)
    run(tmp_path, asked, identity_of(GB10, LOADED | {key: ["other"]}))
    assert asked.count == 2


@pytest.mark.parametrize("of", ["_driver", "source_hash"])
def test_another_driver_or_source_is_asked_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str) -> None:
    asked = Asked()
    run(tmp_path, asked)
    monkeypatch.setattr(identity, of, lambda: "other")
    run(tmp_path, asked)
    assert asked.count == 2


def test_another_cuda_is_asked_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked()
    run(tmp_path, asked)
    monkeypatch.setattr(torch.version, "cuda", "13.1")
    run(tmp_path, asked)
    assert asked.count == 2


def test_the_source_is_that_of_kernels_and_backends() -> None:
    names = {file.name for file in identity._files(identity.OURS)}
    assert {"attention8_kernels.py", "sage2.py", "nvfp4.py", "record.py"} <= names
    assert not any(name.endswith(".pyc") for name in names)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"passed": {}}', '{"identity": 1, "passed": [], "lost": {}}', "\0"])
def test_a_broken_file_is_no_file(tmp_path: Path, text: str) -> None:
    asked = Asked()
    path = tmp_path / run(tmp_path, asked).kept
    path.write_text(text)
    assert not run(tmp_path, asked).checks[0].cached
    assert run(tmp_path, asked).checks[0].cached and asked.count == 2


@pytest.mark.parametrize("entry", [None, "x", [1], [None, 1], [1, 2, 3], {"a": 1}])
def test_an_entry_of_another_shape_is_none(tmp_path: Path, entry: object) -> None:
    asked = Asked()
    path = tmp_path / run(tmp_path, asked).kept
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | {"passed": dict.fromkeys(whole["passed"], entry)}))
    assert not run(tmp_path, asked).checks[0].cached


def test_what_passed_by_a_tolerance_that_was_looser_is_asked_anew(tmp_path: Path) -> None:
    asked = Asked(0.05)
    run(tmp_path, asked)
    stricter = replace(asked.check, tolerance=0.01)
    found = prove([stricter], Record(tmp_path, identity_of(GB10, LOADED)), CPU)
    assert asked.count == 2 and not found.checks[0].passed


def test_what_failed_is_asked_at_every_start(tmp_path: Path) -> None:
    asked = Asked(0.5)
    assert [run(tmp_path, asked).checks[0].passed for _ in range(2)] == [False, False]
    assert asked.count == 2
    asked.error = 0.001
    assert run(tmp_path, asked).checks[0].passed


def test_without_a_folder_that_can_be_written_it_is_asked_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "self-test").write_text("in the way")
    asked = Asked()
    assert run(tmp_path, asked).checks[0].passed and run(None, asked).kept == ""
    assert asked.count == 2


def test_a_kernel_that_took_the_device_down_is_not_asked_by_the_next_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def dies() -> float:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    check = replace(Asked().check, measure=dies)
    with pytest.raises(torch.AcceleratorError) as raised:
        prove([check], Record(tmp_path, identity_of(GB10, LOADED)), CPU)
    assert not isinstance(raised.value, H3Error)
    assert "attention sage2: 65536 rows took the device down: CUDA error: an illegal memory access" in caplog.text
    asked = Asked()
    found = run(tmp_path, asked).checks[0]
    assert asked.count == 0 and not found.passed
    assert found.reason.startswith("it took the device down at an earlier start (CUDA error: an illegal memory")
    (file,) = (tmp_path / "self-test").iterdir()
    assert f"self-test/{file.name}" in found.reason and str(tmp_path) not in found.reason
    file.unlink()
    assert run(tmp_path, asked).checks[0].passed
