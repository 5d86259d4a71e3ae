"""What a file is, told from its tensor names alone; never from its own name (checkpoint-formats §1.2).

Fed with a file's names or shapes; read by `file`, `engine` and `report`, which refuse a file or describe it under its
real name. FL2VA and Ref2VA transformers can't be told apart (§2.3). Names of other families are those that ComfyUI and
Diffusers recognise them by.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.tensor_file import checkpoint_error
from h3runtime.errors import CheckpointError, Offence

Component = Literal["transformer", "text_encoder", "video_vae", "audio_vae"]
Shapes = Mapping[str, tuple[int, ...]]

H3: Final = "minimax_h3"
COMPONENTS: Final[Mapping[Component, tuple[str, ...]]] = {
    "transformer": ("video_patch_proj.weight", "audio_patch_proj.weight"),
    "text_encoder": ("visual.deepstack_merger_list.0.norm.weight", "model.layers.0.self_attn.q_proj.weight"),
    "video_vae": ("decoder.transformer_blocks.0.scale1", "encoder.down.5.block.0.conv1.weight"),
    "audio_vae": ("pre_block.attn.zero_k_bias",),
}
"""Names that are all there in a file of the component (checkpoint-formats §5, §7). ComfyUI looks for encoder layer 49;
layer 0 serves encoders of any depth."""

LIKELY: Final[Mapping[Component, str]] = {
    "transformer": r"\n\.(video_patch_proj|audio_patch_proj|adaln_t_table|token_refiner|blocks\.\d+\.attn\.qkv_proj)\b",
    "text_encoder": r"\n\.visual\.(deepstack_merger_list|blocks|merger)\.",
    "video_vae": r"\n\.(decoder\.transformer_blocks\.\d+\.attn\.to_qkv|encoder\.down\.5\.block)\.",
    "audio_vae": r"\n\.(pre_block\.attn|decoder\.resblocks\.\d+\.convs1)\.",
}
"""Names by which a component that lacks some of its signs is still known."""

TITLES: Final[Mapping[Component, str]] = {
    "transformer": "a transformer",
    "text_encoder": "a text encoder",
    "video_vae": "a video VAE",
    "audio_vae": "an audio VAE",
}
LEGAL: Final = ", ".join(COMPONENTS)


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of file that can't be loaded. `name` and `component` as in `inspect`, `title` as in errors."""

    name: str
    component: str
    title: str


class Names:
    """Names to look for parts of; a part that starts with a dot is found at the start of a name, too."""

    def __init__(self, names: Iterable[str]) -> None:
        self._text = "".join(f"\n.{name}" for name in names) + "\n"

    def has(self, *parts: str) -> bool:
        return all(part in self._text for part in parts)

    def has_any(self, *parts: str) -> bool:
        return any(part in self._text for part in parts)

    def match(self, pattern: str) -> bool:
        return re.search(pattern, self._text) is not None


Tells = Callable[[Names], bool]


def _all_of(*parts: str) -> Tells:
    return lambda names: names.has(*parts)


def _any_of(*parts: str) -> Tells:
    return lambda names: names.has_any(*parts)


SEPARATE_QKV: Final = Family(H3, "transformer", 'a transformer with separate q, k and v (a "DT" file)')
SEPARATE: Final = r"\.blocks\.\d+\.attn\.(to_)?[qkv](_proj)?\.weight\n"


def _separate_qkv(names: Names) -> bool:
    signs = names.has(".video_patch_proj.weight", ".audio_patch_proj.weight")
    return signs and names.match(SEPARATE) and not names.has(".qkv_proj.")


def _other_qwen(names: Names) -> bool:
    """Published towers have 28, 36 or 64 language layers; H3 takes 50 of the 64 (conditioning contract §1.1)."""
    last = (r"\.layers\.27\.", r"\.layers\.28\."), (r"\.layers\.35\.", r"\.layers\.36\.")
    deep = any(names.match(end) and not names.match(beyond) for end, beyond in last)
    return deep and names.has(".visual.", ".layers.0.self_attn.q_proj.")


FOREIGN: Final[tuple[tuple[Family, Tells], ...]] = (
    (
        Family(H3, "lora", "a LoRA"),
        _any_of(
            *(".lora_A.", ".lora_B.", ".lora_down.", ".lora_up.", ".lora_down\n", ".lora_up\n", "\n.lora_"),
            *(".diff\n", ".diff_b\n", ".set_weight\n"),
        ),
    ),
    (SEPARATE_QKV, _separate_qkv),
    (Family("qwen3_vl", "text_encoder", "a plain Qwen3-VL of another size than H3's"), _other_qwen),
    (Family(H3, "control_branch", "a control branch"), _any_of(".control_blocks.", ".control_proj_in.")),
    (Family(H3, "latent_upscaler", "a latent upscaler"), _all_of(".in_blocks.0.in_layers.")),
    (Family(H3, "preview_decoder", "a preview decoder"), _all_of("\n.decoder.22.bias\n")),
    (
        Family(H3, "audio_vae", "an audio VAE whose weight norm isn't folded"),
        _any_of(".weight_g\n", ".parametrizations.weight.original0\n"),
    ),
    (
        Family("ltx", "transformer", "an LTX transformer"),
        _any_of(
            ".audio_to_video_attn.",
            ".adaln_single.emb.timestep_embedder.linear_1.",
            ".patchify_proj.",
            ".audio_patchify_proj.",
        ),
    ),
    (Family("ltx", "vae", "an LTX VAE"), _any_of(".per_channel_statistics.")),
    (
        Family("hunyuan_video", "transformer", "a HunyuanVideo transformer"),
        _any_of(".txt_in.individual_token_refiner.", ".context_embedder.token_refiner.refiner_blocks."),
    ),
    (
        Family("flux2", "transformer", "a Flux 2 transformer"),
        _any_of(".double_stream_modulation_img."),
    ),
    (
        Family("flux", "transformer", "a Flux transformer"),
        _any_of(".double_blocks.0.", ".single_transformer_blocks.0."),
    ),
    (
        Family("qwen_image", "transformer", "a Qwen-Image transformer"),
        _any_of(".transformer_blocks.0.img_mod."),
    ),
    (
        Family("wan", "transformer", "a Wan transformer"),
        lambda n: n.has(".blocks.0.cross_attn.") or n.has(".blocks.0.attn2.to_q.", ".condition_embedder."),
    ),
    (
        Family("cosmos", "transformer", "a Cosmos transformer"),
        _any_of(".blocks.block0.blocks.0.", ".blocks.0.adaln_modulation_self_attn."),
    ),
    (Family("sd3", "transformer", "a Stable Diffusion 3 transformer"), _any_of(".joint_blocks.0.")),
    (Family("mochi", "transformer", "a Mochi transformer"), _any_of(".t5_yproj.", ".blocks.0.attn.qkv_x.")),
    (
        Family("sdxl", "transformer", "a Stable Diffusion XL model"),
        lambda n: (
            n.has_any(".input_blocks.0.", ".down_blocks.0.resnets.")
            and n.has_any(".label_emb.", ".add_embedding.", ".conditioner.embedders.")
        ),
    ),
    (
        Family("sd", "transformer", "a Stable Diffusion model"),
        lambda n: n.has(".input_blocks.0.") or n.has(".down_blocks.0.resnets.", ".time_embedding."),
    ),
    (Family("other", "vae", "a video VAE in the Diffusers layout"), _any_of(".encoder.down_blocks.")),
    (
        Family("other", "vae", "a VAE of another model"),
        _any_of(".decoder.middle.0.residual.", ".decoder.mid.block_1.", ".decoder.mid_block.", ".decoder.up_blocks."),
    ),
    (
        Family("ltx", "text_encoder", "a Gemma text encoder, as LTX has"),
        _any_of(".post_feedforward_layernorm."),
    ),
    (Family("other", "text_encoder", "a T5 text encoder"), _any_of(".layer.0.SelfAttention.q.")),
    (Family("other", "text_encoder", "a CLIP text encoder"), _any_of(".text_model.encoder.layers.0.")),
    (
        Family("other", "text_encoder", "a text encoder in the Hugging Face layout"),
        _any_of("\n.model.language_model.", "\n.model.visual."),
    ),
    (
        Family("other", "transformer", "a transformer in the Diffusers layout"),
        _any_of(".transformer_blocks.0.attn.to_q.", ".transformer_blocks.0.attn1.to_q."),
    ),
    (
        Family("other", "text_encoder", "a language model without the vision tower that H3 needs"),
        lambda n: n.has(".layers.0.self_attn.q_proj.", ".layers.0.input_layernorm.") and not n.has("\n.visual."),
    ),
)
"""What else is found under the same folders, the most telling first."""

UNKNOWN: Final = Family("unknown", "unknown", "an unknown model")


def component_of(names: Iterable[str]) -> Component | None:
    """Which of the four components these tensors, under our names, are or were meant to be; None if none.

    A component that lacks some of its signs and is nothing else is still one, so that what it lacks can be told.
    """
    found = frozenset(names)
    looked = Names(found)
    sure = next((c for c, signs in COMPONENTS.items() if all(sign in found for sign in signs)), None)
    if sure is not None and not _separate_qkv(looked) and not _other_qwen(looked):
        return sure
    if _foreign(looked) is not None:
        return None
    return next((component for component, pattern in LIKELY.items() if looked.match(pattern)), None)


def foreign_family(names: Iterable[str]) -> Family | None:
    """What can't be loaded and is known by these names; None for a component of ours and for the unknown."""
    found = frozenset(names)
    return None if component_of(found) is not None else _foreign(Names(found))


def _foreign(names: Names) -> Family | None:
    return next((family for family, tells in FOREIGN if tells(names)), None)


def detect_component(shapes: Shapes) -> Component:
    """Which of the four components has these tensors; CheckpointError that says what else it looks like, and which
    tensors can't be had if it is one of ours all the same."""
    component = component_of(shapes)
    if component is not None:
        return component
    family = foreign_family(shapes) or UNKNOWN
    message, looks = f"looks like {family.title}, not one of {LEGAL}", f"looks like {family.title}"
    raise CheckpointError(message, [Offence(FILE, looks, LEGAL), *separate_tensors(shapes, family)])


def separate_tensors(names: Iterable[str], family: Family) -> list[Offence]:
    """Each q, k and v of a "DT" file; none of any other."""
    if family is not SEPARATE_QKV:
        return []
    return [Offence(n, "is apart from its fused qkv_proj") for n in names if re.search(SEPARATE, f".{n}\n")]


def require_component(path: Path, shapes: Shapes, component: Component) -> None:
    """CheckpointError naming the file at `path` if these aren't the tensors of a `component`."""
    try:
        found = detect_component(shapes)
    except CheckpointError as error:
        told = Offence(FILE, error.message, TITLES[component])
        raise checkpoint_error(path, [told, *error.offences[1:]]) from None
    if found != component:
        raise checkpoint_error(path, [Offence(FILE, f"is {TITLES[found]}", TITLES[component])])


def adaln_form(shapes: Shapes) -> Literal["pruned", "full"]:
    """Whether a transformer's AdaLN is the curve form or the full one (checkpoint-formats §4.2)."""
    return "pruned" if "adaln_t_table" in shapes else "full"
