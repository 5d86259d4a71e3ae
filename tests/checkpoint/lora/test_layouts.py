"""Every row of checkpoint-formats §6, written here by hand from known differences, moves exactly those weights by them.

The other way round than `test_merged`, which works out what a made file should do: here the differences come first, on
our rows, and each layout's own spelling of them is spelled out below, with no help from the package's own adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

import pytest
import torch

from h3runtime.backends.linear.adapted import adapted
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes
from tests.checkpoint.lora.models import FULL, PRUNED, bias_of, bound, changes, model, target, weight_of, write

Tensors = dict[str, torch.Tensor]
TOLERANCE = 1e-6
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

    ranks, scales: of linears in turn; q, k and v of a block are one.
    """

    def __init__(
        self,
        sizes: TransformerSizes = PRUNED,
        ranks: Sequence[int] = (RANK,),
        scales: Sequence[float] = (1.0,),
        adaln: bool = False,
    ) -> None:
        self.sizes, self._ranks, self._scales = sizes, cycle(ranks), cycle(scales)
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
            for i in range(sizes.layers):
                self._add(f"blocks.{i}.adaln_proj.linear", [18 * hidden], sizes.time_dim)
            self._add("final_layer.adaln_proj.linear", [2 * hidden], sizes.time_dim)

    def _add(self, layer: str, parts: Sequence[int], columns: int) -> None:
        """Pairs one under the other."""
        rank, scale = next(self._ranks), next(self._scales)
        for rows in parts:
            down = torch.randn(rank, columns, generator=self._source) * columns**-0.5
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
    """One adapter of a fused layer, trained as such: a full B. Here the sum of three, for lack of a better one."""
    return fused(pairs)


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


def our_pairs(truth: Truth, prefix: str = "", halves: tuple[str, str] = ("lora_A.weight", "lora_B.weight")) -> Tensors:
    found: Tensors = {}
    for layer in truth.layers:
        for half, tensor in zip(halves, dense(truth.of(layer)), strict=True):
            found[f"{prefix}{layer}.{half}"] = tensor
    return found


def bare() -> File:
    """larryvrh: no prefix, no alpha, rank 64, AdaLN of 2688 (here 20) columns."""
    truth = Truth(FULL, ranks=(64,), adaln=True)
    return File(our_pairs(truth), truth, alpha=64.0)


def pruned() -> File:
    """`*_pruned_comfyui`: the same without AdaLN."""
    truth = Truth(ranks=(64,))
    tensors = our_pairs(truth, "diffusion_model.")
    scalars = {f"diffusion_model.{layer}.alpha": torch.tensor(float(truth.of(layer)[0].rank)) for layer in truth.layers}
    scalars |= {name: 3 * alpha for name, alpha in scalars.items() if "qkv_proj" in name}
    return File(tensors | scalars, truth)


def resized() -> File:
    """`_resized_avg_rank_21`: a rank for every layer, q, k and v fused; scale 1, so alpha is the rank that is told."""
    truth = Truth(ranks=(7, 21, 33, 21, 5))
    return File(our_pairs(truth, "diffusion_model."), truth, alpha=21.0)


def kohya() -> File:
    truth = Truth(ranks=(16,), scales=(0.25, 0.5, 0.75))
    found: Tensors = {}
    for layer in truth.layers:
        name = "lora_unet_" + layer.replace(".", "_")
        found[f"{name}.lora_down.weight"], found[f"{name}.lora_up.weight"] = dense(truth.of(layer))
        rank = found[f"{name}.lora_down.weight"].shape[0]
        found[f"{name}.alpha"] = torch.tensor(truth.of(layer)[0].scale * rank)
    return File(found, truth)


def diffsynth() -> File:
    """Our names with PEFT's infix; of q, k and v the rows of head 0 first: q_0, k_0, v_0, q_1, ..."""
    truth = Truth(ranks=(16,))
    tensors = our_pairs(truth, halves=("lora_A.default.weight", "lora_B.default.weight"))
    heads, width = PRUNED.heads, PRUNED.head_dim
    for name, up in tensors.items():
        if name.endswith("qkv_proj.lora_B.default.weight"):
            rows = [up[(part * heads + head) * width :][:width] for head in range(heads) for part in range(3)]
            tensors[name] = torch.cat(rows)
    scalars = {f"{layer}.alpha": torch.tensor(16.0 * len(truth.of(layer))) for layer in truth.layers}
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
    resized, kohya, diffsynth, pdd, fasth3,
)  # fmt: skip


@pytest.mark.parametrize("strength", [1.0, 0.6])
@pytest.mark.parametrize("layout", FILES, ids=lambda layout: layout.__name__)
def test_a_layout_moves_the_weights_by_its_differences(
    tmp_path: Path, layout: Callable[[], File], strength: float
) -> None:
    file = layout()
    sizes, truth = file.truth.sizes, file.truth
    path = write(tmp_path / "adapter.safetensors", file.tensors, file.metadata)
    network = model(sizes)
    before = {layer: weight_of(network, layer) for layer in truth.layers}
    fit = bound(path, target(sizes)).fit
    assert (fit.matched, fit.total, fit.skipped, fit.unmatched) == (fit.total, fit.total, (), ())
    found = changes(path, target(sizes), strength, file.alpha)
    assert set(found) == set(truth.layers)
    with adapted(network, found):
        for layer in truth.layers:
            wanted = before[layer].double() + strength * truth.delta(layer)
            apart = float((weight_of(network, layer).double() - wanted).abs().max())
            assert apart <= TOLERANCE * float(wanted.abs().max()), layer
    assert all(torch.equal(weight_of(network, layer), before[layer]) for layer in truth.layers)


def test_the_same_adapter_moves_a_pruned_transformer_but_for_its_adaln(tmp_path: Path) -> None:
    file = bare()
    path = write(tmp_path / "adapter.safetensors", file.tensors)
    fit = bound(path, target(PRUNED)).fit
    adaln = {layer for layer in file.truth.layers if "adaln" in layer}
    assert set(fit.skipped) == adaln and fit.matched == fit.total - len(adaln) and fit.unmatched == ()
    found = changes(path, target(PRUNED), alpha=64.0)
    assert set(found) == set(file.truth.layers) - adaln


PREFIXES = (
    "", "base_model.model.", "model.diffusion_model.", "diffusion_model.", "transformer.", "transformer_ref.",
    "model.", "lora_unet_", "lora_transformer_",
)  # fmt: skip
"""dit-contract §7.3; of the last two the names are flattened."""
HALVES = (
    ("lora_A.weight", "lora_B.weight"),
    ("lora_down.weight", "lora_up.weight"),
    ("lora_A.default.weight", "lora_B.default.weight"),
    ("lora_A", "lora_B"),
    ("lora_down", "lora_up"),
)


@pytest.mark.parametrize("halves", HALVES, ids=lambda halves: halves[0])
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("theirs", [False, True], ids=["ours", "diffusers"])
def test_every_prefix_and_every_spelling_means_the_same(
    tmp_path: Path, prefix: str, halves: tuple[str, str], theirs: bool
) -> None:
    truth = Truth(ranks=(4,), scales=(0.5,))
    wanted = ["blocks.1.attn.out_proj", "token_refiner.blocks.0.mlp.fc2"]
    tensors: Tensors = {}
    for layer in wanted:
        (pair,) = truth.of(layer)
        name = diffusers_name(layer, 0) if theirs else layer
        name = prefix + (name.replace(".", "_") if prefix.startswith("lora_") else name)
        tensors |= {f"{name}.{halves[0]}": pair.down, f"{name}.{halves[1]}": pair.up}
        tensors[f"{name}.alpha"] = torch.tensor(2.0)
    network = model()
    before = {layer: weight_of(network, layer) for layer in wanted}
    found = changes(write(tmp_path / "x.safetensors", tensors), target())
    assert set(found) == set(wanted)
    with adapted(network, found):
        for layer in wanted:
            moved = before[layer].double() + truth.delta(layer)
            apart = float((weight_of(network, layer).double() - moved).abs().max())
            assert apart <= TOLERANCE * float(moved.abs().max()), layer


ADALN = "final_layer.adaln_proj.linear"


@pytest.mark.parametrize("weight_end", [".weight", ".set_weight", ".weight.set_weight"])
@pytest.mark.parametrize("bias_end", [".bias", ".set_bias", ".bias.set_weight"])
def test_a_replacement_is_spelled_in_three_ways_each(tmp_path: Path, weight_end: str, bias_end: str) -> None:
    source = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(128, 4, generator=source), torch.randn(128, generator=source)
    others = our_pairs(Truth(ranks=(2,)))
    path = write(tmp_path / "x.safetensors", others | {ADALN + weight_end: weight, ADALN + bias_end: bias})
    network = model()
    with adapted(network, {ADALN: changes(path, target(), alpha=2.0)[ADALN]}):
        x = torch.randn(5, 4, generator=source)
        assert torch.equal(network.get_submodule(ADALN)(x), torch.nn.functional.linear(x, weight, bias))


def test_complete_pruned_adapters_stack_by_their_distance_from_the_base(tmp_path: Path) -> None:
    """§7.4: current + strength * (new - base), whichever was there before; a pair on the same layer adds to it."""
    source = torch.Generator().manual_seed(1)
    new = [torch.randn(128, 4, generator=source) for _ in range(2)]
    biases = [torch.randn(128, generator=source) for _ in range(2)]
    pair = {f"{ADALN}.lora_A.weight": torch.randn(2, 4, generator=source)}
    pair |= {f"{ADALN}.lora_B.weight": torch.randn(128, 2, generator=source), f"{ADALN}.alpha": torch.tensor(1.0)}
    network, strengths = model(), (0.8, -0.3)
    weight, bias = weight_of(network, ADALN).double(), bias_of(network, ADALN).double()
    stacked, wanted, wanted_bias = [], weight.clone(), bias.clone()
    for index, (w, b, strength) in enumerate(zip(new, biases, strengths, strict=True)):
        tensors = pair | {f"{ADALN}.set_weight": w, f"{ADALN}.set_bias": b}
        stacked += changes(write(tmp_path / f"{index}.safetensors", tensors), target(), strength)[ADALN]
        delta = 0.5 * pair[f"{ADALN}.lora_B.weight"].double() @ pair[f"{ADALN}.lora_A.weight"].double()
        wanted += strength * (w.double() - weight + delta)
        wanted_bias += strength * (b.double() - bias)
    with adapted(network, {ADALN: stacked}):
        found, found_bias = weight_of(network, ADALN).double(), bias_of(network, ADALN).double()
    assert float((found - wanted).abs().max()) <= TOLERANCE * float(wanted.abs().max())
    assert float((found_bias - wanted_bias).abs().max()) <= TOLERANCE * float(wanted_bias.abs().max())


def test_whole_tensors_under_diffusers_names_are_put_on_our_rows(tmp_path: Path) -> None:
    """A difference of to_k is the middle third's; fc1's replacement comes value first, its difference too."""
    source = torch.Generator().manual_seed(1)
    inner, ffn = PRUNED.heads * PRUNED.head_dim, PRUNED.ffn
    key = 0.1 * torch.randn(inner, PRUNED.hidden, generator=source)
    value, gate = (torch.randn(ffn, PRUNED.hidden, generator=source) for _ in range(2))
    theirs = torch.cat([value, gate])
    path = write(
        tmp_path / "x.safetensors",
        {
            "transformer_blocks.0.attn.to_k.diff": key,
            "transformer_blocks.0.ff.net.0.proj.set_weight": theirs,
            "transformer_blocks.1.ff.net.0.proj.diff": 0.1 * theirs,
        },
    )
    network = model()
    before = {layer: weight_of(network, layer) for layer in ("blocks.0.attn.qkv_proj", "blocks.1.mlp.fc1")}
    with adapted(network, changes(path, target())):
        qkv = before["blocks.0.attn.qkv_proj"].clone()
        qkv[inner : 2 * inner] += key
        torch.testing.assert_close(weight_of(network, "blocks.0.attn.qkv_proj"), qkv, rtol=0, atol=TOLERANCE)
        assert torch.equal(weight_of(network, "blocks.0.mlp.fc1"), torch.cat([gate, value]))
        fc1 = before["blocks.1.mlp.fc1"] + 0.1 * torch.cat([gate, value])
        torch.testing.assert_close(weight_of(network, "blocks.1.mlp.fc1"), fc1, rtol=0, atol=TOLERANCE)


def test_at_strength_nothing_the_network_is_the_very_same(tmp_path: Path) -> None:
    file = turbo_comfyui()
    path = write(tmp_path / "adapter.safetensors", file.tensors, file.metadata)
    network = model()
    modules = list(network.modules())
    with adapted(network, changes(path, target(), 0.0)):
        assert all(one is other for one, other in zip(network.modules(), modules, strict=True))
