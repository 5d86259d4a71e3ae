"""Adapters in the engine: active for one run alone, read once, kept within a bound, and the very files admitted."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from h3runtime.backends.linear.adapted import is_adapted
from h3runtime.checkpoint.synthetic.adapters import adapter
from h3runtime.checkpoint.synthetic.tiny import TRANSFORMER
from h3runtime.checkpoint.tensor_file import TensorFile
from h3runtime.checkpoint.writer import write_file
from h3runtime.core import AdapterUse, Clip, GenerateSpec
from h3runtime.denoiser.recording import addresses
from h3runtime.engine.adapters import AdapterShelf, list_adapters
from h3runtime.engine.latents_file import read_latents
from h3runtime.engine.resident import ResidentEngine
from h3runtime.errors import CheckpointChanged, NumericalError, SettingsError
from tests.e2e.conftest import MakeSpec

SMALL = {"width": 64, "height": 64, "frames": 5, "steps": 1, "diagnostics": True}
LAYOUTS = ("comfyui_turbo", "kohya", "pruned_complete", "pdd_comfyui")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("adapters")
    for layout in LAYOUTS:
        adapter(layout, TRANSFORMER).write(made / f"{layout}.safetensors")
    return made


@pytest.fixture
def shelf(engine: ResidentEngine, folder: Path) -> Iterator[AdapterShelf]:
    """In the engine of all tests, for this one."""
    own = engine.adapters
    engine.adapters = AdapterShelf(folder, 2**30, engine.device)
    engine.adapters.list(engine.models.transformers)
    engine.estimator._adapters = engine.adapters
    yield engine.adapters
    engine.adapters = engine.estimator._adapters = own


def use_of(shelf: AdapterShelf, name: str, strength: float = 1.0) -> AdapterUse:
    facts = next(facts for facts in shelf.facts if facts.name == name)
    fit = facts.fits["fl2va"]
    return AdapterUse(name, strength, facts.sha256, facts.alpha, facts.rank, strength, fit.matched, fit.total)


def made(engine: ResidentEngine, spec: GenerateSpec) -> Clip:
    return engine.generate(replace(spec, overwrite=True), lambda _: None, lambda: False)


def latents_of(clip: Clip) -> str:
    assert clip.diagnostics is not None
    return str(clip.diagnostics["latents_sha256"])


def test_a_request_without_adapters_is_the_same_before_and_after_one_with(
    engine: ResidentEngine, shelf: AdapterShelf, make_spec: MakeSpec
) -> None:
    spec = make_spec(**SMALL)
    plain = latents_of(made(engine, spec))
    modules = list(engine.models.transformers["fl2va"].modules())
    first = latents_of(made(engine, replace(spec, loras=(use_of(shelf, "comfyui_turbo"),))))
    assert first != plain
    assert shelf.reads == 1 and shelf.bytes > 0
    assert list(engine.models.transformers["fl2va"].modules()) == modules
    assert latents_of(made(engine, spec)) == plain
    off = use_of(shelf, "kohya", 0.0)
    assert latents_of(made(engine, replace(spec, loras=(off,)))) == plain and shelf.reads == 1
    assert latents_of(made(engine, replace(spec, loras=(use_of(shelf, "comfyui_turbo"), off)))) == first
    assert shelf.reads == 1


def test_changing_adapters_between_requests_reloads_nothing(
    engine: ResidentEngine, shelf: AdapterShelf, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: every weight stays where it lies, and each adapter's file is opened once, whatever comes between."""
    opened: list[str] = []
    own = TensorFile.__init__

    def counted(self: TensorFile, path: Path, *rest: Any) -> None:
        opened.append(path.name)
        own(self, path, *rest)

    monkeypatch.setattr(TensorFile, "__init__", counted)
    network, spec = engine.models.transformers["fl2va"], make_spec(**SMALL)
    where = addresses(network)
    first = {name: latents_of(made(engine, spec_with(shelf, spec, name))) for name in (None, *LAYOUTS)}
    assert sorted(opened) == sorted(f"{name}.safetensors" for name in LAYOUTS) and shelf.reads == len(LAYOUTS)
    again = {name: latents_of(made(engine, spec_with(shelf, spec, name))) for name in (*reversed(LAYOUTS), None)}
    assert again == first and len(set(first.values())) == len(first)
    assert len(opened) == shelf.reads == len(LAYOUTS)
    assert addresses(network) == where


def spec_with(shelf: AdapterShelf, spec: GenerateSpec, name: str | None) -> GenerateSpec:
    return spec if name is None else replace(spec, loras=(use_of(shelf, name),))


def test_what_is_resident_is_taken_without_reading(engine: ResidentEngine, shelf: AdapterShelf) -> None:
    network, use = engine.models.transformers["fl2va"], use_of(shelf, "comfyui_turbo")

    def seconds() -> float:
        began = time.perf_counter()
        shelf.take([use], "fl2va", network)
        return time.perf_counter() - began

    cold = seconds()
    assert min(seconds() for _ in range(3)) < cold / 4


def test_what_was_saved_for_the_other_transformer_fits_it_alone(engine: ResidentEngine, tmp_path: Path) -> None:
    made = adapter("kohya", TRANSFORMER)
    names = {f"transformer_ref.{name.removeprefix('lora_unet_')}": tensor for name, tensor in made.tensors.items()}
    write_file(tmp_path / "named.safetensors", names)
    model = engine.models.transformers["fl2va"]
    (facts,) = list_adapters(tmp_path, {"fl2va": model, "ref2va": model})
    assert "saved for the Ref2VA transformer" in facts.fits["fl2va"].fault
    assert facts.fits["ref2va"].fault == "" and facts.fits["ref2va"].matched == facts.fits["ref2va"].total > 0


def test_two_at_once_are_neither_of_them(engine: ResidentEngine, shelf: AdapterShelf, make_spec: MakeSpec) -> None:
    spec = make_spec(save_latents=True, **SMALL)
    uses = use_of(shelf, "comfyui_turbo"), use_of(shelf, "kohya", 0.5)
    alone = {latents_of(made(engine, replace(spec, loras=(use,)))) for use in uses}
    both = made(engine, replace(spec, loras=uses))
    assert len(alone | {latents_of(both)}) == 3
    assert both.diagnostics is not None and [u["name"] for u in both.diagnostics["loras"]] == ["comfyui_turbo", "kohya"]
    assert both.latents_output is not None
    read_latents(both.latents_output)
    assert b"comfyui_turbo" in both.latents_output.read_bytes()[:4096]


def test_a_foreign_adaln_table_is_told(engine: ResidentEngine, shelf: AdapterShelf, make_spec: MakeSpec) -> None:
    clip = made(engine, make_spec(loras=(use_of(shelf, "pruned_complete"),), **SMALL))
    assert any("another AdaLN table" in warning for warning in clip.warnings)


def test_its_own_adaln_table_is_nothing_to_tell(engine: ResidentEngine, tmp_path: Path) -> None:
    model = engine.models.transformers["fl2va"]
    tensors = dict(adapter("pruned_complete", TRANSFORMER).tensors)
    for name, moved in (("same", 0.0), ("near", 9e-4), ("other", 1.1e-3)):
        table = model.adaln_t_table.clone()
        table[3, 2] += moved
        write_file(tmp_path / f"{name}.safetensors", tensors | {"diffusion_model.adaln_t_table": table})
    shelf = AdapterShelf(tmp_path, 2**30, engine.device)
    shelf.list(engine.models.transformers)
    warned = {name: shelf.take([use_of(shelf, name)], "fl2va", model).warnings for name in ("same", "near", "other")}
    assert warned["same"] == warned["near"] == () and len(warned["other"]) == 1


def test_what_was_used_longest_ago_goes(engine: ResidentEngine, shelf: AdapterShelf) -> None:
    model = engine.models.transformers["fl2va"]
    for name in ("comfyui_turbo", "kohya", "comfyui_turbo", "pdd_comfyui"):
        shelf.take([use_of(shelf, name)], "fl2va", model)
    assert shelf.reads == 3
    shelf._limit = shelf.bytes - 1
    shelf.settle()
    assert shelf.bytes <= shelf._limit
    shelf.take([use_of(shelf, "comfyui_turbo"), use_of(shelf, "pdd_comfyui")], "fl2va", model)
    assert shelf.reads == 3
    shelf._limit = 0
    shelf.take([use_of(shelf, "kohya"), use_of(shelf, "comfyui_turbo")], "fl2va", model)
    assert shelf.reads == 4 and shelf.bytes > 0
    shelf.settle()
    assert shelf.bytes == 0


def test_the_estimate_counts_what_will_be_resident(
    engine: ResidentEngine, shelf: AdapterShelf, make_spec: MakeSpec
) -> None:
    spec = make_spec(**SMALL)
    use = use_of(shelf, "kohya")
    bytes_of = {facts.name: facts.bytes for facts in shelf.facts}
    assert engine.estimate(spec).memory["adapters_bytes"] == 0
    assert engine.estimate(replace(spec, loras=(use,))).memory["adapters_bytes"] == bytes_of["kohya"]
    assert engine.estimate(replace(spec, loras=(replace(use, strength=0.0),))).memory["adapters_bytes"] == 0
    shelf.take([use_of(shelf, "comfyui_turbo")], "fl2va", engine.models.transformers["fl2va"])
    kept = shelf.bytes
    assert engine.estimate(spec).memory["adapters_bytes"] == kept
    assert engine.estimate(replace(spec, loras=(use,))).memory["adapters_bytes"] == kept + bytes_of["kohya"]
    shelf._limit = bytes_of["kohya"]
    assert engine.estimate(replace(spec, loras=(use,))).memory["adapters_bytes"] == bytes_of["kohya"]


def test_another_file_under_the_name_is_not_the_one_that_was_admitted(
    engine: ResidentEngine, shelf: AdapterShelf, make_spec: MakeSpec
) -> None:
    other = replace(use_of(shelf, "kohya"), sha256="0" * 64)
    gone = replace(other, name="gone")
    for use in (other, gone):
        with pytest.raises(CheckpointChanged, match=use.name):
            made(engine, make_spec(loras=(use,), **SMALL))


def test_values_that_are_not_finite_end_the_job_and_leave_the_model_alone(
    engine: ResidentEngine, tmp_path: Path
) -> None:
    tensors = dict(adapter("kohya", TRANSFORMER).tensors)
    name = next(name for name in tensors if name.endswith("lora_up.weight"))
    tensors[name] = torch.full_like(tensors[name], torch.nan)
    write_file(tmp_path / "bad.safetensors", tensors)
    shelf = AdapterShelf(tmp_path, 2**30, engine.device)
    model = engine.models.transformers["fl2va"]
    shelf.list(engine.models.transformers)
    with pytest.raises(NumericalError, match=name):
        shelf.take([use_of(shelf, "bad")], "fl2va", model)
    assert not any(map(is_adapted, model.modules()))


def test_a_folder_that_is_not_there_is_a_setting_that_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="H3_LORA_DIR"):
        list_adapters(tmp_path / "nowhere", {})
    assert list_adapters(tmp_path, {}) == () and list_adapters(None, {}) == ()


def test_a_file_that_cannot_be_used_is_listed_with_its_fault(engine: ResidentEngine, tmp_path: Path) -> None:
    (tmp_path / "page.safetensors").write_bytes(b"<html>")
    write_file(tmp_path / "dora.safetensors", {"blocks.0.attn.out_proj.dora_scale": torch.ones(4)})
    write_file(tmp_path / "other.safetensors", {f"layers.0.x.lora_{half}.weight": torch.ones(2, 2) for half in "AB"})
    (tmp_path / "notes.txt").write_text("no adapter")
    found = {facts.name: facts for facts in list_adapters(tmp_path, engine.models.transformers)}
    assert set(found) == {"page", "dora", "other"}
    assert "dora_scale" in found["dora"].fault and found["page"].fault and not found["other"].fault
    assert all("none of the transformer's layers" in fit.fault for fit in found["other"].fits.values())
