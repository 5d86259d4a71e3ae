"""The producers between a block's matrix products: the definition, its faster twin on the CPU, and the choice."""

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from h3runtime.backends.fused.base import FP8, Activation, Form, NormWeight
from h3runtime.backends.fused.cpu import CPU_ROWS, CpuProducers
from h3runtime.backends.fused.definition import QK_ROWS, TorchProducers
from h3runtime.backends.fused.select import choose_producers, producers_choice
from h3runtime.backends.fused.triton import HELD, TritonProducers
from h3runtime.backends.linear.adapted import AdaptedLinear, Change, LowRank, adapted
from h3runtime.backends.linear.base import BackendLinear, install
from h3runtime.backends.linear.fp8 import Fp8Linear, reads_codes
from h3runtime.denoiser.blocks import chunk_rows
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.timeline import RowMap
from h3runtime.errors import BackendUnavailable, InvalidRequest
from h3runtime.quant import fp8
from tests.denoiser import tiny

CPU = torch.device("cpu")
TORCH, FAST = TorchProducers(), CpuProducers()
DTYPES = st.sampled_from([torch.bfloat16, torch.float32])


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def weight(width: int, dtype: torch.dtype) -> NormWeight:
    return NormWeight(1 + random(width, seed=9, dtype=dtype, scale=0.1), 1e-5)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    whole = torch.int16 if a.dtype == torch.bfloat16 else torch.int32
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(whole), b.contiguous().view(whole))


@settings(deadline=None, max_examples=25)
@given(rows=st.integers(1, 40), width=st.integers(1, 300), dtype=DTYPES, scale=st.sampled_from([1e-3, 1.0, 300.0]))
def test_the_cpu_s_norm_is_the_definition_bit_for_bit(rows: int, width: int, dtype: torch.dtype, scale: float) -> None:
    x = random(rows, width, dtype=dtype, scale=scale)
    kept = x.clone()
    assert same_bits(FAST.norm(x, weight(width, dtype)), TORCH.norm(x, weight(width, dtype)))
    assert same_bits(x, kept)


@settings(deadline=None, max_examples=25)
@given(
    rows=st.integers(1, 30),
    heads=st.integers(1, 5),
    turning=st.integers(1, 20),
    tail=st.integers(0, 9),
    dtype=DTYPES,
    turn=st.booleans(),
)
def test_the_cpu_s_rotation_is_the_definition_bit_for_bit(
    rows: int, heads: int, turning: int, tail: int, dtype: torch.dtype, turn: bool
) -> None:
    assert_same_rotation(rows, heads, turning, 2 * turning + tail, dtype, turn)


def test_pieces_of_rows_join_in_both() -> None:
    assert_same_rotation(max(CPU_ROWS, QK_ROWS) + 3, 1, 2, 6, torch.bfloat16, True)


def assert_same_rotation(rows: int, heads: int, turning: int, dim: int, dtype: torch.dtype, turn: bool) -> None:
    angles = torch.rand(rows, turning, generator=torch.Generator().manual_seed(2)) * 6.3
    tables = angles.cos().to(dtype), angles.sin().to(dtype)
    # A view of a wider matrix, as the projection of a model with other layers beside it may give.
    wide = random(rows, 3 * heads * dim + 5, dtype=dtype, scale=2.0)
    norms = weight(dim, dtype), NormWeight(random(dim, seed=4, dtype=dtype), 1e-5)
    made = []
    for family in (TORCH, FAST):
        x = wide.clone()
        qkv = x[:, : 3 * heads * dim].unflatten(-1, (3, heads, dim))
        family.norm_rotate_(qkv, *norms, family.rotary(*tables) if turn else None)
        made.append(x)
    assert same_bits(*made)
    v = made[0][:, 2 * heads * dim :]
    assert same_bits(v, wide[:, 2 * heads * dim :])


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_modulation_and_gates_are_the_definition_bit_for_bit(dtype: torch.dtype, indexed: bool) -> None:
    x, update = random(9, 33, dtype=dtype), random(9, 33, seed=1, dtype=dtype)
    shift, scale, gate = random(4, 99, seed=2, dtype=dtype).chunk(3, -1)
    rows = RowMap((), torch.tensor([3] * 2 + [0] * 7)) if indexed else RowMap(((0, 2, 3), (2, 9, 0)))
    norm = weight(33, dtype)
    wanted = TORCH.norm_modulate(x, norm, shift, scale, rows)
    assert same_bits(FAST.norm_modulate(x, norm, shift, scale, rows), wanted)
    at = [3] * 2 + [0] * 7
    plain = F.rms_norm(x, (33,), norm.weight, norm.eps) * (1 + scale[at]) + shift[at]
    assert same_bits(wanted, plain)
    gated = x.clone()
    assert FAST.add_gated_(gated, update, gate, rows) is gated
    assert same_bits(gated, torch.addcmul(x, update, gate[at]))


@pytest.mark.parametrize("codes", [None, FP8])
def test_a_gate_with_the_norm_after_it_is_the_two_bit_for_bit(codes: Form | None) -> None:
    x, update = random(9, 33), random(9, 33, seed=1)
    shift, scale, gate = random(4, 99, seed=2).chunk(3, -1)
    rows, norm = RowMap(((0, 2, 3), (2, 9, 0))), weight(33, torch.bfloat16)
    for family in (TORCH, FAST):
        added, once = x.clone(), x.clone()
        wanted = family.norm_modulate(
            family.add_gated_(added, update, gate, rows), norm, shift, scale, rows, codes=codes
        )
        got = family.add_gated_norm_modulate(once, update, gate, norm, shift, scale, rows, codes=codes)
        assert same_bits(once, added)
        if isinstance(got, torch.Tensor) and isinstance(wanted, torch.Tensor):
            assert codes is None and same_bits(got, wanted)
        else:
            assert torch.equal(got.codes.view(torch.uint8), wanted.codes.view(torch.uint8))
            assert torch.equal(got.scale, wanted.scale)


def test_swiglu_rounds_twice() -> None:
    x = random(7, 40, scale=3.0)
    gate, value = x.clone().chunk(2, -1)
    for family in (TORCH, FAST):
        assert same_bits(family.swiglu(x.clone()), F.silu(gate) * value)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_forward_has_the_same_bits_with_both(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    packed, model = tiny.layout(), tiny.dit()
    outputs = []
    for family in (TORCH, FAST):
        model.producers = family
        outputs.append(model(tiny.prepare(model, packed, (0.9, 0.0)), *tiny.latents(packed), 0.9))
    torch.set_num_threads(before)
    assert all(same_bits(a, b) for a, b in zip(*outputs, strict=True))


class Coding(TorchProducers):
    """The definition, handing codes on where it can."""

    gives_codes = True

    def __init__(self) -> None:
        super().__init__()
        self.handed: list[str] = []

    def norm_modulate(self, *arguments: Any, codes: Form | None = None) -> Activation:
        self.handed += ["modulated"] * (codes is not None)
        return super().norm_modulate(*arguments, codes=codes)

    def swiglu(self, x: torch.Tensor, *, codes: Form | None = None) -> Activation:
        self.handed += ["activated"] * (codes is not None)
        return super().swiglu(x, codes=codes)

    def encode(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> Activation:
        self.handed.append("encoded" if scale is None else "by one scale")
        return super().encode(x, scale)


def forward(model: Dit, family: TorchProducers) -> torch.Tensor:
    packed, model.producers = tiny.layout(), family
    made = model(tiny.prepare(model, packed, (0.9, 0.0)), *tiny.latents(packed), 0.9)
    return torch.cat([part.flatten() for part in made])


def fp8_model(chunks: int = 1) -> Dit:
    model = tiny.dit(replace(tiny.CONFIG, ffn=48))
    for name, module in list(model.named_modules()):
        if isinstance(module, BackendLinear) and name.startswith("blocks.") and "adaln" not in name:
            install(model, name, Fp8Linear(), module.resident, CPU)
    for block in model.blocks:
        block.mlp.chunks = chunks
    return model


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_linear_that_is_handed_codes_gives_what_it_gives_of_its_own(chunks: int) -> None:
    model, coding = fp8_model(chunks), Coding()
    assert same_bits(forward(model, coding), forward(model, TORCH))
    # fc1 of a chunked MLP takes rows, which are encoded by themselves; the attention's result always is.
    assert set(coding.handed) == {"modulated", "activated", "encoded"}
    assert coding.handed.count("modulated") == (4 if chunks == 1 else 2)
    pieces = -(-tiny.layout().rows // chunk_rows(tiny.layout().rows, chunks))
    assert coding.handed.count("encoded") == (2 if chunks == 1 else 2 + 2 * pieces)


@pytest.mark.parametrize("given", [None, 0.02])
def test_a_linear_stored_in_fp8_is_handed_codes_by_its_own_scale(given: float | None) -> None:
    model, coding = fp8_model(), Coding()
    for block in model.blocks:
        for linear in (block.attn.qkv_proj, block.attn.out_proj, block.mlp.fc1, block.mlp.fc2):
            stored = fp8.quantize(linear.resident.codes.float() * linear.resident.scale.t())
            linear.resident = replace(stored, input_scale=None if given is None else torch.tensor([given]))
    assert same_bits(forward(model, coding), forward(model, TORCH))
    assert coding.handed == ["by one scale"] * (4 * len(model.blocks))


@pytest.mark.parametrize("whole", [False, True])
def test_an_adapted_linear_is_handed_codes_and_what_they_stand_for(whole: bool) -> None:
    model, coding = fp8_model(), Coding()
    names = [f"blocks.{i}.{leaf}" for i in (0, 1) for leaf in ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")]
    changes = {name: [(0.5, change_of(model.get_submodule(name), whole))] for name in names}
    with adapted(model, changes):
        assert same_bits(forward(model, coding), forward(model, TORCH))
    # A weight that an adapter replaces isn't asked for codes' product.
    assert coding.handed == ([] if whole else ["encoded"] * len(names))


def change_of(linear: torch.nn.Module, whole: bool) -> Change:
    rows, width = linear.resident.shape
    if whole:
        return Change(weight=random(rows, width, scale=0.1))
    return Change((LowRank(random(2, width, scale=0.1), random(rows, 2, seed=1), 1.0, ((0, rows, 0),)),))


def test_codes_are_handed_to_nobody_who_also_reads_what_they_stand_for() -> None:
    plain, coding = tiny.dit(), Coding()
    forward(plain, coding)
    assert coding.handed == []
    linear = fp8_model().blocks[0].mlp.fc2
    assert reads_codes(linear)
    scaled = replace(linear.resident, pre_quant_scale=torch.ones(48))
    assert not reads_codes(BackendLinear(linear.backend, scaled))
    assert not reads_codes(AdaptedLinear(linear, []))
    assert not reads_codes(torch.nn.Linear(2, 2))


# The choice.


def test_auto_on_the_cpu_is_the_fast_family_that_changes_nothing() -> None:
    chosen, why = choose_producers("auto", CPU)
    assert chosen.name == "cpu"
    assert why == "auto: the best fused backend that can run on cpu (triton: needs a CUDA device, not cpu)"
    told = producers_choice(chosen, why, CPU)
    assert told.available == ("cpu", "torch")
    assert told.unavailable == {"triton": "needs a CUDA device, not cpu"}


def test_a_family_asked_for_by_name_runs_or_says_why_not() -> None:
    assert choose_producers("torch", CPU)[0].name == "torch"
    with pytest.raises(BackendUnavailable, match="needs a CUDA device"):
        choose_producers("triton", CPU)
    with pytest.raises(InvalidRequest, match="no backend 'cuda'"):
        choose_producers("cuda", CPU)
    assert CpuProducers().why_unavailable(torch.device("cuda:0")) == "made for the CPU"


@pytest.mark.parametrize(
    ("installed", "capability", "told"),
    [
        (True, (9, 0), None),
        (True, (12, 1), None),
        (True, (7, 5), "needs SM 8.0, this is SM 7.5"),
        (False, (9, 0), "the package triton isn't installed"),
    ],
)
def test_triton_is_asked_without_being_imported(
    monkeypatch: pytest.MonkeyPatch, installed: bool, capability: tuple[int, int], told: str | None
) -> None:
    loaded = "triton" in sys.modules
    monkeypatch.setattr("h3runtime.backends.fused.triton.find_spec", lambda _: object() if installed else None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert TritonProducers().why_unavailable(torch.device("cuda:0")) == told
    assert ("triton" in sys.modules) == loaded


def test_the_row_index_is_made_once_for_a_sequence() -> None:
    family, x = TritonProducers(), torch.empty(6, 1)
    first = family._index(RowMap(((0, 2, 5), (2, 6, 1))), x)
    assert first.tolist() == [5, 5, 1, 1, 1, 1]
    assert family._index(RowMap(((0, 2, 5), (2, 6, 1))), x) is first
    assert family._index(RowMap(((0, 6, 1),)), x).tolist() == [1] * 6
    own = torch.arange(6)
    assert family._index(RowMap((), own), x) is own
    for row in range(2 * HELD):
        family._index(RowMap(((0, 6, row),)), x)
    assert len(family._indices) == HELD
