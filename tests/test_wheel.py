"""The wheel holds both packages and works away from the checkout."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(REPOSITORY)]
    subprocess.run(build, check=True, capture_output=True, timeout=240)
    (path,) = folder.glob("h3runtime-*.whl")
    return path


def test_the_wheel_holds_every_source_file(wheel: Path) -> None:
    packaged = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    package = {p.relative_to(REPOSITORY).as_posix() for p in (REPOSITORY / "h3runtime").rglob("*.py")}
    kernels = {p.relative_to(REPOSITORY / "kernels").as_posix() for p in (REPOSITORY / "kernels").rglob("*.py")}
    assert packaged == package | kernels


def test_the_wheel_holds_the_cuda_sources_and_nothing_compiled(wheel: Path) -> None:
    """An installation compiles them on its own machine."""
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith(".py")}
    sources = {
        path.relative_to(REPOSITORY / "kernels").as_posix()
        for suffix in ("*.cu", "*.cuh")
        for path in (REPOSITORY / "kernels").rglob(suffix)
    }
    assert "h3_kernels/cuda/nvfp4_block.cuh" in sources and sources <= packed
    assert {name for name in packed if name.startswith("h3_kernels/")} == sources


def test_the_installed_wheel_runs(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    program = "import h3runtime, h3_kernels; print(h3runtime.__file__); print(h3_kernels.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    run = [sys.executable, "-c", program]
    found = subprocess.run(run, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True, timeout=240)
    assert all(Path(line).is_relative_to(site) for line in found.stdout.splitlines())
    command = [sys.executable, "-m", "h3runtime", "--help"]
    help_text = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert help_text.returncode == 0
    assert "demo" in help_text.stdout


def test_the_wheel_holds_the_page(wheel: Path) -> None:
    folder = "h3runtime/api/page/static"
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(folder)}
    assert packed == {f"{folder}/{path.name}" for path in (REPOSITORY / folder).iterdir()}


def test_the_wheel_holds_the_embedded_model(wheel: Path) -> None:
    """Whole and no larger than it may be; weights of floating point hardly get smaller in an archive."""
    folder = "h3runtime/nano/masters"
    with zipfile.ZipFile(wheel) as archive:
        packed = {info.filename: info for info in archive.infolist() if info.filename.startswith(f"{folder}/")}
        listing = json.loads(archive.read(f"{folder}/derived.json"))
        found = {name: hashlib.sha256(archive.read(f"{folder}/{name}")).hexdigest() for name in listing["masters"]}
    assert found == listing["masters"] and packed.keys() == {f"{folder}/{name}" for name in (*found, "derived.json")}
    assert sum(info.file_size for info in packed.values()) <= 20e6 and wheel.stat().st_size < 22e6


def test_the_wheel_holds_the_embedded_model_s_adapters(wheel: Path) -> None:
    """With the list of their digests, and of no more than a fifth of the model's bytes."""
    folder = "h3runtime/nano/adapters"
    with zipfile.ZipFile(wheel) as archive:
        packed = {info.filename: info for info in archive.infolist() if info.filename.startswith(f"{folder}/")}
        lines = archive.read(f"{folder}/SHA256SUMS").decode().splitlines()
        listed = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
        found = {name: hashlib.sha256(archive.read(f"{folder}/{name}")).hexdigest() for name in listed}
    assert found == listed and packed.keys() == {f"{folder}/{name}" for name in (*found, "SHA256SUMS")}
    assert sum(info.file_size for info in packed.values()) <= 4e6
