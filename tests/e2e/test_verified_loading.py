"""An engine that loads a set of files: damage is refused, each byte is read once, progress and rates are told."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from h3runtime.checkpoint.expected import write_sums
from h3runtime.checkpoint.hashing import sha256_of
from h3runtime.checkpoint.synthetic.tiny import tiny_set
from h3runtime.checkpoint.tensor_file import TensorFile
from h3runtime.core import ComponentFacts, Progress
from h3runtime.engine import load as module
from h3runtime.engine.load import Loader, Models, checkpoint_name
from h3runtime.engine.paths import model_paths
from h3runtime.engine.resident import COMPUTE_DTYPE, ResidentEngine
from h3runtime.errors import CheckpointError
from h3runtime.settings import Settings, default_cache_dir

COMPONENTS = ("transformer", "text_encoder", "video_vae", "audio_vae")
SETTINGS = ("model_path", "text_encoder_path", "video_vae_path", "audio_vae_path", "tokenizer_path")
FLIPPED = 4096
Load = Callable[..., Models]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A copy of the tiny set, by the settings that name its files."""
    found = tiny_set(default_cache_dir())
    folder = shutil.copytree(found.transformer.parent, tmp_path / "set")
    (folder / "SHA256SUMS").unlink(missing_ok=True)
    paths = [getattr(found, name) for name in (*COMPONENTS, "tokenizer")]
    return {setting: folder / path.name for setting, path in zip(SETTINGS, paths, strict=True)}


@pytest.fixture
def load(files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """All four components, with an empty memory of digests; `on_component` and `on_progress` as in `Loader`."""
    monkeypatch.setattr(module, "default_cache_dir", lambda: tmp_path / "cache")
    place = ResidentEngine(Settings(device="cpu", data_dir=tmp_path, **files), threads=1)

    def run(verify: str = "fast", on_progress=lambda _: None, on_component=lambda _: None) -> Models:  # type: ignore[no-untyped-def]
        settings = place.settings.model_copy(update={"verify": verify})
        paths = model_paths(settings)
        return Loader(settings, paths, place.device, place.linear, on_progress, on_component).models(COMPUTE_DTYPE)

    return run


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes read of each file from now on, those of headers and of single tensors that are looked at apart."""
    seen: dict[str, int] = {}
    real = TensorFile.fill

    def fill(self: TensorFile, view: memoryview, offset: int, name: str | None = None) -> None:
        if name is None:
            seen[self.path.name] = seen.get(self.path.name, 0) + len(view)
        real(self, view, offset, name)

    monkeypatch.setattr(TensorFile, "fill", fill)
    return seen


def flip(path: Path) -> None:
    """4 KiB in the middle (case A09)."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        data = file.read(FLIPPED)
        file.seek(path.stat().st_size // 2)
        file.write(bytes(byte ^ 0xFF for byte in data))


def test_a_vae_with_4_kib_flipped_is_refused_and_named(files: dict[str, Path], load: Load) -> None:
    vae = files["audio_vae_path"]
    write_sums(vae.parent, {vae.name: sha256_of(vae)})
    load()
    flip(vae)
    # The second time it is known without reading.
    for _ in range(2):
        with pytest.raises(CheckpointError, match=rf"{vae.name}: .*damaged.*SHA256SUMS") as caught:
            load()
        assert sha256_of(vae) in caught.value.message


def test_a_damaged_download_is_refused_and_named(files: dict[str, Path], load: Load) -> None:
    vae = files["video_vae_path"]
    metadata = vae.parent / ".cache" / "huggingface" / "download" / f"{vae.name}.metadata"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"{'0' * 40}\n{sha256_of(vae)}\n1.0\n")
    load()
    flip(vae)
    with pytest.raises(CheckpointError, match=rf"{vae.name}: .*Hugging Face"):
        load()


def test_the_first_load_reads_every_byte_once_and_the_next_only_what_it_needs(
    files: dict[str, Path], load: Load, read_bytes: dict[str, int]
) -> None:
    paths = [files[setting] for setting in SETTINGS[:4]]
    sizes = {path.name: path.stat().st_size for path in paths}
    first = load()
    assert read_bytes == sizes
    assert [part.sha256 for part in first.facts] == [sha256_of(path) for path in paths]
    read_bytes.clear()
    assert [part.sha256 for part in load().facts] == [part.sha256 for part in first.facts]
    assert all(read_bytes[part.file] <= part.bytes < sizes[part.file] for part in first.facts)
    read_bytes.clear()
    load("full")
    assert read_bytes == sizes


def test_full_finds_bytes_that_changed_in_silence(files: dict[str, Path], load: Load) -> None:
    load()
    vae = files["audio_vae_path"]
    times = vae.stat()
    flip(vae)
    os.utime(vae, ns=(times.st_atime_ns, times.st_mtime_ns))
    load("fast")
    with pytest.raises(CheckpointError, match=rf"{vae.name}: has changed its bytes"):
        load("full")


def test_progress_names_components_and_moves_by_bytes(files: dict[str, Path], load: Load) -> None:
    seen: list[Progress] = []
    load(on_progress=seen.append)
    sizes = [files[setting].stat().st_size for setting in SETTINGS[:4]]
    assert {progress.stage for progress in seen} == {"loading"}
    fractions = [progress.fraction for progress in seen]
    assert fractions == sorted(fractions) and (fractions[0], fractions[-1]) == (0.0, 1.0)
    told = [progress.loading for progress in seen if progress.loading is not None]
    assert len(told) == len(seen)
    assert list(dict.fromkeys(t.component for t in told)) == list(COMPONENTS)
    assert {t.bytes_in_all for t in told} == {sum(sizes)} and told[-1].bytes_done == sum(sizes)
    ends = [next(t for t in reversed(told) if t.component == name) for name in COMPONENTS]
    assert [t.bytes_done for t in ends] == [sum(sizes[: i + 1]) for i in range(4)]
    assert all(t.bytes_per_second > 0 for t in ends)


def test_each_component_is_told_with_its_rate(load: Load) -> None:
    seen: list[ComponentFacts] = []
    models = load(on_component=seen.append)
    assert tuple(seen) == models.facts
    for part in seen:
        assert part.bytes_per_second == pytest.approx(part.bytes / part.load_seconds)


def test_the_checkpoint_s_name_covers_every_component(load: Load) -> None:
    facts = load().facts
    name = checkpoint_name(facts)
    assert name.startswith(f"{facts[0].file}:") and len(name) == len(facts[0].file) + 13
    for number, part in enumerate(facts):
        other = (*facts[:number], replace(part, sha256="a" * 64), *facts[number + 1 :])
        assert checkpoint_name(other) != name
