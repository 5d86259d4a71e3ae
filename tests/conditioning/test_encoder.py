from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from h3runtime.conditioning import layers
from h3runtime.conditioning.language_model import CausalAttention
from h3runtime.conditioning.pieces import Vision
from h3runtime.conditioning.presentation import Markers, Presentation, assemble
from h3runtime.errors import JobCancelled
from tests.conditioning import small
from tests.conditioning.small import picture
from tests.parity.fixture import rel_l2

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


@pytest.mark.parametrize("budget", [200_000, 40_000, 1])
def test_chunks_of_rows_give_the_values_of_the_whole(small_encoder, monkeypatch, budget) -> None:
    """A matmul of another height may add in another order, in linears and in attention: 5e-7 measured over budgets and
    lengths. A budget of nothing takes row by row."""
    given = mixed()
    whole = small_encoder.encode(given).hidden
    monkeypatch.setattr(layers, "CHUNK_BYTES", budget)
    assert rel_l2(small_encoder.encode(given).hidden, whole) <= 1e-6


@pytest.mark.parametrize("length,rows", [(300, [300]), (300, [128, 128, 44]), (3000, [1024, 1024, 952])])
def test_chunked_attention_is_that_of_the_whole(length, rows) -> None:
    """The same kernel over the same keys: masked columns add nothing.

    It multiplies blocks of 32, 64 or 256 rows, and on some processors the order in which such a product adds up depends
    on its height: an Intel one with AMX gives the same bits in all three cases, on an AMD one chunks of 128 differ by
    5e-8.
    """
    attention, generator = CausalAttention(small.CONFIG), torch.Generator().manual_seed(0)
    q = torch.randn(length, small.CONFIG.heads, small.CONFIG.head_dim, generator=generator)
    kept = torch.randn(2, length, small.CONFIG.kv_heads, small.CONFIG.head_dim, generator=generator).unbind()
    whole = attention.attend(q, slice(0, length), kept)
    stops = list(accumulate(rows))
    pieces = [slice(stop - n, stop) for n, stop in zip(rows, stops, strict=True)]
    parts = [attention.attend(q[piece], piece, kept) for piece in pieces]
    assert rel_l2(torch.cat(parts), whole) <= 1.2e-7


@pytest.mark.parametrize(
    "rows,row_bytes,lengths",
    [
        (30_000, 245_760, [2176] * 13 + [1712]),
        (2184, 245_760, [1152, 1032]),
        (2176, 245_760, [2176]),
        (1, 10**12, [1]),
        (3, 2**29, [1, 1, 1]),
        (10, 2**27, [4, 4, 2]),
    ],
)
def test_rows_are_cut_into_chunks_of_the_budget(rows, row_bytes, lengths) -> None:
    chunks = layers.row_chunks(rows, row_bytes)
    assert [c.stop - c.start for c in chunks] == lengths
    assert chunks[0].start == 0 and chunks[-1].stop == rows
    assert all(a.stop == b.start for a, b in pairwise(chunks))


@given(st.integers(1, 60_000), st.integers(1, 2**31))
def test_no_chunk_is_over_the_budget_but_for_a_single_row(rows, row_bytes) -> None:
    longest = max(c.stop - c.start for c in layers.row_chunks(rows, row_bytes))
    assert longest == 1 or longest * row_bytes <= layers.CHUNK_BYTES


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
        hook
        for layer, calls in zip(small_encoder.model.layers, seen, strict=True)
        for hook in (
            layer.register_forward_pre_hook(lambda _module, args, calls=calls: calls.append(args[0].clone())),
            layer.register_forward_hook(lambda _module, _args, out, calls=calls: calls.append(out.clone())),
        )
    ]
    hidden = small_encoder.encode(mixed()).hidden
    for hook in hooks:
        hook.remove()
    following = [*(before for before, _ in seen[1:]), hidden]
    for j, (calls, after) in enumerate(zip(seen, following, strict=True)):
        expected = calls[1]
        if j < len(given.deepstack):
            expected[0, given.vision_rows] += given.deepstack[j]
        assert torch.equal(after, expected)
