"""Presentations with pictures and frame pairs -> every stage of the encoder, weights stored bf16 and fp32."""

import torch

from h3runtime.backends.linear.dequant import install_plain
from h3runtime.conditioning.config import TextEncoderConfig
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.conditioning.mrope import position_ids
from h3runtime.conditioning.pieces import Vision
from h3runtime.conditioning.presentation import Markers, Presentation, assemble
from tests.parity.fixture import Fixture, assert_close, assert_equal

# The README's second implementation lands at 9e-7; its bound of 1e-4 would let wrong constants through.
REL = 2e-6


def check(fixture: Fixture) -> None:
    weights = fixture.under("w.")
    stored, widened = encoder(fixture, weights), encoder(fixture, {name: w.float() for name, w in weights.items()})
    check_sizes(fixture, stored.config)
    for i, case in enumerate(fixture.meta["cases"]):
        presentation = presentation_of(fixture, i, case["presentation"])
        assert presentation.rows == case["length"]
        check_case(fixture, f"out.{i}.", presentation, stored)
        hidden = widened.encode(presentation).hidden
        assert_close(f"{i}.hidden_fp32weights", hidden, fixture[f"out.{i}.hidden_fp32weights"], rel=REL)


def check_case(fixture: Fixture, at: str, presentation: Presentation, model: TextEncoder) -> None:
    given = model.language_input(presentation)
    assert_close(f"{at}embeds", given.embeds, fixture[f"{at}embeds"], rel=REL)
    recorded = fixture.under(f"{at}deepstack.")
    assert len(given.deepstack) == len(recorded)
    for j, feature in enumerate(given.deepstack):
        assert_close(f"{at}deepstack.{j}", feature, recorded[str(j)], rel=REL)
    positions = torch.from_numpy(position_ids(presentation.rows, [(b.start, b.grid) for b in presentation.blocks]))
    plain = torch.arange(presentation.rows).float().expand(3, -1)
    wanted = fixture.tensors.get(f"{at}position_ids", plain)
    assert_equal(f"{at}position_ids", positions.float(), wanted)
    layer0 = []
    with model.model.layers[0].register_forward_hook(lambda _module, _args, out: layer0.append(out.clone())):
        features = model.encode(presentation)
    assert_close(f"{at}layer0", layer0[0], fixture[f"{at}layer0"], rel=REL)
    assert_close(f"{at}hidden", features.hidden, fixture[f"{at}hidden"], rel=REL)
    assert features.hidden.dtype == torch.float32
    assert_equal(f"{at}tags", torch.from_numpy(features.tags.copy()), fixture[f"{at}tags"])


def encoder(fixture: Fixture, weights: dict[str, torch.Tensor]) -> TextEncoder:
    vision, language = fixture.meta["vision_config"], fixture.meta["config"]
    overrides = {
        "vision_num_heads": vision["num_heads"],
        "deepstack_visual_indexes": vision["deepstack_visual_indexes"],
        **{name: language[name] for name in ("mrope_section", "rope_theta", "rms_norm_eps")},
    }
    config = TextEncoderConfig.from_shapes({name: tuple(w.shape) for name, w in weights.items()}, overrides)
    with torch.device("meta"):
        model = TextEncoder(config)
    model.load_state_dict(weights, strict=True, assign=True)
    install_plain(model)
    return model


def check_sizes(fixture: Fixture, config: TextEncoderConfig) -> None:
    """What was read off the shapes is what was recorded."""
    language, vision = fixture.meta["config"], fixture.meta["vision_config"]
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (
        language["num_hidden_layers"],
        language["num_attention_heads"],
        language["num_key_value_heads"],
        language["head_dim"],
    )
    assert (config.vision.depth, config.vision.positions) == (vision["depth"], vision["num_position_embeddings"])
    assert (config.eps, config.rope_theta) == (language["rms_norm_eps"], language["rope_theta"])


def presentation_of(fixture: Fixture, case: int, pieces: list) -> Presentation:
    markers = Markers(start=fixture.meta["vision_start_id"], end=fixture.meta["vision_end_id"])
    return assemble(
        [
            content if kind == "text" else Vision(fixture[f"in.{case}.vision.{content}_u8"].numpy())
            for kind, content in pieces
        ],
        markers,
    )
