"""An engine whose weights are all zero and as large as published: for memory, which doesn't depend on their values.

Every tensor is made on the device in the form in which a file of the set would leave it, in a second or two and without
any file: what `synth --full-size` and a load would take minutes for. Zero weights leave the noise as it is, so every
check of a run holds. Does not: say anything about time, or about pictures. Read by `memory_model` and tests/gpu.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import nn

from h3runtime.backends.linear.base import install
from h3runtime.backends.linear.dequant import DequantLinear, install_plain
from h3runtime.checkpoint.rules import TRANSFORMER
from h3runtime.checkpoint.synthetic import layouts
from h3runtime.checkpoint.synthetic.byte_tokenizer import tokenizer_files
from h3runtime.checkpoint.synthetic.made_files import SetSizes
from h3runtime.checkpoint.synthetic.synthesis import FULL, TINY
from h3runtime.conditioning.conditioner import Conditioner
from h3runtime.conditioning.config import TextEncoderConfig
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.conditioning.prompt_cache import PromptCache
from h3runtime.conditioning.tokenizer import PromptTokenizer
from h3runtime.core import ComponentFacts
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit
from h3runtime.engine.conditions.media_cache import MediaCache
from h3runtime.engine.estimating import Estimator
from h3runtime.engine.load import Models, Vaes
from h3runtime.engine.resident import COMPUTE_DTYPE, ResidentEngine
from h3runtime.quant.slices import round_up
from h3runtime.quant.stored import Nvfp4Weight
from h3runtime.settings import resolve
from h3runtime.vae.audio_config import AudioVaeConfig
from h3runtime.vae.audio_vae import AudioVae
from h3runtime.vae.video_config import VideoVaeConfig
from h3runtime.vae.video_vae import VideoVae

Layout = Literal["nvfp4", "bf16"]
Model = TypeVar("Model", bound=nn.Module)
TINY_TOWER = {"vision_num_heads": 2, "deepstack_visual_indexes": [0, 1, 2]}
"""What a tower that nobody published can't tell by its shapes."""
QUANTISED = ("blocks", "model.layers")
"""Where a set's 4-bit linears are."""


def zero_engine(device: str, layout: Layout, data_dir: Path, *, tiny: bool = False) -> ResidentEngine:
    """Ready to generate; both partitions are one and the same transformer. Nothing has been run yet."""
    settings = resolve({"device": device, "data_dir": data_dir, "linear": "dequant"})
    engine = ResidentEngine(settings, profile_memory=True)
    sizes = TINY if tiny else FULL
    maker = _Maker(engine.device, layout)
    dit = maker.made("transformer", lambda: _dit(sizes), COMPUTE_DTYPE)
    encoder = maker.made("text_encoder", lambda: _encoder(sizes, tiny), torch.bfloat16)
    video = maker.made("video_vae", lambda: _video(sizes), torch.float16)
    audio = maker.made("audio_vae", lambda: _audio(sizes), torch.float32)
    vaes = Vaes(video, audio, tuple(maker.facts[2:]))
    other = replace(maker.facts[0], partition="ref2va", bytes=0)
    engine.models = Models({"fl2va": dit, "ref2va": dit}, encoder, vaes, (*maker.facts, other))
    tokenizer = _tokenizer()
    engine.conditioner = Conditioner(tokenizer, encoder, "zero", PromptCache(0))
    engine.media_cache = MediaCache(0)
    engine.estimator = Estimator(engine.models, tokenizer, engine.device)
    return engine


class _Maker:
    """Makes one component after another and keeps the facts about them."""

    def __init__(self, device: torch.device, layout: Layout) -> None:
        self.device, self.layout = device, layout
        self.facts: list[ComponentFacts] = []

    def made(self, component: str, build: Callable[[], Model], dtype: torch.dtype) -> Model:
        with torch.device("meta"):
            module = build()
        module.to(dtype)
        if self.layout == "nvfp4" and component in ("transformer", "text_encoder"):
            self._quantise(module)
        module.to_empty(device=self.device)
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.data.zero_()
        _unit_statistics(module)
        install_plain(module)
        module.eval().requires_grad_(False)
        partition = "fl2va" if component == "transformer" else None
        self.facts.append(ComponentFacts(component, component, "0", self.layout, _bytes(module), 0.0, True, partition))
        return module

    def _quantise(self, module: nn.Module) -> None:
        names = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
        for name in names:
            if name.startswith(QUANTISED) and "adaln" not in name:
                linear = module.get_submodule(name)
                assert isinstance(linear, nn.Linear)
                stored = self._zeros(linear.out_features, linear.in_features)
                switched = TRANSFORMER.switches(name)
                install(module, name, DequantLinear(), stored, self.device, switched=switched)

    def _zeros(self, rows: int, columns: int) -> Nvfp4Weight:
        codes = torch.zeros(round_up(rows, 16), round_up(columns, 16) // 2, dtype=torch.uint8, device=self.device)
        scales = torch.zeros(
            round_up(rows, 128), round_up(round_up(columns, 16) // 16, 4), dtype=torch.uint8, device=self.device
        )
        one = torch.ones((), device=self.device)
        return Nvfp4Weight(codes, scales.view(torch.float8_e4m3fn), one, (rows, columns))


def _unit_statistics(module: nn.Module) -> None:
    """Latents are divided by it."""
    stored = getattr(module, "latents_std", None)
    if isinstance(stored, torch.Tensor):
        stored.fill_(1)


def _bytes(module: nn.Module) -> int:
    """Of its tensors, those inside the resident forms of its linears included."""
    found: list[torch.Tensor] = [*module.parameters(), *module.buffers()]
    for part in module.modules():
        resident = getattr(part, "resident", None)
        if resident is not None:
            fields: Sequence[str] = resident.__slots__
            found += [t for name in fields if isinstance(t := getattr(resident, name), torch.Tensor)]
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in found}.values())


def _dit(sizes: SetSizes) -> Dit:
    return Dit(DitConfig.from_shapes(layouts.transformer_shapes(sizes.transformer)), dtype=COMPUTE_DTYPE)


def _encoder(sizes: SetSizes, tiny: bool) -> TextEncoder:
    overrides = TINY_TOWER if tiny else {}
    return TextEncoder(TextEncoderConfig.from_shapes(layouts.encoder_shapes(sizes.text_encoder), overrides))


def _video(sizes: SetSizes) -> VideoVae:
    return VideoVae(VideoVaeConfig.from_shapes(layouts.video_vae_shapes(sizes.video_vae)), torch.float16)


def _audio(sizes: SetSizes) -> AudioVae:
    return AudioVae(AudioVaeConfig.from_shapes(layouts.audio_vae_shapes(sizes.audio_vae)))


def _tokenizer() -> PromptTokenizer:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in tokenizer_files().items():
            (Path(folder) / name).write_bytes(content)
        return PromptTokenizer.from_folder(Path(folder))
