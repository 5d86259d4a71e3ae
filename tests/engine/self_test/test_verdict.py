"""What becomes of linears whose packer is wrong, and of whoever asked for it by name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from h3runtime.core import KernelCheck, SelfTest
from h3runtime.engine.self_test.verdict import failed_linears, require_fusions, require_packer, warnings_of
from h3runtime.errors import BackendUnavailable

WRONG = "failed the self-test: share of other bytes: it is off by 0.5"
CANDIDATES = [
    SimpleNamespace(name="dequant"),
    SimpleNamespace(name="nvfp4", scale_backend="vortex"),
    SimpleNamespace(name="other", scale_backend="kitchen"),
]


def found(by: str) -> SelfTest:
    passed = KernelCheck("nvfp4_packing", "kitchen", "share of other bytes", 0.0, 0.0, 0.1)
    return SelfTest(
        (passed, KernelCheck("nvfp4_packing", by, "share of other bytes", 0.5, 0.0, 0.1, "it is off by 0.5"))
    )


def test_linears_that_are_packed_for_wrongly_are_disabled() -> None:
    assert failed_linears(found("vortex"), CANDIDATES) == {"nvfp4": f"packs by vortex, which {WRONG}"}
    assert failed_linears(found("kitchen"), CANDIDATES) == {"other": f"packs by kitchen, which {WRONG}"}
    assert failed_linears(SelfTest(), CANDIDATES) == {}


def test_a_packer_asked_for_by_name_is_never_replaced() -> None:
    with pytest.raises(BackendUnavailable, match="H3_NVFP4_SCALE_BACKEND: vortex can't run here: failed the self-test"):
        require_packer(found("vortex"), "vortex")
    require_packer(found("kitchen"), "kitchen")
    require_packer(found("vortex"), "vortex_native")


def test_a_switch_whose_producers_hand_on_other_bytes_is_refused() -> None:
    check = KernelCheck("nvfp4_producers", "triton", "share of other bytes", 0.5, 0.0, 0.1, "it is off by 0.5")
    with pytest.raises(BackendUnavailable) as raised:
        require_fusions(SelfTest((check,)), {"modulated", "gated"})
    assert raised.value.message == (
        "H3_NVFP4_SWIGLU_FUSION=true, H3_NVFP4_MODULATE_FUSION=true: triton can't pack NVFP4 here: "
        f"it {WRONG} (legal: false)"
    )
    assert {offence.field for offence in raised.value.offences} == {
        "H3_NVFP4_SWIGLU_FUSION",
        "H3_NVFP4_MODULATE_FUSION",
    }
    require_fusions(found("vortex"), {"gated"})


def test_everything_that_failed_is_among_the_warnings_once() -> None:
    assert warnings_of(found("vortex")) == (f"nvfp4_packing: vortex is disabled: it {WRONG}",)
    check = KernelCheck("attention", "sage2", "65535 rows", None, 0.1, 0.1, "it gives what is no number")
    later = KernelCheck("attention", "sage2", "65537 rows", None, 0.1, 0.1, "it gives what is no number")
    (told,) = warnings_of(SelfTest((check, later)))
    assert told == "attention: sage2 is disabled: it failed the self-test: 65535 rows: it gives what is no number"
