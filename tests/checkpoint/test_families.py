"""A file is known by its tensors; a wrong one is refused under its real name."""

import pytest
import torch

from h3runtime.checkpoint.families import (
    COMPONENTS,
    Component,
    adaln_form,
    detect_component,
    foreign_family,
    require_component,
)
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.synthetic import layouts
from h3runtime.checkpoint.synthetic.tiny import AUDIO_VAE, TEXT_ENCODER, TRANSFORMER, VIDEO_VAE
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
        ("control_blocks.0.after_proj.weight", "control branch"),
        ("model.diffusion_model.transformer_blocks.0.audio_to_video_attn.to_q.weight", "an LTX transformer"),
        ("model.diffusion_model.audio_patchify_proj.weight", "an LTX transformer"),
        ("vae.per_channel_statistics.mean-of-means", "an LTX VAE"),
        ("model.layers.0.post_feedforward_layernorm.weight", "a Gemma text encoder, as LTX has"),
        ("blocks.0.cross_attn.q.weight", "a Wan transformer"),
        ("model.diffusion_model.double_blocks.0.img_attn.qkv.weight", "a Flux transformer"),
        ("single_transformer_blocks.0.attn.to_q.weight", "a Flux transformer"),
        ("double_stream_modulation_img.lin.weight", "a Flux 2 transformer"),
        ("txt_in.individual_token_refiner.blocks.0.norm1.weight", "a HunyuanVideo transformer"),
        ("transformer_blocks.0.img_mod.1.weight", "a Qwen-Image transformer"),
        ("net.blocks.block0.blocks.0.block.attn.to_q.0.weight", "a Cosmos transformer"),
        ("net.blocks.0.adaln_modulation_self_attn.1.weight", "a Cosmos transformer"),
        ("joint_blocks.0.x_block.attn.qkv.weight", "a Stable Diffusion 3 transformer"),
        ("blocks.0.attn.qkv_x.weight", "a Mochi transformer"),
        ("transformer_blocks.0.attn1.to_q.weight", "a transformer in the Diffusers layout"),
        ("model.diffusion_model.input_blocks.0.0.weight", "a Stable Diffusion model"),
        ("encoder.block.0.layer.0.SelfAttention.q.weight", "a T5 text encoder"),
        ("text_model.encoder.layers.0.self_attn.q_proj.weight", "a CLIP text encoder"),
        ("decoder.mid.block_1.norm1.weight", "a VAE of another model"),
        ("something.else", "unknown model"),
    ],
)
def test_others_are_named(name: str, what: str) -> None:
    with pytest.raises(CheckpointError, match=what) as caught:
        detect_component({name: (1,)})
    assert "transformer, text_encoder, video_vae, audio_vae" in caught.value.offences[0].legal


def test_several_names_tell_what_one_does_not() -> None:
    found = {"model.layers.0.self_attn.q_proj.weight": (1,), "model.layers.0.input_layernorm.weight": (1,)}
    with pytest.raises(CheckpointError, match="a language model without the vision tower"):
        detect_component(found)
    found = {"model.diffusion_model.input_blocks.0.0.weight": (1,), "conditioner.embedders.0.x": (1,)}
    with pytest.raises(CheckpointError, match="a Stable Diffusion XL model"):
        detect_component(found)


@pytest.mark.parametrize("leaf", ["q_proj", "to_q", "q"])
def test_separate_q_k_and_v_are_no_transformer_of_ours(leaf: str) -> None:
    found = {n: s for n, s in SHAPES["transformer"].items() if "qkv_proj" not in n}
    with pytest.raises(CheckpointError, match='separate q, k and v \\(a "DT" file\\)') as caught:
        detect_component(found | {f"blocks.0.attn.{leaf}.weight": (1, 1)})
    assert f"blocks.0.attn.{leaf}.weight" in {o.field for o in caught.value.offences}


@pytest.mark.parametrize("component", list(COMPONENTS))
def test_a_component_that_lacks_a_sign_is_still_known(component: Component) -> None:
    """So that the error names the tensor that is missing, not an unknown model."""
    for sign in COMPONENTS[component]:
        lacking = {name: shape for name, shape in SHAPES[component].items() if name != sign}
        assert detect_component(lacking) == component


def test_our_own_components_are_not_foreign() -> None:
    assert all(foreign_family(shapes) is None for shapes in SHAPES.values())


def test_a_foreign_file_is_named_for_what_it_is_before_its_faults(write: Write) -> None:
    """Packed weights without markers are an everyday sight in others' files."""
    path = write({"blocks.0.cross_attn.q.weight": torch.zeros(4, 4, dtype=torch.uint8)})
    with pytest.raises(CheckpointError, match=r"model\.safetensors: looks like a Wan transformer"):
        CheckpointFile(path)


def test_a_component_in_another_s_place(write: Write) -> None:
    with CheckpointFile(write({"pre_block.attn.zero_k_bias": torch.zeros(4)})) as file:
        require_component(file.path, file.shapes, "audio_vae")
        with pytest.raises(CheckpointError, match=r"model.safetensors: is an audio VAE \(legal: a transformer\)"):
            require_component(file.path, file.shapes, "transformer")
    file = CheckpointFile(write({"lora_unet_x.lora_down.weight": torch.zeros(4)}))
    with file, pytest.raises(CheckpointError, match=r"model.safetensors: looks like a LoRA"):
        require_component(file.path, file.shapes, "transformer")


def test_the_form_of_adaln() -> None:
    assert adaln_form(SHAPES["transformer"]) == "pruned"
    assert adaln_form(layouts.transformer_shapes(layouts.TransformerSizes(curve=None))) == "full"
