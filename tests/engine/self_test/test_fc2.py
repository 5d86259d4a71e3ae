"""FC2's schedule is held to the definition where it is ready, and isn't taken where it is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from h3runtime.backends.linear.base import BackendLinear
from h3runtime.backends.linear.fc2_schedule import SPARK, Fc2Schedule
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear, definition
from h3runtime.core import KernelCheck, SelfTest
from h3runtime.engine.self_test.check import ask
from h3runtime.engine.self_test.fc2 import KERNEL, fc2_checks
from h3runtime.engine.self_test.verdict import without_schedule
from h3runtime.quant import nvfp4
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.stored import Nvfp4Weight

CPU = torch.device("cpu")
KNOWN = replace(SPARK, m=700, n=64, k=256)
WEIGHT = nvfp4.quantize(torch.randn(64, 256, generator=torch.Generator().manual_seed(0)))
LAYERS = [
    ("mlp.fc1", BackendLinear(Nvfp4EmulatedLinear(), nvfp4.quantize(torch.ones(32, 64)))),
    ("mlp.fc2", BackendLinear(Nvfp4EmulatedLinear(), WEIGHT)),
]


class Ready(Fc2Schedule):
    """As if cuBLASLt had it. wrong_from: rows that it gets wrong."""

    def __init__(self, wrong_from: int = 10**9) -> None:
        super().__init__(KNOWN)
        self._plan: Any = object()
        self._wrong_from = wrong_from

    def _multiplied(self, rows: Nvfp4Rows, weight: Any) -> torch.Tensor | None:
        x = nvfp4.dequantize_fp32(rows.as_weight)[: rows.rows]
        y = definition(x, replace(weight, input_scale=rows.tensor_scale)).bfloat16()
        y[self._wrong_from :] = 0
        return y


def asked(schedule: Fc2Schedule) -> list[KernelCheck]:
    return [ask(check, CPU) for check in fc2_checks(schedule, LAYERS, CPU)]


def test_it_is_asked_where_it_is_ready() -> None:
    (found,) = asked(Ready())
    assert found.passed and found.asked == "mlp.fc2 [64, 256] by 700 rows" and found.kernel == KERNEL
    assert asked(Fc2Schedule(KNOWN)) == [] == list(fc2_checks(None, LAYERS, CPU))


@pytest.mark.parametrize("wrong_from", [0, 512, 699])
def test_what_is_wrong_is_taken_no_more(wrong_from: int) -> None:
    schedule = Ready(wrong_from)
    found = asked(schedule)
    assert not found[0].passed
    without_schedule(SelfTest(tuple(found)), schedule)
    assert schedule.why_not is not None and schedule.why_not.startswith("failed the self-test: mlp.fc2 [64, 256]")
    assert asked(schedule) == []


def test_another_bit_than_without_it_is_one_too_many() -> None:
    schedule = Ready()

    def same(rows: Nvfp4Rows, weight: Nvfp4Weight) -> torch.Tensor:
        made = schedule._multiplied(rows, weight)
        assert made is not None
        return made

    def one_off(rows: Nvfp4Rows, weight: Nvfp4Weight) -> torch.Tensor:
        made = same(rows, weight)
        made[699, 63] = torch.nextafter(made[699, 63], torch.tensor(torch.inf, dtype=made.dtype))
        return made

    for usual, error in ((same, 0.0), (one_off, 1.0)):
        found = [ask(check, CPU) for check in fc2_checks(schedule, LAYERS, CPU, usual)]
        assert [each.error for each in found] == [found[0].error, error]
        assert [each.passed for each in found] == [True, error == 0]
        assert {each.kernel for each in found} == {KERNEL} and len({each.asked for each in found}) == 2
    without_schedule(SelfTest(tuple(found)), schedule)
    assert "other bits than without the schedule" in str(schedule.why_not)


def test_what_passed_stays() -> None:
    schedule = Ready()
    without_schedule(SelfTest(tuple(asked(schedule))), schedule)
    assert schedule.why_not is None
