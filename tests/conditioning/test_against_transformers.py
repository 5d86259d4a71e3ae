"""Our encoder beside the public Qwen3-VL: same random weights, same rows, nothing recorded.

The public model applies a final norm; H3 takes the stream before it, so the norm is replaced by the identity here. The
recorded cases pin ComfyUI's own rounding; these pin the structure on other sizes.
"""

import pytest
import torch
from transformers import Qwen3VLConfig, Qwen3VLModel

from h3runtime.conditioning.config import TextEncoderConfig
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.conditioning.mrope import position_ids
from h3runtime.conditioning.pieces import Vision
from h3runtime.conditioning.presentation import Markers, Presentation, assemble
from h3runtime.conditioning.vision_preprocess import patch_rows
from tests.conditioning import small
from tests.conditioning.small import picture
from tests.parity.fixture import rel_l2

VISION_START, VISION_END, IMAGE = 590, 591, 592
FP32 = 1e-5
"""Measured: 0 for text, 6e-7 to 1.1e-6 with pictures."""
BF16 = 2e-2
"""Measured: 7.5e-3 to 1.25e-2 over five seeds and all kinds of presentation."""
KINDS = ["text", "image", "images", "pair"]


def official_config(config: TextEncoderConfig, taps: tuple[int, ...]) -> Qwen3VLConfig:
    vision = config.vision
    return Qwen3VLConfig(
        image_token_id=IMAGE,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
        text_config={
            "vocab_size": config.vocab,
            "hidden_size": config.hidden,
            "intermediate_size": config.intermediate,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.head_dim,
            "rms_norm_eps": config.eps,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": config.rope_theta,
                "mrope_section": list(config.mrope_section),
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": vision.depth,
            "hidden_size": vision.hidden,
            "intermediate_size": vision.intermediate,
            "num_heads": vision.heads,
            "out_hidden_size": vision.out_hidden,
            "num_position_embeddings": vision.positions,
            "deepstack_visual_indexes": list(taps),
        },
    )


def official_key(name: str) -> str:
    """ComfyUI's name -> the release's, inside the public model (conditioning contract §2.1)."""
    return "language_model." + name.removeprefix("model.") if name.startswith("model.") else name


def official_model(state: dict[str, torch.Tensor], dtype: torch.dtype) -> Qwen3VLModel:
    model = Qwen3VLModel(official_config(small.CONFIG, small.VISION.taps)).eval()
    renamed = {official_key(name): tensor.clone() for name, tensor in state.items()}
    missing, unexpected = model.load_state_dict(renamed, strict=False)
    assert (missing, unexpected) == (["language_model.norm.weight"], [])
    model.language_model.norm = torch.nn.Identity()
    # Rotary frequencies stay fp32, as they do when a half-precision file is loaded.
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, torch.nn.Parameter(parameter.to(dtype), requires_grad=False))
    return model


def official_hidden(model: Qwen3VLModel, given: Presentation) -> torch.Tensor:
    ids = torch.from_numpy(given.ids)[None]
    if not given.blocks:
        return model(input_ids=ids).last_hidden_state
    is_vision = torch.zeros_like(ids)
    for block in given.blocks:
        is_vision[0, block.start : block.stop] = 1
    return model(
        input_ids=ids,
        mm_token_type_ids=is_vision.int(),
        pixel_values=torch.cat([patch_rows(block.pixels) for block in given.blocks]),
        image_grid_thw=torch.tensor([(1, *block.grid) for block in given.blocks]),
    ).last_hidden_state


def presentation(kind: str) -> Presentation:
    pieces = {
        "text": [[5, 9, 17, 200, 33, 8, 1]],
        "image": [[5, 9], Vision(picture(96, 160)), [17, 200, 33]],
        "images": [
            Vision(picture(160, 64)),
            Vision(picture(64, 64, seed=1)),
            [1, 2, 3],
            Vision(picture(64, 224, seed=2)),
            [4],
        ],
        "pair": [[5], Vision(picture(96, 64, frames=2)), [7, 7], Vision(picture(96, 64, frames=2, seed=1)), [8]],
    }[kind]
    return assemble(pieces, Markers(start=VISION_START, end=VISION_END, pad=IMAGE))


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    return small.weights(seed=3)


@pytest.fixture(scope="module")
def ours(state) -> TextEncoder:
    return small.encoder(state)


@pytest.fixture(scope="module")
def theirs(state) -> Qwen3VLModel:
    return official_model(state, torch.float32)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_hidden_states_agree_in_fp32(ours, theirs, kind) -> None:
    given = presentation(kind)
    assert rel_l2(ours.encode(given).hidden, official_hidden(theirs, given)) <= FP32


@torch.no_grad()
def test_the_stream_is_taken_before_the_final_norm(ours, theirs) -> None:
    """A final norm, even one of ones, is far from what H3 reads."""
    hidden = official_hidden(theirs, presentation("image"))
    normed = torch.nn.functional.rms_norm(hidden, hidden.shape[-1:], eps=1e-6)
    assert rel_l2(ours.encode(presentation("image")).hidden, normed) > 0.1


@pytest.mark.parametrize("kind", ["image", "images"])
def test_positions_agree(theirs, kind) -> None:
    given = presentation(kind)
    is_vision = torch.zeros(1, given.rows, dtype=torch.int)
    for block in given.blocks:
        is_vision[0, block.start : block.stop] = 1
    grids = torch.tensor([(1, *block.grid) for block in given.blocks])
    expected, _ = theirs.get_rope_index(torch.from_numpy(given.ids)[None], is_vision, image_grid_thw=grids)
    ours = torch.from_numpy(position_ids(given.rows, [(b.start, b.grid) for b in given.blocks]))
    assert torch.equal(ours, expected[:, 0])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_half_precision_throughout_stays_near(state, kind) -> None:
    """The public model rounds every activation to bf16; ours keeps fp32 over the same stored bf16 weights."""
    halved = {name: w.bfloat16() for name, w in state.items()}
    given = presentation(kind)
    public = official_hidden(official_model(halved, torch.bfloat16), given).float()
    assert 1e-3 < rel_l2(small.encoder(halved).encode(given).hidden, public) <= BF16
