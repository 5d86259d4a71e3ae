"""Every stored format decodes on the accelerator to what it decodes to on the CPU."""

import pytest
import torch

from h3runtime.backends.linear.dequant import DequantLinear, dense
from h3runtime.quant import asym_w4a8, awq_w4a16, convrot_w4a4, fp8, int8, mxfp8, nvfp4
from h3runtime.quant.stored import StoredWeight

pytestmark = pytest.mark.gpu

PLAIN = torch.randn(300, 1024, generator=torch.Generator().manual_seed(0)) * 0.05
UNROTATED: dict[str, StoredWeight] = {
    "nvfp4": nvfp4.quantize(PLAIN),
    "int8": int8.quantize(PLAIN),
    "fp8_e4m3": fp8.quantize(PLAIN),
    "fp8_e5m2": fp8.quantize(PLAIN, torch.float8_e5m2),
    "mxfp8": mxfp8.quantize(PLAIN),
    "awq_w4a16": awq_w4a16.quantize(PLAIN),
}
ROTATED: dict[str, StoredWeight] = {
    "int8_convrot_256": int8.quantize(PLAIN, 256),
    "int8_convrot_64": int8.quantize(PLAIN, 64),
    "convrot_w4a4": convrot_w4a4.quantize(PLAIN),
    "asym_w4a8": asym_w4a8.quantize(PLAIN),
}


def on_device(stored: StoredWeight, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return dense(DequantLinear().prepare(stored, device), dtype).cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", UNROTATED)
def test_an_unrotated_weight_is_the_cpu_s_bit_for_bit(cuda: torch.device, name: str, dtype: torch.dtype) -> None:
    stored = UNROTATED[name]
    assert torch.equal(on_device(stored, cuda, dtype), dense(stored, dtype))


@pytest.mark.parametrize("name", ROTATED)
def test_a_rotated_weight_is_the_cpu_s_up_to_the_order_of_additions(cuda: torch.device, name: str) -> None:
    """FP32 sums of 256; TF32 would leave about 3e-4."""
    stored = ROTATED[name]
    got, wanted = on_device(stored, cuda, torch.float32), dense(stored, torch.float32)
    assert float((got - wanted).norm() / wanted.norm()) < 1e-6
