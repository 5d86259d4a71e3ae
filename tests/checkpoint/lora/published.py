"""Adapters written by hand as each public layout has them (checkpoint-formats §6), from differences that are known.

Random pairs for every linear come first, on our rows; how each publisher spells them is written out below, with no help
from the package's own made-up adapters. Read by `test_layouts` and `test_spellings`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import torch

from h3runtime.checkpoint.synthetic.layouts import TransformerSizes
from tests.checkpoint.lora.models import FULL, PRUNED

Tensors = dict[str, torch.Tensor]
Joined = Callable[[list["Pair"]], tuple[torch.Tensor, torch.Tensor]]
RANK = 128
"""The published one; q, k and v fused are 384."""


@dataclass(frozen=True)
class Pair:
    """scale * up @ down on rows of our `layer`; up [n, r], down [r, K], float32."""

    layer: str
    down: torch.Tensor
    up: torch.Tensor
    scale: float

    @property
    def rank(self) -> int:
        return self.down.shape[0]

    @property
    def delta(self) -> torch.Tensor:
        return self.scale * (self.up.double() @ self.down.double())


class Truth:
    """Random pairs for all linears of the blocks, q, k and v apart; and for AdaLN where it is asked for.

    ranks, scales: of linears in turn; q, k and v of a block are one. shared: they have one A, as a fused layer that was
    trained as such.
    """

    def __init__(
        self,
        sizes: TransformerSizes = PRUNED,
        ranks: Sequence[int] = (RANK,),
        scales: Sequence[float] = (1.0,),
        adaln: bool = False,
        shared: bool = False,
    ) -> None:
        self.sizes, self._ranks, self._scales, self._shared = sizes, cycle(ranks), cycle(scales), shared
        self._source = torch.Generator().manual_seed(7)
        inner, hidden = sizes.heads * sizes.head_dim, sizes.hidden
        self.blocks = [f"blocks.{i}" for i in range(sizes.layers)]
        self.blocks += [f"token_refiner.blocks.{i}" for i in range(sizes.refiner_layers)]
        self.pairs: list[Pair] = []
        for block in self.blocks:
            self._add(f"{block}.attn.qkv_proj", [inner] * 3, hidden)
            self._add(f"{block}.attn.out_proj", [hidden], inner)
            self._add(f"{block}.mlp.fc1", [2 * sizes.ffn], hidden)
            self._add(f"{block}.mlp.fc2", [hidden], sizes.ffn)
        if adaln:
            width = sizes.curve[1] if sizes.curve else sizes.time_dim
            for i in range(sizes.layers):
                self._add(f"blocks.{i}.adaln_proj.linear", [18 * hidden], width)
            self._add("final_layer.adaln_proj.linear", [2 * hidden], width)

    def _add(self, layer: str, parts: Sequence[int], columns: int) -> None:
        """Pairs one under the other."""
        rank, scale = next(self._ranks), next(self._scales)
        downs = torch.randn(len(parts), rank, columns, generator=self._source) * columns**-0.5
        for index, rows in enumerate(parts):
            down = downs[0 if self._shared else index]
            up = torch.randn(rows, rank, generator=self._source) * 0.1 * rank**-0.5
            self.pairs.append(Pair(layer, down, up, scale))

    def of(self, layer: str) -> list[Pair]:
        return [pair for pair in self.pairs if pair.layer == layer]

    @property
    def layers(self) -> list[str]:
        return list(dict.fromkeys(pair.layer for pair in self.pairs))

    def delta(self, layer: str) -> torch.Tensor:
        """[N, K], float64."""
        return torch.cat([pair.delta for pair in self.of(layer)])


@dataclass(frozen=True)
class File:
    """As somebody published it. alpha: what a request has to say."""

    tensors: Tensors
    truth: Truth
    metadata: dict[str, str] | None = None
    alpha: float | None = None


def fused(pairs: list[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
    """Three adapters made one: A one under the other, B block by block."""
    return torch.cat([pair.down for pair in pairs]), torch.block_diag(*(pair.up for pair in pairs))


def dense(pairs: list[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
    """One adapter of all rows."""
    assert all(torch.equal(pair.down, pairs[0].down) for pair in pairs)
    return pairs[0].down, torch.cat([pair.up for pair in pairs])


def turbo_comfyui() -> File:
    """`*_turbo_*_comfyui_bf16`: rank 384 beside 128, each module's alpha is its own."""
    truth = Truth(scales=(1.0, 0.0625, 0.75, 2.0, 0.5))
    found: Tensors = {}
    for layer in truth.layers:
        down, up = fused(truth.of(layer))
        assert down.shape[0] == (384 if layer.endswith("qkv_proj") else 128)
        found[f"diffusion_model.{layer}.lora_A.weight"] = down
        found[f"diffusion_model.{layer}.lora_B.weight"] = up
        found[f"diffusion_model.{layer}.alpha"] = torch.tensor(truth.of(layer)[0].scale * down.shape[0])
    return File(found, truth, {"converted_layout": "comfyui_minimax_h3"})


def turbo_comfyui_without_alpha() -> File:
    """The same stripped: what the request says is of rank 128, for the fused layers too."""
    truth = Truth(scales=(8 / 128,))
    whole = replace(turbo_comfyui(), truth=truth, alpha=8.0)
    return replace(whole, tensors={name: t for name, t in whole.tensors.items() if not name.endswith(".alpha")})


def diffusers_name(layer: str, third: int) -> str:
    for ours, theirs in (
        ("token_refiner.blocks.", "token_refiner.refiner_blocks."),
        ("blocks.", "transformer_blocks."),
    ):
        if layer.startswith(ours):
            layer = theirs + layer.removeprefix(ours)
            break
    leaves = {
        "attn.qkv_proj": f"attn.to_{'qkv'[third]}",
        "attn.out_proj": "attn.to_out.0",
        "mlp.fc1": "ff.net.0.proj",
        "mlp.fc2": "ff.net.2",
    }
    for ours, theirs in leaves.items():
        layer = layer.replace(ours, theirs)
    return layer.replace("final_layer.adaln_proj.linear", "norm_out.linear")


def diffusers_pairs(truth: Truth, down_end: str, up_end: str, prefix: str = "") -> Tensors:
    """q, k and v apart; of fc1 the value's rows before the gate's."""
    found: Tensors = {}
    for layer in truth.layers:
        for third, pair in enumerate(truth.of(layer)):
            name = prefix + diffusers_name(layer, third)
            gate, value = pair.up.chunk(2)
            found[name + down_end] = pair.down
            found[name + up_end] = torch.cat([value, gate]) if layer.endswith("fc1") else pair.up
    return found


def turbo_v01() -> File:
    """`fl2v_turbo_4step_v0.1`: Diffusers' names, rank 128, alpha 8 that is nowhere in the file."""
    truth = Truth(scales=(8 / 128,))
    return File(diffusers_pairs(truth, ".lora_A.weight", ".lora_B.weight"), truth, alpha=8.0)


def turbo_v1() -> File:
    """v1.x: alpha 128 in the metadata."""
    truth = Truth()
    return File(diffusers_pairs(truth, ".lora_A.weight", ".lora_B.weight"), truth, {"alpha": "128"})


def peft_dump() -> File:
    truth = Truth(ranks=(8,), scales=(2.0,))
    tensors = diffusers_pairs(truth, ".lora_A.default.weight", ".lora_B.default.weight", "base_model.model.")
    return File(tensors, truth, {"lora_alpha": "16"})


def saved_by_diffusers() -> File:
    truth = Truth(ranks=(8,), scales=(0.5,))
    tensors = diffusers_pairs(truth, ".lora_A.weight", ".lora_B.weight", "transformer.")
    return File(tensors, truth, {"lora_adapter_metadata": '{"transformer.r": 8, "transformer.lora_alpha": 4}'})


def our_pairs(
    truth: Truth, prefix: str = "", halves: tuple[str, str] = ("lora_A.weight", "lora_B.weight"), joined: Joined = dense
) -> Tensors:
    found: Tensors = {}
    for layer in truth.layers:
        for half, tensor in zip(halves, joined(truth.of(layer)), strict=True):
            found[f"{prefix}{layer}.{half}"] = tensor
    return found


def bare() -> File:
    """larryvrh: no prefix, no alpha, rank 64, AdaLN of 2688 (here 20) columns."""
    truth = Truth(FULL, ranks=(64,), adaln=True, shared=True)
    return File(our_pairs(truth), truth, alpha=64.0)


def pruned() -> File:
    """`*_pruned_comfyui`: the same without AdaLN."""
    truth = Truth(ranks=(64,), shared=True)
    tensors = our_pairs(truth, "diffusion_model.")
    scalars = {f"diffusion_model.{layer}.alpha": torch.tensor(64.0) for layer in truth.layers}
    return File(tensors | scalars, truth)


def trained_on_pruned() -> File:
    """musubi's, trained on a pruned transformer: AdaLN of 8 (here 4) columns."""
    truth = Truth(ranks=(16,), scales=(0.5,), adaln=True, shared=True)
    tensors = our_pairs(truth, "diffusion_model.")
    return File(tensors | {f"diffusion_model.{layer}.alpha": torch.tensor(8.0) for layer in truth.layers}, truth)


def resized() -> File:
    """`_resized_avg_rank_21`: a rank for every layer, q, k and v fused; scale 1, so alpha is the rank that is told."""
    truth = Truth(ranks=(7, 21, 33, 21, 5))
    return File(our_pairs(truth, "diffusion_model.", joined=fused), truth, alpha=21.0)


def kohya() -> File:
    truth = Truth(ranks=(16,), scales=(0.25, 0.5, 0.75), shared=True)
    found: Tensors = {}
    for layer in truth.layers:
        name = "lora_unet_" + layer.replace(".", "_")
        found[f"{name}.lora_down.weight"], found[f"{name}.lora_up.weight"] = dense(truth.of(layer))
        found[f"{name}.alpha"] = torch.tensor(truth.of(layer)[0].scale * 16)
    return File(found, truth)


def diffsynth() -> File:
    """Our names with PEFT's infix; of q, k and v the rows of head 0 first: q_0, k_0, v_0, q_1, ..."""
    truth = Truth(ranks=(16,), shared=True)
    tensors = our_pairs(truth, halves=("lora_A.default.weight", "lora_B.default.weight"))
    heads, width = PRUNED.heads, PRUNED.head_dim
    for name, up in tensors.items():
        if name.endswith("qkv_proj.lora_B.default.weight"):
            rows = [up[(part * heads + head) * width :][:width] for head in range(heads) for part in range(3)]
            tensors[name] = torch.cat(rows)
    scalars = {f"{layer}.alpha": torch.tensor(16.0) for layer in truth.layers}
    return File(tensors | scalars, truth)


def pdd() -> File:
    """alibaba-pai's: Diffusers' names, bare `.lora_down` and `.lora_up`, rank and alpha in the metadata."""
    truth = Truth(ranks=(64,))
    return File(diffusers_pairs(truth, ".lora_down", ".lora_up"), truth, {"lora_rank": "64", "lora_alpha": "64"})


def fasth3() -> File:
    """FastVideo's states W + B A, whatever the rank."""
    truth = Truth(ranks=(64,))
    return File(diffusers_pairs(truth, ".lora_A.weight", ".lora_B.weight"), truth, {"format": "fastvideo-lora-v2"})


FILES = (
    turbo_comfyui, turbo_comfyui_without_alpha, turbo_v01, turbo_v1, peft_dump, saved_by_diffusers, bare, pruned,
    trained_on_pruned, resized, kohya, diffsynth, pdd, fasth3,
)  # fmt: skip
