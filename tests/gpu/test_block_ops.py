"""One block of H3's width on a GPU, op by op: what reaches PyTorch beside products and attention is views alone.

Kernels of our own and of libraries aren't dispatched by PyTorch and don't show; copies that feed them would.
"""

from typing import Any

import pytest
import torch
from torch import nn

from h3runtime.backends.attention.attn8 import H3Attn8Attention
from h3runtime.backends.attention.cudnn_sdpa import CudnnSdpaAttention
from h3runtime.backends.attention.fa4 import Fa4Attention
from h3runtime.backends.attention.facts import device_facts
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.backends.fused.triton import TritonProducers
from h3runtime.backends.linear.base import install
from h3runtime.backends.linear.fp8 import Fp8Linear
from h3runtime.backends.linear.resident import ResidentBf16Linear
from h3runtime.denoiser.blocks import AttentionCall, Block, RmsNorm
from h3runtime.denoiser.timeline import RowMap
from h3runtime.quant.stored import PlainWeight
from tests.denoiser.test_block_ops import CONFIG, LINEARS, Ops
from tests.gpu.conftest import Note

pytestmark = pytest.mark.gpu
ROWS = 1031
MOVES = {"copy_", "clone", "_to_copy", "contiguous", "cat", "index_select", "index", "mul", "add"}
PRODUCTS = {"resident_bf16": "mm", "fp8": "_scaled_mm"}


@pytest.fixture(scope="module", params=["resident_bf16", "fp8"])
def block(cuda: torch.device, request: pytest.FixtureRequest) -> Block:
    with torch.device(cuda):
        made = Block(CONFIG).bfloat16().requires_grad_(False)
    for module in made.modules():
        if isinstance(module, RmsNorm):
            module.weight.fill_(1)
    backend = ResidentBf16Linear() if request.param == "resident_bf16" else Fp8Linear()
    for name in LINEARS:
        linear = made.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        install(made, name, backend, PlainWeight(linear.weight.normal_(std=0.02).detach(), None), cuda)
    return made


@pytest.mark.filterwarnings("ignore")  # libraries warn of themselves when they are imported and compiled
@pytest.mark.parametrize("backend", [SdpaAttention(), CudnnSdpaAttention(), Fa4Attention(), H3Attn8Attention()])
def test_nothing_is_copied_for_a_kernel(cuda: torch.device, block: Block, backend: Any, note: Note) -> None:
    if (why := backend.why_unavailable(device_facts(cuda))) is not None:
        pytest.skip(why)
    producers = TritonProducers()
    table = torch.randn(9, 6 * CONFIG.hidden, device=cuda).bfloat16() * 0.1
    angles = torch.rand(ROWS, 48, device=cuda) * 6.3
    rotary = producers.rotary(angles.cos().bfloat16(), angles.sin().bfloat16())
    rows, call = RowMap(((0, 100, 1), (100, ROWS, 0))), AttentionCall(backend, None, 0, producers, rotary)
    h = torch.randn(ROWS, CONFIG.hidden, device=cuda).bfloat16()
    with torch.no_grad():
        block(h.clone(), table, rows, call)
        x = h.clone()
        with Ops() as ops:
            block(x, table, rows, call)
    assert torch.isfinite(x).all()
    note(f"{backend.name}: {dict(ops.counts)}")
    assert ops.counts[PRODUCTS[block.mlp.fc1.backend.name]] == 4
    if backend.name != "h3_attn8":
        # It quantises by plain operations too, which are its own affair.
        assert not MOVES & set(ops.counts), dict(ops.counts)
