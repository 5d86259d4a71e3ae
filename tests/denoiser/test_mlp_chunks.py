"""An MLP in chunks of rows: each chunk's numbers are what the MLP makes of it alone, whatever the rest is."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from h3runtime.checkpoint.synthetic import layouts
from h3runtime.denoiser.blocks import CHUNK_ALIGNMENT, Mlp, chunk_rows
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit
from h3runtime.engine.memory_formulas import Computing, Steps, sampling_bytes
from tests.denoiser.tiny import CONFIG


def mlp(chunks: int) -> Mlp:
    made = Mlp(CONFIG, chunks)
    source = torch.Generator().manual_seed(0)
    for linear in (made.fc1, made.fc2):
        linear.weight = torch.nn.Parameter(torch.randn(linear.weight.shape, generator=source), requires_grad=False)
    return made


def rows(count: int) -> torch.Tensor:
    return torch.randn(count, CONFIG.hidden, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("count", "chunks"), [(600, 2), (600, 4), (129, 2), (7, 3), (1024, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_chunk_is_what_it_is_alone(count: int, chunks: int, dtype: torch.dtype) -> None:
    whole, pieces, x = mlp(1).to(dtype), mlp(chunks).to(dtype), rows(count).to(dtype)
    size = chunk_rows(count, chunks)
    alone = torch.cat([whole(piece) for piece in x.split(size)])
    assert len(x.split(size)) <= chunks
    assert torch.equal(pieces(x.clone()), alone)


@pytest.mark.parametrize("chunks", [2, 3, 8])
def test_chunks_change_no_more_than_the_order_of_additions(chunks: int) -> None:
    x = rows(600)
    torch.testing.assert_close(mlp(chunks)(x.clone()), mlp(1)(x), rtol=1e-5, atol=1e-5)
    gate, value = F.linear(x, mlp(1).fc1.weight).chunk(2, -1)
    torch.testing.assert_close(mlp(1)(x), F.linear(F.silu(gate) * value, mlp(1).fc2.weight), rtol=0, atol=0)


def test_a_chunk_is_a_multiple_of_a_tile() -> None:
    assert [chunk_rows(37_810, n) for n in (1, 2, 4, 1000)] == [37_888, 18_944, 9_472, CHUNK_ALIGNMENT]


def test_every_block_of_a_dit_has_them() -> None:
    with torch.device("meta"):
        network = Dit(CONFIG, mlp_chunks=4)
    assert [block.mlp.chunks for block in network.blocks] == [4] * CONFIG.layers
    assert all(layer.mlp.chunks == 1 for layer in network.token_refiner.modules() if hasattr(layer, "mlp"))


def test_the_estimate_knows_them() -> None:
    """Of a wide MLP; at the real sizes the attention's place is the wider one already."""
    real = DitConfig.from_shapes(layouts.transformer_shapes(layouts.TransformerSizes()))
    wide = replace(real, ffn=2 * real.ffn)

    def peak(chunks: int) -> int:
        how = Computing(torch.bfloat16, adaln_decoded=False, on_host=False, mlp_chunks=chunks)
        return sampling_bytes(wide, how, Steps(37_810, 100, 1, 1, 1))

    assert peak(1) > peak(2) >= peak(8)
