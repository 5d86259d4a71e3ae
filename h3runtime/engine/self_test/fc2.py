"""The one schedule of cuBLASLt that FC2 may have (`fc2_schedule`), at the one number of rows that it is for.

129 rows of random numbers again and again, so that the answer of each of the 37,810 is known from 129 of the
definition's; the first, the last and some between are held to it. And as many random rows beside the product that would
run without it: it is known to give the same bits at these rows, which is why it may be switched on, and where any is
another, it isn't taken. Asked only where the schedule is ready: it takes 3 GB of the device for a moment, about what
FC2 of such a clip does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch

from h3runtime.backends.linear.base import BackendLinear
from h3runtime.backends.linear.fc2_schedule import Fc2Schedule
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear
from h3runtime.backends.linear.nvfp4_packing import packed
from h3runtime.engine.self_test.check import Check, worst_row
from h3runtime.engine.self_test.linear import CPU, FAMILY, TOLERANCE, moved
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.stored import Nvfp4Weight

KERNEL: Final = "fc2_lt_splitk1"
DISTINCT: Final = 129
Usual = Callable[[Nvfp4Rows, Nvfp4Weight], torch.Tensor]


def fc2_checks(
    schedule: Fc2Schedule | None,
    layers: Sequence[tuple[str, BackendLinear]],
    device: torch.device,
    usual: Usual | None = None,
) -> Iterator[Check]:
    """layers: by name, those that follow the choice. usual: the product that would run without it."""
    if schedule is None or schedule.why_not is not None:
        return
    shape = schedule.known.n, schedule.known.k
    found = ((name, layer.resident) for name, layer in layers if isinstance(layer.resident, Nvfp4Weight))
    name, weight = next((name, weight) for name, weight in found if weight.shape == shape)
    asked = f"{name} {list(shape)} by {schedule.known.m} rows"
    yield Check(FAMILY, KERNEL, asked, TOLERANCE, lambda: _error(schedule, weight, device))
    if usual is not None:
        told = f"{asked}, other bits than without the schedule"
        yield Check(FAMILY, KERNEL, told, 0.0, lambda: _others(schedule, usual, weight, device))


def _error(schedule: Fc2Schedule, weight: Nvfp4Weight, device: torch.device) -> float:
    rows = schedule.known.m
    distinct = torch.randn(DISTINCT, schedule.known.k, generator=torch.Generator().manual_seed(0)).bfloat16()
    of = torch.arange(rows) % DISTINCT
    x = packed(distinct.to(device)[of.to(device)], weight.input_scale)
    y = _product(schedule, x, weight)
    asked = torch.cat([torch.arange(DISTINCT), torch.arange(0, rows, 997), torch.arange(rows - DISTINCT, rows)])
    # The same bytes as those rows have in x: whether they are right is for `packing` to judge.
    apart = packed(distinct.to(device), x.tensor_scale)
    wanted = Nvfp4EmulatedLinear().product(moved(apart, CPU), moved(weight, CPU))
    return worst_row(y[asked.to(device)].cpu(), wanted[of[asked]])


def _others(schedule: Fc2Schedule, usual: Usual, weight: Nvfp4Weight, device: torch.device) -> float:
    """How many of all results are another number."""
    source = torch.Generator(device).manual_seed(1)
    shape = schedule.known.m, schedule.known.k
    x = packed(torch.randn(shape, generator=source, device=device, dtype=torch.bfloat16), weight.input_scale)
    return float((_product(schedule, x, weight) != usual(x, weight)).sum())


def _product(schedule: Fc2Schedule, x: Nvfp4Rows, weight: Nvfp4Weight) -> torch.Tensor:
    y = schedule.product(x, weight)
    if y is None:
        raise RuntimeError(schedule.why_not or "the schedule isn't taken for what it is known for")
    return y
