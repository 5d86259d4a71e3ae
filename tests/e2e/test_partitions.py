"""Both transformers beside one encoder and two VAEs: the task picks, each is named, what can't be served says why."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from h3runtime.checkpoint.checkpoint_set import CheckpointSet
from h3runtime.checkpoint.sources import SYNTHETIC_KEY
from h3runtime.checkpoint.synthetic.tiny import tiny_set
from h3runtime.core import GenerateSpec, LoadProgress, Progress, Task
from h3runtime.denoiser.config import DitConfig
from h3runtime.engine import load as module
from h3runtime.engine.load import checkpoint_name
from h3runtime.engine.memory_budget import Budget, DeviceMemory, budget_of
from h3runtime.engine.paths import VAE_PATHS, model_paths
from h3runtime.engine.resident import ResidentEngine
from h3runtime.engine.room import Needs, Weights, require_room, working_bytes
from h3runtime.errors import CheckpointError, H3Error, InvalidRequest, SettingsError
from h3runtime.jobs.engine_view import reason_of
from h3runtime.settings import Settings, default_cache_dir
from tests.e2e.conftest import MakeSpec
from tests.tiny_set import tiny_paths

MIB = 2**20
Files = dict[str, Path]


@pytest.fixture(scope="module")
def made() -> CheckpointSet:
    return tiny_set(default_cache_dir())


@pytest.fixture
def files(made: CheckpointSet, tmp_path: Path) -> Files:
    """A copy of the tiny set, by the settings that name its files."""
    folder = shutil.copytree(made.transformer.parent, tmp_path / "set")
    named = {
        "model_path": made.transformer,
        "ref2va_model_path": made.ref2va,
        "text_encoder_path": made.text_encoder,
        "video_vae_path": made.video_vae,
        "audio_vae_path": made.audio_vae,
        "tokenizer_path": made.tokenizer,
    }
    return {setting: folder / path.name for setting, path in named.items()}


def settings(folder: Path, files: Files | None = None) -> Settings:
    """files: all of the tiny set by default."""
    return Settings(device="cpu", data_dir=folder / "data", **tiny_paths() if files is None else files)


def loaded(folder: Path, files: Files | None = None, *partitions: str, **told: Callable[..., None]) -> ResidentEngine:
    wanted = {"partitions": partitions} if partitions else {}
    engine = ResidentEngine(settings(folder, files), threads=1, warm_up=False, **wanted)  # type: ignore[arg-type]
    engine.load(told.get("on_progress", lambda _: None))
    return engine


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[ResidentEngine]:
    engine = loaded(tmp_path, None, "fl2va")
    yield engine
    engine.close()


def latents(engine: ResidentEngine, spec: GenerateSpec) -> str:
    clip = engine.generate(replace(spec, diagnostics=True), lambda _: None, lambda: False)
    assert clip.diagnostics is not None
    return str(clip.diagnostics["latents_sha256"])


def with_free(free: int, total: int = 0) -> Budget:
    """Of a device with memory of its own. free: bytes, 0 where nothing tells."""
    return budget_of(DeviceMemory("discrete", total, free))


def why_not(folder: Path, files: Files, monkeypatch: pytest.MonkeyPatch, free: int = 0) -> H3Error:
    """The error of a load, which must come before any data is read. free: bytes, 0 for all that there are."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "load_module", None)
        if free:
            patch.setattr(module, "current_budget", lambda *_: with_free(free))
        with pytest.raises((CheckpointError, SettingsError)) as caught:
            loaded(folder, files)
    return caught.value


# What is loaded


def test_both_are_told_apart(engine: ResidentEngine, made: CheckpointSet) -> None:
    facts = engine.facts().components
    assert [part.component for part in facts[:3]] == ["transformer", "transformer", "text_encoder"]
    assert [part.partition for part in facts] == ["fl2va", "ref2va", None, None, None]
    assert [part.file for part in facts[:2]] == [made.transformer.name, made.ref2va.name]
    first, second = facts[:2]
    assert first.sha256 != second.sha256 and (first.format, second.adaln) == ("nvfp4", "pruned")
    assert first.qkv is not None and second.qkv is not None and first.bytes == second.bytes


def test_the_task_picks(engine: ResidentEngine, alone: ResidentEngine, make_spec: MakeSpec) -> None:
    text, reference = (make_spec(task.value, task=task) for task in (Task.T2VA, Task.REF2VA))
    by_text, by_reference = latents(engine, text), latents(engine, reference)
    assert by_text != by_reference
    # Whatever else is loaded, a transformer's clips are its own.
    assert latents(alone, replace(text, overwrite=True)) == by_text


def test_progress_counts_both(tmp_path: Path, files: Files) -> None:
    seen: list[Progress] = []
    loaded(tmp_path, files, on_progress=seen.append).close()
    told = [progress.loading for progress in seen if progress.loading is not None]
    order = list(dict.fromkeys((t.component, t.partition) for t in told))
    assert order[:3] == [("transformer", "fl2va"), ("transformer", "ref2va"), ("text_encoder", None)]
    sizes = {path.stat().st_size for path in files.values() if path.is_file()}
    total = sum(path.stat().st_size for path in files.values() if path.is_file())
    assert {t.bytes_in_all for t in told} == {total} and len(sizes) == 4
    ends = [next(t for t in reversed(told) if (t.component, t.partition) == name).bytes_done for name in order]
    assert ends == sorted(set(ends)) and ends[-1] == total
    assert isinstance(told[0], LoadProgress) and {p.steps for p in seen[1:] if p.stage == "loading"} == {5}


def test_the_name_covers_both_and_a_set_with_one_keeps_its_own(engine: ResidentEngine) -> None:
    facts = engine.facts().components
    name = checkpoint_name(facts)
    assert name.startswith(f"{facts[0].file}:")
    for number, part in enumerate(facts):
        assert checkpoint_name((*facts[:number], replace(part, sha256="a" * 64), *facts[number + 1 :])) != name
    without = (facts[0], *facts[2:])
    # As it was when there was one partition alone.
    assert checkpoint_name(without) == checkpoint_name([replace(part, partition=None) for part in without]) != name
    swapped = [replace(facts[0], sha256=facts[1].sha256), replace(facts[1], sha256=facts[0].sha256), *facts[2:]]
    assert checkpoint_name(swapped) != name


def test_the_warm_up_meets_both(tmp_path: Path, files: Files, made: CheckpointSet) -> None:
    """The second one's weights are found to be spoilt before anybody asks for a clip of it."""
    weights = load_file(made.ref2va)
    weights["blocks.1.norm1.weight"][3] = float("nan")
    save_file(weights, files["ref2va_model_path"], {SYNTHETIC_KEY: "1"})
    engine = ResidentEngine(settings(tmp_path, files), threads=1)
    with pytest.raises(CheckpointError) as caught:
        engine.load(lambda _: None)
    assert [o.field for o in caught.value.offences] == ["blocks.1.norm1.weight"]
    assert made.ref2va.name in caught.value.message and made.transformer.name not in caught.value.message


# What isn't


def test_a_task_of_the_other_partition_says_which_file_to_give(
    tmp_path: Path, alone: ResidentEngine, make_spec: MakeSpec
) -> None:
    assert [part.partition for part in alone.facts().components] == ["fl2va", None, None, None]
    with pytest.raises(InvalidRequest, match="H3_REF2VA_MODEL_PATH") as caught:
        latents(alone, make_spec(task=Task.REF2VA))
    assert [(o.field, o.legal) for o in caught.value.offences] == [("task", "t2va, i2va, l2va, fl2va")]
    # A transformer that is named is served, and no other.
    other = loaded(tmp_path, {name: path for name, path in tiny_paths().items() if name != "model_path"})
    assert [part.partition for part in other.facts().components] == ["ref2va", None, None, None]
    for task in (Task.T2VA, Task.I2VA, Task.L2VA, Task.FL2VA):
        with pytest.raises(InvalidRequest, match="H3_MODEL_PATH"):
            latents(other, make_spec(task=task))
    assert latents(other, make_spec(task=Task.REF2VA))
    other.close()


def test_a_command_loads_what_its_clip_needs(tmp_path: Path, files: Files) -> None:
    both = model_paths(settings(tmp_path, files))
    assert list(both.transformers.items()) == [
        ("fl2va", files["model_path"]),
        ("ref2va", files["ref2va_model_path"]),
    ]
    assert model_paths(settings(tmp_path, files), ("ref2va",)).transformers == {"ref2va": files["ref2va_model_path"]}
    assert model_paths(settings(tmp_path, files), (), VAE_PATHS).transformers == {}
    del files["model_path"]
    with pytest.raises(SettingsError, match="H3_MODEL_PATH is not set, and T2VA, I2VA, L2VA and FL2VA need it"):
        model_paths(settings(tmp_path, files), ("fl2va",))


def test_weights_of_others_are_completed_by_nothing(tmp_path: Path, files: Files) -> None:
    for setting in ("model_path", "ref2va_model_path"):
        real = files[setting].with_name(f"real_{setting}.safetensors")
        save_file(load_file(files[setting]), real)
        with pytest.raises(SettingsError, match="H3_TEXT_ENCODER_PATH, H3_VIDEO_VAE_PATH"):
            model_paths(settings(tmp_path, {setting: files[setting]}))
        shared = {name: path for name, path in files.items() if not name.endswith("model_path")}
        alone = model_paths(settings(tmp_path, shared | {setting: real}))
        assert list(alone.transformers.values()) == [real] and not alone.embedded
        with pytest.raises(SettingsError, match="H3_TEXT_ENCODER_PATH, H3_VIDEO_VAE_PATH"):
            model_paths(settings(tmp_path, {setting: real}))
    encoder = files["text_encoder_path"].with_name("real_encoder.safetensors")
    save_file(load_file(files["text_encoder_path"]), encoder)
    with pytest.raises(SettingsError, match="H3_MODEL_PATH: not set") as caught:
        model_paths(settings(tmp_path, shared | {"text_encoder_path": encoder}))
    assert "REF2VA" not in caught.value.message


# What can't be


@pytest.mark.parametrize(
    ("setting", "name", "told"),
    [
        ("model_path", "MiniMax_H3_Ref2VA_pruned_nvfp4.safetensors", "T2VA, I2VA, L2VA and FL2VA need fl2va"),
        ("ref2va_model_path", "minimax_h3_fl2va_copy.safetensors", "Ref2VA needs ref2va in H3_REF2VA_MODEL_PATH"),
    ],
)
def test_a_file_named_after_the_other_partition_is_refused(
    files: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, name: str, told: str
) -> None:
    files[setting] = files[setting].rename(files[setting].with_name(name))
    said = reason_of(why_not(tmp_path, files, monkeypatch))
    assert name in said and told in said


@pytest.mark.parametrize("name", ["h3.safetensors", "link.safetensors"])
def test_one_file_is_not_both(files: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    files["model_path"] = files["model_path"].rename(tmp_path / "h3.safetensors")
    (tmp_path / "link.safetensors").symlink_to(files["model_path"])
    files["ref2va_model_path"] = tmp_path / name
    error = why_not(tmp_path, files, monkeypatch)
    assert isinstance(error, SettingsError) and [o.field for o in error.offences] == ["H3_REF2VA_MODEL_PATH"]
    assert "H3_MODEL_PATH and H3_REF2VA_MODEL_PATH name the same file, h3.safetensors" in error.message


def test_a_second_transformer_of_other_widths_is_named(
    files: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    weights = load_file(files["ref2va_model_path"])
    weights["condition_proj.weight"] = torch.zeros(256, 48)
    save_file(weights, files["ref2va_model_path"], {SYNTHETIC_KEY: "1"})
    said = why_not(tmp_path, files, monkeypatch).message
    encoder, second = files["text_encoder_path"].name, files["ref2va_model_path"].name
    assert said == f"{encoder}: hidden size 64, but {second} wants 48"


# What doesn't fit

TOLD = r"= ([\d.]+) MiB, but cpu has ([\d.]+) MiB free: short by ([\d.]+) MiB"


def test_a_second_partition_without_room_is_refused_with_the_sum(
    files: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    free = 158 * MIB
    error = why_not(tmp_path, files, monkeypatch, free)
    assert isinstance(error, SettingsError) and [o.field for o in error.offences] == ["H3_REF2VA_MODEL_PATH"]
    said = reason_of(error)
    total, there, short = (float(found) for found in re.search(TOLD, said).groups())  # type: ignore[union-attr]
    terms = [float(found) for found in re.findall(r"[\d.]+(?= MiB \(| MiB to sample)", said)]
    assert len(terms) == 6 and sum(terms) == pytest.approx(total, abs=0.03)
    assert (there, short) == (158.0, pytest.approx(total - 158, abs=0.011))
    assert said.count(files["ref2va_model_path"].name) == 1 and "without ref2va it would fit" in said
    for name in ("fl2va", "ref2va", "text encoder", "video VAE", "audio VAE"):
        assert f"{name} {terms.pop(0):.2f} MiB" in said


def test_so_many_bytes_are_enough_and_one_less_is_not(
    files: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A transformer alone is no setting's fault. Decoding once may take more, but is only done where that fits too."""
    del files["ref2va_model_path"]
    asked: list[tuple[list[Weights], int]] = []
    with monkeypatch.context() as patch:
        patch.setattr(module.room, "require_room", lambda weights, needs, *_: asked.append((weights, needs.most)))
        patch.setattr(module, "current_budget", lambda *_: with_free(1))
        engine = loaded(tmp_path, files)
        told = engine.facts().linear
        engine.close()
    assert told.default == "dequant" and "decoded at every call, for decoded once they and the longest" in told.why
    ((weights, working),) = asked
    needed = sum(part.bytes for part in weights) + working
    # Enough, or unknown.
    for free in (needed, 0):
        require_room(weights, Needs(working), with_free(free), torch.device("cpu"))
    error = why_not(tmp_path, files, monkeypatch, needed - 1)
    assert isinstance(error, CheckpointError) and "short by 0.00 MiB" in error.message
    assert files["model_path"].name in error.message and "REF2VA" not in error.message


def test_published_sizes_are_told_in_gib() -> None:
    """Two NVFP4 transformers and what they share, on a card that has room for one."""
    sizes = {"fl2va": 12.53, "ref2va": 12.53, "text encoder": 15.69, "video VAE": 5.21, "audio VAE": 0.61}
    weights = [
        Weights(name, f"{name}.safetensors", int(size * 1e9), name if name in ("fl2va", "ref2va") else None)
        for name, size in sizes.items()
    ]
    working = working_bytes(DitConfig(5376, 50, 2, 56, 128, 14336, 24, 32, 5120, 8, 16), torch.bfloat16)
    assert working / 2**30 == pytest.approx(3.41, abs=0.01)
    with pytest.raises(SettingsError) as caught:
        require_room(weights, Needs(working), with_free(40 * 2**30, 44 * 2**30), torch.device("cuda", 0))
    assert caught.value.message.startswith(
        "the weights don't fit into memory: fl2va 11.67 GiB (fl2va.safetensors) + ref2va"
    )
    assert (
        "= 46.78 GiB, but cuda:0 has 40.00 GiB free of 44.00 GiB: short by 6.78 GiB; without ref2va it would fit"
        in str(caught.value)
    )
    require_room(weights, Needs(working), with_free(119 * 2**30), torch.device("cuda", 0))
