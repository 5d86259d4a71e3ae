"""A folder of files is one checkpoint if its index, its files and their headers agree; else one error lists it all."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.checkpoint import rules
from h3runtime.checkpoint.checkpoint_set import CheckpointSet
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.load import judge
from h3runtime.checkpoint.sources import open_source
from h3runtime.checkpoint.synthetic import layouts
from h3runtime.checkpoint.synthetic.tiny import TEXT_ENCODER
from h3runtime.checkpoint.synthetic_mark import fingerprint
from h3runtime.checkpoint.writer import write_file
from h3runtime.conditioning.config import TextEncoderConfig
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.engine.load import Loader, Models
from h3runtime.engine.paths import ModelPaths, model_paths
from h3runtime.errors import CheckpointError
from h3runtime.settings import Settings
from tests.checkpoint.tiny_transformer import by_head, resident, same, write_index, write_shards

TENSORS = {f"t{i}.weight": torch.full((2, 3), float(i)) for i in range(6)}
SHARDS = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """t0, t3 in the first shard, t1, t4 in the second, t2, t5 in the third."""
    return write_shards(tmp_path / "shards", TENSORS)


def edit(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    path = folder / "model.safetensors.index.json"
    table = json.loads(path.read_text())
    change(table["weight_map"])
    path.write_text(json.dumps(table))


def refused(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        CheckpointFile(path)
    assert str(path.parent) not in caught.value.message and caught.value.offences
    return caught.value


# What is whole


def test_shards_are_read_as_one_file(folder: Path) -> None:
    with CheckpointFile(folder) as file:
        assert file.layout == "raw_shards" and file.shapes.keys() == TENSORS.keys() and file.warnings == ()
        assert all(torch.equal(file.read(name), t) for name, t in TENSORS.items())
        assert file.size == sum((folder / name).stat().st_size for name in SHARDS) and len(file.parts) == 3
        assert file.metadata == {"format": "pt"}


def test_a_folder_of_one_file_is_that_file(tmp_path: Path) -> None:
    write_file(tmp_path / "some.safetensors", TENSORS)
    (tmp_path / "README.md").touch()
    with CheckpointFile(tmp_path) as file:
        assert file.layout == "comfyui" and file.shapes.keys() == TENSORS.keys()


def test_a_whole_series_needs_no_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    with CheckpointFile(folder) as file:
        assert file.layout == "raw_shards" and file.shapes.keys() == TENSORS.keys()
    (folder / SHARDS[1]).unlink()
    assert [(o.field, o.message) for o in refused(folder).offences] == [(SHARDS[1], "is missing")]


def test_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    for name in ("fl2va", "ref2va"):
        write_file(tmp_path / f"{name}.safetensors", TENSORS)
    assert "2 files and no index: fl2va.safetensors, ref2va.safetensors" in refused(tmp_path).message


def test_links_into_another_folder_are_files(folder: Path, tmp_path: Path) -> None:
    """Download caches are made of them."""
    (folder / SHARDS[0]).rename(tmp_path / "blob")
    (folder / SHARDS[0]).symlink_to(tmp_path / "blob")
    with CheckpointFile(folder) as file:
        assert torch.equal(file.read("t0.weight"), TENSORS["t0.weight"])


def test_a_folder_of_models_names_them(tmp_path: Path) -> None:
    for name in ("transformer", "vae"):
        (tmp_path / "FL2VA" / name).mkdir(parents=True)
        write_file(tmp_path / "FL2VA" / name / "model.safetensors", TENSORS)
    assert "legal: FL2VA/transformer, FL2VA/vae" in refused(tmp_path).message
    assert "legal: transformer, vae" in refused(tmp_path / "FL2VA").message


def test_made_up_is_what_all_shards_say(folder: Path) -> None:
    for name in SHARDS:
        with CheckpointFile(folder) as file:
            assert not file.synthetic
        number = SHARDS.index(name)
        own = {k: t for i, (k, t) in enumerate(TENSORS.items()) if i % 3 == number}
        write_file(folder / name, own, {"h3runtime_synthetic": "1"})
    with CheckpointFile(folder) as file:
        assert file.synthetic


def test_shards_beside_their_mark_are_made_up(folder: Path) -> None:
    lines = [f"{fingerprint(folder / name)}  {name}\n" for name in SHARDS]
    (folder / "SYNTHETIC").write_text("".join(lines[:2]))
    with CheckpointFile(folder) as file:
        assert not file.synthetic
    (folder / "SYNTHETIC").write_text("".join(lines))
    with CheckpointFile(folder) as file:
        assert file.synthetic


def test_oddities_are_warnings(folder: Path) -> None:
    write_file(folder / "consolidated.safetensors", TENSORS)
    with CheckpointFile(folder) as file:
        assert file.warnings == (
            "model.safetensors.index.json doesn't name consolidated.safetensors, which is left alone",
        )
    (folder / "consolidated.safetensors").unlink()
    write_index(folder, json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"], 145)
    with CheckpointFile(folder) as file:
        assert len(file.warnings) == 1 and "total_size of 145 bytes, the tensors take 144" in file.warnings[0]


# What isn't


def test_a_missing_shard_is_named_with_its_tensors(folder: Path) -> None:
    (folder / SHARDS[1]).unlink()
    error = refused(folder)
    assert error.offences[0].field == SHARDS[1] and "t1.weight, t4.weight" in error.message
    assert error.message.startswith("shards: ") and len(error.offences) == 1


def test_a_tensor_that_is_not_where_the_index_has_it(folder: Path) -> None:
    edit(folder, lambda found: found.update({"t0.weight": SHARDS[1], "new.weight": SHARDS[2]}))
    error = refused(folder)
    assert {o.field for o in error.offences} == {"t0.weight", "new.weight"}
    assert f"t0.weight isn't in {SHARDS[1]}" in error.message and f"it is in {SHARDS[0]}" in error.message


def test_a_tensor_that_the_index_leaves_out(folder: Path) -> None:
    edit(folder, lambda found: found.pop("t4.weight"))
    error = refused(folder)
    assert [o.field for o in error.offences] == ["t4.weight"] and f"is in {SHARDS[1]}, but" in error.message


def test_a_tensor_that_two_shards_have(folder: Path) -> None:
    write_file(folder / SHARDS[2], {n: TENSORS[n] for n in ("t0.weight", "t2.weight", "t5.weight")})
    error = refused(folder)
    assert [o.field for o in error.offences] == ["t0.weight"] and SHARDS[2] in error.message
    (folder / "model.safetensors.index.json").unlink()
    assert f"t0.weight is in {SHARDS[0]} and in {SHARDS[2]}" in refused(folder).message


def test_broken_shards_are_all_told(folder: Path) -> None:
    (folder / SHARDS[0]).write_bytes(b"spoiled")
    with (folder / SHARDS[1]).open("r+b") as file:
        file.truncate((folder / SHARDS[1]).stat().st_size - 1)
    message = refused(folder).message
    assert f"{SHARDS[0]} has 7 bytes" in message and f"{SHARDS[1]}: t4.weight ends at" in message


@pytest.mark.parametrize("name", ["../x.safetensors", "/x.safetensors", "a/x.safetensors", "..", "x.bin", "", 7, None])
def test_nothing_outside_the_folder_can_be_named(folder: Path, name: object) -> None:
    write_file(folder.parent / "x.safetensors", TENSORS)
    edit(folder, lambda found: found.update({"t0.weight": name}))
    error = refused(folder)
    assert error.message.startswith("model.safetensors.index.json: t0.weight is said to be in ")
    assert [o.field for o in error.offences] == ["t0.weight"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"{nonsense", "isn't JSON"),
        (b'{"weight_map": {"a": "b.safetensors", "a": "c.safetensors"}}', "names something twice"),
        (b"\xff", "isn't JSON"),
        (b"[" * 100_000, "isn't JSON"),
        (b"[]", "isn't a JSON object"),
        (b"{}", "no `weight_map`"),
        (b'{"weight_map": []}', "no `weight_map`"),
        (b'{"weight_map": {}}', "no `weight_map`"),
    ],
)
def test_an_index_that_is_none(folder: Path, text: bytes, says: str) -> None:
    (folder / "model.safetensors.index.json").write_bytes(text)
    message = refused(folder).message
    assert message.startswith("model.safetensors.index.json: ") and says in message


def test_two_indexes_are_one_too_many(folder: Path) -> None:
    (folder / "model.fp16.safetensors.index.json").write_text("{}")
    assert "more than one index: model.fp16.safetensors.index.json, model.saf" in refused(folder).message


def test_a_config_that_is_none(folder: Path) -> None:
    (folder / "config.json").write_text("[]")
    assert refused(folder).message == "config.json: isn't a JSON object"


def test_descriptors_are_given_back(folder: Path) -> None:
    edit(folder, lambda found: found.pop("t4.weight"))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        refused(folder)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (b"GGUF\3\0\0\0", "a GGUF file"),
        (b"PK\3\4aaaaaaaa", "a PyTorch pickle"),
        (b"\x80\2}q\0aaaa", "a PyTorch pickle"),
    ],
)
def test_other_containers_are_named(tmp_path: Path, first: bytes, says: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(first)
    assert f"model.safetensors: is {says}" in refused(path).message


@pytest.mark.parametrize("length", [0x0280, 0x0480])
def test_a_header_as_long_as_a_pickle_begins_is_no_pickle(tmp_path: Path, length: int) -> None:
    """Its length comes first: 80 02 and 80 04 are 640 and 1,152 bytes."""
    path = tmp_path / "model.safetensors"
    header = b'{"weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.ljust(length)
    path.write_bytes(length.to_bytes(8, "little") + header + bytes(4))
    source = open_source(path)
    assert list(source.entries) == ["weight"]
    source.close()


# The text encoder under its original names


def theirs(name: str) -> str:
    root, _, rest = name.partition(".")
    return f"model.visual.{rest}" if root == "visual" else f"model.language_model.{rest}"


def test_the_original_text_encoder_is_ours_under_other_names(tmp_path: Path) -> None:
    shapes = layouts.encoder_shapes(TEXT_ENCODER)
    tensors = {theirs(name): torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    layer = {n: t for n, t in tensors.items() if ".layers.0." in n}
    tensors |= {n.replace(".layers.0.", f".layers.{i}."): t for n, t in layer.items() for i in (50, 63)}
    tensors |= {"lm_head.weight": torch.zeros(3), "model.language_model.norm.weight": torch.zeros(3)}
    folder = write_shards(tmp_path / "text_encoder", tensors)
    vision = {"num_heads": 4, "deepstack_visual_indexes": [0, 1, 2]}
    text = {"rms_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 1e6}}
    (folder / "config.json").write_text(json.dumps({"text_config": text, "vision_config": vision}))
    with CheckpointFile(folder) as file:
        assert dict(file.shapes) == shapes and file.layout == "raw_shards" and file.qkv is None
        config = TextEncoderConfig.from_shapes(file.shapes, file.overrides)
        assert (config.vision.heads, config.vision.taps, config.assumed) == (4, (0, 1, 2), ())
        assert (config.eps, config.rope_theta) == (1e-5, 1e6)
        with torch.device("meta"):
            assert list(judge(TextEncoder(config), file, rules.TEXT_ENCODER)) == []
    single = tmp_path / "encoder.safetensors"
    write_file(single, tensors)
    with CheckpointFile(single) as file:
        assert dict(file.shapes) == shapes and file.layout == "huggingface"


def test_two_names_for_one_tensor_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "encoder.safetensors"
    write_file(path, {"model.visual.x": torch.zeros(1), "visual.x": torch.zeros(1)})
    assert "visual.x is there twice" in refused(path).message or "Hugging Face" in refused(path).message


# The engine


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def engine_models(made: CheckpointSet, transformer: Path, text_encoder: Path) -> Models:
    paths = ModelPaths(
        {"fl2va": transformer}, text_encoder, made.video_vae, made.audio_vae, made.tokenizer, embedded=False
    )
    loader = Loader(Settings(), paths, torch.device("cpu"), DequantLinear(), lambda _: None)
    return loader.models(torch.bfloat16)


def test_the_engine_loads_the_release_as_it_is_published(tiny: CheckpointSet, tmp_path: Path) -> None:
    """Shards of interleaved NVFP4 and of the original encoder: the bits of the files that ComfyUI has."""
    tensors = {
        name: by_head(t.view(torch.uint8), 2).view(t.dtype) if "qkv_proj.weight" in name and t.ndim == 2 else t
        for name, t in load_file(tiny.transformer).items()
    }
    transformer = write_shards(tmp_path / "transformer", tensors)
    encoder = {theirs(name): tensor for name, tensor in load_file(tiny.text_encoder).items()}
    text_encoder = write_shards(tmp_path / "text_encoder", encoder)
    vision = {"num_heads": 2, "deepstack_visual_indexes": [0, 1, 2]}
    (text_encoder / "config.json").write_text(json.dumps({"vision_config": vision}))
    ours = engine_models(tiny, tiny.transformer, tiny.text_encoder)
    raw = engine_models(tiny, transformer, text_encoder)
    assert same(resident(ours.transformers["fl2va"]), resident(raw.transformers["fl2va"]))
    assert same(resident(ours.text_encoder), resident(raw.text_encoder))
    assert ours.text_encoder.config == raw.text_encoder.config
    assert (raw.facts[0].qkv or "").startswith("interleaved (convention: ") and raw.warnings == ()


def test_the_engine_refuses_other_models_by_name_and_all_at_once(tiny: CheckpointSet, tmp_path: Path) -> None:
    ltx, gguf = tmp_path / "ltx.safetensors", tmp_path / "encoder.gguf"
    write_file(ltx, {"transformer_blocks.0.audio_to_video_attn.to_q.weight": torch.zeros(2, 2)})
    gguf.write_bytes(b"GGUF\3\0\0\0")
    with pytest.raises(CheckpointError) as caught:
        engine_models(tiny, ltx, gguf)
    assert "ltx.safetensors: looks like an LTX transformer" in caught.value.message
    assert "encoder.gguf: is a GGUF file" in caught.value.message


def test_a_file_alone_is_told_by_what_it_is_and_not_by_what_it_lacks_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "ltx.safetensors"
    write_file(path, {"transformer_blocks.0.audio_to_video_attn.to_q.weight": torch.zeros(2, 2)})
    with pytest.raises(CheckpointError, match=r"ltx\.safetensors: looks like an LTX transformer"):
        model_paths(Settings(device="cpu", data_dir=tmp_path, model_path=path))
