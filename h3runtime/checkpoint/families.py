"""What a file is, told from its tensor names alone; never from its own name (checkpoint-formats §1.2).

Fed with a file's `shapes`; read by `engine` and the command line to refuse a VAE given as a transformer by its real
name. FL2VA and Ref2VA transformers can't be told apart (§2.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from h3runtime.checkpoint.file import CheckpointFile, checkpoint_error
from h3runtime.checkpoint.header import FILE
from h3runtime.errors import CheckpointError, Offence

Component = Literal["transformer", "text_encoder", "video_vae", "audio_vae"]
Shapes = Mapping[str, tuple[int, ...]]

COMPONENTS: Mapping[Component, tuple[str, ...]] = {
    "transformer": ("video_patch_proj.weight", "audio_patch_proj.weight"),
    "text_encoder": ("visual.deepstack_merger_list.0.norm.weight", "model.layers.0.self_attn.q_proj.weight"),
    "video_vae": ("decoder.transformer_blocks.0.scale1", "encoder.down.5.block.0.conv1.weight"),
    "audio_vae": ("pre_block.attn.zero_k_bias",),
}
"""Names that are all there in a file of the component (checkpoint-formats §5, §7). ComfyUI looks for encoder layer 49;
layer 0 serves encoders of any depth."""

TITLES: Mapping[Component, str] = {
    "transformer": "a transformer",
    "text_encoder": "a text encoder",
    "video_vae": "a video VAE",
    "audio_vae": "an audio VAE",
}

FOREIGN: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("a LoRA", lambda n: ".lora_" in n or n.startswith("lora_")),
    ("a transformer in the Diffusers layout", lambda n: n.startswith("transformer_blocks.") and ".attn.to_q." in n),
    ("a text encoder in the Hugging Face layout", lambda n: n.startswith(("model.language_model.", "model.visual."))),
    ("a video VAE in the Diffusers layout", lambda n: n.startswith("encoder.down_blocks.")),
    (
        "an audio VAE whose weight norm isn't folded",
        lambda n: n.endswith((".weight_g", "parametrizations.weight.original0")),
    ),
    ("a latent upscaler", lambda n: n.removeprefix("upscaler.").startswith("in_blocks.0.in_layers.")),
    ("a control branch", lambda n: n.startswith("control_blocks.")),
    ("a preview decoder", lambda n: n == "decoder.22.bias"),
    ("an LTX transformer", lambda n: n.startswith("transformer_blocks.") and ".audio_to_video_attn." in n),
    ("a Wan transformer", lambda n: n.startswith("blocks.") and ".cross_attn." in n),
    ("a Flux transformer", lambda n: n.startswith("double_blocks.")),
)
"""What other files under the same folder usually are, each by one telling name."""


def detect_component(shapes: Shapes) -> Component:
    """Which of the four components has these tensors; CheckpointError that says what else it looks like."""
    for component, names in COMPONENTS.items():
        if all(name in shapes for name in names):
            return component
    looks = next((what for what, tells in FOREIGN if any(tells(name) for name in shapes)), "an unknown model")
    legal = ", ".join(COMPONENTS)
    raise CheckpointError(f"looks like {looks}, not one of {legal}", [Offence(FILE, f"looks like {looks}", legal)])


def require_component(file: CheckpointFile, component: Component) -> None:
    """CheckpointError naming the file if it isn't a `component`."""
    try:
        found = detect_component(file.shapes)
    except CheckpointError as error:
        raise checkpoint_error(file.path, [Offence(FILE, error.message, TITLES[component])]) from None
    if found != component:
        raise checkpoint_error(file.path, [Offence(FILE, f"is {TITLES[found]}", TITLES[component])])


def adaln_form(shapes: Shapes) -> Literal["pruned", "full"]:
    """Whether a transformer's AdaLN is the curve form or the full one (checkpoint-formats §4.2)."""
    return "pruned" if "adaln_t_table" in shapes else "full"
