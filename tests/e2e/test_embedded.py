"""The embedded model as the engine meets it: found by itself, told by its name, completed only by its own parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from h3runtime.checkpoint.embedded.deriving import TRAINED_FRAMES
from h3runtime.checkpoint.embedded.sets import embedded_set
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.model_name import MASTERS_KEY
from h3runtime.engine.paths import model_paths
from h3runtime.engine.resident import ResidentEngine
from h3runtime.errors import SettingsError
from h3runtime.settings import Settings, default_cache_dir
from tests.e2e.conftest import MakeSpec


def settings(folder: Path, **named: Path) -> Settings:
    return Settings(device="cpu", data_dir=folder / "data", **named)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResidentEngine]:
    """One transformer in BF16, named; all else is the default's."""
    bf16 = embedded_set(default_cache_dir(), "bf16")
    chosen = settings(tmp_path_factory.mktemp("mixed"), model_path=bf16.transformer)
    engine = ResidentEngine(chosen, threads=1, warm_up=False)
    engine.load(lambda _: None)
    yield engine
    engine.close()


def test_nothing_named_is_the_embedded_set(tmp_path: Path) -> None:
    made = embedded_set(default_cache_dir())
    found = model_paths(settings(tmp_path))
    assert found.embedded and found.transformers == {"fl2va": made.transformer, "ref2va": made.ref2va}
    assert (found.text_encoder, found.tokenizer) == (made.text_encoder, made.tokenizer)
    assert list(model_paths(settings(tmp_path), ("fl2va",)).transformers) == ["fl2va"]


def test_the_engine_tells_whose_weights_they_are(mixed: ResidentEngine) -> None:
    facts = mixed.facts()
    assert [part.format for part in facts.components] == ["bf16", "bf16", "fp16", "fp32"]
    assert {(part.model, part.synthetic) for part in facts.components} == {("h3-nano", False)}
    assert facts.components[0].qkv is not None and facts.components[0].qkv.startswith("contiguous (construction: ")
    assert facts.trained_frames == TRAINED_FRAMES
    (warning,) = facts.warnings
    assert "h3-nano is loaded, a trained miniature" in warning


def test_a_part_in_another_format_is_completed_and_works(mixed: ResidentEngine, make_spec: MakeSpec) -> None:
    clip = mixed.generate(make_spec(), lambda _: None, lambda: False)
    assert clip.frames == 22 and not any("h3-nano" in warning for warning in clip.warnings)


def test_parts_of_other_masters_are_not_completed(tmp_path: Path) -> None:
    own = embedded_set(default_cache_dir()).transformer
    with CheckpointFile(own) as file:
        told = dict(file.metadata)
    for metadata in ({**told, MASTERS_KEY: "0" * 16}, {}):
        other = tmp_path / own.name
        save_file(load_file(own), other, metadata)
        with pytest.raises(SettingsError, match="H3_TEXT_ENCODER_PATH, H3_VIDEO_VAE_PATH"):
            model_paths(settings(tmp_path, model_path=other))
