"""`compare --a --b` on the accelerator: the same sides give the same bits, and parts are compared across devices."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.sides.test_compare_sides import FILES, compare
from tests.gpu.conftest import Note

pytestmark = pytest.mark.gpu

CUDA = ("--device", "cuda")


def parts_of(facts: dict[str, Any]) -> dict[str, float]:
    """The most that each part adds anywhere."""
    found: dict[str, float] = {}
    for step in facts["blocks"]:
        for block in step["blocks"]:
            found |= {name: max(found.get(name, 0.0), part["rel_l2"]) for name, part in block["parts"].items()}
    return found


def told(capsys: pytest.CaptureFixture[str], out: Path, *sides: str, steps: int = 4) -> dict[str, Any]:
    """The facts of a comparison that came to its end."""
    code, facts, err = compare(capsys, out, "--steps", str(steps), *sides)
    assert code == 0 and facts, err
    return facts


def test_equal_sides_are_equal_to_the_bit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    facts = told(capsys, tmp_path / "ab", *CUDA, "--a", "linear=dequant", "--b", "linear=dequant")
    assert facts["identical"] and facts["engines"] == "shared"


def test_four_bit_products_are_told_apart(capsys: pytest.CaptureFixture[str], tmp_path: Path, note: Note) -> None:
    out = tmp_path / "ab"
    facts = told(capsys, out, *CUDA, "--a", "linear=dequant", "--b", "linear=nvfp4_emulated")
    assert sorted(path.name for path in out.iterdir()) == FILES and facts["engines"] == "shared"
    found = parts_of(facts)
    assert {name for name, far in found.items() if far} == {"qkv", "out", "fc1", "fc2"} and max(found.values()) < 0.2
    note(f"nvfp4_emulated on {facts['b']['device']}: " + ", ".join(f"{n} {far:.4f}" for n, far in found.items() if far))


def test_eight_bit_weights_take_an_engine_of_their_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, note: Note
) -> None:
    """Whose producers hand out codes otherwise; here each linear rounds for itself."""
    facts = told(capsys, tmp_path / "ab", *CUDA, "--a", "linear=resident_bf16", "--b", "linear=fp8")
    found = parts_of(facts)
    assert facts["engines"] == "beside" and {name for name, far in found.items() if far} == {"qkv", "out", "fc1", "fc2"}
    assert max(found.values()) < 0.1
    note("fp8: " + ", ".join(f"{name} {far:.4f}" for name, far in found.items() if far))


@pytest.mark.timeout(300)
def test_two_devices(capsys: pytest.CaptureFixture[str], tmp_path: Path, note: Note) -> None:
    sides = ("--a", "device=cpu,linear=dequant", "--b", "device=cuda,linear=dequant")
    facts = told(capsys, tmp_path / "ab", *sides, steps=2)
    found = parts_of(facts)
    assert facts["engines"] == "beside" and max(found.values()) < 0.01 and facts["video"]["ssim"] > 0.9
    note("CPU and CUDA: " + ", ".join(f"{name} {far:.1e}" for name, far in found.items()))
