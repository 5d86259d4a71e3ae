"""Made-up adapters in each public layout, for a transformer of any sizes (checkpoint-formats §6).

    comfyui_turbo     fused q, k, v of three times the rank, block-diagonal; an alpha for every layer
    diffusers         q, k and v apart, the halves of fc1 the other way round; alpha in the metadata
    bare              our names without a prefix, AdaLN of the full width among them, no alpha
    pruned            the same without AdaLN, alpha = rank
    resized           a rank of its own for every layer, no alpha
    pruned_complete   pairs, and a pruned transformer's AdaLN with its table, replaced
    pdd               Diffusers' names, AdaLN of the full width, a bank of whole output heads; alpha in the metadata
    pdd_comfyui       fused, and the bank stacked: head 0, then offsets from it
    fasth3            Diffusers' names, pairs without any scale, whole differences of norms, biases and projections
    kohya             flattened names, lora_down and lora_up
    diffsynth         PEFT's infix in our names, rows of q, k and v head by head

Values are random, small beside the weights that they change. Written with `checkpoint.writer`; used by the tests and
by whoever wants to see a server take adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from h3runtime.checkpoint.synthetic.layouts import FINAL_VECTORS, MODALITIES, PATCH_AREA, VECTORS, TransformerSizes
from h3runtime.checkpoint.synthetic.random_values import uniform
from h3runtime.checkpoint.writer import write_file

Tensors = dict[str, torch.Tensor]
GAIN: Final = 0.1
"""Standard deviation of B; with A of 1/sqrt(K) a pair of rank r moves a weight by GAIN * sqrt(r) of its own size."""
MOVED: Final = 0.02
"""Standard deviation of whole differences and replacements."""
HEADS, BLOCK = 32, 4
"""Of a bank, and how many of them a step decodes (checkpoint-formats §6)."""


@dataclass(frozen=True, slots=True)
class MadeAdapter:
    tensors: Mapping[str, torch.Tensor]
    metadata: Mapping[str, str]

    def write(self, path: Path) -> str:
        """Its SHA-256; OSError if the disk says no."""
        return write_file(path, self.tensors, self.metadata)


@dataclass(frozen=True, slots=True)
class Linear:
    """Of the transformer: name, [rows, columns]."""

    name: str
    rows: int
    columns: int


def adapter(layout: str, sizes: TransformerSizes, *, rank: int = 4, seed: int = 0) -> MadeAdapter:
    """KeyError for a layout that isn't one of `LAYOUTS`."""
    tensors, metadata = LAYOUTS[layout](_Making(sizes, rank, seed))
    return MadeAdapter(tensors, metadata)


class _Making:
    """One adapter's values; every one comes from its own name and the seed."""

    def __init__(self, sizes: TransformerSizes, rank: int, seed: int) -> None:
        self.sizes, self.rank, self.seed = sizes, rank, seed

    def blocks(self) -> Iterator[str]:
        yield from (f"blocks.{i}" for i in range(self.sizes.layers))
        yield from (f"token_refiner.blocks.{i}" for i in range(self.sizes.refiner_layers))

    def thirds(self, block: str) -> tuple[Linear, ...]:
        inner = self.sizes.heads * self.sizes.head_dim
        return tuple(Linear(f"{block}.attn.to_{part}", inner, self.sizes.hidden) for part in "qkv")

    def others(self, block: str) -> tuple[Linear, ...]:
        sizes = self.sizes
        inner = sizes.heads * sizes.head_dim
        return (
            Linear(f"{block}.attn.out_proj", sizes.hidden, inner),
            Linear(f"{block}.mlp.fc1", 2 * sizes.ffn, sizes.hidden),
            Linear(f"{block}.mlp.fc2", sizes.hidden, sizes.ffn),
        )

    def adaln(self, width: int) -> Iterator[Linear]:
        for i in range(self.sizes.layers):
            yield Linear(f"blocks.{i}.adaln_proj.linear", MODALITIES * VECTORS * self.sizes.hidden, width)
        yield Linear("final_layer.adaln_proj.linear", FINAL_VECTORS * self.sizes.hidden, width)

    def pair(self, linear: Linear, rank: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """A [r, K], B [n, r], BF16."""
        rank = rank or self.rank
        down = uniform(f"{linear.name}.A", (rank, linear.columns), self.seed, linear.columns**-0.5)
        up = uniform(f"{linear.name}.B", (linear.rows, rank), self.seed, GAIN)
        return down.bfloat16(), up.bfloat16()

    def fused(self, block: str, rank: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """q, k and v of that rank each."""
        pairs = [self.pair(third, rank) for third in self.thirds(block)]
        return torch.cat([down for down, _ in pairs]), _diagonal([up for _, up in pairs])

    def values(self, name: str, *shape: int, std: float = MOVED) -> torch.Tensor:
        return uniform(name, shape, self.seed, std).bfloat16()


def _diagonal(blocks: list[torch.Tensor]) -> torch.Tensor:
    """[n, r] each -> [sum n, sum r], zeros beside them."""
    whole = blocks[0].new_zeros(sum(b.shape[0] for b in blocks), sum(b.shape[1] for b in blocks))
    row = column = 0
    for block in blocks:
        whole[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return whole


Made = tuple[Tensors, dict[str, str]]


def _comfyui_turbo(making: _Making) -> Made:
    found = _fused_blocks(making, "diffusion_model.")
    return found, {"converted_layout": "comfyui_minimax_h3"}


def _fused_blocks(making: _Making, prefix: str) -> Tensors:
    found: Tensors = {}
    for block in making.blocks():
        found |= _named(f"{prefix}{block}.attn.qkv_proj", *making.fused(block), alpha=3.0 * making.rank)
        for linear in making.others(block):
            found |= _named(prefix + linear.name, *making.pair(linear), alpha=float(making.rank))
    return found


def _diffusers(making: _Making) -> Made:
    return _split(making, ".lora_A.weight", ".lora_B.weight"), {"alpha": str(making.rank / 2)}


def _split(making: _Making, down_name: str, up_name: str) -> Tensors:
    """Every linear of the blocks under Diffusers' names."""
    found: Tensors = {}
    for block in making.blocks():
        for linear in (*making.thirds(block), *making.others(block)):
            down, up = making.pair(linear)
            name = _theirs(linear.name)
            found[name + down_name] = down
            found[name + up_name] = up.roll(linear.rows // 2, 0) if linear.name.endswith("fc1") else up
    return found


def _theirs(name: str) -> str:
    """Diffusers' name of a linear in a block."""
    list_name = "token_refiner.refiner_blocks" if name.startswith("token_refiner") else "transformer_blocks"
    number, leaf = name.removeprefix("token_refiner.").removeprefix("blocks.").split(".", 1)
    theirs = {"attn.out_proj": "attn.to_out.0", "mlp.fc1": "ff.net.0.proj", "mlp.fc2": "ff.net.2"}
    return f"{list_name}.{number}.{theirs.get(leaf, leaf)}"


def _bare(making: _Making) -> Made:
    found = {name: tensor for name, tensor in _pruned(making)[0].items() if not name.endswith(".alpha")}
    for linear in making.adaln(making.sizes.time_dim):
        found |= _named(linear.name, *making.pair(linear))
    return found, {}


def _pruned(making: _Making) -> Made:
    found: Tensors = {}
    for block in making.blocks():
        fused = Linear(f"{block}.attn.qkv_proj", 3 * making.sizes.heads * making.sizes.head_dim, making.sizes.hidden)
        for linear in (fused, *making.others(block)):
            found |= _named(linear.name, *making.pair(linear), alpha=float(making.rank))
    return found, {}


def _resized(making: _Making) -> Made:
    found: Tensors = {}
    for number, block in enumerate(making.blocks()):
        found |= _named(f"diffusion_model.{block}.attn.qkv_proj", *making.fused(block, 1 + number % making.rank))
        for index, linear in enumerate(making.others(block)):
            found |= _named(f"diffusion_model.{linear.name}", *making.pair(linear, 1 + (number + index) % making.rank))
    return found, {}


def _pruned_complete(making: _Making) -> Made:
    grid, width = making.sizes.curve or (1025, 8)
    found = _fused_blocks(making, "diffusion_model.")
    for linear in making.adaln(width):
        found[f"diffusion_model.{linear.name}.weight"] = making.values(linear.name, linear.rows, width, std=width**-0.5)
        found[f"diffusion_model.{linear.name}.bias"] = making.values(f"{linear.name}.b", linear.rows)
    found["diffusion_model.adaln_t_table"] = uniform("table", (grid, width), making.seed, MOVED)
    return found, {}


def _pdd(making: _Making) -> Made:
    found = _split(making, ".lora_down", ".lora_up")
    for linear in list(making.adaln(making.sizes.time_dim))[:-1]:
        found |= dict(
            zip((_theirs(linear.name) + s for s in (".lora_down", ".lora_up")), making.pair(linear), strict=True)
        )
    for name, rows in (
        ("proj_out", PATCH_AREA * making.sizes.channels),
        ("audio_proj_out", making.sizes.audio_channels),
    ):
        weight, bias = _heads(making, name, rows)
        found |= {f"{name}.weight": weight, f"{name}.bias": bias}
    targets = "to_q,to_k,to_v,to_out.0,ff.net.0.proj,ff.net.2,adaln_proj.linear"
    rank = str(making.rank)
    return found, {"lora_rank": rank, "lora_alpha": rank, "lora_targets": targets, **_pdd_metadata()}


def _pdd_comfyui(making: _Making) -> Made:
    found = _fused_blocks(making, "diffusion_model.")
    for name, rows in (("video_out", PATCH_AREA * making.sizes.channels), ("audio_out", making.sizes.audio_channels)):
        for leaf, heads in zip(("weight", "bias"), _heads(making, name, rows), strict=True):
            offsets = torch.cat([heads[:1], heads[1:] - heads[:1]])
            found[f"diffusion_model.final_layer.{name}.{leaf}.set_weight"] = offsets.flatten(0, 1)
    return found, _pdd_metadata()


def _heads(making: _Making, name: str, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole heads that differ a little, fp32: [32, rows, hidden], [32, rows]."""
    hidden, seed = making.sizes.hidden, making.seed
    weight = uniform(name, (1, rows, hidden), seed, hidden**-0.5)
    apart = uniform(f"{name}.heads", (HEADS, rows, hidden), seed, MOVED * hidden**-0.5)
    return weight + apart, uniform(f"{name}.bias", (HEADS, rows), seed, MOVED)


def _pdd_metadata() -> dict[str, str]:
    return {"pdd_num_steps": str(HEADS), "pdd_block_size": str(BLOCK)}


def _fasth3(making: _Making) -> Made:
    sizes = making.sizes
    found = _split(making, ".lora_A.weight", ".lora_B.weight")
    for block in making.blocks():
        theirs = _theirs(f"{block}.norm1")
        found[f"{theirs}.diff"] = making.values(theirs, sizes.hidden)
        found[_theirs(f"{block}.attn.norm_q") + ".diff"] = making.values(f"{theirs}.q", sizes.head_dim)
    found["proj_in.diff"] = making.values("proj_in", sizes.hidden, PATCH_AREA * sizes.channels)
    found["proj_in.diff_b"] = making.values("proj_in.b", sizes.hidden)
    found["proj_out.diff"] = making.values("proj_out", PATCH_AREA * sizes.channels, sizes.hidden, std=0.1 * MOVED)
    found["norm_out.norm.diff"] = making.values("norm_out.norm", sizes.hidden)
    metadata = {
        "format": "fastvideo-lora-v2",
        "base_model": "MiniMaxAI/MiniMax-H3",
        "finetuned_model": "FastVideo/FastVideo-FastH3-4-step-Preview-v1-Dense-DataFree",
    }
    return found, metadata


def _kohya(making: _Making) -> Made:
    found: Tensors = {}
    for name, tensor in _pruned(making)[0].items():
        layer, _, leaf = name.rpartition(".lora_") if ".lora_" in name else name.rpartition(".")
        flat = "lora_unet_" + layer.replace(".", "_")
        half = {"A.weight": ".lora_down.weight", "B.weight": ".lora_up.weight"}.get(leaf, f".{leaf}")
        found[flat + half] = tensor
    return found, {}


def _diffsynth(making: _Making) -> Made:
    found: Tensors = {}
    for name, tensor in _pruned(making)[0].items():
        if name.endswith(".alpha"):
            continue
        if name.endswith("qkv_proj.lora_B.weight"):
            thirds = tensor.reshape(3, making.sizes.heads, making.sizes.head_dim, -1)
            tensor = thirds.transpose(0, 1).reshape(tensor.shape)
        found[name.replace(".weight", ".default.weight")] = tensor
    return found, {"lora_alpha": str(making.rank)}


def _named(layer: str, down: torch.Tensor, up: torch.Tensor, alpha: float | None = None) -> Tensors:
    found = {f"{layer}.lora_A.weight": down, f"{layer}.lora_B.weight": up}
    return found if alpha is None else found | {f"{layer}.alpha": torch.tensor(alpha)}


LAYOUTS: Final[Mapping[str, Callable[[_Making], Made]]] = {
    "comfyui_turbo": _comfyui_turbo,
    "diffusers": _diffusers,
    "bare": _bare,
    "pruned": _pruned,
    "resized": _resized,
    "pruned_complete": _pruned_complete,
    "pdd": _pdd,
    "pdd_comfyui": _pdd_comfyui,
    "fasth3": _fasth3,
    "kohya": _kohya,
    "diffsynth": _diffsynth,
}
