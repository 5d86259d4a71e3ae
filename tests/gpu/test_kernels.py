"""The owned Triton kernels on a GPU, at the model's sizes and at ragged ones."""

from importlib import import_module
from typing import Any

import pytest
import torch

from h3runtime.backends.fused.definition import TorchProducers
from h3runtime.backends.fused.triton import TritonProducers
from tests.denoiser import tiny
from tests.gpu.conftest import Note
from tests.parity.dit_case import build

pytestmark = pytest.mark.gpu

SIZES = ((1031, 5376, 56, 128, 48), (7, 48, 2, 32, 12), (33, 200, 3, 128, 48), (130, 2100, 17, 16, 8))
"""Rows, width, heads, head dim, half of what turns: the model's own, and ragged ones."""
DTYPES = (torch.bfloat16, torch.float32)
TILES: tuple[dict[str, Any], ...] = (
    {"plain": True},
    {"plain": True, "keys": 128},
    {"plain": True, "keys": 64, "stages": 3},
    {"plain": True, "queries": 64, "keys": 128, "warps": 4},
)


# Triton is there only where a GPU is: what needs it is imported once one was found.


@pytest.fixture(scope="module")
def producing(cuda: torch.device) -> Any:  # noqa: ARG001
    return import_module("tests.gpu.producer_checks")


@pytest.fixture(scope="module")
def attending(cuda: torch.device) -> Any:  # noqa: ARG001
    return import_module("tests.gpu.attention8_checks")


@pytest.fixture(scope="module")
def hopper(cuda: torch.device) -> torch.device:
    if torch.cuda.get_device_capability(cuda) != (9, 0):
        pytest.skip("no GPU of SM 9.0")
    return cuda


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_producers_are_the_definition(
    cuda: torch.device, producing: Any, note: Note, size: tuple[int, ...], dtype: torch.dtype
) -> None:
    given = producing.inputs(producing.Size(*size), cuda, dtype)
    norm, heads = producing.check_norm_modulate(given), producing.check_norm_rotate(given)
    note(f"norms differ by an ulp in {norm:.1e} and {heads:.1e} of the elements")
    producing.check_swiglu(given, exact=dtype == torch.bfloat16)
    producing.check_gates(given)
    producing.check_gate_and_norm(given)
    producing.check_fp8(given)


def test_silu_has_pytorch_s_bits_for_every_bf16(cuda: torch.device) -> None:
    swiglu_ = TritonProducers().swiglu
    gate = torch.arange(-(2**15), 2**15, device=cuda).to(torch.int16).view(torch.bfloat16)
    gate = gate[torch.isfinite(gate)]
    x = torch.cat([gate, torch.ones_like(gate)]).unsqueeze(0)
    assert torch.equal(swiglu_(x.clone()), TorchProducers().swiglu(x))


def test_a_forward_of_the_network_is_close(cuda: torch.device, note: Note) -> None:
    """bf16, all producers at once; a norm's last bit moves what follows by rounding alone."""
    weights = {name: tensor.to(cuda) for name, tensor in tiny.weights().items()}
    packed, model = tiny.layout(), build(weights, torch.bfloat16, tiny.CONFIG)
    made = []
    for family in (TorchProducers(), TritonProducers()):
        model.producers = family
        prepared = tiny.prepare(model, packed, (0.9, 0.0))
        video, audio = (x.to(cuda) for x in tiny.latents(packed))
        made.append(torch.cat([part.flatten() for part in model(prepared, video, audio, 0.9)]).float())
    off = float((made[0] - made[1]).norm() / made[0].norm())
    note(f"relative L2 of the velocities {off:.1e}")
    assert off < 1e-2


@pytest.mark.parametrize("bias", [0.0, 4.0])
@pytest.mark.parametrize(
    ("batch", "rows", "heads"), [(1, 256, 2), (2, 1000, 3), (1, 1, 1), (1, 129, 1), (1, 4097, 8), (1, 37_810, 2)]
)
def test_attention8_is_its_emulation(
    hopper: torch.device, attending: Any, note: Note, batch: int, rows: int, heads: int, bias: float
) -> None:
    q, k, v = attending.made(batch, rows, heads, hopper, bias=bias)
    attending.check_quantisation(q, k, v, attending.Tile())
    # The tensor cores keep fewer bits of an FP8 sum than fp32 has.
    off = attending.check_attention(q, k, v, attending.Tile(), emulation=0.01)
    note(f"{rows} rows, bias {bias}: {off:.2%} from fp32 attention")
    assert off < 0.04


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("rows", [1, 200, 3000])
def test_every_tile_gives_the_same_attention(
    hopper: torch.device, attending: Any, rows: int, tile: dict[str, Any]
) -> None:
    q, k, v = attending.made(1, rows, 4, hopper)
    attending.check_attention(q, k, v, attending.Tile(**tile), emulation=0.01)


@pytest.mark.parametrize("plain", [False, True])
def test_sums_over_many_keys_keep_their_bits(hopper: torch.device, attending: Any, note: Note, plain: bool) -> None:
    """The tensor cores keep 14 bits of an FP8 sum: with the whole of it left to them, a third would be lost."""
    q, k, v = attending.two_sides(37_810, hopper)
    wide = (x.float().transpose(1, 2) for x in (q[:, :1024], k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(*wide).transpose(1, 2)
    off = attending.relative(attending.attention8(q, k, v, tile=attending.Tile(plain=plain))[:, :1024], wanted)
    note(f"values of one sign, 37,810 keys: {off:.2%}")
    assert off < 0.01


def test_attention8_takes_no_other_shapes(attending: Any, cuda: torch.device) -> None:
    q = torch.zeros(1, 5, 2, 64, dtype=torch.bfloat16, device=cuda)
    with pytest.raises(ValueError, match="q: "):
        attending.attention8(q, q, q)
    q = torch.zeros(1, 5, 2, 128, device=cuda)
    with pytest.raises(ValueError, match="want torch"):
        attending.attention8(q, q, q)
    empty = torch.zeros(1, 0, 2, 128, dtype=torch.bfloat16, device=cuda)
    assert attending.attention8(empty, empty, empty).shape == empty.shape
