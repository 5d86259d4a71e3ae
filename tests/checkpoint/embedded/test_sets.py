"""Derived sets: the published files, the bytes that are listed, what is damaged made anew, nothing made twice."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from h3runtime.checkpoint.checkpoint_set import CheckpointSet
from h3runtime.checkpoint.embedded import deriving, sets
from h3runtime.checkpoint.embedded.__main__ import LARGEST, list_derived, main
from h3runtime.checkpoint.embedded.formats import FORMATS, derived_files
from h3runtime.checkpoint.embedded.listing import read_listing
from h3runtime.checkpoint.embedded.masters import TABLE, TOKEN_IDS, file_name, paths
from h3runtime.checkpoint.embedded.packaged import FOLDER, NAME
from h3runtime.checkpoint.embedded.sets import embedded_set
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.load import storage_format
from h3runtime.checkpoint.synthetic.published import SetFormat
from h3runtime.conditioning.tokenizer import PromptTokenizer
from h3runtime.errors import CheckpointError
from h3runtime.nano import model
from h3runtime.nano.training.curriculum import Sizes
from h3runtime.quant import int8

NAMES = {
    "nvfp4": "minimax_h3_{}_pruned_nvfp4.safetensors",
    "int8_convrot": "minimax_h3_{}_pruned_int8_convrot.safetensors",
    "fp8_scaled": "minimax_h3_{}_pruned_fp8_scaled.safetensors",
    "bf16": "minimax_h3_{}_pruned_bf16.safetensors",
}
STORED = {"nvfp4": "nvfp4", "int8_convrot": "int8_convrot", "fp8_scaled": "fp8_scaled", "bf16": "bf16"}


def files(of: CheckpointSet) -> tuple[Path, ...]:
    return of.transformer, of.ref2va, of.text_encoder, of.video_vae, of.audio_vae


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the checkpoints that are written from now on."""
    names: list[str] = []
    real = sets.write_file
    monkeypatch.setattr(sets, "write_file", lambda path, *rest: names.append(path.name) or real(path, *rest))
    return names


# What is in a set


@pytest.mark.parametrize("kind", FORMATS)
def test_a_set_is_the_published_files_of_its_format(made: Path, cache: Path, kind: SetFormat) -> None:
    found = embedded_set(cache, kind, folder=made)
    assert [path.name for path in files(found)] == [
        *(NAMES[kind].format(partition) for partition in ("fl2va", "ref2va")),
        "qwen3vl_32b_minimax_h3_bf16.safetensors",
        "minimax_h3_video_vae_fp16.safetensors",
        "minimax_h3_audio_vae_fp32.safetensors",
    ]
    listed = read_listing(made).sets[kind]
    assert {path.name: sha256(path) for path in files(found)} == listed
    with CheckpointFile(found.transformer) as file:
        assert storage_format(file) == STORED[kind] and not file.synthetic and file.model == "h3-nano"
        assert file.shapes["adaln_t_table"] == (1025, 8) and file.dtypes["adaln_t_table"] is torch.float32
        half = torch.bfloat16 if kind == "bf16" else torch.float16
        assert file.dtypes["blocks.0.adaln_proj.linear.weight"] is half
        assert file.qkv is not None and (file.qkv.order, file.qkv.how) == ("contiguous", "construction")
        assert not file.warnings and file.trained_frames == deriving.TRAINED_FRAMES
    with CheckpointFile(found.text_encoder) as file:
        assert file.trained_frames is None
    sums = (found.transformer.parent / "SHA256SUMS").read_text().splitlines()
    assert {f"{digest}  {name}" for name, digest in listed.items()} <= set(sums)


def test_values_are_the_masters(made: Path, cache: Path) -> None:
    """As they are, or quantised from them; nothing is left out and nothing made up."""
    plain, packed = (embedded_set(cache, kind, folder=made) for kind in ("bf16", "int8_convrot"))
    for component, path in (
        ("transformer", plain.transformer),
        ("video_vae", plain.video_vae),
        ("audio_vae", plain.audio_vae),
    ):
        master, derived = load_file(made / f"{component}.safetensors"), load_file(path)
        assert master.keys() == derived.keys()
        assert all(torch.equal(master[name].float(), derived[name].float()) for name in master)
    name = "blocks.0.mlp.fc1.weight"
    master, derived = load_file(made / "transformer.safetensors")[name], load_file(packed.transformer)
    stored = int8.Int8Weight(derived[name], derived[f"{name}_scale"], convrot=256)
    error = (int8.dequantize_fp32(stored) - master.float()).norm() / master.float().norm()
    assert 0 < error < 0.01


def test_the_encoder_has_the_whole_table(made: Path, cache: Path) -> None:
    master = load_file(made / "text_encoder.safetensors")
    derived = load_file(embedded_set(cache, folder=made).text_encoder)
    ids, table = master.pop(TOKEN_IDS), derived[TABLE]
    assert table.shape == (151_936, model.TEXT_ENCODER.hidden) and torch.equal(table[ids], master[TABLE])
    assert int(table.any(dim=1).sum()) == len(ids)
    assert derived.keys() == master.keys()
    assert all(torch.equal(derived[name], master[name]) for name in master if name != TABLE)


def test_the_tokenizer_is_the_masters(made: Path, cache: Path) -> None:
    found = embedded_set(cache, folder=made)
    assert PromptTokenizer.from_folder(found.tokenizer).encode("<|vision_start|><d>") == [151652, 151669]
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        assert (found.tokenizer / name).read_bytes() == (made / "tokenizer" / name).read_bytes()


def test_what_shapes_can_t_tell_is_what_was_trained() -> None:
    assert dict(deriving.TOLD) == dict(model.TOLD)
    lengths = [size.frames for size in Sizes().sizes]
    assert (min(lengths), max(lengths)) == deriving.TRAINED_FRAMES


# When it is made


def test_nothing_is_made_twice_and_formats_share(made: Path, tmp_path: Path, written: list[str]) -> None:
    first = embedded_set(tmp_path, folder=made)
    assert written == [path.name for path in files(first)]
    written.clear()
    assert embedded_set(tmp_path, folder=made) == first and not written
    other = embedded_set(tmp_path, "bf16", folder=made)
    assert written == [other.transformer.name, other.ref2va.name] and other.transformer.parent == first.video_vae.parent


def damage(path: Path, *, in_silence: bool = False) -> None:
    """One byte, its size as before; in silence: its times, too."""
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(times.st_size // 2)
        byte = file.read(1)
        file.seek(times.st_size // 2)
        file.write(bytes([byte[0] ^ 1]))
    if in_silence:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_what_is_damaged_is_made_anew(made: Path, tmp_path: Path, written: list[str]) -> None:
    found = embedded_set(tmp_path, folder=made)
    whole = {path: path.read_bytes() for path in files(found)}
    written.clear()
    damage(found.video_vae)
    os.truncate(found.audio_vae, 1000)
    found.ref2va.unlink()
    (found.tokenizer / "vocab.json").write_text("{}")
    (found.transformer.parent / "SHA256SUMS").write_text(f"{'0' * 64}  {found.transformer.name}\n")
    embedded_set(tmp_path, folder=made)
    assert sorted(written) == sorted(path.name for path in (found.ref2va, found.video_vae, found.audio_vae))
    assert {path: path.read_bytes() for path in files(found)} == whole
    assert (found.tokenizer / "vocab.json").read_bytes() == (made / "tokenizer" / "vocab.json").read_bytes()
    assert sha256(found.transformer) in (found.transformer.parent / "SHA256SUMS").read_text()


def test_full_finds_what_was_damaged_in_silence(made: Path, tmp_path: Path, written: list[str]) -> None:
    found = embedded_set(tmp_path, folder=made)
    written.clear()
    damage(found.text_encoder, in_silence=True)
    embedded_set(tmp_path, folder=made)
    assert not written
    embedded_set(tmp_path, folder=made, full=True)
    assert written == [found.text_encoder.name]
    assert sha256(found.text_encoder) == read_listing(made).sets["nvfp4"][found.text_encoder.name]


def test_two_at_once_make_the_same_bytes(made: Path, tmp_path: Path) -> None:
    """Into one cache, with another thread count than the list was made with: whoever is last changes nothing."""
    listing, threads = read_listing(made), torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(lambda _: embedded_set(tmp_path, "int8_convrot", folder=made), range(2))
    finally:
        torch.set_num_threads(threads)
    assert first == second
    folder = first.transformer.parent
    assert {name: sha256(folder / name) for name in listing.sets["int8_convrot"]} == listing.sets["int8_convrot"]
    expected = {*listing.sets["int8_convrot"], "tokenizer", "SHA256SUMS"}
    assert {path.name for path in folder.iterdir()} == expected


# What can't be


@pytest.fixture
def spoilt(made: Path, tmp_path: Path) -> Iterator[Path]:
    yield shutil.copytree(made, tmp_path / "masters")


def test_a_damaged_master_is_named(spoilt: Path, tmp_path: Path) -> None:
    damage(spoilt / "video_vae.safetensors")
    with pytest.raises(CheckpointError, match=r"video_vae\.safetensors: is damaged or another file"):
        embedded_set(tmp_path, folder=spoilt)


def test_other_bytes_than_the_listed_ones_never_appear(spoilt: Path, tmp_path: Path) -> None:
    """As if this machine computed something else than the one that made the list."""
    name = "minimax_h3_fl2va_pruned_nvfp4.safetensors"
    table = json.loads((spoilt / NAME).read_text())
    table["sets"]["nvfp4"][name] = "0" * 64
    (spoilt / NAME).write_text(json.dumps(table))
    with pytest.raises(CheckpointError, match=f"{name}: was made with SHA-256 .*, but has to have 0000"):
        embedded_set(tmp_path, folder=spoilt)
    assert not list(tmp_path.glob("embedded/*/minimax*"))


@pytest.mark.parametrize("content", [None, "{", "[]", '{"masters": {}, "sets": {}}'])
def test_a_list_that_isn_t_one_is_named(spoilt: Path, tmp_path: Path, content: str | None) -> None:
    (spoilt / NAME).unlink()
    if content is not None:
        (spoilt / NAME).write_text(content)
    with pytest.raises(CheckpointError, match=r"derived\.json"):
        embedded_set(tmp_path, folder=spoilt)


def test_a_cache_that_can_t_be_written_is_typed(made: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="can't be written to the cache: not a directory"):
        embedded_set(tmp_path / "file", folder=made)


@pytest.mark.parametrize(
    ("component", "tensor", "value", "told"),
    [
        ("text_encoder", TOKEN_IDS, torch.zeros(3), "doesn't name the rows"),
        ("text_encoder", TOKEN_IDS, None, "doesn't name the rows"),
        ("text_encoder", TOKEN_IDS, 151_936, r"outside the table \(legal: 0..151935\)"),
        ("transformer", "blocks.1.norm1.weight", float("nan"), "blocks.1.norm1.weight isn't finite"),
    ],
)
def test_masters_that_give_no_set_are_not_listed(
    spoilt: Path, component: str, tensor: str, value: object, told: str
) -> None:
    path, before = spoilt / f"{component}.safetensors", (spoilt / NAME).read_bytes()
    weights = load_file(path)
    if isinstance(value, torch.Tensor):
        weights[tensor] = value
    elif value is None:
        del weights[tensor]
    else:
        weights[tensor][0] = value
    save_file(weights, path)
    with pytest.raises(CheckpointError, match=told):
        list_derived(spoilt)
    assert (spoilt / NAME).read_bytes() == before


def test_masters_larger_than_the_package_has_room_for_are_refused(
    spoilt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (spoilt / "more").write_bytes(bytes(LARGEST))
    assert main([str(spoilt)]) == 1
    assert f"at most {LARGEST}" in capsys.readouterr().err


# What is in the package


def test_the_package_s_masters_are_the_listed_ones() -> None:
    """`python -m h3runtime.checkpoint.embedded` after they, or the code that derives, were changed."""
    listing = read_listing(FOLDER)
    assert {name: sha256(FOLDER / name) for name in paths(FOLDER)} == listing.masters
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= LARGEST
    assert listing.sets.keys() == set(FORMATS)
    assert all({f.name for f in derived_files(kind)} == listing.sets[kind].keys() for kind in FORMATS)
    assert {file_name(f.component) for f in derived_files("bf16")} <= listing.masters.keys()


@pytest.mark.parametrize("kind", FORMATS)
def test_the_package_s_masters_give_the_listed_bytes(cache: Path, kind: SetFormat) -> None:
    found, listed = embedded_set(cache, kind), read_listing(FOLDER).sets[kind]
    assert {path.name: sha256(path) for path in files(found)} == listed
