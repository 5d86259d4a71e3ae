"""A file is known by its tensors; a wrong one is refused under its real name."""

import pytest
import torch

from h3runtime.checkpoint import layouts
from h3runtime.checkpoint.embedded import AUDIO_VAE, TEXT_ENCODER, TRANSFORMER, VIDEO_VAE
from h3runtime.checkpoint.families import COMPONENTS, Component, adaln_form, detect_component, require_component
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.errors import CheckpointError
from tests.checkpoint.conftest import Write

SHAPES: dict[Component, layouts.Shapes] = {
    "transformer": layouts.transformer_shapes(TRANSFORMER),
    "text_encoder": layouts.encoder_shapes(TEXT_ENCODER),
    "video_vae": layouts.video_vae_shapes(VIDEO_VAE),
    "audio_vae": layouts.audio_vae_shapes(AUDIO_VAE),
}


@pytest.mark.parametrize("component", list(COMPONENTS))
def test_each_component_is_told_from_its_names(component: Component) -> None:
    assert detect_component(SHAPES[component]) == component


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("diffusion_model.blocks.0.attn.qkv_proj.lora_A.weight", "a LoRA"),
        ("transformer_blocks.0.attn.to_q.weight", "transformer in the Diffusers layout"),
        ("model.language_model.layers.0.mlp.gate_proj.weight", "Hugging Face"),
        ("encoder.down_blocks.0.resnets.0.conv1.weight", "video VAE in the Diffusers layout"),
        ("decoder.conv_pre.weight_g", "weight norm isn't folded"),
        ("decoder.conv_pre.parametrizations.weight.original0", "weight norm isn't folded"),
        ("upscaler.in_blocks.0.in_layers.0.weight", "latent upscaler"),
        ("decoder.22.bias", "preview decoder"),
        ("something.else", "unknown model"),
    ],
)
def test_others_are_named(name: str, what: str) -> None:
    with pytest.raises(CheckpointError, match=what) as caught:
        detect_component({name: (1,)})
    assert "transformer, text_encoder, video_vae, audio_vae" in caught.value.offences[0].legal


def test_a_component_in_another_s_place(write: Write) -> None:
    with CheckpointFile(write({"pre_block.attn.zero_k_bias": torch.zeros(4)})) as file:
        require_component(file, "audio_vae")
        with pytest.raises(CheckpointError, match=r"model.safetensors: is an audio VAE \(legal: a transformer\)"):
            require_component(file, "transformer")
    file = CheckpointFile(write({"lora_unet_x.lora_down.weight": torch.zeros(4)}))
    with file, pytest.raises(CheckpointError, match=r"model.safetensors: looks like a LoRA"):
        require_component(file, "transformer")


def test_the_form_of_adaln() -> None:
    assert adaln_form(SHAPES["transformer"]) == "pruned"
    assert adaln_form(layouts.transformer_shapes(layouts.TransformerSizes(curve=None))) == "full"
