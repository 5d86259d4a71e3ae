import numpy as np
import pytest
import torch
from torch.nn import functional as F

from h3runtime.conditioning import layers
from h3runtime.conditioning.pieces import Vision
from h3runtime.conditioning.presentation import Markers, Presentation, assemble
from h3runtime.errors import JobCancelled
from tests.conditioning import small
from tests.conditioning.small import picture

MARKERS = Markers(start=500, end=501, pad=10**9, empty=502)


def presentation(*pieces) -> Presentation:
    return assemble(pieces, MARKERS)


def mixed() -> Presentation:
    return presentation([1, 2], Vision(picture(64, 96)), [3], Vision(picture(128, 64, 2, seed=1)), [4, 5])


def test_every_row_is_kept_in_fp32(small_encoder) -> None:
    given = mixed()
    features = small_encoder.encode(given)
    assert features.hidden.shape == (1, given.rows, small.CONFIG.hidden)
    assert features.hidden.dtype == torch.float32 and not features.hidden.requires_grad
    assert features.tags.dtype == np.int64 and np.array_equal(features.tags, given.tags)


def test_later_rows_never_change_earlier_ones(small_encoder) -> None:
    short, long = (small_encoder.encode(presentation([1, 2, 3], *more)).hidden for more in ((), ([9], [7, 7])))
    assert torch.allclose(long[:, :3], short, rtol=0, atol=1e-5 * float(short.abs().max()))


def test_a_typed_marker_is_looked_up_like_a_word(small_encoder) -> None:
    given = presentation([500, 7, 501])
    table = small_encoder.model.embed_tokens.weight
    assert torch.equal(small_encoder.language_input(given).embeds[0], table[[500, 7, 501]])


def test_blocks_do_not_see_each_other(small_encoder) -> None:
    a, b = Vision(picture(64, 64)), Vision(picture(64, 64, seed=1))
    alone, after = (small_encoder.language_input(presentation(*p)).embeds[0] for p in ((b,), (a, b)))
    assert torch.equal(after[6:], alone)


def test_stored_half_precision_is_widened_but_for_the_position_table() -> None:
    """The same values in bf16 and fp32 storage differ by the table's rounding alone (conditioning contract §1.7)."""
    halved = {name: w.bfloat16() for name, w in small.weights().items()}
    widened = {name: w.float() for name, w in halved.items()}
    stored, full = small.encoder(halved), small.encoder(widened)
    mixed_table = small.encoder({**widened, "visual.pos_embed.weight": halved["visual.pos_embed.weight"]})
    given = mixed()
    assert torch.equal(stored.encode(given).hidden, mixed_table.encode(given).hidden)
    assert not torch.equal(stored.encode(given).hidden, full.encode(given).hidden)
    text = presentation([1, 2, 3])
    assert torch.equal(stored.encode(text).hidden, full.encode(text).hidden)


def test_a_swapped_embedding_is_called_never_read() -> None:
    """A quantised file's embedding is another module without a weight to read, in another dtype."""

    class Rows(torch.nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return table[ids].bfloat16()

    state = small.weights()
    table = state["model.embed_tokens.weight"].bfloat16()
    plain = small.encoder({**state, "model.embed_tokens.weight": table})
    swapped = small.encoder(state)
    swapped.model.embed_tokens = Rows()
    assert torch.equal(swapped.encode(mixed()).hidden, plain.encode(mixed()).hidden)


def test_attention_is_causal_without_a_mask(small_encoder, monkeypatch) -> None:
    calls = []

    def spy(q, k, v, *args, **kwargs):
        calls.append((q.shape, args, kwargs))
        return F_sdpa(q, k, v, *args, **kwargs)

    F_sdpa = F.scaled_dot_product_attention  # noqa: N806
    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    small_encoder.encode(mixed())
    assert len(calls) == 2 * small.VISION.depth + small.CONFIG.layers
    vision, language = calls[: 2 * small.VISION.depth], calls[2 * small.VISION.depth :]
    assert all(args == () and kwargs == {} and shape[2] in (24, 32) for shape, args, kwargs in vision)
    assert all(args == () and kwargs == {"is_causal": True} for _, args, kwargs in language)
    assert all(len(shape) == 4 for shape, _, _ in calls)


def test_slices_of_rows_give_the_values_of_the_whole(small_encoder, monkeypatch) -> None:
    given = mixed()
    whole = small_encoder.encode(given).hidden
    monkeypatch.setattr(layers, "ROWS_AT_ONCE", 5)
    sliced = small_encoder.encode(given).hidden
    # A matmul of other height may add in another order: the last bits alone.
    assert torch.allclose(sliced, whole, rtol=0, atol=1e-5 * float(whole.abs().max()))


@pytest.mark.parametrize("rows,slices", [(4096, [4096]), (4097, [4096, 1]), (9000, [4096, 4096, 808])])
def test_only_long_inputs_are_sliced(rows, slices) -> None:
    seen = []

    def double(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.shape[-2])
        return 2 * x

    x = torch.randn(1, rows, 3)
    assert torch.equal(layers.in_row_slices(double, x), 2 * x)
    assert seen == slices


@pytest.mark.parametrize("asked", range(2 * small.VISION.depth + small.CONFIG.layers))
def test_a_stop_is_heard_before_every_block_and_layer(small_encoder, asked) -> None:
    answers = iter([False] * asked + [True])
    with pytest.raises(JobCancelled) as caught:
        small_encoder.encode(mixed(), lambda: next(answers))
    assert caught.value.stage == "conditioning"


def test_deepstack_features_land_on_the_vision_rows_after_their_layers(small_encoder) -> None:
    given = small_encoder.language_input(mixed())
    assert given.vision_rows.tolist() == [*range(3, 9), *range(12, 20)]
    assert [tuple(feature.shape) for feature in given.deepstack] == [(14, small.CONFIG.hidden)] * 3
    seen = [[] for _ in small_encoder.model.layers]
    hooks = [
        layer.register_forward_hook(lambda _module, args, out, calls=calls: calls.append((args[0], out)))
        for layer, calls in zip(small_encoder.model.layers, seen, strict=True)
    ]
    hidden = small_encoder.encode(mixed()).hidden
    for hook in hooks:
        hook.remove()
    following = [*(calls[0][0] for calls in seen[1:]), hidden]
    for j, (calls, after) in enumerate(zip(seen, following, strict=True)):
        expected = calls[0][1].clone()
        if j < len(given.deepstack):
            expected[0, given.vision_rows] += given.deepstack[j]
        assert torch.equal(after, expected)
