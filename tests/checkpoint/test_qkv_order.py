"""Whichever order a transformer's q, k and v rows are in, the same weights are resident; a guess is never silent."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.checkpoint.entries import Span, StoredTensor
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.qkv_rows import Stored, as_contiguous
from h3runtime.checkpoint.qkv_statistics import weigh
from h3runtime.checkpoint.rearrange import halves_swapped, stacked
from h3runtime.errors import CheckpointError
from tests.checkpoint import tiny_transformer as tiny
from tests.checkpoint.conftest import Write


@pytest.mark.parametrize("form", tiny.FORMATS)
def test_both_orders_give_the_same_resident_weights(tmp_path: Path, form: str) -> None:
    """Told by statistics alone, off scales or a few rows; quantised parts arrive bit for bit."""
    weights = tiny.weights()
    paths = {}
    for order, arranged in (("contiguous", weights), ("interleaved", tiny.interleaved(weights))):
        paths[order] = tmp_path / f"{order}.safetensors"
        tiny.write_file(paths[order], tiny.stored(arranged, form))
        with CheckpointFile(paths[order]) as file:
            assert file.qkv is not None and (file.qkv.order, file.qkv.how) == (order, "statistics"), file.qkv
            assert file.warnings == () and "%" in file.qkv.why
    assert tiny.same(tiny.loaded(paths["contiguous"]), tiny.loaded(paths["interleaved"]))


def test_the_rows_of_the_interleaved_file_do_move(write: Write) -> None:
    weights = tiny.weights()
    name = "token_refiner.blocks.1.attn.qkv_proj.weight"
    with CheckpointFile(write(tiny.interleaved(weights))) as file:
        stored = file.source.entries[name]
        assert torch.equal(file.read(name), weights[name])
        assert not torch.equal(file.read_stored(stored), weights[name])


def test_untold_is_taken_as_contiguous_and_said(write: Write) -> None:
    weights = tiny.stored(tiny.weights(trained=False), "bf16")
    with CheckpointFile(write(weights)) as file:
        assert file.qkv is not None and (file.qkv.order, file.qkv.how) == ("contiguous", "assumed")
        assert len(file.warnings) == 1 and "can't be told from statistics; assumed contiguous" in file.warnings[0]
    with CheckpointFile(write(weights, {"h3runtime_synthetic": "1"})) as file:
        assert file.qkv is not None and file.qkv.how == "assumed" and file.warnings == ()


def test_the_switch_decides_and_a_contradiction_is_said(write: Write) -> None:
    weights = tiny.weights()
    path = write(tiny.interleaved(weights))
    with CheckpointFile(path, qkv_order="interleaved") as file:
        assert file.qkv is not None and file.qkv.how == "switch" and file.warnings == ()
    with CheckpointFile(path, qkv_order="contiguous") as file:
        assert file.qkv is not None and file.qkv.order == "contiguous"
        assert "H3_QKV_ORDER=contiguous contradicts the weights" in file.warnings[0]
    untold = write(tiny.interleaved(tiny.weights(trained=False)))
    with CheckpointFile(untold, qkv_order="interleaved") as file:
        assert file.warnings == ()
    assert tiny.same(tiny.loaded(untold, qkv_order="interleaved"), tiny.loaded(write(tiny.weights(trained=False))))


def test_shards_are_interleaved_unless_the_weights_say_no(tmp_path: Path) -> None:
    for trained in (True, False):
        weights = tiny.weights(trained=trained)
        folder = tiny.write_shards(tmp_path / f"raw{trained}", tiny.interleaved(weights))
        with CheckpointFile(folder) as file:
            assert file.layout == "raw_shards" and file.warnings == ()
            assert file.qkv is not None and (file.qkv.order, file.qkv.how) == ("interleaved", "convention")
        path = tmp_path / "file.safetensors"
        tiny.write_file(path, weights)
        assert tiny.same(tiny.loaded(folder), tiny.loaded(path))
    folder = tiny.write_shards(tmp_path / "comfyui", tiny.weights())
    with pytest.raises(CheckpointError, match=r"comfyui: attn.qkv_proj has contiguous .*H3_QKV_ORDER=contiguous"):
        CheckpointFile(folder)
    with CheckpointFile(folder, qkv_order="contiguous") as file:
        assert file.qkv is not None and file.qkv.order == "contiguous" and file.warnings == ()


def test_two_orders_in_one_file_are_refused(write: Write) -> None:
    sizes = tiny.TransformerSizes(**{f: getattr(tiny.SIZES, f) for f in tiny.SIZES.__slots__} | {"refiner_layers": 4})
    weights = tiny.weights(sizes=sizes)
    half = {n: t for n, t in tiny.interleaved(weights).items() if not n.startswith("token_refiner.")}
    with pytest.raises(CheckpointError, match="different orders in one file"):
        CheckpointFile(write(weights | half))


def test_tiles_that_heads_do_not_fill_are_refused(write: Write) -> None:
    sizes = tiny.TransformerSizes(**{f: getattr(tiny.SIZES, f) for f in tiny.SIZES.__slots__} | {"head_dim": 96})
    path = write(tiny.stored(tiny.interleaved(tiny.weights(sizes=sizes)), "nvfp4"))
    with pytest.raises(CheckpointError, match="tiles of 128 rows") as caught:
        CheckpointFile(path)
    assert [o.field for o in caught.value.offences] == [f"blocks.{i}.attn.qkv_proj.weight_scale" for i in range(3)]
    # The same format with the rows in place is no trouble.
    with CheckpointFile(write(tiny.stored(tiny.weights(sizes=sizes), "nvfp4"))) as file:
        assert file.qkv is not None and (file.qkv.order, file.qkv.how) == ("contiguous", "statistics")


def test_one_head_has_no_order(write: Write) -> None:
    sizes = tiny.TransformerSizes(**{f: getattr(tiny.SIZES, f) for f in tiny.SIZES.__slots__} | {"heads": 1})
    with CheckpointFile(write(tiny.weights(sizes=sizes))) as file:
        assert file.qkv is not None and file.qkv.how == "single head" and file.warnings == ()


def test_what_is_no_transformer_has_no_order(write: Write) -> None:
    with CheckpointFile(write({"blocks.0.attn.qkv_proj.weight": torch.zeros(12, 2)})) as file:
        assert file.qkv is None and file.warnings == ()


# The statistics


def levels(blocks: int, heads: int, seed: int, *, spread: float = 0.1) -> torch.Tensor:
    """[B, third, head]."""
    return spread * torch.randn(blocks, 3, heads, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("blocks", "heads"), [(1, 56), (6, 56), (3, 2), (6, 4)])
def test_chance_is_no_verdict(blocks: int, heads: int) -> None:
    for seed in range(300):
        assert weigh(levels(blocks, heads, seed).reshape(blocks, -1)).verdict is None


@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize(("blocks", "heads"), [(1, 56), (6, 56), (3, 4), (6, 2)])
def test_thirds_of_different_size_are_told(blocks: int, heads: int, by_head: bool) -> None:
    found = levels(blocks, heads, 1) + torch.tensor([0.0, -0.2, -0.8])[:, None]
    found = found.transpose(1, 2) if by_head else found
    assert weigh(found.reshape(blocks, -1)).verdict == ("interleaved" if by_head else "contiguous")


@pytest.mark.parametrize("shape", ["slope", "bow"])
def test_a_trend_over_the_heads_is_no_verdict(shape: str) -> None:
    """Interleaved heads whose sizes drift would look like thirds, if thirds were all that was asked about."""
    at = torch.linspace(-1, 1, 56, dtype=torch.float64)
    drift = at if shape == "slope" else at.square()
    found = levels(6, 56, 2, spread=0.02).transpose(1, 2) + drift[:, None]
    evidence = weigh(found.reshape(6, -1))
    assert evidence.contiguous > 0.4 and evidence.verdict is None


def test_a_constant_is_no_verdict() -> None:
    assert weigh(torch.ones(3, 12, dtype=torch.float64)).verdict is None


# The spans


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
def test_spans_of_rows_are_the_permutation(heads: int, width: int, columns: int, cut: int) -> None:
    """For any geometry, also where the stored tensor is itself in pieces."""
    rows = 3 * heads * width
    source = torch.arange(rows * columns, dtype=torch.uint8).reshape(rows, columns)
    size = source.nbytes
    at = size * cut // 4
    pieces = tuple(s for s in (Span(0, 100 + at, 100 + size), Span(1, 7, 7 + at)) if s.nbytes)[::-1]
    name = "blocks.0.attn.qkv_proj.weight"
    entries = {name: StoredTensor(name, torch.uint8, (rows, columns), pieces)}
    signs = {"video_patch_proj.weight": (1,), "audio_patch_proj.weight": (1,), "blocks.0.attn.q_norm.weight": (width,)}
    moved, offences = as_contiguous(Stored(entries, signs | {name: (rows, columns)}, {}, torch.empty))
    files = {0: torch.zeros(100 + size, dtype=torch.uint8), 1: torch.zeros(7 + at, dtype=torch.uint8)}
    files[0][100 + at :], files[1][7:] = source.reshape(-1)[at:], source.reshape(-1)[:at]
    got = torch.cat([files[s.part][s.start : s.stop] for s in moved[name].spans]).reshape(rows, columns)
    want = source.reshape(heads, 3, width, columns).transpose(0, 1).reshape(rows, columns)
    assert torch.equal(got, want) and not offences


def test_halves_and_stacks() -> None:
    one = StoredTensor("a", torch.int16, (4, 3), (Span(0, 10, 34),))
    assert halves_swapped(one).spans == (Span(0, 22, 34), Span(0, 10, 22))
    joined = stacked("qkv", [one, StoredTensor("b", torch.int16, (2, 3), (Span(0, 34, 46),))])
    assert (joined.name, joined.shape, joined.spans) == ("qkv", (6, 3), (Span(0, 10, 46),))
