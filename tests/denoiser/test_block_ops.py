"""What a block does beside its products, its attention and its producers: views, and nothing that moves a byte.

Counted op by op on the meta device, with producers and attention that only hand out results of the right shape, in both
lanes: BF16 weights, and FP8 ones whose inputs come as codes. Sizes are the model's, at 37,810 rows.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from h3runtime.backends.fused.base import FP8, Form
from h3runtime.backends.fused.definition import TorchProducers
from h3runtime.backends.linear import fp8
from h3runtime.backends.linear.base import BackendLinear
from h3runtime.backends.linear.fp8 import Fp8Linear, Fp8Rows
from h3runtime.backends.linear.resident import ResidentBf16Linear
from h3runtime.denoiser.blocks import AttentionCall, Block
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.timeline import RowMap
from h3runtime.quant.row_codes import RowCodes
from h3runtime.quant.stored import PlainWeight

ROWS = 37_810
CONFIG = DitConfig(
    hidden=5376,
    layers=1,
    refiner_layers=0,
    heads=56,
    head_dim=128,
    ffn=14336,
    channels=24,
    audio_channels=32,
    text_dim=5120,
    time_dim=8,
    rope_freqs=16,
    curve_grid=9,
)
LINEARS = ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")


class Ops(TorchDispatchMode):
    """Counts what is dispatched and isn't a view; strides: of the operands of products."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.strides: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        if not func.is_view and name != "empty":
            self.counts[name] += 1
            self.strides += [x.stride() for x in args[:2] if isinstance(x, torch.Tensor) and x.dim() == 2]
        return func(*args, **(kwargs or {}))


class Quiet(TorchProducers):
    """Results of the right shapes, and views where a kernel works in place."""

    def __init__(self, *, codes: bool) -> None:
        super().__init__()
        self.gives_codes = codes
        self.calls: Counter[str] = Counter()

    def norm_modulate(self, x: torch.Tensor, *_: Any, codes: Form | None = None) -> Any:
        return self._made("norm_modulate", x.shape, codes)

    def add_gated_norm_modulate(self, x: torch.Tensor, *_: Any, codes: Form | None = None) -> Any:
        return self._made("add_gated_norm_modulate", x.shape, codes)

    def norm_rotate_(self, qkv: torch.Tensor, *_: Any) -> None:
        assert qkv.shape == (ROWS, 3, 56, 128) and qkv.is_contiguous()
        self.calls["norm_rotate_"] += 1

    def swiglu(self, x: torch.Tensor, *, codes: Form | None = None) -> Any:
        made = self._made("swiglu", (x.shape[0], x.shape[1] // 2), codes)
        return x[:, : x.shape[1] // 2] if codes is None else made

    def add_gated_(self, x: torch.Tensor, update: torch.Tensor, *_: Any) -> torch.Tensor:
        assert update.shape == x.shape
        self.calls["add_gated_"] += 1
        return x

    def encode(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> Any:
        assert scale is None
        return self._made("encode", x.shape, FP8)

    def _made(self, name: str, shape: tuple[int, ...], codes: Form | None) -> Any:
        self.calls[f"{name}{' in codes' * (codes is not None)}"] += 1
        if codes is None:
            return torch.empty(shape, dtype=torch.bfloat16, device="meta")
        e4m3 = torch.empty(shape, dtype=torch.float8_e4m3fn, device="meta")
        return RowCodes(e4m3, torch.empty(shape[0], 1, device="meta"), torch.bfloat16)


class QuietAttention:
    name, grade = "quiet", "reference"

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_: Any) -> torch.Tensor:
        for x in (q, k, v):
            assert x.stride()[1:] == (3 * 56 * 128, 128, 1), "views of the projection go in"
        return torch.empty(q.shape, dtype=q.dtype, device="meta")


def block(*, coded: bool) -> Block:
    with torch.device("meta"):
        made = Block(CONFIG).bfloat16()
    for name in LINEARS:
        owner, _, leaf = name.rpartition(".")
        linear = made.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        setattr(made.get_submodule(owner), leaf, _loaded(linear.weight, coded))
    return made


def _loaded(weight: torch.Tensor, coded: bool) -> BackendLinear:
    if not coded:
        return BackendLinear(ResidentBf16Linear(), PlainWeight(weight.detach(), None))
    scale, error = torch.empty(1, weight.shape[0], device="meta"), torch.empty((), device="meta")
    return BackendLinear(Fp8Linear(), Fp8Rows(weight.detach().to(torch.float8_e4m3fn), scale, None, None, error))


@pytest.mark.parametrize("lane", ["exact", "high"])
def test_a_block_moves_nothing_but_by_products_producers_and_attention(
    monkeypatch: pytest.MonkeyPatch, lane: str
) -> None:
    coded = lane == "high"
    monkeypatch.setattr(fp8, "_has_kernel", lambda *_: True)
    made, quiet = block(coded=coded), Quiet(codes=coded)
    h = torch.empty(ROWS, CONFIG.hidden, dtype=torch.bfloat16, device="meta")
    table = torch.empty(9, 6 * CONFIG.hidden, dtype=torch.bfloat16, device="meta")
    with torch.no_grad(), Ops() as ops:
        made(h, table, RowMap(((0, ROWS, 0),)), AttentionCall(QuietAttention(), None, 0, quiet))
    assert ops.counts == {"_scaled_mm" if coded else "mm": 4}
    # Rows of x and of the weight as they lie in memory: nothing is turned or packed for a product.
    assert all(1 in stride for stride in ops.strides) and len(ops.strides) == 8
    told = " in codes" * coded
    assert quiet.calls == {
        f"norm_modulate{told}": 1,
        "norm_rotate_": 1,
        f"add_gated_norm_modulate{told}": 1,
        f"swiglu{told}": 1,
        "add_gated_": 1,
    } | ({"encode in codes": 1} if coded else {})
