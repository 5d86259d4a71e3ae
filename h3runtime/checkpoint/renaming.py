"""Other layouts' tensor names -> ours, with the tensors they keep apart or the other way round put as we need them.

    Hugging Face text encoder   model.language_model.X -> model.X, model.visual.X -> visual.X; what lies behind the
                                fiftieth layer is left out (conditioning contract §1.2)
    Diffusers transformer       other names; to_q, to_k, to_v -> qkv_proj, one under the other; the halves of the MLP's
                                first linear swapped (dit-contract §1.2, §7.3); rope.inv_freq computed

Which layout it is, the names tell. Fed by `file` with a `Source`; everything stays spans of the files, nothing is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import torch

from h3runtime.checkpoint.entries import StoredTensor
from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.rearrange import halves_swapped, stacked
from h3runtime.checkpoint.sources import CONFIG_NAME, config_of
from h3runtime.errors import Offence

Layout = Literal["comfyui", "raw_shards", "diffusers", "huggingface"]
"""raw_shards: the vendor's folders. huggingface: a text encoder under its original names in a single file."""
Entries = Mapping[str, StoredTensor]

LANGUAGE_LAYERS: Final = 50
"""Of the 64 in the release, those that H3 runs (conditioning contract §1.2)."""
ENCODER_NAMES: Final = (("model.language_model.", "model."), ("model.visual.", "visual."))
ENCODER_LAYER: Final = re.compile(r"model\.layers\.(\d+)\.")
ENCODER_UNUSED: Final = ("model.norm.weight", "lm_head.weight")

TRANSFORMER_CLASS: Final = "MiniMaxH3Transformer3DModel"
TRANSFORMER_SIGNS: Final = ("proj_in.weight", "audio_proj_in.weight", "context_embedder.weight")
TRANSFORMER_NAMES: Final[Mapping[str, str]] = {
    "proj_in": "video_patch_proj",
    "audio_proj_in": "audio_patch_proj",
    "context_embedder": "condition_proj",
    "time_embedder.linear_1": "time_embedder.proj_in",
    "time_embedder.linear_2": "time_embedder.proj_out",
    "norm_out.norm": "final_layer.norm",
    "norm_out.linear": "final_layer.adaln_proj.linear",
    "proj_out": "final_layer.video_out",
    "audio_proj_out": "final_layer.audio_out",
}
BLOCK_LISTS: Final = (("transformer_blocks.", "blocks."), ("token_refiner.refiner_blocks.", "token_refiner.blocks."))
BLOCK_NAMES: Final[Mapping[str, str]] = {
    "attn.norm_q": "attn.q_norm",
    "attn.norm_k": "attn.k_norm",
    "attn.to_out.0": "attn.out_proj",
    "ff.net.0.proj": "mlp.fc1",
    "ff.net.2": "mlp.fc2",
}
THIRDS: Final = ("to_q", "to_k", "to_v")

ROTARY: Final = "rope.inv_freq"
FREQUENCIES, THETA = 16, 10_000.0
"""Of the rotary table where `config.json` doesn't tell: the published model's (dit-contract §1.2)."""
FIXED: Final[Mapping[str, object]] = {
    "norm_eps": 1e-5,
    "qk_norm_eps": 1e-5,
    "final_norm_eps": 1e-5,
    "patch_size": [1, 2, 2],
}
"""What a transformer's `config.json` tells and its tensors can't; no other values are known (dit-contract §1.1)."""


@dataclass(frozen=True, slots=True)
class Renamed:
    """A component's tensors under our names.

    computed: those of `entries` that no file holds, and that follow from `config.json`.
    overrides: what `config.json` tells of a text encoder that shapes can't, as its config class takes it.
    """

    layout: Layout
    entries: Entries
    computed: Mapping[str, torch.Tensor] = field(default_factory=dict)
    overrides: Mapping[str, object] = field(default_factory=dict)
    offences: tuple[Offence, ...] = ()


def layout_of(names: Entries, *, is_sharded: bool) -> Layout:
    """Told by names; a series of files under ComfyUI's own names is the vendor's (dit-contract §1.2)."""
    if is_diffusers(names):
        return "diffusers"
    if is_original_encoder(names):
        return "raw_shards" if is_sharded else "huggingface"
    return "raw_shards" if is_sharded else "comfyui"


def is_diffusers(names: Entries) -> bool:
    """An H3 transformer in that layout; other families' share single names, none has all."""
    return all(sign in names for sign in TRANSFORMER_SIGNS) and any(".attn.to_q." in name for name in names)


def our_names(entries: Entries) -> frozenset[str]:
    """The names of `entries` (without prefix) as ours."""
    if is_diffusers(entries):
        return frozenset(_from_diffusers(entries)[0])
    return frozenset(_encoder(entries)[0] if is_original_encoder(entries) else entries)


def is_original_encoder(names: Iterable[str]) -> bool:
    """A text encoder under its original names."""
    return any(name.startswith(theirs) for name in names for theirs, _ in ENCODER_NAMES)


def renamed(entries: Entries, folder: Path, config: Mapping[str, Any] | None, *, is_sharded: bool) -> Renamed:
    """`entries`: without prefix. `folder`: where the files lie. `config`: what a folder that was asked for has."""
    layout = layout_of(entries, is_sharded=is_sharded)
    if layout == "diffusers":
        return _diffusers(entries, folder, config)
    if is_original_encoder(entries):
        found, offences = _encoder(entries)
        return Renamed(layout, found, overrides=_encoder_overrides(config or {}), offences=tuple(offences))
    wrong = _fixed(config or {}) if "video_patch_proj.weight" in entries else ()
    return Renamed(layout, entries, offences=tuple(wrong))


def _placed(name: str, entry: StoredTensor, found: dict[str, StoredTensor], offences: list[Offence]) -> None:
    if name in found:
        offences.append(Offence(entry.name, f"is there twice: another tensor stands for {name} as well"))
    found[name] = replace(entry, name=name)


# Text encoder


def _encoder(entries: Entries) -> tuple[dict[str, StoredTensor], list[Offence]]:
    found: dict[str, StoredTensor] = {}
    offences: list[Offence] = []
    for name, entry in entries.items():
        ours = next((o + name.removeprefix(t) for t, o in ENCODER_NAMES if name.startswith(t)), name)
        layer = ENCODER_LAYER.match(ours)
        if ours not in ENCODER_UNUSED and not (layer and int(layer[1]) >= LANGUAGE_LAYERS):
            _placed(ours, entry, found, offences)
    return found, offences


def _encoder_overrides(config: Mapping[str, Any]) -> dict[str, object]:
    """The sizes that leave no mark on shapes, as `TextEncoderConfig.from_shapes` takes them."""
    text, vision = (_table(config, name) for name in ("text_config", "vision_config"))
    text = text or config
    rope = _table(text, "rope_parameters") or _table(text, "rope_scaling")
    told = {
        "vision_num_heads": vision.get("num_heads"),
        "deepstack_visual_indexes": vision.get("deepstack_visual_indexes"),
        "mrope_section": rope.get("mrope_section"),
        "rope_theta": text.get("rope_theta", rope.get("rope_theta")),
        "rms_norm_eps": text.get("rms_norm_eps"),
    }
    return {name: value for name, value in told.items() if value is not None}


def _table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


# Diffusers


def _diffusers(entries: Entries, folder: Path, config: Mapping[str, Any] | None) -> Renamed:
    found, offences = _from_diffusers(entries)
    config = config_of(folder) if config is None else config
    if config is None:
        told = f"is a transformer in the Diffusers layout without its {CONFIG_NAME}"
        return Renamed("diffusers", found, offences=(Offence(FILE, told, f"one in {folder.name}"),))
    offences += _fixed(config)
    if config.get("_class_name", TRANSFORMER_CLASS) != TRANSFORMER_CLASS:
        offences.append(Offence(CONFIG_NAME, f"has the _class_name {config['_class_name']!s:.60}", TRANSFORMER_CLASS))
    table = _inverse_frequencies(config)
    if isinstance(table, Offence):
        return Renamed("diffusers", found, offences=(*offences, table))
    found.setdefault(ROTARY, StoredTensor(ROTARY, table.dtype, tuple(table.shape), ()))
    computed = {} if found[ROTARY].spans else {ROTARY: table}
    return Renamed("diffusers", found, computed, offences=tuple(offences))


def _from_diffusers(entries: Entries) -> tuple[dict[str, StoredTensor], list[Offence]]:
    found: dict[str, StoredTensor] = {}
    offences: list[Offence] = []
    thirds: dict[str, dict[str, StoredTensor]] = {}
    for name, entry in entries.items():
        block, _, leaf = _ours(name).rpartition(".attn.")
        third = leaf.removesuffix(".weight")
        if block and third in THIRDS:
            thirds.setdefault(f"{block}.attn.", {})[third] = entry
        else:
            _placed(_ours(name), _swapped(_ours(name), entry, offences), found, offences)
    for block, apart in thirds.items():
        joined = _joined(block, apart, offences)
        if joined is not None:
            _placed(joined.name, joined, found, offences)
    return found, offences


def _ours(name: str) -> str:
    for theirs, ours in BLOCK_LISTS:
        if name.startswith(theirs):
            number, _, leaf = name.removeprefix(theirs).partition(".")
            return f"{ours}{number}.{_exchanged(leaf, BLOCK_NAMES)}"
    return _exchanged(name, TRANSFORMER_NAMES)


def _exchanged(name: str, names: Mapping[str, str]) -> str:
    module, _, leaf = name.rpartition(".")
    return f"{names[module]}.{leaf}" if module in names else name


def _swapped(name: str, entry: StoredTensor, offences: list[Offence]) -> StoredTensor:
    """[value; gate] -> [gate; value]."""
    if not name.endswith(".mlp.fc1.weight"):
        return entry
    if len(entry.shape) != 2 or entry.shape[0] % 2:
        offences.append(Offence(entry.name, f"has shape {list(entry.shape)}", "two dimensions, an even number of rows"))
        return entry
    return halves_swapped(entry)


def _joined(block: str, apart: Mapping[str, StoredTensor], offences: list[Offence]) -> StoredTensor | None:
    stem = next(iter(apart.values())).name.rpartition("to_")[0]
    missing = [Offence(f"{stem}{third}.weight", "is missing") for third in THIRDS if third not in apart]
    kinds = {(entry.dtype, entry.shape) for entry in apart.values()}
    if missing:
        offences += missing
    elif len(kinds) > 1 or any(len(shape) != 2 for _, shape in kinds):
        told = ", ".join(
            f"{str(dtype).removeprefix('torch.')} {list(shape)}" for dtype, shape in sorted(kinds, key=str)
        )
        offences.append(
            Offence(f"{stem}to_q.weight", f"and its to_k and to_v differ: {told}", "the same dtype and shape")
        )
    else:
        return stacked(f"{block}qkv_proj.weight", [apart[third] for third in THIRDS])
    return None


def _inverse_frequencies(config: Mapping[str, Any]) -> torch.Tensor | Offence:
    """theta^(-i/n), fp32 throughout: the bits of the published table (dit-contract §1.2)."""
    count, theta = config.get("rope_freq_dim", FREQUENCIES), config.get("rope_theta", THETA)
    if type(count) is not int or not 0 < count <= 4096:
        return Offence(CONFIG_NAME, f"has the rope_freq_dim {count!s:.40}", "1..4096")
    if not isinstance(theta, int | float) or isinstance(theta, bool) or not 1 < theta < 1e12:
        return Offence(CONFIG_NAME, f"has the rope_theta {theta!s:.40}", "a number above 1")
    return 1.0 / float(theta) ** (torch.arange(0, 2 * count, 2, dtype=torch.float32) / (2 * count))


def _fixed(config: Mapping[str, Any]) -> Iterator[Offence]:
    for name, value in FIXED.items():
        if config.get(name, value) != value:
            yield Offence(CONFIG_NAME, f"has the {name} {config[name]!s:.40}", str(value))
