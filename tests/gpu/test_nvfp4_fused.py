"""The producers that end in NVFP4 against the BF16 producers and the packer one after the other, bit for bit.

At every row count and width of H3 and of tiny sets, by a scale that is found and by one that is given, with values that
round, saturate, vanish or aren't finite; against the plain definition within an ulp; in a CUDA graph.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from h3_kernels.cuda_library import why_unavailable

from h3runtime.backends.fused.definition import TorchProducers

pytestmark = pytest.mark.gpu

WIDTH, FFN = 5376, 14336
"""dit-contract §1.1."""
ROWS = (1, 15, 16, 17, 127, 128, 129, 4096, 37810)
OTHER_WIDTHS = (16, 48, 256, 272, 512, 768, 1024, 2064, 4096, 4112, 5120, 6144, 6160, 8192, 8208, 16384, 20480)
"""Of tiny sets, and one for every number of warps that a row may have, full and with a tail; the last two are at and
above the largest that the kernels take."""
TABLE_ROWS, EPS = 6, 1e-5
GIVEN = (0.02, 1e-4, 3.0)
"""Tensor scales that have nothing to do with the tensor: of 37,810 normal rows it is about 0.003."""


@pytest.fixture(scope="module")
def fused(cuda: torch.device) -> Any:
    if (why := why_unavailable(torch.cuda.get_device_capability(cuda))) is not None:
        pytest.fail(why)
    return import_module("h3_kernels.nvfp4_fused")


@pytest.fixture(autouse=True)
def freed() -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


class Given:
    """What a norm reads: x and update [S, W]; shift, scale, gate [6, W], views of one table as in the model."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        from h3_kernels.producers import Modulation, Residual

        source = torch.Generator(device).manual_seed(rows * width)

        def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
            made = torch.empty(shape, device=device).normal_(generator=source) * scale
            return made.bfloat16()

        self.x = random(rows, width, scale=3.0)
        self.update = random(rows, width)
        table = random(TABLE_ROWS, 3 * width, scale=0.3)
        shift, scale, self.gate = table.chunk(3, -1)
        index = torch.randint(0, TABLE_ROWS, (rows,), generator=source, device=device, dtype=torch.int32)
        long = rows // 2
        index[:long] = 2
        self.by = Modulation(shift, scale, index)
        self.residual = Residual(self.update, self.gate)
        self.weight = (1 + random(width, scale=0.1)).contiguous()


def same(got: Any, wanted: Any) -> None:
    """Codes, scales with their padding, and the tensor scale."""
    for name in ("tensor_scale", "block_scale", "codes"):
        a, b = (getattr(one, name).reshape(-1).view(torch.uint8) for one in (got, wanted))
        assert a.shape == b.shape
        assert torch.equal(a, b), f"{int((a != b).sum())} of {a.numel()} bytes of {name} differ"


def apart(x: torch.Tensor, scale: torch.Tensor | None) -> Any:
    from h3_kernels import nvfp4

    return nvfp4.pack(x, nvfp4.tensor_scale(x) if scale is None else scale)


def check_norm(fused: Any, given: Given) -> None:
    """With and without the residual, dynamic and static."""
    from h3_kernels import producers

    before = given.x.clone()
    plain = producers.norm_modulate(given.x, given.weight, EPS, given.by)
    added = given.x.clone()
    after = producers.add_gated_norm_modulate(added, given.residual, given.weight, EPS, given.by)
    for scale in (None, *(torch.tensor(one, device=given.x.device) for one in GIVEN)):
        same(fused.norm_modulate_pack(given.x, given.weight, EPS, given.by, scale), apart(plain, scale))
        assert torch.equal(given.x.view(torch.int16), before.view(torch.int16))
        x = given.x.clone()
        made = fused.add_gated_norm_modulate_pack(x, given.residual, given.weight, EPS, given.by, scale)
        same(made, apart(after, scale))
        assert torch.equal(x.view(torch.int16), added.view(torch.int16))


@pytest.mark.parametrize("rows", ROWS)
def test_norms_of_the_model(rows: int, fused: Any, cuda: torch.device) -> None:
    check_norm(fused, Given(rows, WIDTH, cuda))


@pytest.mark.parametrize("width", OTHER_WIDTHS)
def test_norms_of_other_widths(width: int, fused: Any, cuda: torch.device) -> None:
    for rows in (3, 130):
        check_norm(fused, Given(rows, width, cuda))


def test_norms_of_rows_that_lie_apart(fused: Any, cuda: torch.device) -> None:
    """Views with another stride, and those that the kernels leave to the others."""
    given = Given(130, WIDTH, cuda)
    for more, start in ((16, 0), (16, 16), (16, 8), (16, 4), (8, 0)):
        given.x = Given(130, 2 * WIDTH + more, cuda).x[:, start : start + WIDTH]
        check_norm(fused, given)
    even = Given(130, 2 * WIDTH, cuda)
    given.x, given.update = even.x[:, WIDTH:], even.update[:, :WIDTH]
    check_norm(fused, given)
    given.by = type(given.by)(given.by.shift, given.by.scale, given.by.index.long())
    check_norm(fused, given)


def test_norms_of_special_rows(fused: Any, cuda: torch.device) -> None:
    """Zeros of either sign, the smallest and the largest numbers, and what isn't finite in a row of its own."""
    given = Given(200, WIDTH, cuda)
    given.x[3] = 0
    given.x[4] = -0.0
    given.x[5, ::2] = 0
    given.x[6] = 1e-40
    given.x[7] *= 1e-30
    given.x[8] = 1e30
    given.x[9] = 3e38
    given.x[10, 17] = 1e4
    given.weight[32:48] = 0
    given.by.scale[1] = -1.0
    given.by.shift[1, :64] = 0
    given.by.shift[3] = -0.0
    given.update[11] = 0
    check_norm(fused, given)
    for value in (float("inf"), -float("inf"), float("nan")):
        given.x[20, 100] = value
        check_norm(fused, given)
    given.x.zero_()
    given.update.zero_()
    given.by.shift.zero_()
    check_norm(fused, given)


def gates(rows: int, width: int, device: torch.device) -> torch.Tensor:
    """[S, 2F]: normal, at scales from a thousandth to a hundred row by row, some zeros of either sign."""
    source = torch.Generator(device).manual_seed(rows + width)
    x = torch.empty(rows, 2 * width, device=device).normal_(generator=source)
    x *= torch.exp2(torch.empty(rows, 1, device=device).uniform_(-10, 6, generator=source))
    some = torch.empty_like(x).uniform_(generator=source)
    x = torch.where(some < 0.0002, torch.zeros_like(x), x)
    return torch.where(some > 0.9998, torch.full_like(x, -0.0), x).bfloat16()


def check_swiglu(fused: Any, x: torch.Tensor) -> None:
    from h3_kernels import producers

    product = producers.swiglu_(x.clone())
    before = x.clone()
    for scale in (None, *(torch.tensor(one, device=x.device) for one in GIVEN)):
        same(fused.swiglu_pack(x, scale), apart(product, scale))
        assert torch.equal(x.view(torch.int16), before.view(torch.int16))


@pytest.mark.parametrize("rows", ROWS)
def test_swiglu_of_the_model(rows: int, fused: Any, cuda: torch.device) -> None:
    check_swiglu(fused, gates(rows, FFN, cuda))


@pytest.mark.parametrize("width", (16, 48, 256, 272, 512, 768, 4112))
def test_swiglu_of_other_widths(width: int, fused: Any, cuda: torch.device) -> None:
    for rows in (3, 130):
        check_swiglu(fused, gates(rows, width, cuda))
    wide = gates(130, width + 8, cuda)
    check_swiglu(fused, wide[:, : 2 * width])
    check_swiglu(fused, wide[:, 4 : 2 * width + 4])


def test_swiglu_of_every_gate_there_is(fused: Any, cuda: torch.device) -> None:
    """All 65,536 gates, beside others of their kind and among ordinary ones, times values of every size."""
    patterns = torch.arange(65536, device=cuda, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    source = torch.Generator(cuda).manual_seed(3)
    finite = torch.where(torch.isfinite(patterns), patterns, torch.ones_like(patterns))
    for gate in (finite, finite[torch.randperm(65536, device=cuda, generator=source)], patterns):
        for size in (1.0, 1e-20, 1e20):
            value = (torch.empty(65536, device=cuda).normal_(generator=source) * size).bfloat16()
            check_swiglu(fused, torch.cat([gate.reshape(256, 256), value.reshape(256, 256)], 1))


def test_they_are_the_definitions_up_to_the_norms_last_bit(fused: Any, cuda: torch.device) -> None:
    """Before packing: with a scale that makes E2M1 exact for nothing, so by what the BF16 producers give."""
    from h3_kernels import producers

    from h3runtime.backends.fused.base import NormWeight
    from tests.gpu.producer_checks import assert_near

    given, plain = Given(4096, WIDTH, cuda), TorchProducers()
    wanted = plain.norm(given.x, NormWeight(given.weight, EPS))
    assert_near(producers.norm(given.x, given.weight, EPS), wanted)
    x = gates(512, FFN, cuda)
    product = plain.swiglu(x.clone())
    same(fused.swiglu_pack(x), apart(product.contiguous(), None))


def test_a_graph_holds_them(fused: Any, cuda: torch.device) -> None:
    given, x = Given(129, WIDTH, cuda), gates(129, FFN, cuda)
    first = x.clone()

    def made() -> tuple[Any, ...]:
        return (
            fused.norm_modulate_pack(given.x, given.weight, EPS, given.by),
            fused.add_gated_norm_modulate_pack(given.x, given.residual, given.weight, EPS, given.by),
            fused.swiglu_pack(x),
        )

    made()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = made()
    for scale in (1.0, 0.25):
        given.x.copy_(Given(129, WIDTH, cuda).x * scale)
        x.copy_(first * scale)
        graph.replay()
        got = [type(one)(one.codes.clone(), one.block_scale.clone(), one.tensor_scale.clone()) for one in inside]
        given.x.copy_(Given(129, WIDTH, cuda).x * scale)
        x.copy_(first * scale)
        for a, b in zip(got, made(), strict=True):
            same(a, b)


def test_no_rows(fused: Any, cuda: torch.device) -> None:
    given = Given(0, WIDTH, cuda)
    made = fused.norm_modulate_pack(given.x, given.weight, EPS, given.by)
    assert made.codes.shape == (0, WIDTH // 2) and float(made.tensor_scale) == 0


def test_what_they_do_not_take(fused: Any, cuda: torch.device) -> None:
    given = Given(4, 64, cuda)
    with pytest.raises(TypeError, match=r"torch\.float32; legal: torch\.bfloat16"):
        fused.swiglu_pack(given.x.float())
    with pytest.raises(ValueError, match="multiples of 16"):
        fused.swiglu_pack(given.x[:, :48])
    with pytest.raises(ValueError, match="on cpu; legal: cuda"):
        fused.swiglu_pack(given.x.cpu())
    with pytest.raises(ValueError, match="weight is"):
        fused.norm_modulate_pack(given.x, given.weight[:32], EPS, given.by)
    with pytest.raises(ValueError, match="index is"):
        fused.norm_modulate_pack(given.x[:3], given.weight, EPS, given.by)
    with pytest.raises(TypeError, match="not one float32"):
        fused.norm_modulate_pack(given.x, given.weight, EPS, given.by, torch.ones(2, device=cuda))
