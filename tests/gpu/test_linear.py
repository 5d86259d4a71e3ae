"""Every linear backend on the accelerator beside its definition on the CPU, at odd row counts and at H3's widths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.gemm import SHAPES, activations
from h3runtime.backends.linear.base import LinearBackend
from h3runtime.backends.linear.dequant import DequantLinear, dense
from h3runtime.backends.linear.facts import linear_facts
from h3runtime.backends.linear.fc2_schedule import SPARK, Fc2Schedule, ScheduledLinear
from h3runtime.backends.linear.fp8 import Fp8Linear, Fp8Rows
from h3runtime.backends.linear.fp8 import definition as fp8_definition
from h3runtime.backends.linear.int8 import Int8Linear, definition, product
from h3runtime.backends.linear.nvfp4 import Nvfp4Linear
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear
from h3runtime.backends.linear.nvfp4_lt import Nvfp4LtLinear
from h3runtime.backends.linear.nvfp4_packing import packed
from h3runtime.backends.linear.resident import Fp32Linear, ResidentBf16Linear
from h3runtime.quant import fp8, int8, nvfp4
from h3runtime.quant.stored import PlainWeight
from tests.backends.linears import error, randn, stored_forms, with_extras

pytestmark = pytest.mark.gpu

M = (1, 15, 16, 17, 127, 128, 129, 4096)
FORMS = stored_forms(512, 768)


def rows_of(count: int, device: torch.device, width: int = 768) -> torch.Tensor:
    return activations(count, width, device)


@pytest.mark.parametrize("form", FORMS)
def test_decoded_once_is_decoded_at_every_call_bit_for_bit(cuda: torch.device, form: str) -> None:
    stored = with_extras(FORMS[form])
    kept, every = ResidentBf16Linear().prepare(stored, cuda), DequantLinear().prepare(stored, cuda)
    for count in M:
        x = rows_of(count, cuda)
        assert torch.equal(ResidentBf16Linear().apply(x, kept), DequantLinear().apply(x, every))
        assert error(Fp32Linear().apply(x, kept), DequantLinear().apply(x, every)) < 0.003


@pytest.mark.parametrize("form", ["bf16", "nvfp4", "fp8"])
def test_fp8_is_its_definition(cuda: torch.device, form: str, note: Any) -> None:
    """Sums of 768 products in another order, and with fewer bits: 3e-3 is a bf16 rounding."""
    backend, worst = Fp8Linear(), 0.0
    assert backend.why_unavailable(cuda) is None
    resident = backend.prepare(FORMS[form], cuda)
    for count in M:
        x = rows_of(count, cuda)
        got = backend.apply(x, resident)
        if isinstance(resident, Fp8Rows):
            codes, scale = fp8.quantize_rows(x)
            wanted = fp8_definition(codes.cpu(), resident.codes.cpu(), scale.cpu(), resident.scale.cpu(), x.dtype)
        else:
            wanted = backend.apply(x.cpu(), backend.prepare(FORMS[form], torch.device("cpu")))
        worst = max(worst, error(got.cpu(), wanted))
    note(f"fp8 from {form}: {worst:.2e} off the definition")
    assert worst < 5e-3


@pytest.mark.parametrize("group", [None, 64, 256])
def test_int8_is_its_definition(cuda: torch.device, group: int | None, note: Any) -> None:
    """comfy-kitchen's kernels, where they are there, divide a BF16 activation in BF16, so some codes are the next ones:
    its own eager backend is 1.05e-2 off the definition without rotation and 6.9e-3 with it, on such numbers."""
    stored, backend = int8.quantize(randn(512, 768, seed=1), group), Int8Linear()
    there, worst = backend.prepare(stored, cuda), 0.0
    for count in M:
        x = rows_of(count, cuda)
        assert torch.equal(product(x.to(torch.int8), there.codes).cpu(), product(x.to(torch.int8).cpu(), stored.codes))
        worst = max(worst, error(backend.apply(x, there).cpu(), definition(x.cpu(), stored)))
    why_no_kitchen = linear_facts(cuda).why_no_kitchen()
    note(f"int8, rotation {group}, {why_no_kitchen or 'comfy-kitchen'}: {worst:.2e} off the definition")
    bound = 1.5e-2 if group is None else 9e-3
    assert worst < (6e-3 if why_no_kitchen else bound)


def test_the_emulation_is_the_cpu_s(cuda: torch.device) -> None:
    """Of what this GPU packs: exact operands, and sums of 768 in FP32 in another order. Its packer multiplies with
    reciprocals where a CPU divides, so that x itself may be packed otherwise in a few codes (`quant.nvfp4_cuda`)."""
    stored, backend = nvfp4.quantize(randn(512, 768, seed=2)), Nvfp4EmulatedLinear()
    there = backend.prepare(stored, cuda)
    for count in M[:-1]:
        x = rows_of(count, cuda)
        scale = nvfp4.activation_scale(x)
        ours = nvfp4.rounded_unscaled(x, scale, torch.bfloat16)
        assert torch.equal(ours.cpu(), nvfp4.rounded_unscaled(x.cpu(), scale.cpu(), torch.bfloat16))
        made = packed(x, None, backend.scale_backend)
        codes, block_scale, one = (t.cpu() for t in (made.codes, made.block_scale, made.tensor_scale))
        on_cpu = replace(made, codes=codes, block_scale=block_scale, tensor_scale=one)
        assert error(backend.apply(x, there).cpu(), backend.apply(on_cpu, stored)) < 2e-3
        wide = x.float()
        assert error(backend.apply(wide, there).cpu(), backend.apply(wide.cpu(), stored)) < 2e-3


@pytest.mark.parametrize("kind", [Nvfp4Linear, Nvfp4LtLinear])
def test_nvfp4_is_the_emulation_where_it_runs_and_says_why_where_not(
    cuda: torch.device, kind: type[ScheduledLinear], note: Any
) -> None:
    backend, emulated = kind(), Nvfp4EmulatedLinear()
    if (why := backend.why_unavailable(cuda)) is not None:
        note(f"{kind.name}: not run: {why}")
        assert "SM 10.0" in why or "comfy-kitchen" in why
        return
    there, worst = backend.prepare(with_extras(nvfp4.quantize(randn(512, 768, seed=3))), cuda), 0.0
    for count in M:
        x = rows_of(count, cuda)
        worst = max(worst, error(backend.apply(x, there), emulated.apply(x, there)))
    note(f"{kind.name}: {worst:.2e} off the emulation")
    assert worst < 5e-3
    assert torch.equal(
        backend.apply(torch.zeros(5, 768, dtype=torch.bfloat16, device=cuda), there), there.bias.expand(5, -1)
    )


def test_fc2_s_schedule_gives_the_bits_of_the_usual_product_or_says_why_it_is_not_taken(
    cuda: torch.device, note: Any
) -> None:
    schedule = Fc2Schedule()
    weight = torch.randn(SPARK.n, SPARK.k, device=cuda, generator=torch.Generator(cuda).manual_seed(1)) * 0.02
    stored = nvfp4.quantize(weight)
    schedule.prepare(stored, cuda)
    if schedule.why_not is not None:
        note(f"FC2's schedule: not run: {schedule.why_not}")
        assert torch.cuda.get_device_capability(cuda) == (12, 1) or "known on SM 12.1" in schedule.why_not
        return
    rows = packed(activations(SPARK.m, SPARK.k, cuda), None)
    ours, usual = schedule.product(rows, stored), Nvfp4Linear().usual(rows, stored)
    assert ours is not None
    note(f"FC2's schedule: {int((ours != usual).sum())} of {usual.numel()} results differ")
    assert torch.equal(ours, usual)


BACKENDS: tuple[LinearBackend[Any], ...] = (
    ResidentBf16Linear(), DequantLinear(), Fp32Linear(), Fp8Linear(), Int8Linear(), Nvfp4EmulatedLinear()
)  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_h3_s_own_widths_are_within_their_bounds(cuda: torch.device, shape: str, note: Any) -> None:
    """Against FP32 of what the storage stands for. Bounds as in tests/backends, a little more for the long sums.

    x and W are drawn from one seed, so the first rows of x lie along rows of W: sums that a tensor core cuts off show.
    """
    out_width, width = SHAPES[shape]
    bounds = {
        "resident_bf16": 0.004,
        "dequant": 0.004,
        "fp32": 0.004,
        "fp8": 0.05,
        "int8": 0.02,
        "nvfp4_emulated": 0.12,
    }
    weight = torch.randn(out_width, width, device=cuda, generator=torch.Generator(cuda).manual_seed(1)) * 0.02
    x = activations(257, width, cuda)
    for stored in (PlainWeight(weight.bfloat16()), nvfp4.quantize(weight)):
        wanted = x.float() @ dense(stored, torch.float32).t()
        for backend in BACKENDS:
            off = error(backend.apply(x, backend.prepare(stored, cuda)), wanted)
            note(f"{shape} from {stored.format}: {backend.name} {off:.2e}")
            assert off < bounds[backend.name]


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
def test_a_call_takes_what_was_told(cuda: torch.device, backend: LinearBackend[Any]) -> None:
    """Above x, the weight and the result: at most a tenth more than told; less, where a kernel needs less."""
    stored = nvfp4.quantize(torch.randn(8192, 4096, device=cuda))
    resident, x = backend.prepare(stored, cuda), activations(8192, 4096, cuda)
    backend.apply(x, resident)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    y = backend.apply(x, resident)
    taken = torch.cuda.max_memory_allocated() - before
    told = backend.call_bytes(resident, 8192, torch.bfloat16)
    assert taken <= (told.held + max(told.before, y.nbytes)) * 1.1 + 64 * 2**20
