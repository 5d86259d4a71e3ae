"""The owned Triton kernels in Triton's interpreter, on a CPU: `TRITON_INTERPRET=1 python -m tests.gpu.interpreted`.

Needs an importable Triton and no driver. Small ragged shapes; `test_kernels` runs the same checks on a GPU at the
model's own.
"""

import torch

from tests.gpu import producer_checks as producing

SIZES = (
    producing.Size(rows=7, width=48, heads=2, head_dim=32, turning=12),
    producing.Size(rows=5, width=200, heads=3, head_dim=128, turning=48),
    producing.Size(rows=3, width=2100, heads=1, head_dim=16, turning=8),
)


def main() -> None:
    device = torch.device("cpu")
    torch.set_num_threads(1)
    for size in SIZES:
        for dtype in (torch.bfloat16, torch.float32):
            given = producing.inputs(size, device, dtype)
            producing.check_norm_modulate(given)
            producing.check_norm_rotate(given)
            producing.check_swiglu(given, exact=False)
            producing.check_gates(given)
            producing.check_fp8(given)
    print("producers: right in the interpreter")


if __name__ == "__main__":
    main()
