"""`h3runtime inspect`: what it says of each kind of file, how strict it is, and how it ends."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from h3runtime.__main__ import main
from h3runtime.checkpoint.checkpoint_set import CheckpointSet
from h3runtime.checkpoint.synthetic.adapters import LAYOUTS, adapter
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes
from h3runtime.checkpoint.synthetic.tiny import write_set
from h3runtime.checkpoint.writer import write_file
from tests.checkpoint import tiny_transformer as tiny


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> CheckpointSet:
    return write_set(tmp_path_factory.mktemp("set"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Command:
    """`inspect` in this process, with what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        code = main(["inspect", *map(str, arguments)])
        out, err = self._capsys.readouterr()
        return code, out, err

    def json(self, *arguments: object) -> dict[str, Any]:
        code, out, err = self(*arguments, "--json")
        assert (code, err) == (0, "") and len(out.splitlines()) == 1
        return json.loads(out)

    def refused(self, *arguments: object) -> str:
        code, out, err = self(*arguments, "--json")
        assert (code, out) == (1, "") and 1 <= len(err.splitlines()) <= 2 and "Traceback" not in err
        return err


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def save(folder: Path, tensors: Mapping[str, torch.Tensor], name: str = "model") -> Path:
    path = folder / f"{name}.safetensors"
    write_file(path, tensors)
    return path


def groups(found: dict[str, Any]) -> dict[str, tuple[str, int]]:
    return {group["layers"]: (group["format"], group["count"]) for group in found["formats"]}


def scales(found: dict[str, Any], layers: str) -> dict[str, tuple[str, str]]:
    group = next(g for g in found["formats"] if g["layers"] == layers)
    return {scale["name"]: (scale["dtype"], scale["layout"]) for scale in group["scales"]}


# What is told


def test_a_pruned_nvfp4_transformer(inspect: Command, made: CheckpointSet) -> None:
    found = inspect.json(made.transformer)
    told = {k: found[k] for k in ("family", "component", "supported", "layout", "prefix", "format", "adaln", "qkv")}
    assert told == {
        "family": "minimax_h3", "component": "transformer", "supported": True, "layout": "comfyui", "prefix": "",
        "format": "nvfp4", "adaln": "pruned", "qkv": "contiguous",
    }  # fmt: skip
    assert found["partition"] == {"hint": "fl2va", "certain": False, "why": found["partition"]["why"]}
    assert found["adaln_curve"] == {"grid": 1025, "rank": 8} and found["head_bank"] == 1
    assert groups(found)["blocks.*.attn.qkv_proj"] == ("nvfp4", 3)
    assert groups(found)["token_refiner.blocks.*.mlp.fc1"] == ("bf16", 2)
    assert scales(found, "blocks.*.mlp.fc2") == {
        "weight_scale": ("F8_E4M3", "swizzled"),
        "weight_scale_2": ("F32", "scalar"),
    }
    assert found["synthetic"] is True and found["gate_compress"] is False and found["lora"] is None
    assert (
        found["bytes"] == made.transformer.stat().st_size
        and sum(t["bytes"] for t in found["dtypes"].values()) == (found["data_bytes"])
    )
    assert sum(t["tensors"] for t in found["dtypes"].values()) == found["tensors"]
    assert found["sha256"] == hashlib.sha256(made.transformer.read_bytes()).hexdigest()
    sizes = {"hidden": 256, "layers": 3, "refiner_layers": 2, "heads": 2, "head_dim": 128, "ffn": 512, "text_dim": 64}
    assert sizes.items() <= found["dimensions"].items()


def test_what_runs_where(inspect: Command, made: CheckpointSet) -> None:
    machine = inspect.json(made.transformer, "--device", "cpu")["machine"]
    assert machine["device"] == "cpu" and machine["fits"] is True and machine["free_bytes"] > 0
    assert {backend["format"] for backend in machine["linear"]} == {"nvfp4", "plain"}
    assert all(backend["name"] and backend["why"] for backend in [*machine["linear"], machine["attention"]])
    kept = {backend["format"]: backend["name"] for backend in machine["linear"]}
    assert kept == {"nvfp4": "resident_bf16", "plain": "resident_bf16"}
    stored = inspect.json(made.transformer, "--device", "cpu", "--linear", "dequant")["machine"]
    # Everything but the markers stays; decoded once, NVFP4 takes more.
    assert 0 < made.transformer.stat().st_size - stored["resident_bytes"] < 20_000
    assert machine["resident_bytes"] > 1.5 * stored["resident_bytes"]
    single = inspect.json(made.video_vae, "--vae-dtype", "float32")["machine"]
    assert single["resident_bytes"] > 1.9 * made.video_vae.stat().st_size and single["attention"] is None


def test_the_other_components(inspect: Command, made: CheckpointSet) -> None:
    encoder = inspect.json(made.text_encoder)
    assert (encoder["component"], encoder["format"], encoder["adaln"], encoder["qkv"]) == (
        "text_encoder", "nvfp4_awq", None, None,
    )  # fmt: skip
    assert scales(encoder, "model.layers.*.mlp.down_proj")["pre_quant_scale"] == ("BF16", "per_column")
    assert scales(encoder, "model.embed_tokens") == {"weight_scale": ("F32", "per_row")}
    assert next(g for g in encoder["formats"] if g["layers"] == "model.layers.*.mlp.up_proj")["full_precision"] is True
    assert inspect.json(made.video_vae)["component"] == "video_vae"
    assert inspect.json(made.audio_vae)["component"] == "audio_vae"


@pytest.mark.parametrize("form", tiny.FORMATS)
@pytest.mark.parametrize("order", ["contiguous", "interleaved"])
def test_every_format_and_order(inspect: Command, tmp_path: Path, form: str, order: str) -> None:
    weights = tiny.weights()
    path = save(tmp_path, tiny.stored(tiny.interleaved(weights) if order == "interleaved" else weights, form))
    found = inspect.json(path, "--no-hash")
    shown, rotation = tiny.FORMATS[form]
    assert found["qkv"] == order and found["qkv_decision"]["how"] == "statistics" and found["warnings"] == []
    assert groups(found)["blocks.*.attn.qkv_proj"] == (shown, 3) and found["format"] == shown
    assert found["sha256"] is None and found["partition"]["hint"] is None
    assert next(g for g in found["formats"] if g["layers"] == "blocks.*.mlp.fc1")["convrot_groupsize"] == rotation


def test_a_hybrid_is_told_group_by_group(inspect: Command, tmp_path: Path) -> None:
    weights = tiny.weights()
    int8, nvfp4 = tiny.stored(weights, "int8 convrot 64"), tiny.stored(weights, "nvfp4")
    mixed = {n: t for n, t in int8.items() if ".attn." in n} | {n: t for n, t in nvfp4.items() if ".attn." not in n}
    mixed |= {n: t for n, t in nvfp4.items() if n.startswith("blocks.2.")}
    mixed = {n: t for n, t in mixed.items() if not n.startswith("blocks.2.") or n in nvfp4}
    found = inspect.json(save(tmp_path, mixed), "--no-hash")
    told = [(g["format"], g["count"]) for g in found["formats"] if g["layers"] == "blocks.*.attn.qkv_proj"]
    assert sorted(told) == [("int8_convrot", 2), ("nvfp4", 1)]
    assert groups(found)["blocks.*.mlp.fc1"] == ("nvfp4", 3)
    assert set(found["format"].split("+")) == {"nvfp4", "int8_convrot"}


def test_full_adaln_a_prefix_and_a_bank_of_heads(inspect: Command, tmp_path: Path) -> None:
    sizes = tiny.TransformerSizes(
        **{f: getattr(tiny.SIZES, f) for f in tiny.SIZES.__slots__} | {"curve": None, "sinusoid": 8, "time_dim": 4}
    )
    weights = tiny.weights(sizes=sizes)
    for head in ("video_out", "audio_out"):
        for leaf in ("weight", "bias"):
            weights[f"final_layer.{head}.{leaf}"] = weights[f"final_layer.{head}.{leaf}"].repeat(
                2, *([1] * (leaf == "weight"))
            )
    weights["blocks.0.attn.to_gate_compress.weight"] = torch.zeros(512, 64)
    path = save(tmp_path, {f"model.diffusion_model.{n}": t for n, t in weights.items()}, "x_ref2va_y")
    found = inspect.json(path)
    assert (found["adaln"], found["adaln_curve"], found["head_bank"]) == ("full", None, 2)
    assert found["prefix"] == "model.diffusion_model." and found["gate_compress"] is True
    assert found["partition"]["hint"] == "ref2va"


def test_a_folder_of_shards(inspect: Command, tmp_path: Path) -> None:
    folder = tiny.write_shards(tmp_path / "FL2VA", tiny.interleaved(tiny.weights()))
    found = inspect.json(folder)
    assert (found["layout"], found["qkv"], found["qkv_decision"]["how"]) == ("raw_shards", "interleaved", "convention")
    assert found["partition"]["hint"] == "fl2va" and len(found["files"]) == 3
    for file in found["files"]:
        whole = (folder / file["name"]).read_bytes()
        assert (file["bytes"], file["sha256"]) == (len(whole), hashlib.sha256(whole).hexdigest())
    assert len(found["sha256"]) == 64


def test_the_switch_and_the_untold(inspect: Command, tmp_path: Path) -> None:
    path = save(tmp_path, tiny.weights(trained=False))
    found = inspect.json(path)
    assert (found["qkv"], found["qkv_decision"]["how"]) == ("contiguous", "assumed")
    assert any("can't be told from statistics; assumed contiguous" in warning for warning in found["warnings"])
    found = inspect.json(path, "--qkv-order", "interleaved")
    assert (found["qkv"], found["qkv_decision"]["how"], found["warnings"]) == ("interleaved", "switch", [])
    assert "auto" in inspect.refused(path, "--qkv-order", "sideways")


# LoRA and other models


def pairs(layers: Mapping[str, tuple[int, int, int]], prefix: str = "diffusion_model.") -> dict[str, torch.Tensor]:
    """layer -> (rank, inputs, outputs)."""
    found = {}
    for layer, (rank, inputs, outputs) in layers.items():
        found[f"{prefix}{layer}.lora_A.weight"] = torch.zeros(rank, inputs)
        found[f"{prefix}{layer}.lora_B.weight"] = torch.zeros(outputs, rank)
    return found


def test_a_lora(inspect: Command, tmp_path: Path) -> None:
    layers = {f"blocks.{i}.attn.qkv_proj": (12, 64, 96) for i in range(3)}
    layers |= {f"token_refiner.blocks.{i}.mlp.fc2": (4, 32, 64) for i in range(2)}
    tensors = pairs(layers) | {f"diffusion_model.{layer}.alpha": torch.tensor(8.0) for layer in layers}
    tensors["diffusion_model.final_layer.video_out.set_weight"] = torch.zeros(2, 2)
    found = inspect.json(save(tmp_path, tensors))
    assert (found["family"], found["component"], found["supported"]) == ("minimax_h3", "lora", True)
    lora = found["lora"]
    told = {k: lora[k] for k in ("naming", "prefix", "pairs", "ranks", "with_alpha", "alphas", "adaln", "others")}
    assert told == {
        "naming": "comfyui", "prefix": "diffusion_model.", "pairs": 5, "ranks": [4, 12], "with_alpha": 5,
        "alphas": [8.0], "adaln": False, "others": {"set_weight": 1},
    }  # fmt: skip
    assert lora["targets"][0] == {
        "layers": "blocks.*.attn.qkv_proj", "count": 3, "ranks": [12], "inputs": 64, "outputs": 96,
    }  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_of_a_lora_is_told(inspect: Command, tmp_path: Path, layout: str) -> None:
    sizes = TransformerSizes(hidden=64, layers=2, refiner_layers=1, heads=2, head_dim=32, ffn=48)
    adapter(layout, sizes).write(tmp_path / "a.safetensors")
    found = inspect.json(tmp_path / "a.safetensors")
    assert found["supported"] and found["lora"]["layout"] == layout.removesuffix("_comfyui")
    assert (found["lora"]["contract"] is not None) == (layout in ("pdd", "pdd_comfyui", "fasth3"))


def test_a_lora_in_other_names(inspect: Command, tmp_path: Path) -> None:
    layers = {"token_refiner.refiner_blocks.0.attn.to_q": (4, 8, 8), "transformer_blocks.1.ff.net.2": (4, 8, 8)}
    lora = inspect.json(save(tmp_path, pairs(layers, "transformer.")))["lora"]
    assert (lora["naming"], lora["prefix"], lora["with_alpha"], lora["alphas"]) == ("diffusers", "transformer.", 0, [])
    other = inspect.json(save(tmp_path, pairs({"single_transformer_blocks.0.attn.to_q": (4, 8, 8)})))
    assert (other["family"], other["component"]) == ("unknown", "lora")


def test_a_lora_of_split_linears_alone_is_known(inspect: Command, tmp_path: Path) -> None:
    split = {"attn.to_q": (4, 8, 16), "attn.to_out.0": (4, 16, 8), "ff.net.0.proj": (4, 8, 24), "ff.net.2": (4, 12, 8)}
    ours = pairs({f"transformer_blocks.{i}.{leaf}": sizes for i in range(2) for leaf, sizes in split.items()})
    assert inspect.json(save(tmp_path, ours))["family"] == "minimax_h3"
    others = ours | pairs({"transformer_blocks.0.attn.add_q_proj": (4, 8, 16)})
    assert inspect.json(save(tmp_path, others))["family"] == "unknown"


def test_what_is_wrong_with_a_lora_by_itself_is_told(inspect: Command, tmp_path: Path) -> None:
    whole = pairs({f"blocks.{i}.attn.qkv_proj": (4, 8, 24) for i in range(3)})
    half = {name: tensor for name, tensor in whole.items() if "blocks.1.attn.qkv_proj.lora_B" not in name}
    torn = whole | {"diffusion_model.blocks.2.attn.qkv_proj.lora_A.weight": torch.zeros(3, 8)}
    for tensors, says in (
        (half, "half of a pair is missing: blocks.1.attn.qkv_proj"),
        (torn, "the ranks of a pair differ: blocks.2.attn.qkv_proj"),
        ({f"diffusion_model.{name}": tensor for name, tensor in whole.items()}, "twice (diffusion_model.)"),
        ({name: tensor.to(torch.int8) for name, tensor in whole.items()}, "INT8"),
    ):
        found = inspect.json(save(tmp_path, tensors))
        assert found["component"] == "lora" and len(found["warnings"]) == 1 and says in found["warnings"][0]
    assert inspect.json(save(tmp_path, whole))["warnings"] == []


def test_a_lora_without_pairs(inspect: Command, tmp_path: Path) -> None:
    found = inspect.json(save(tmp_path, {"diffusion_model.blocks.0.attn.qkv_proj.diff": torch.zeros(24, 8)}))
    assert found["component"] == "lora" and found["lora"]["others"] == {"diff": 1} and found["lora"]["pairs"] == 0


@pytest.mark.parametrize(
    ("name", "family", "component"),
    [
        ("transformer_blocks.0.audio_to_video_attn.to_q.weight", "ltx", "transformer"),
        ("model.diffusion_model.blocks.0.cross_attn.q.weight", "wan", "transformer"),
        ("double_blocks.0.img_attn.qkv.weight", "flux", "transformer"),
        ("control_blocks.0.after_proj.weight", "minimax_h3", "control_branch"),
        ("in_blocks.0.in_layers.0.weight", "minimax_h3", "latent_upscaler"),
    ],
)
def test_other_models_are_named(inspect: Command, tmp_path: Path, name: str, family: str, component: str) -> None:
    """Packed weights without a marker are no fault of a file that isn't ours."""
    path = save(tmp_path, {name: torch.zeros(4, 4, dtype=torch.uint8)})
    found = inspect.json(path)
    assert (found["family"], found["component"], found["supported"]) == (family, component, False)
    assert found["reason"] and found["tensors"] == 1 and found["dtypes"] == {"U8": {"tensors": 1, "bytes": 16}}
    assert found["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest() and found["machine"] is None


def test_a_plain_qwen_is_not_ours(inspect: Command, tmp_path: Path) -> None:
    tensors = {f"model.language_model.layers.{i}.self_attn.q_proj.weight": torch.zeros(1) for i in range(36)}
    tensors |= {"model.visual.deepstack_merger_list.0.norm.weight": torch.zeros(1)}
    assert inspect.json(save(tmp_path, tensors))["family"] == "qwen3_vl"


# How it ends


@pytest.mark.parametrize(("first", "what"), [(b"GGUF\3\0\0\0", "a GGUF file"), (b"PK\3\4aaaa", "a PyTorch pickle")])
def test_other_containers_are_refused_by_name(inspect: Command, tmp_path: Path, first: bytes, what: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(first)
    assert f"model.safetensors: is {what}" in inspect.refused(path)


def test_what_nobody_knows_is_refused(inspect: Command, tmp_path: Path) -> None:
    assert "unknown model" in inspect.refused(save(tmp_path, {"something.else": torch.zeros(4)}))
    assert "no tensors" in inspect.refused(save(tmp_path, {}))


def test_separate_q_k_and_v_are_refused_by_name(inspect: Command, tmp_path: Path) -> None:
    whole = tiny.stored(tiny.weights(), "bf16")
    apart = {n.replace("qkv_proj", f"{part}_proj"): t for n, t in whole.items() for part in "qkv"}
    told = inspect.refused(save(tmp_path, apart))
    assert '"DT" file' in told and "blocks.1.attn.k_proj.weight" in told


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_scales_are_read(inspect: Command, tmp_path: Path, value: float) -> None:
    weights = tiny.stored(tiny.weights(), "nvfp4")
    names = [f"blocks.{i}.mlp.fc2.weight_scale_2" for i in (0, 2)]
    told = inspect.refused(save(tmp_path, weights | {name: torch.tensor(value) for name in names}))
    assert all(name in told for name in names)


def test_it_is_as_strict_as_loading(inspect: Command, tmp_path: Path) -> None:
    weights = tiny.stored(tiny.weights(), "nvfp4")
    del weights["blocks.1.norm1.weight"], weights["blocks.2.mlp.fc2.weight_scale_2"]
    told = inspect.refused(save(tmp_path, weights, "broken"))
    assert "broken.safetensors" in told and "blocks.2.mlp.fc2.weight_scale_2 is missing" in told
    weights = tiny.stored(tiny.weights(), "bf16")
    del weights["blocks.1.norm1.weight"]
    weights |= {"extra": torch.zeros(1), "final_layer.norm.weight": torch.zeros(65)}
    told = inspect.refused(save(tmp_path, weights, "broken"))
    for words in ("broken.safetensors", "blocks.1.norm1.weight", "extra", "final_layer.norm.weight"):
        assert words in told


def test_a_sign_that_is_missing_is_named(inspect: Command, tmp_path: Path) -> None:
    weights = tiny.weights()
    del weights["video_patch_proj.weight"]
    assert "video_patch_proj.weight" in inspect.refused(save(tmp_path, weights))


def test_broken_files_and_folders(inspect: Command, tmp_path: Path, made: CheckpointSet) -> None:
    assert "no such file" in inspect.refused(tmp_path / "absent.safetensors")
    (tmp_path / "empty").mkdir()
    assert "directory" in inspect.refused(tmp_path / "empty")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(made.audio_vae.read_bytes()[:-1])
    assert "cut.safetensors" in inspect.refused(cut) and "truncated" in inspect.refused(cut)
    folder = tiny.write_shards(tmp_path / "shards", tiny.weights(trained=False))
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors is missing" in inspect.refused(folder)


def test_a_digest_that_is_not_the_listed_one(inspect: Command, tmp_path: Path, made: CheckpointSet) -> None:
    path = tmp_path / "vae.safetensors"
    path.write_bytes(made.audio_vae.read_bytes())
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  vae.safetensors\n")
    assert "SHA-256" in inspect.refused(path)
    assert inspect.json(path, "--no-hash")["sha256"] is None


def test_a_hash_is_remembered(inspect: Command, cache: Path, made: CheckpointSet) -> None:
    first = inspect.json(made.audio_vae)["sha256"]
    table = json.loads((cache / "h3runtime" / "sha256.json").read_text())
    assert list(table.values()) == [first]
    assert inspect.json(made.audio_vae)["sha256"] == first


def test_output_and_people(inspect: Command, tmp_path: Path, made: CheckpointSet) -> None:
    report = tmp_path / "report.json"
    code, out, err = inspect(made.transformer, "--output", report)
    assert (code, err) == (0, "")
    for words in ("minimax_h3: transformer", "fl2va, by the file's name", "nvfp4 x 3", "pruned, grid 1025, rank 8"):
        assert words in out
    found = json.loads(report.read_text())
    assert found["family"] == "minimax_h3"
    assert "exists" in inspect.refused(made.transformer, "--output", report)
    assert inspect(made.transformer, "--output", report, "--overwrite", "--quiet") == (0, "", "")
    assert "folder" in inspect.refused(made.transformer, "--output", tmp_path / "no" / "x.json")


@pytest.mark.parametrize("path", ["a lora", "shards", "an encoder"])
def test_the_text_for_other_kinds(inspect: Command, tmp_path: Path, made: CheckpointSet, path: str) -> None:
    if path == "a lora":
        code, out, _ = inspect(save(tmp_path, pairs({"blocks.0.attn.qkv_proj": (4, 8, 8)})))
        assert "1 layers, comfyui names, ranks 4, no alpha" in out and "loads        no:" not in out
        doubled = {f"diffusion_model.{name}": t for name, t in pairs({"blocks.0.norm1": (4, 8, 8)}).items()}
        doubled |= {"diffusion_model.diffusion_model.blocks.0.attn.qkv_proj.dora_scale": torch.zeros(1)}
        assert "loads        no: " in inspect(save(tmp_path, doubled))[1]
    elif path == "shards":
        code, out, _ = inspect(tiny.write_shards(tmp_path / "raw", tiny.interleaved(tiny.weights()), 6))
        assert "interleaved (convention:" in out and "and 2 files more" in out
    else:
        code, out, _ = inspect(made.text_encoder)
        assert "pre_quant_scale BF16 per column 128" in out
    assert code == 0


def test_a_report_never_replaces_the_checkpoint(inspect: Command, tmp_path: Path) -> None:
    folder = tiny.write_shards(tmp_path / "shards", tiny.weights(trained=False))
    shard = folder / "model-00002-of-00003.safetensors"
    before = shard.read_bytes()
    assert "a name of its own" in inspect.refused(folder, "--output", shard, "--overwrite")
    assert "a name of its own" in inspect.refused(shard, "--output", shard, "--overwrite")
    assert shard.read_bytes() == before


def test_a_name_that_is_not_utf_8_is_told_all_the_same(inspect: Command, tmp_path: Path, made: CheckpointSet) -> None:
    path = tmp_path / os.fsdecode(b"\xff.safetensors")
    path.write_bytes(made.audio_vae.read_bytes())
    found = inspect.json(path, "--output", tmp_path / "out.json")
    assert found["file"] == path.name and json.loads((tmp_path / "out.json").read_bytes())["file"] == path.name
    code, out, _ = inspect(path)
    assert code == 0 and r"\udcff.safetensors" in out
    path.write_bytes(b"")
    assert r"\udcff.safetensors: is empty" in inspect.refused(path)
