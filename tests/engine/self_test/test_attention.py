"""Attention that is wrong where indices turn over is found out, whichever way it is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from h3runtime.backends.attention.base import Kernel
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.core import KernelCheck
from h3runtime.engine.self_test.attention import AROUND, Around, Shape, asked_rows, attention_checks
from h3runtime.engine.self_test.check import ask

CPU = torch.device("cpu")
SHAPE = Shape(3 * 64, 64)
Spoil = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


class Fake(Kernel):
    """A kernel with a query for each row, of which it works out those alone that are looked at."""

    name = "fake"
    tolerance = 0.02

    def __init__(self, spoil: Spoil) -> None:
        self._spoil = spoil

    def why_unavailable(self, device: object) -> str | None:  # noqa: ARG002
        return None

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(q.shape, dtype=q.dtype)
        rows = asked_rows(k.shape[1])
        out[:, rows] = self._spoil(q[:, rows], k, v)
        return out


@pytest.fixture(scope="module")
def around() -> Around:
    return Around(SHAPE, CPU)


def asked(backend: Kernel, around: Around, *, every_query: bool = True) -> list[KernelCheck]:
    found = attention_checks(backend, SHAPE, around, CPU, every_query=every_query)
    return [ask(check, CPU) for check in found]


def wrong_rows(around: Around, spoil: Spoil) -> list[str]:
    return [check.asked for check in asked(Fake(spoil), around) if not check.passed]


def test_what_is_right_passes(around: Around) -> None:
    made = asked(Fake(attended), around)
    assert [check.asked for check in made] == [f"{rows} rows" for rows in AROUND]
    assert all(check.passed and check.error is not None and 0 < check.error < 0.005 for check in made)


def test_pytorch_passes_here(around: Around) -> None:
    assert all(check.passed for check in asked(SdpaAttention(), around, every_query=False))


def test_a_query_past_65536_that_is_left_out_is_found(around: Around) -> None:
    def spoil(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = attended(q, k, v)
        out[:, asked_rows(k.shape[1]) >= 65_536] = 0
        return out

    assert wrong_rows(around, spoil) == ["65537 rows"]


def test_a_key_past_65536_that_is_left_out_is_found(around: Around) -> None:
    assert wrong_rows(around, lambda q, k, v: attended(q, k[:, :65_536], v[:, :65_536])) == ["65537 rows"]


def test_a_last_tile_that_is_left_out_is_found(around: Around) -> None:
    def spoil(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        whole = k.shape[1] - k.shape[1] % 128
        return attended(q, k[:, :whole], v[:, :whole])

    assert wrong_rows(around, spoil) == ["65535 rows", "65537 rows"]


def test_nan_from_65536_rows_on_is_found(around: Around) -> None:
    """pytorch/pytorch #171389."""

    def spoil(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = attended(q, k, v)
        return out * float("nan") if k.shape[1] >= 65_536 else out

    failed = [check for check in asked(Fake(spoil), around) if not check.passed]
    assert [check.asked for check in failed] == ["65536 rows", "65537 rows"]
    assert {check.reason for check in failed} == {"it gives what is no number"}
    assert {check.error for check in failed} == {None}


def test_nan_in_a_row_that_is_not_looked_at_is_found(around: Around) -> None:
    class Elsewhere(Fake):
        def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            out = super().call(q, k, v)
            (other,) = sorted(set(range(200, 230)) - set(asked_rows(k.shape[1]).tolist()))[:1]
            out[:, other] = float("nan")
            return out

    assert not any(check.passed for check in asked(Elsewhere(attended), around))


def test_a_scale_that_is_off_is_found(around: Around) -> None:
    assert len(wrong_rows(around, lambda q, k, v: 1.05 * attended(q, k, v))) == 3
    assert len(wrong_rows(around, lambda q, k, v: attended(1.1 * q, k, v))) == 3


def test_what_raises_says_what(around: Around) -> None:
    def spoil(*_: torch.Tensor) -> torch.Tensor:
        raise ValueError("no kernel image is available\nfor this device")

    made = asked(Fake(spoil), around)
    assert {check.reason for check in made} == {"ValueError: no kernel image is available"}


def test_the_rows_that_are_looked_at() -> None:
    for rows in (*AROUND, 99_902):
        found = asked_rows(rows).tolist()
        assert len(found) == 64 == len(set(found)) and found == sorted(found) and found[-1] == rows - 1
        assert {0, 127, 128, 32_768, rows - 2} <= set(found)


def test_two_to_the_31_elements_are_asked_about_where_there_is_room(around: Around) -> None:
    h3 = Shape(3 * 7168, 128)
    assert h3.long_rows is not None and h3.long_rows * h3.row_elements > 2**31 and h3.long_rows < 108_000
    roomy, tight = (
        [check.asked for check in attention_checks(SdpaAttention(), h3, around, CPU, free_bytes=free)]
        for free in (8 * 2**30, 4 * 2**30)
    )
    assert roomy == [*tight, f"{h3.long_rows} rows, 2^31 elements"]
    assert SHAPE.long_rows is None
