"""The formula of a block's widest place beside what is alive in one at the real sizes, tensor by tensor on the meta
device: BF16 and FP8, attention with a workspace and without."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from h3runtime.backends.fused.base import GATED, MODULATED, Form
from h3runtime.backends.linear import fp8, nvfp4_base
from h3runtime.backends.linear.adapted import Change, LowRank, adapted
from h3runtime.backends.linear.base import CallBytes
from h3runtime.backends.linear.nvfp4 import Nvfp4Linear
from h3runtime.denoiser.blocks import AttentionCall
from h3runtime.denoiser.timeline import RowMap
from h3runtime.engine.linear_memory import linear_calls
from h3runtime.engine.memory_formulas import Computing, Steps, Workspace, nothing, sampling_bytes
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.stored import Nvfp4Weight
from h3runtime.quant.tiles import tiled_shape
from tests.denoiser.test_block_ops import CONFIG, LINEARS, ROWS, Quiet, QuietAttention, block

CODED = frozenset({"attn.qkv_proj", "mlp.fc1", "mlp.fc2"})
READERS = frozenset(LINEARS)


class Alive(TorchDispatchMode):
    """Bytes of storages that something refers to, and the most that there were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._users: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            # A view of what was there before, a weight for one, is nothing new.
            if isinstance(tensor, torch.Tensor) and not (func.is_view and self._is_strange(tensor)):
                self._follow(tensor)
        return made

    def _is_strange(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata not in self._users

    def _follow(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._users:
            self._users[key] = 0
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
        self._users[key] += 1
        weakref.finalize(tensor, self._leave, key, storage.nbytes())

    def _leave(self, key: int, nbytes: int) -> None:
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]
            self.now -= nbytes


class Producers(Quiet):
    """Makes no more than it hands out."""

    def swiglu(self, x: torch.Tensor, *, codes: Form | None = None) -> Any:
        return x[:, : x.shape[1] // 2] if codes is None else super().swiglu(x, codes=codes)


class Attention(QuietAttention):
    """With so many bytes a value beside its result."""

    def __init__(self, copies: int) -> None:
        self.copies = copies

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **layout: Any) -> torch.Tensor:
        out = super().attend(q, k, v, **layout)
        held = torch.empty(self.copies * q.numel(), dtype=torch.uint8, device="meta")
        del held
        return out

    def bytes(self, rows: int, heads: int, head_dim: int) -> int:
        return self.copies * rows * heads * head_dim


@pytest.mark.parametrize("copies", [0, 3, 7])
@pytest.mark.parametrize("coded", [False, True], ids=["bf16", "fp8"])
def test_a_block_takes_what_is_estimated(monkeypatch: pytest.MonkeyPatch, coded: bool, copies: int) -> None:
    monkeypatch.setattr(fp8, "_has_kernel", lambda *_: True)
    made, attention = block(coded=coded), Attention(copies)
    table = torch.empty(9, 6 * CONFIG.hidden, dtype=torch.bfloat16, device="meta")
    with torch.no_grad(), Alive() as alive:
        h = torch.empty(ROWS, CONFIG.hidden, dtype=torch.bfloat16, device="meta")
        call = AttentionCall(attention, None, 0, Producers(codes=coded))
        made(h, table, RowMap(((0, ROWS, 0),)), call)
    assert alive.now == h.nbytes, "a block leaves nothing"
    estimated = estimate(coded=coded, attention=attention.bytes if copies else nothing, made=made)
    assert estimated / alive.peak == pytest.approx(1, abs=0.01)


def estimate(*, coded: bool, attention: Workspace, made: Any) -> int:
    """Of a block alone, without what the whole run keeps."""
    linear = {name: made.get_submodule(name) for name in ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")}

    def calls(name: str, rows: int) -> Any:
        return linear[name].backend.call_bytes(linear[name].resident, rows, torch.bfloat16)

    of_codes = CODED if coded else frozenset[str]()
    how = Computing(torch.bfloat16, False, False, linear=calls, attention=attention, coded=of_codes)
    return of_block(how)


def of_block(how: Computing) -> int:
    whole, run = (sampling_bytes(CONFIG, how, Steps(rows, 1, 1, 1, 1)) for rows in (ROWS, 0))
    return whole - run - 2 * 3 * CONFIG.rope_freqs * 2 * ROWS


class Packing(Nvfp4Linear):
    """A product that takes nothing beside its result."""

    def product(self, rows: Nvfp4Rows, weight: Nvfp4Weight) -> torch.Tensor:
        return torch.empty(rows.rows, weight.shape[0], dtype=rows.dtype, device="meta")


class Packers(Producers):
    """Makes no more than the packed rows."""

    def __init__(self, packs: frozenset[str]) -> None:
        super().__init__(codes=False)
        self.packs = packs

    def _made(self, name: str, shape: tuple[int, ...], codes: Form | None) -> Any:
        return super()._made(name, shape, codes) if codes is None else rows_like(*shape)

    def swiglu(self, x: torch.Tensor, *, codes: Form | None = None) -> Any:
        return rows_like(x.shape[0], x.shape[1] // 2) if codes is not None else super().swiglu(x, codes=codes)


def rows_like(rows: int, width: int) -> Nvfp4Rows:
    codes = torch.empty(rows, width // 2, dtype=torch.uint8, device="meta")
    scale = torch.empty(tiled_shape(rows, width // 16), dtype=torch.float8_e4m3fn, device="meta")
    return Nvfp4Rows(codes, scale, torch.empty((), device="meta"), rows, torch.bfloat16)


def as_packer(x: torch.Tensor, *_: Any) -> Nvfp4Rows:
    """Reads rows that lie together."""
    x = x.contiguous()
    return rows_like(*x.shape)


@pytest.mark.parametrize("copies", [0, 7])
@pytest.mark.parametrize("packs", [(), (MODULATED,), (GATED,), (MODULATED, GATED)], ids="+".join)
def test_a_block_in_nvfp4_takes_what_is_estimated(
    monkeypatch: pytest.MonkeyPatch, packs: tuple[str, ...], copies: int
) -> None:
    monkeypatch.setattr(nvfp4_base, "packed", as_packer)
    made, attention = block(coded=False), Attention(copies)
    for name in LINEARS:
        layer = made.get_submodule(name)
        rows, width = layer.resident.shape
        codes = torch.empty(rows, width // 2, dtype=torch.uint8, device="meta")
        scale = torch.empty(tiled_shape(rows, width // 16), dtype=torch.float8_e4m3fn, device="meta")
        layer.resident = Nvfp4Weight(codes, scale, torch.empty((), device="meta"), (rows, width))
        layer.backend = layer.loaded_for = Packing("vortex_native")
        layer.switched = True
    table = torch.empty(9, 6 * CONFIG.hidden, dtype=torch.bfloat16, device="meta")
    producers = Packers(frozenset(packs))
    with torch.no_grad(), Alive() as alive:
        h = torch.empty(ROWS, CONFIG.hidden, dtype=torch.bfloat16, device="meta")
        made(h, table, RowMap(((0, ROWS, 0),)), AttentionCall(attention, None, 0, producers))
    assert alive.now == h.nbytes, "a block leaves nothing"
    handed = frozenset(made.packed_for(producers))
    assert len(handed) == 2 * (MODULATED in packs) + (GATED in packs)
    calls = linear_calls(made, torch.bfloat16, packed=handed)
    workspace = attention.bytes if copies else nothing
    how = Computing(torch.bfloat16, False, False, linear=calls, attention=workspace, packed=handed)
    assert of_block(how) / alive.peak == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("coded", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize("rank", [384, 4096])
def test_a_block_with_an_adapter_takes_what_is_estimated(
    monkeypatch: pytest.MonkeyPatch, rank: int, coded: bool
) -> None:
    """x A^T is held beside a linear's result, and codes beside the values that the branch reads."""
    monkeypatch.setattr(fp8, "_has_kernel", lambda *_: True)
    made = block(coded=coded)
    changes = {name: [(1.0, branch(made.get_submodule(name).resident.shape, rank))] for name in LINEARS}
    linear = {name: made.get_submodule(name) for name in LINEARS}
    table = torch.empty(9, 6 * CONFIG.hidden, dtype=torch.bfloat16, device="meta")
    with torch.no_grad(), adapted(made, changes), Alive() as alive:
        h = torch.empty(ROWS, CONFIG.hidden, dtype=torch.bfloat16, device="meta")
        made(h, table, RowMap(((0, ROWS, 0),)), AttentionCall(QuietAttention(), None, 0, Producers(codes=coded)))

    def calls(name: str, rows: int) -> CallBytes:
        found: CallBytes = linear[name].backend.call_bytes(linear[name].resident, rows, torch.bfloat16)
        return found

    how = Computing(
        torch.bfloat16, False, False, linear=calls, branch_rank=rank, both=READERS if coded else frozenset()
    )
    assert of_block(how) / alive.peak == pytest.approx(1, abs=0.01)


def branch(shape: tuple[int, ...], rank: int) -> Change:
    rows, columns = shape
    down, up = (torch.empty(size, dtype=torch.bfloat16, device="meta") for size in ((rank, columns), (rows, rank)))
    return Change(pairs=(LowRank(down, up, 1.0, ((0, rows, 0),)),))
