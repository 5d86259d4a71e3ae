"""What an operator leaves to be tried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from h3runtime.cli.calibration.narrowing import Narrowed
from h3runtime.cli.calibration.search import Candidates
from h3runtime.errors import InvalidRequest
from h3runtime.quality.levels import LEVELS, REUSE, Choice
from tests.quality.made import ATTENTION, FACTS

EXACT = Choice("sdpa", "dequant")
SPARSE = replace(FACTS, attention=replace(ATTENTION, available=("sdpa", "sage2", "sla_topk_50")))


def test_all_that_a_level_may_take_by_itself() -> None:
    assert Narrowed().candidates(LEVELS["high"], SPARSE, EXACT) == Candidates((Choice("sage2", "int8"),), (), EXACT)
    found = Narrowed().candidates(LEVELS["medium"], SPARSE, EXACT)
    assert found.bases == (Choice("sage2", "int8"), Choice("sla_topk_50", "int8")) and found.reuse == REUSE
    assert found.all_bases[-1] == EXACT


def test_names_take_away_and_let_in_what_a_level_would_not_try() -> None:
    narrowed = Narrowed(("dequant",), ("sdpa", "sla_topk_50"), ("h3_cache",))
    assert narrowed.candidates(LEVELS["medium"], SPARSE, EXACT) == Candidates(
        (EXACT, Choice("sla_topk_50", "dequant")), ("h3_cache",), EXACT
    )
    assert narrowed.candidates(LEVELS["high"], SPARSE, EXACT) == Candidates((EXACT,), (), EXACT)
    assert Narrowed(reuse=("none",)).candidates(LEVELS["low"], SPARSE, EXACT).reuse == ()


def test_what_the_engine_can_not_do_exactly_is_no_candidate() -> None:
    inexact = replace(SPARSE, linear=replace(SPARSE.linear, available=("int8",), default="int8"))
    assert Narrowed().candidates(LEVELS["high"], inexact, EXACT).exact is None


def test_names_that_are_not_there_are_refused() -> None:
    Narrowed(("int8",), ("sage2",)).judge(SPARSE)
    with pytest.raises(InvalidRequest) as caught:
        Narrowed(("fp8",), ("fa4", "?")).judge(SPARSE)
    assert [(o.field, o.message) for o in caught.value.offences] == [
        ("try_linear", "fp8: not loaded for"),
        ("try_attention", "fa4: no"),
        ("try_attention", "?: is not known"),
    ]
