"""diffusers 0.42 loads the same files into its own H3 transformer, by its own loader and PEFT: the same network.

`MiniMaxH3LoraLoaderMixin.load_lora_weights` reads every layout that it knows, PEFT wraps its linears, `fuse_lora` adds
what they come to to the weights. These are compared with what adapted linears of ours multiply with, and velocities of
both networks while adapters are beside the weights.
"""

import warnings
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from h3runtime.backends.linear.adapted import adapted
from h3runtime.backends.linear.dequant import install_plain
from h3runtime.checkpoint.synthetic.adapters import MadeAdapter, adapter
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes
from h3runtime.denoiser.dit import Dit
from tests.checkpoint.lora.models import changes, target, weight_of
from tests.denoiser import tiny
from tests.denoiser.test_against_diffusers import FP32_REL, SIGMAS, renamed, their_velocities, theirs
from tests.parity.dit_case import build
from tests.parity.fixture import rel_l2

CONFIG = replace(tiny.CONFIG, head_dim=128)
"""Heads of 128: diffusers takes those of files whose rows lie head by head for granted."""
SIZES = TransformerSizes(
    **{part.name: getattr(CONFIG, part.name) for part in fields(TransformerSizes) if hasattr(CONFIG, part.name)},
    curve=None,
)
LAYOUTS = ("comfyui_turbo", "diffusers", "peft", "bare", "kohya", "diffsynth", "pruned", "resized")
ALPHAS = {"bare": 4.0}
"""Of layouts whose files have none. diffusers takes alpha = rank, which is how it was made."""
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return {name: tensor.float() for name, tensor in tiny.weights(CONFIG).items()}


@pytest.fixture
def pipeline(weights: dict[str, torch.Tensor]):
    """What diffusers' loader needs of a pipeline: the transformer, and no offloading."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from diffusers.loaders.lora_pipeline import MiniMaxH3LoraLoaderMixin
        from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3Transformer3DModel

    class Pipeline(MiniMaxH3LoraLoaderMixin):
        hf_device_map = None

        def __init__(self) -> None:
            self.transformer = theirs(MiniMaxH3Transformer3DModel, CONFIG, weights, torch.float32)
            self.components = {"transformer": self.transformer}

        def load(self, path: Path) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                name = path.stem.replace(".", "_")
                self.load_lora_weights(str(path.parent), weight_name=path.name, adapter_name=name)

    return Pipeline()


def written(layout: str, path: Path, seed: int = 0) -> Path:
    """One file that both sides read by the same rule; in fp32, since diffusers rounds when it folds alphas in."""
    made = adapter("diffusers" if layout == "peft" else layout, SIZES, seed=seed)
    names = {name: tensor.float() for name, tensor in made.tensors.items()}
    if layout == "diffusers":
        # diffusers wants the component's name in front.
        names = {f"transformer.{name}": tensor for name, tensor in names.items()}
    elif layout == "peft":
        names = {name.replace(".weight", ".default.weight"): tensor for name, tensor in names.items()}
    elif layout == "resized":
        # Its alpha is the rank of each layer, which diffusers takes where there is none; ours wants to be told.
        names |= {
            name.replace(".lora_A.weight", ".alpha"): torch.tensor(float(down.shape[0]))
            for name, down in made.tensors.items()
            if name.endswith(".lora_A.weight")
        }
    elif layout == "kohya":
        # A scale of its own for every layer.
        names |= {
            name: torch.tensor(0.5 + index)
            for index, name in enumerate(sorted(name for name in names if name.endswith(".alpha")))
        }
    MadeAdapter(names, made.metadata).write(path)
    return path


def network(weights: dict[str, torch.Tensor]) -> Dit:
    found = build(weights, torch.float32, CONFIG).requires_grad_(False)
    install_plain(found)
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_come_to_the_same_weights(tmp_path: Path, pipeline, weights: dict[str, torch.Tensor], layout: str) -> None:
    path = written(layout, tmp_path / "adapter.safetensors")
    pipeline.load(path)
    pipeline.fuse_lora(components=["transformer"])
    pipeline.unload_lora_weights()
    fused, base = pipeline.transformer.state_dict(), renamed(weights)
    moved = {name for name, tensor in fused.items() if name in base and not torch.equal(tensor, base[name])}
    ours = network(weights)
    found = changes(path, target(SIZES), alpha=ALPHAS.get(layout))
    with adapted(ours, found):
        mine = renamed({f"{layer}.weight": weight_of(ours, layer) for layer in found})
    assert set(mine) == moved and len(moved) >= 18
    for name, weight in mine.items():
        apart = float((weight - fused[name]).abs().max())
        assert apart <= TOLERANCE * float(fused[name].abs().max()), name


@torch.no_grad()
def test_two_beside_the_weights_give_the_same_velocities(
    tmp_path: Path, pipeline, weights: dict[str, torch.Tensor]
) -> None:
    """PEFT adds its branches one after the other, as adapted linears do."""
    strengths = {"comfyui_turbo": 0.7, "kohya": -0.4}
    paths = {name: written(name, tmp_path / f"{name}.safetensors", seed) for seed, name in enumerate(strengths)}
    for path in paths.values():
        pipeline.load(path)
    pipeline.set_adapters(list(strengths), list(strengths.values()))
    ours, packed = network(weights), tiny.layout(references=0, frames=7)
    both: dict[str, list] = {}
    for name, path in paths.items():
        for layer, found in changes(path, target(SIZES), strengths[name]).items():
            both.setdefault(layer, []).extend(found)
    text = tiny.noise(1, packed.text_rows, CONFIG.text_dim, seed=2)
    latents = tiny.latents(packed)
    plain = ours(tiny.prepare(ours, packed), *latents, SIGMAS[0])
    with adapted(ours, both):
        prepared = tiny.prepare(ours, packed)
        for sigma in SIGMAS:
            got = ours(prepared, *latents, sigma)
            want = their_velocities(pipeline.transformer, ours.clock(prepared, sigma), packed, text, *latents)
            for mine, yours in zip(got, want, strict=True):
                assert rel_l2(mine, yours) <= FP32_REL
            if sigma == SIGMAS[0]:
                assert all(rel_l2(mine, before) > 0.01 for mine, before in zip(got, plain, strict=True))
