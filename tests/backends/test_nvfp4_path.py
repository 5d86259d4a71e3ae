"""NVFP4 activations between a block's producers and its linears: the same bits whether a producer packed or a linear
did, and nobody is handed NVFP4 who doesn't read it; what a start refuses, and who packed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from h3runtime.backends.fused import definition, select
from h3runtime.backends.fused.base import GATED, MODULATED, Activation, Form, NormWeight
from h3runtime.backends.fused.cpu import CpuProducers
from h3runtime.backends.fused.definition import TorchProducers
from h3runtime.backends.fused.select import choose_producers, producer_families, producers_choice, require_fusions
from h3runtime.backends.fused.triton import TritonProducers
from h3runtime.backends.linear import nvfp4_base, nvfp4_emulated, nvfp4_packing
from h3runtime.backends.linear import select as linears
from h3runtime.backends.linear.adapted import AdaptedLinear, adapted
from h3runtime.backends.linear.base import BackendLinear, CallBytes, install
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.backends.linear.facts import LinearFacts
from h3runtime.backends.linear.nvfp4 import Nvfp4Linear
from h3runtime.backends.linear.nvfp4_base import Nvfp4LinearBase, nvfp4_form, packed_bytes, packings_of
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear
from h3runtime.backends.linear.nvfp4_options import Nvfp4Options
from h3runtime.backends.linear.nvfp4_packing import Nvfp4Form, Packings, packed
from h3runtime.backends.linear.select import choose_linear, linear_backends
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.timeline import RowMap
from h3runtime.errors import BackendUnavailable
from h3runtime.quant import nvfp4, slices
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.stored import Nvfp4Weight
from tests.backends.linears import CPU, activations, randn
from tests.backends.test_fused import change_of, forward, same_bits
from tests.denoiser import tiny

CONFIG = replace(tiny.CONFIG, ffn=64)
LEAVES = ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")
BOTH = frozenset({MODULATED, GATED})
LAYERS = CONFIG.layers


def model(backend: Nvfp4LinearBase, *, chunks: int = 1, scale: float | None = None, gate: bool = False) -> Dit:
    """A DiT whose blocks' linears are stored in NVFP4."""
    made = tiny.dit(replace(CONFIG, gate_compress=gate))
    for index, block in enumerate(made.blocks):
        block.mlp.chunks = chunks
        for leaf in LEAVES:
            name = f"blocks.{index}.{leaf}"
            stored = nvfp4.quantize(made.get_submodule(name).resident.weight)
            given = None if scale is None else torch.tensor([scale])
            install(made, name, backend, replace(stored, input_scale=given), CPU, switched=True)
    return made


class Telling(TorchProducers):
    """The definition, which tells what it was asked to pack."""

    def __init__(self, packs: frozenset[str] = BOTH) -> None:
        super().__init__(packs)
        self.forms: list[Form | None] = []

    def norm_modulate(self, *arguments: Any, codes: Form | None = None) -> Activation:
        self.forms.append(codes)
        return super().norm_modulate(*arguments, codes=codes)

    def swiglu(self, x: torch.Tensor, *, codes: Form | None = None) -> Activation:
        self.forms.append(codes)
        return super().swiglu(x, codes=codes)

    @property
    def handed(self) -> int:
        return sum(isinstance(form, Nvfp4Form) for form in self.forms)


@pytest.mark.parametrize("family", [TorchProducers, CpuProducers])
@pytest.mark.parametrize("packs", [frozenset({MODULATED}), frozenset({GATED}), BOTH])
@pytest.mark.parametrize("scale", [None, 3e-3], ids=["dynamic", "static"])
def test_a_producer_s_packing_changes_no_bit(
    family: type[TorchProducers], packs: frozenset[str], scale: float | None
) -> None:
    backend = Nvfp4EmulatedLinear()
    made = model(backend, scale=scale)
    want = forward(made, family())
    assert backend.packings == Packings({"definition": 4 * LAYERS}, 0) and packings_of(made) == [backend.packings]
    before = backend.packings.look()
    assert same_bits(forward(made, family(packs)), want)
    came = LAYERS * (2 * (MODULATED in packs) + (GATED in packs))
    assert backend.packings.since(before) == Packings({"definition": 4 * LAYERS - came}, came)
    assert not same_bits(want, forward(model(backend, scale=1e-2), family()))


def test_chunks_of_the_mlp_are_packed_by_themselves() -> None:
    """fc1 packs rows of its own, by the scale of these alone; fc2's come packed."""
    made, telling = model(Nvfp4EmulatedLinear(), chunks=2), Telling()
    assert same_bits(forward(made, telling), forward(made, TorchProducers()))
    assert telling.handed == LAYERS * 2


@pytest.mark.parametrize("leaf", LEAVES)
@pytest.mark.parametrize("whole", [False, True])
def test_beside_an_adapter_values_are_read_and_elsewhere_nvfp4(leaf: str, whole: bool) -> None:
    made, telling, name = model(Nvfp4EmulatedLinear()), Telling(), f"blocks.0.{leaf}"
    with adapted(made, {name: [(0.5, change_of(made.get_submodule(name), whole))]}):
        assert nvfp4_form(made.get_submodule(name)) is None
        assert same_bits(forward(made, telling), forward(made, TorchProducers()))
    assert telling.handed == 3 * LAYERS - (leaf != "attn.out_proj")


def test_a_layer_with_an_awq_scale_reads_values() -> None:
    made, telling = model(Nvfp4EmulatedLinear()), Telling()
    fc2 = made.blocks[0].mlp.fc2
    fc2.resident = replace(fc2.resident, pre_quant_scale=torch.linspace(0.5, 2, CONFIG.ffn).bfloat16())
    assert same_bits(forward(made, telling), forward(made, TorchProducers()))
    assert telling.handed == 3 * LAYERS - 1


def test_a_gate_of_attention_reads_values() -> None:
    made, telling = model(Nvfp4EmulatedLinear(), gate=True), Telling()
    assert made.blocks[0].attn.gated and "attn.qkv_proj" not in made.blocks[0].packed_for(telling)
    assert same_bits(forward(made, telling), forward(made, TorchProducers()))
    assert telling.handed == 2 * LAYERS


@pytest.mark.parametrize("rows", [1, 15, 17, 127, 129])
def test_rows_that_came_packed_give_what_values_give(rows: int) -> None:
    layer = BackendLinear(Nvfp4EmulatedLinear(), nvfp4.quantize(randn(48, 256, seed=1)))
    x = activations(rows, outliers=True)
    form = nvfp4_form(layer)
    assert form is not None
    came = definition.rounded_to(form, x)
    assert isinstance(came, Nvfp4Rows) and came.codes.shape == (rows, 128)
    assert same_bits(layer(came), layer(x))


def test_slices_of_packed_rows_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = BackendLinear(Nvfp4EmulatedLinear(), nvfp4.quantize(randn(48, 256, seed=1)))
    x = activations(300, outliers=True)
    whole, rows = layer(x), packed(x, None)
    monkeypatch.setattr(nvfp4_emulated, "SLICE_ELEMENTS", 128 * 256)
    monkeypatch.setattr(slices, "SLICE_ELEMENTS", 128 * 256)
    assert same_bits(layer(rows), layer(x))
    assert torch.equal(packed(x, None).codes, rows.codes)
    # A library may add in another order for other rows: an ulp of few.
    assert (layer(x) != whole).float().mean() < 1e-3


def test_zeros_give_zeros() -> None:
    layer = BackendLinear(Nvfp4EmulatedLinear(), nvfp4.quantize(randn(48, 256, seed=1)))
    for x in (torch.zeros(17, 256).bfloat16(), -torch.zeros(17, 256).bfloat16()):
        assert not layer(x).any() and not layer(packed(x, None)).any()
    assert float(nvfp4_packing.found_scale(torch.zeros(3, 16))) == 0


STORED = nvfp4.quantize(randn(48, 256, seed=1))


@pytest.mark.parametrize(
    ("layer", "reads"),
    [
        (BackendLinear(Nvfp4EmulatedLinear("vortex"), STORED), True),
        (BackendLinear(Nvfp4Linear("vortex"), STORED), True),
        (BackendLinear(Nvfp4EmulatedLinear(), replace(STORED, full_precision=True)), False),
        (BackendLinear(Nvfp4EmulatedLinear(), replace(STORED, pre_quant_scale=torch.ones(256))), False),
        (BackendLinear(Nvfp4Linear(), nvfp4.quantize(randn(48, 48, seed=1))), False),
        (BackendLinear(DequantLinear(), STORED), False),
        (AdaptedLinear(BackendLinear(Nvfp4EmulatedLinear(), STORED), []), False),
        (torch.nn.Linear(2, 2), False),
    ],
    ids=["nvfp4", "the real one", "full precision", "AWQ", "a shape it leaves", "decoded", "adapted", "plain"],
)
def test_who_reads_nvfp4(layer: torch.nn.Module, reads: bool) -> None:
    assert nvfp4_form(layer) == (Nvfp4Form(None, "vortex") if reads else None)


# What kernels are asked for, with a device that is played.


class Played:
    """`h3_kernels`' producers and packers: they write down their calls and give results of the right form."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def kernel(self, name: str) -> Callable[..., Any]:
        def call(x: torch.Tensor, *_: Any) -> Any:
            self.calls.append(name)
            assert name not in PACKING or x.dtype in nvfp4_packing.PACKED
            if name not in PACKING:
                return x[:, : x.shape[1] // 2] if name == "swiglu_" else x.clone()
            rows = nvfp4.pack_rows(x[:, : x.shape[1] // 2] if name == "swiglu_pack" else x, torch.tensor(1e-3))
            return SimpleNamespace(codes=rows.codes, block_scale=rows.block_scale, tensor_scale=rows.tensor_scale)

        return call


PACKING = ("norm_modulate_pack", "add_gated_norm_modulate_pack", "swiglu_pack")
VALUES = ("norm_modulate", "add_gated_norm_modulate", "swiglu_")


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 64), (torch.bfloat16, 40), (torch.bfloat16, 64)])
def test_kernels_pack_bf16_in_blocks_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, width: int
) -> None:
    """What they don't take is made first, and packed as the linear would pack it."""
    fake = Played()
    producers = SimpleNamespace(Modulation=lambda *a: a, Residual=lambda *a: a, **{n: fake.kernel(n) for n in VALUES})
    pack = SimpleNamespace(**{name: fake.kernel(name) for name in PACKING})
    kernels = SimpleNamespace(producers=producers, nvfp4_fused=pack)
    for name, module in (("", kernels), (".producers", producers), (".nvfp4_fused", pack)):
        monkeypatch.setitem(__import__("sys").modules, f"h3_kernels{name}", module)
    family, rows = TritonProducers(BOTH), RowMap(((0, 3, 0),))
    x, table = randn(3, width, seed=1).to(dtype), torch.zeros(1, width, dtype=dtype)
    norm, form = NormWeight(torch.ones(width, dtype=dtype), 1e-5), Nvfp4Form(torch.tensor([2e-3]))
    made = [
        family.norm_modulate(x, norm, table, table, rows, codes=form),
        family.add_gated_norm_modulate(x, x, table, norm, table, table, rows, codes=form),
        family.swiglu(randn(3, 2 * width, seed=2).to(dtype), codes=form),
    ]
    assert all(isinstance(one, Nvfp4Rows) and one.rows == 3 and one.dtype is dtype for one in made)
    assert fake.calls == list(PACKING if dtype is torch.bfloat16 and width % 16 == 0 else VALUES)


def test_a_static_scale_goes_to_kernels_as_one_number() -> None:
    scale = Nvfp4Form(torch.tensor([0.5], dtype=torch.float64)).tensor_scale
    assert scale is not None and scale.shape == () and scale.dtype is torch.float32
    assert Nvfp4Form().tensor_scale is None


def test_kernels_read_rows_that_lie_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """SwiGLU leaves half of fc1's rows; the definition reads them where they are."""
    half, seen = activations(3, 64)[:, :32], []
    want = packed(half, None)
    monkeypatch.setattr(nvfp4_packing, "packs_there", lambda *_: True)

    def kitchen(x: torch.Tensor, scale: torch.Tensor) -> Nvfp4Rows:
        seen.append(x.is_contiguous())
        return nvfp4.pack_rows(x, scale)

    monkeypatch.setattr(nvfp4_packing, "_by_kitchen", kitchen)
    assert torch.equal(packed(half, None).codes, want.codes) and seen == [True]


# What a start refuses, by recorded facts.

GB10 = LinearFacts("cuda", (12, 1), (13, 2), "0.2.40", True, cublaslt=130400)
H200 = replace(GB10, capability=(9, 0))
NO_NVCC = "nvcc 12.9 or newer isn't here"


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU for which our CUDA kernels can't be had."""
    for module in (nvfp4_packing, select):
        monkeypatch.setattr(module, "why_no_kernels", lambda _: NO_NVCC)


def on(monkeypatch: pytest.MonkeyPatch, facts: LinearFacts) -> None:
    from h3runtime.backends.linear import nvfp4, nvfp4_cutlass, nvfp4_lt, nvfp4_te

    for module in (linears, nvfp4, nvfp4_lt, nvfp4_cutlass, nvfp4_te, nvfp4_emulated, nvfp4_packing, select):
        monkeypatch.setattr(module, "linear_facts", lambda _: facts)


@pytest.mark.usefixtures("no_kernels")
def test_a_fusion_without_kernels_is_refused_by_its_switch() -> None:
    with pytest.raises(BackendUnavailable) as raised:
        require_fusions(TritonProducers(BOTH), GB10)
    assert [o.field for o in raised.value.offences] == ["H3_NVFP4_MODULATE_FUSION", "H3_NVFP4_SWIGLU_FUSION"]
    assert all(NO_NVCC in o.message and "false" in o.legal for o in raised.value.offences)
    assert "H3_NVFP4_SWIGLU_FUSION=true" in raised.value.message and NO_NVCC in raised.value.message
    require_fusions(TritonProducers(), GB10)
    require_fusions(TorchProducers(BOTH), GB10)


@pytest.mark.usefixtures("no_kernels")
def test_producers_are_chosen_and_refused_by_the_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TritonProducers, "why_unavailable", lambda *_: None)
    for options, switch in (
        (Nvfp4Options(modulate_fusion=True), "H3_NVFP4_MODULATE_FUSION"),
        (Nvfp4Options(swiglu_fusion=True), "H3_NVFP4_SWIGLU_FUSION"),
    ):
        with pytest.raises(BackendUnavailable) as raised:
            choose_producers("triton", CPU, options=options)
        assert [offence.field for offence in raised.value.offences] == [switch]
    assert choose_producers("triton", CPU, options=Nvfp4Options("vortex"))[0].packs == frozenset()


def test_every_family_follows_the_switches() -> None:
    assert {family.packs for family in producer_families()} == {frozenset()}
    assert {f.packs for f in producer_families(Nvfp4Options(modulate_fusion=True))} == {frozenset({MODULATED})}
    both = Nvfp4Options(modulate_fusion=True, swiglu_fusion=True)
    chosen, why = choose_producers("auto", CPU, options=both)
    assert chosen.packs == BOTH
    told = producers_choice(chosen, why, CPU, options=both)
    assert told.notes == {"cpu": "hands NVFP4 on where it made what is gated or modulated"}
    assert producers_choice(CpuProducers(), why, CPU).notes == {}


W4A4 = ("nvfp4", "nvfp4_lt", "nvfp4_cutlass", "nvfp4_te")


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("by", ["vortex", "vortex_native"])
@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_lt", "nvfp4_emulated"])
def test_a_packer_that_can_t_be_had_is_refused_by_its_setting(
    monkeypatch: pytest.MonkeyPatch, name: str, by: Any
) -> None:
    on(monkeypatch, GB10)
    with pytest.raises(BackendUnavailable) as raised:
        choose_linear(name, CPU, linear_backends(Nvfp4Options(by)))
    (offence,) = raised.value.offences
    assert offence.field == "H3_NVFP4_SCALE_BACKEND" and offence.legal == "kitchen, vortex, vortex_native"
    assert offence.message == f"H3_NVFP4_SCALE_BACKEND={by}: {NO_NVCC}"
    assert choose_linear(name, CPU, linear_backends())[0].name == name


def test_every_real_product_needs_its_packer_and_the_emulation_only_another_than_the_default() -> None:
    bare = replace(GB10, kitchen=None)
    told = {b.name: b.why_unpacked(bare) for b in linear_backends() if isinstance(b, Nvfp4LinearBase)}
    assert told == dict.fromkeys(W4A4, "H3_NVFP4_SCALE_BACKEND=kitchen: comfy-kitchen is not installed") | {
        "nvfp4_emulated": None
    }
    (vortex,) = (b for b in linear_backends(Nvfp4Options("vortex")) if isinstance(b, Nvfp4EmulatedLinear))
    assert "comfy-kitchen is not installed" in str(vortex.why_unpacked(bare))
    on_cpu = LinearFacts("cpu")
    assert all(
        b.why_unpacked(on_cpu) is None for b in linear_backends(Nvfp4Options("vortex")) if hasattr(b, "packings")
    )


@pytest.mark.usefixtures("no_kernels")
def test_what_lacks_more_than_a_packer_is_refused_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, H200)
    with pytest.raises(BackendUnavailable) as raised:
        choose_linear("nvfp4", CPU, linear_backends(Nvfp4Options("vortex")))
    assert [o.field for o in raised.value.offences] == ["linear"] and "SM 9.0" in raised.value.message


# Bytes.


def test_packed_bytes_are_what_a_packer_makes() -> None:
    """Codes of whole blocks of 16 rows where comfy-kitchen's packer makes them (checkpoint-formats §3)."""
    for rows in (1, 16, 17, 129):
        made = nvfp4.pack_rows(activations(rows, 64), torch.tensor(1e-3))
        whole = made.codes.nbytes + made.block_scale.nbytes
        assert packed_bytes(rows, 64, "vortex_native") == whole
        assert packed_bytes(rows, 64, "kitchen") == packed_bytes(rows, 64, "vortex") == whole + (-rows % 16) * 32
    assert packed_bytes(37_810, 5376, "vortex_native") == pytest.approx(0.5625 * 37_810 * 5376, rel=0.001)


def test_a_call_takes_its_packed_input_unless_that_came(monkeypatch: pytest.MonkeyPatch) -> None:
    stored, rows, bf16 = nvfp4.quantize(randn(64, 256, seed=1)), 1000, torch.bfloat16
    real, emulated = Nvfp4Linear("vortex_native"), Nvfp4EmulatedLinear("vortex_native")
    own = packed_bytes(rows, 256, "vortex_native")
    assert real.call_bytes(stored, rows, bf16) == CallBytes(own)
    assert real.came_bytes(stored, rows) == CallBytes()
    assert real.view_bytes(stored, rows, bf16) == 2 * 256 * rows and emulated.view_bytes(stored, rows, bf16) == 0
    monkeypatch.setattr(nvfp4_emulated, "packs_there", lambda *_: True)
    assert emulated.view_bytes(stored, rows, bf16) == 2 * 256 * rows
    assert emulated.call_bytes(stored, rows, bf16).held == own + emulated.came_bytes(stored, rows).held
    full: Nvfp4Weight = replace(stored, full_precision=True)
    for backend in (real, emulated):
        assert backend.view_bytes(full, rows, bf16) == 0
        assert backend.call_bytes(full, rows, bf16) == DequantLinear().call_bytes(full, rows, bf16)


def test_nothing_is_counted_of_what_is_decoded() -> None:
    backend = Nvfp4EmulatedLinear()
    backend.apply(activations(3), replace(STORED, full_precision=True))
    assert backend.packings == Packings() and nvfp4_base.packings_of(torch.nn.Linear(2, 2)) == []
