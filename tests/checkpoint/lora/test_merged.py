"""Adapters in every public layout move weights by what their files say, computed here by other means."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from h3runtime.backends.linear import adapted as linear_adapted
from h3runtime.backends.linear.adapted import AdaptedLinear, Change, LowRank, adapted, is_adapted
from h3runtime.backends.linear.base import BackendLinear, LinearBackend
from h3runtime.backends.linear.fp8 import Fp8Linear, encoded, reads_codes
from h3runtime.backends.linear.select import linear_backends
from h3runtime.backends.linear.switching import switched
from h3runtime.checkpoint.synthetic.adapters import LAYOUTS, adapter
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes
from h3runtime.denoiser.dit import Dit
from h3runtime.quant.stored import PlainWeight
from tests.checkpoint.lora.models import FULL, PRUNED, bias_of, changes, model, stored_as, target, weight_of
from tests.checkpoint.tiny_transformer import FORMATS, SIZES

Deltas = dict[str, torch.Tensor]
ALPHAS = {"resized": 6.0, "bare": 4.0}
"""Of layouts whose files have none: 3 is the commonest rank of `resized`, whatever that of a layer."""
TOLERANCE = 1e-6
BACKENDS = [backend for backend in linear_backends() if backend.why_unavailable(torch.device("cpu")) is None]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    for layout in LAYOUTS:
        adapter(layout, PRUNED).write(folder / f"{layout}.safetensors")
    return {layout: folder / f"{layout}.safetensors" for layout in LAYOUTS}


def our_layer(name: str) -> tuple[str, slice]:
    """By hand: our name of a stored layer, and which of its rows these are."""
    inner = PRUNED.heads * PRUNED.head_dim
    name = name.removeprefix("diffusion_model.")
    if name.startswith("lora_unet_"):
        name = name.removeprefix("lora_unet_").replace("token_refiner_blocks", "token_refiner.blocks")
        name = re.sub(r"blocks_(\d+)_(attn|mlp|adaln_proj)_", r"blocks.\1.\2.", name)
    name = name.replace("token_refiner.refiner_blocks", "token_refiner.blocks").replace("transformer_blocks", "blocks")
    for index, part in enumerate("qkv"):
        if name.endswith(f".to_{part}"):
            return name.replace(f"to_{part}", "qkv_proj"), slice(index * inner, (index + 1) * inner)
    theirs = {"to_out.0": "out_proj", "ff.net.0.proj": "mlp.fc1", "ff.net.2": "mlp.fc2"}
    for old, new in theirs.items():
        name = name.replace(old, new)
    return name, slice(None)


def deltas_of(path: Path, layout: str, sizes: TransformerSizes) -> Deltas:
    """alpha / rank * B A of every layer, on our rows, fp64."""
    tensors = {name: tensor.double() for name, tensor in load_file(path).items()}
    shapes = target(sizes).shapes
    found: Deltas = {}
    for name, down in tensors.items():
        half = re.fullmatch(r"(.+)\.(lora_A|lora_down)(\.default)?(\.weight)?", name)
        if half is None:
            continue
        up_name = name.replace("lora_A", "lora_B").replace("lora_down", "lora_up")
        delta = tensors[up_name] @ down
        rank = down.shape[0]
        if f"{half[1]}.alpha" in tensors:
            delta *= tensors[f"{half[1]}.alpha"] / rank
        elif layout == "diffusers":
            delta *= 0.5
        elif layout == "resized":
            delta *= 2.0
        layer, rows = our_layer(half[1])
        if shapes[f"{layer}.weight"][1] != delta.shape[1]:
            continue
        if "ff.net.0" in half[1]:
            value, gate = delta.chunk(2)
            delta = torch.cat([gate, value])
        if layout == "diffsynth" and layer.endswith("qkv_proj"):
            heads = [delta[i * 3 * sizes.head_dim :][: 3 * sizes.head_dim].chunk(3) for i in range(sizes.heads)]
            delta = torch.cat([head[part] for part in range(3) for head in heads])
        whole = found.setdefault(layer, torch.zeros(shapes[f"{layer}.weight"], dtype=torch.float64))
        whole[rows] += delta
    return found


def assert_moved(network: Dit, before: Mapping[str, torch.Tensor], deltas: Deltas, strength: float = 1.0) -> None:
    for layer, delta in deltas.items():
        wanted = before[layer].double() + strength * delta
        found = weight_of(network, layer).double()
        assert float((found - wanted).abs().max()) <= TOLERANCE * float(wanted.abs().max()), layer


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "bare"])
def test_the_weight_is_moved_by_the_delta(files: Mapping[str, Path], layout: str) -> None:
    network, path = model(), files[layout]
    deltas = deltas_of(path, layout, PRUNED)
    assert len(deltas) >= 9
    before = {layer: weight_of(network, layer) for layer in deltas}
    with adapted(network, changes(path, target(), alpha=ALPHAS.get(layout))):
        assert_moved(network, before, deltas)
    assert all(torch.equal(weight_of(network, layer), before[layer]) for layer in deltas)


def test_adaln_of_the_full_width_moves_a_full_transformer(files: Mapping[str, Path]) -> None:
    network, path = model(FULL), files["bare"]
    deltas = deltas_of(path, "bare", FULL)
    assert "final_layer.adaln_proj.linear" in deltas and "blocks.1.adaln_proj.linear" in deltas
    before = {layer: weight_of(network, layer) for layer in deltas}
    with adapted(network, changes(path, target(FULL), alpha=ALPHAS["bare"])):
        assert_moved(network, before, deltas)


@pytest.mark.parametrize("strength", [0.5, -1.0, 2.0])
def test_strength_scales_the_delta(files: Mapping[str, Path], strength: float) -> None:
    network, path = model(), files["comfyui_turbo"]
    deltas = deltas_of(path, "comfyui_turbo", PRUNED)
    before = {layer: weight_of(network, layer) for layer in deltas}
    with adapted(network, changes(path, target(), strength)):
        assert_moved(network, before, deltas, strength)


def test_the_same_adapter_split_and_fused_moves_the_same(files: Mapping[str, Path]) -> None:
    """A14: q, k and v apart or fused, fc1 either way round. The split one's alpha is half of its rank."""
    network = model()
    fused, split = changes(files["comfyui_turbo"], target()), changes(files["diffusers"], target(), 2.0)
    assert set(fused) == set(split) and len(fused) == 12
    with adapted(network, fused):
        wanted = {layer: weight_of(network, layer) for layer in fused}
    with adapted(network, split):
        for layer, weight in wanted.items():
            apart = (weight_of(network, layer) - weight).abs().max()
            assert float(apart) <= TOLERANCE * float(weight.abs().max()), layer


def test_several_at_once_add_up(files: Mapping[str, Path]) -> None:
    network = model()
    one, other = (deltas_of(files[name], name, PRUNED) for name in ("comfyui_turbo", "kohya"))
    before = {layer: weight_of(network, layer) for layer in one}
    both = {
        layer: [*changes(files["comfyui_turbo"], target())[layer], *changes(files["kohya"], target(), -0.5)[layer]]
        for layer in one
    }
    with adapted(network, both):
        assert_moved(network, before, {layer: one[layer] - 0.5 * other[layer] for layer in one})


@pytest.mark.parametrize("form", FORMATS)
def test_a_quantised_weight_is_moved_as_it_is_stored(tmp_path: Path, form: str) -> None:
    network = stored_as(form, tmp_path / "base.safetensors")
    sizes = SIZES
    path = tmp_path / "adapter.safetensors"
    adapter("pruned", sizes).write(path)
    tensors = load_file(path)
    layers = [f"blocks.0.{leaf}" for leaf in ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")]
    before = {layer: weight_of(network, layer) for layer in layers}
    deltas = {
        layer: tensors[f"{layer}.lora_B.weight"].double() @ tensors[f"{layer}.lora_A.weight"].double()
        for layer in layers
    }
    where = target(sizes)
    mine = {layer: found for layer, found in changes(path, where).items() if layer in layers}
    with adapted(network, mine):
        assert_moved(network, before, deltas)
    assert all(torch.equal(weight_of(network, layer), before[layer]) for layer in layers)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_whatever_multiplies_the_branch_comes_on_top(tmp_path: Path, form: str, backend: LinearBackend[Any]) -> None:
    """Of the same x, which a rotated format turns for its own product alone, and codes round for theirs."""
    layer = stored_as(form, tmp_path / "base.safetensors").get_submodule("blocks.0.mlp.fc1")
    resident = backend.prepare(layer.resident, torch.device("cpu"))
    base = BackendLinear(backend, resident)
    source = torch.Generator().manual_seed(1)
    rows, columns = resident.shape
    down, up = torch.randn(4, columns, generator=source), torch.randn(rows, 4, generator=source)
    x = torch.randn(5, columns, generator=source)
    pair = LowRank(down, up, 0.5, ((0, rows, 0),))
    branch = 0.3 * 0.5 * (x.double() @ down.double().T @ up.double().T)
    found = AdaptedLinear(base, [(0.3, Change((pair,)))])(x).double() - base(x).double()
    assert float((found - branch).abs().max()) <= TOLERANCE * float((base(x).double() + branch).abs().max())


def test_a_block_diagonal_b_is_taken_apart(files: Mapping[str, Path]) -> None:
    """Three products of a third of the rows each, instead of one of all rows whose rest is zeros."""
    layer = "blocks.0.attn.qkv_proj"
    ((_, change),) = changes(files["comfyui_turbo"], target())[layer]
    assert [(pair.down.shape[0], *pair.up.shape) for pair in change.pairs] == [(4, 64, 4)] * 3
    assert [pair.moves for pair in change.pairs] == [((0, 64, 0),), ((0, 64, 64),), ((0, 64, 128),)]
    ((_, dense),) = changes(files["pruned"], target())[layer]
    assert [pair.up.shape for pair in dense.pairs] == [(192, 4)]


def test_what_follows_the_choice_of_backend_keeps_its_names(files: Mapping[str, Path]) -> None:
    """An estimate may be asked for while a run has adapters."""
    network = model()
    for part in network.modules():
        if isinstance(part, BackendLinear):
            part.switched = True
    before = switched(network)
    with adapted(network, changes(files["comfyui_turbo"], target())):
        assert is_adapted(network.get_submodule("blocks.0.attn.qkv_proj"))
        assert switched(network) == before and len(before) > 12
    assert not any(map(is_adapted, network.modules()))


def test_nothing_is_fused_into_an_adapted_layer() -> None:
    """Its branches read the input that a fused producer would have rounded already."""
    base = BackendLinear(Fp8Linear(), encoded(PlainWeight(torch.ones(16, 32))))
    assert reads_codes(base) and not reads_codes(AdaptedLinear(base, []))


def test_replacements_are_exact_at_strength_one_and_stack_by_their_distance(files: Mapping[str, Path]) -> None:
    network, path = model(), files["pruned_complete"]
    layer = "blocks.1.adaln_proj.linear"
    stored = load_file(path)
    new, bias = (stored[f"diffusion_model.{layer}.{leaf}"].float() for leaf in ("weight", "bias"))
    own, own_bias = weight_of(network, layer), bias_of(network, layer)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(3))
    whole = {layer: changes(path, target())[layer]}
    with adapted(network, whole):
        module = network.get_submodule(layer)
        assert torch.equal(module(x), torch.nn.functional.linear(x, new, bias))
    half = changes(path, target(), 0.25)[layer]
    with adapted(network, {layer: [*half, *half]}):
        torch.testing.assert_close(weight_of(network, layer), own + 0.5 * (new - own), rtol=0, atol=2e-6)
        torch.testing.assert_close(bias_of(network, layer), own_bias + 0.5 * (bias - own_bias), rtol=0, atol=1e-6)


def test_a_bank_of_whole_heads_and_one_of_offsets_are_the_same_bank(files: Mapping[str, Path]) -> None:
    network = model()
    heads = load_file(files["pdd"])["proj_out.weight"]
    with adapted(network, changes(files["pdd"], target())):
        whole = network.final_layer.video_out.weight.clone()
        assert network.final_layer.video_out.bank == network.final_layer.audio_out.bank == 32
    assert network.final_layer.video_out.bank == 1
    torch.testing.assert_close(whole.view(32, 16, -1)[0], heads[0], rtol=0, atol=0)
    torch.testing.assert_close(whole.view(32, 16, -1)[1:], heads[1:] - heads[:1], rtol=0, atol=0)
    stacked = changes(files["pdd_comfyui"], target())["final_layer.video_out"]
    with adapted(network, {"final_layer.video_out": stacked}):
        assert network.final_layer.video_out.bank == 32


def test_what_fails_half_way_leaves_nothing_behind(files: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may run out between a head's weight and its bias."""
    network, real = model(), linear_adapted.merged
    before = dict(network.named_parameters()), list(network.modules())

    def failing(own: torch.Tensor, found: Any, *, leaf: str = "weight") -> torch.Tensor:
        if leaf == "bias":
            raise torch.OutOfMemoryError
        return real(own, found, leaf=leaf)

    monkeypatch.setattr(linear_adapted, "merged", failing)
    with pytest.raises(torch.OutOfMemoryError), adapted(network, changes(files["pdd_comfyui"], target())):
        pass
    after = dict(network.named_parameters()), list(network.modules())
    assert after[0].keys() == before[0].keys() and all(after[0][name] is before[0][name] for name in before[0])
    assert all(one is other for one, other in zip(after[1], before[1], strict=True))


def test_a_bank_at_half_strength_is_half_way(files: Mapping[str, Path]) -> None:
    network, path = model(), files["pdd_comfyui"]
    own = network.final_layer.video_out.weight.clone()
    new = load_file(path)["diffusion_model.final_layer.video_out.weight.set_weight"]
    with adapted(network, {"final_layer.video_out": changes(path, target(), 0.5)["final_layer.video_out"]}):
        found = network.final_layer.video_out.weight
        torch.testing.assert_close(found[:16], own + 0.5 * (new[:16] - own), rtol=0, atol=1e-6)
        torch.testing.assert_close(found[16:], 0.5 * new[16:], rtol=0, atol=1e-6)


def test_whole_differences_move_norms_biases_and_projections(files: Mapping[str, Path]) -> None:
    network, path = model(), files["fasth3"]
    stored = load_file(path)
    layers = {
        "blocks.1.norm1": "transformer_blocks.1.norm1",
        "token_refiner.blocks.0.attn.q_norm": "token_refiner.refiner_blocks.0.attn.norm_q",
        "video_patch_proj": "proj_in",
        "final_layer.video_out": "proj_out",
        "final_layer.norm": "norm_out.norm",
    }
    before = {layer: weight_of(network, layer) for layer in layers}
    bias = bias_of(network, "video_patch_proj")
    with adapted(network, changes(path, target(), 0.5)):
        for layer, theirs in layers.items():
            wanted = before[layer] + 0.5 * stored[f"{theirs}.diff"].float()
            torch.testing.assert_close(weight_of(network, layer), wanted, rtol=0, atol=1e-6)
        moved = bias + 0.5 * stored["proj_in.diff_b"].float()
        torch.testing.assert_close(bias_of(network, "video_patch_proj"), moved, rtol=0, atol=1e-6)
    assert all(torch.equal(weight_of(network, layer), before[layer]) for layer in layers)
