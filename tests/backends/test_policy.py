"""The rows of the architectures: complete, each entry with its source, and read where they are said to be."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from h3_kernels.cuda_compiler import ARCHITECTURES

from h3runtime.backends.fused import select
from h3runtime.backends.fused.select import choose_producers, producer_families
from h3runtime.backends.policy import PLAIN, ROWS, Row, Sourced, row_of

EVERY = (*ROWS, PLAIN)


def test_there_is_a_row_for_each_architecture_of_issue_9() -> None:
    assert [row.capability for row in ROWS] == [(9, 0), (10, 0), (10, 3), (12, 0), (12, 1)]


@pytest.mark.parametrize("row", EVERY, ids=lambda row: row.told)
def test_every_entry_has_its_source(row: Row) -> None:
    entries = [getattr(row, field.name) for field in fields(row) if field.name not in ("capability", "devices")]
    assert row.devices and all(isinstance(entry, Sourced) and len(entry.source) > 10 for entry in entries)


@pytest.mark.parametrize(
    ("kind", "capability", "found"),
    [
        ("cuda", (9, 0), "H200"),
        ("cuda", (10, 0), "B200"),
        ("cuda", (10, 3), "B300"),
        ("cuda", (12, 0), "RTX 5090"),
        ("cuda", (12, 1), "GB10"),
        ("cuda", (8, 6), "without a row"),
        ("cuda", None, "without a row"),
        ("cpu", None, "CPUs"),
        ("cpu", (9, 0), "CPUs"),
    ],
)
def test_a_device_finds_its_row(kind: str, capability: tuple[int, int] | None, found: str) -> None:
    assert found in row_of(kind, capability).devices


def test_kernels_are_compiled_for_the_rows_of_the_table() -> None:
    assert {row.capability: row.compiled.value for row in ROWS} == ARCHITECTURES
    assert PLAIN.compiled.value is None


def test_fp4_products_are_for_those_that_have_them_and_only_these_have_switches() -> None:
    assert [row.told for row in ROWS if row.nvfp4.value] == ["SM 10.0", "SM 12.0", "SM 12.1"]
    assert "may be wrong" in row_of("cuda", (10, 3)).nvfp4.source
    assert all(row.nvfp4.value for row in EVERY if row.switches.value)


def test_producers_are_tried_in_the_row_s_order(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {family.name for family in producer_families()}
    assert all(set(row.producers.value) <= known and row.producers.value[-1] == "torch" for row in EVERY)
    cpu = torch.device("cpu")
    assert choose_producers("auto", cpu)[0].name == "cpu"
    turned = Sourced(("torch", "cpu"), "to see whether it is read")
    monkeypatch.setattr(select, "row_of", lambda *_: type("Turned", (), {"producers": turned}))
    chosen, why = choose_producers("auto", cpu)
    assert chosen.name == "torch" and "best fused backend" in why
