"""Which backend runs on which machine, and what each that can't says, by recorded facts."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Literal

import pytest
import torch

from h3runtime.backends import policy
from h3runtime.backends.attention.base import Candidate
from h3runtime.backends.attention.facts import PACKAGES, DeviceFacts, device_facts
from h3runtime.backends.attention.options import AttentionOptions, SolOptions
from h3runtime.backends.attention.probe import why_its_call_fails
from h3runtime.backends.attention.select import Attentions
from h3runtime.backends.policy import PLAIN, ROWS, Sourced
from h3runtime.core import BackendChoice
from h3runtime.errors import BackendUnavailable, InvalidRequest, SettingsError
from h3runtime.settings import Settings
from tests.backends.attention.machines import BARE_H200, CPU, GB10, H200, RTX_PRO_6000, without

ALL = {
    *("sdpa", "cudnn_sdpa", "fa4", "sage2", "sage1", "sage3", "ck_int8", "cudnn_fp8", "h3_attn8"),
    *("kj_sage_cuda", "kj_sage_triton", "kj_sage_fp8", "kj_sage_fp8pp", "kj_head_sliced", "sol_attn"),
    *(SPARSE := {"sla_topk_75", "sla_topk_50", "sla_topk_25", "sla_topk_10", "vsa"}),
    *(SPARSE_8 := {"sla8_topk_75", "sla8_topk_50", "sla8_topk_25", "sla8_topk_10"}),
}
"""Issue 7, point 1; issue 8, point 3."""
EXPERIMENTAL = {"cudnn_fp8", "sage1", "sage3", "sol_attn", "h3_attn8", *SPARSE, *SPARSE_8}
"""Issue 7, and what has never been run."""


def fine(backend: Candidate, device: torch.device, head_dim: int) -> None:  # noqa: ARG001
    return None


def attentions(facts: DeviceFacts, options: AttentionOptions | None = None) -> Attentions:
    return Attentions(torch.device("cpu"), options, facts=facts, probe=fine)


def listed(facts: DeviceFacts, options: AttentionOptions | None = None) -> BackendChoice:
    return attentions(facts, options).listing("sdpa", "because")


def test_every_backend_is_listed_with_a_grade() -> None:
    choice = listed(H200)
    assert {*choice.available, *choice.unavailable} == ALL == set(choice.grades)
    assert {name for name, grade in choice.grades.items() if grade == "experimental"} == EXPERIMENTAL
    assert choice.grades["sdpa"] == "reference" and choice.grades["sage2"] == choice.grades["fa4"] == "validated"


@pytest.mark.parametrize(
    ("facts", "available"),
    [
        (CPU, {"sdpa"} | SPARSE),
        (BARE_H200, {"sdpa", "cudnn_sdpa"}),
        (H200, ALL - {"sage1", "sage3"}),
        (GB10, {"sdpa", "cudnn_sdpa", "sage2", "ck_int8", "kj_head_sliced", "sol_attn"}
         | {"kj_sage_cuda", "kj_sage_fp8", "kj_sage_fp8pp"} | SPARSE),
        (RTX_PRO_6000, {"sdpa", "cudnn_sdpa", "sage1", "sage3"} | SPARSE),
    ],
    ids=lambda value: value.name if isinstance(value, DeviceFacts) else "",
)  # fmt: skip
def test_what_a_machine_can_run(facts: DeviceFacts, available: set[str]) -> None:
    choice = listed(facts)
    assert set(choice.available) == available
    assert all(choice.unavailable[name] for name in ALL - available)


@pytest.mark.parametrize(
    ("facts", "name", "why"),
    [
        (CPU, "sage2", "needs a CUDA device, and this is cpu"),
        (H200, "sage1", "needs SageAttention 1.x, and sageattention 2.2.0 is installed"),
        (H200, "sage3", "has a kernel for SM 10.0, 12.0, 12.1 only, and this is SM 9.0"),
        (RTX_PRO_6000, "sage2", "needs SageAttention 2.x, and sageattention 1.0.6 is installed"),
        (RTX_PRO_6000, "fa4", "flash-attn-4 is not installed"),
        (GB10, "h3_attn8", "has a kernel for SM 9.0 only, and this is SM 12.1"),
        (CPU, "sla8_topk_25", "needs a CUDA device, and this is cpu"),
        (GB10, "sla8_topk_25", "has a kernel for SM 9.0 only, and this is SM 12.1"),
        (replace(H200, parts=H200.parts - {"h3_kernels/sparse8"}), "sla8_topk_25", "built without sparse8"),
        (without(H200, "triton"), "sla8_topk_25", "triton is not installed"),
        (GB10, "kj_sage_triton", "has a kernel for SM 8.0, 8.6, 8.9, 9.0, 10.0 only"),
        (replace(H200, parts=frozenset({"sageattention/_fused"})), "sage2", "built without _qattn_sm90"),
        (replace(H200, capability=(10, 3)), "sage2", "and this is SM 10.3"),
        (replace(H200, cudnn=None), "cudnn_sdpa", "no cuDNN"),
        (CPU, "kj_head_sliced", "H3_HEAD_SLICE_BACKEND=sage2 can't run: needs a CUDA device"),
        (replace(H200, capability=(7, 5)), "sla_topk_50", "needs SM 8.0, and this is SM 7.5"),
        (replace(H200, parts=frozenset()), "vsa", "built without sparse"),
        (without(H200, "triton"), "sla_topk_10", "triton is not installed"),
        (without(H200, "sageattention"), "sol_attn", "H3_SOL_FALLBACK=sage2 can't run: sageattention is not inst"),
    ],
)
def test_each_reason_says_what_is_missing(facts: DeviceFacts, name: str, why: str) -> None:
    assert why in listed(facts).unavailable[name]
    with pytest.raises(BackendUnavailable, match=f"attention: {name} can't run here") as caught:
        attentions(facts).choose(name)
    assert why in caught.value.message and caught.value.offences[0].field == "attention"
    assert caught.value.offences[0].legal == ", ".join(["auto", *listed(facts).available])


@pytest.mark.parametrize(
    ("facts", "chosen"),
    [
        (CPU, "sdpa"),
        (H200, "fa4"),
        (without(H200, "flash_attn"), "cudnn_sdpa"),
        (BARE_H200, "cudnn_sdpa"),
        (replace(BARE_H200, cudnn=None), "sdpa"),
        (GB10, "sage2"),
        (without(GB10, "sageattention"), "cudnn_sdpa"),
        (RTX_PRO_6000, "cudnn_sdpa"),
        (replace(H200, capability=(10, 0)), "fa4"),
        (replace(H200, capability=(10, 3)), "fa4"),
        (replace(BARE_H200, capability=(10, 3)), "cudnn_sdpa"),
        (replace(H200, capability=(7, 5)), "sdpa"),
    ],
)
def test_auto_follows_the_row_of_the_architecture(facts: DeviceFacts, chosen: str) -> None:
    backend, why = attentions(facts).choose("auto")
    assert backend.name == chosen and why.startswith("auto: ")


def test_auto_says_why_it_passed_others_over() -> None:
    _, why = attentions(without(H200, "flash_attn")).choose("auto")
    assert "fa4: flash-attn-4 is not installed" in why and "benchmarks/LOG.md, one H200" in why


def test_every_row_ends_with_what_always_runs_and_but_one_computes_in_16_bits() -> None:
    for row in (*ROWS, PLAIN):
        order = row.attention.value
        assert order[-1] == "sdpa" and set(order) <= ALL - EXPERIMENTAL
        assert row.capability == (12, 1) or set(order) <= {"sdpa", "cudnn_sdpa", "fa4"}


def test_quality_exact_takes_what_computes_in_16_bits_best_first() -> None:
    assert listed(H200).exact == ("fa4", "cudnn_sdpa", "sdpa")
    assert listed(H200, AttentionOptions(slice_backend="fa4")).exact == ("fa4", "cudnn_sdpa", "sdpa", "kj_head_sliced")
    assert listed(CPU).exact == ("sdpa",)


def test_ready_names_where_calls_are_handed_to() -> None:
    options = AttentionOptions(slice_backend="sdpa", slice_size=4, sol=SolOptions(fallback="fa4"))
    notes = dict(listed(H200, options).notes)
    assert "50% of the cubes" in notes["sla_topk_50"] and "first 1 steps" in notes["sla_topk_50"]
    assert "10% of the cubes" in notes["vsa"] and "steps" not in notes["vsa"]
    assert "10% of the tiles" in notes["sla8_topk_10"] and "dense through h3_attn8" in notes["sla8_topk_10"]
    assert "keys that aren't there" in notes["sage1"]
    assert {name: note for name, note in notes.items() if name not in {"sage1", *SPARSE, *SPARSE_8}} == {
        "kj_head_sliced": "4 heads at a time through sdpa",
        "sol_attn": "tau 1.3, 4096 rows or more; calls that it isn't made for: fa4",
    }
    assert "fail the job" in listed(H200, AttentionOptions(sol=SolOptions(strict=True))).notes["sol_attn"]


@pytest.mark.parametrize("name", ["kj_head_sliced", "sol_attn", "sage9", "auto"])
def test_calls_can_be_handed_to_simple_backends_only(name: str) -> None:
    for options, setting in (
        (AttentionOptions(slice_backend=name), "H3_HEAD_SLICE_BACKEND"),
        (AttentionOptions(sol=SolOptions(fallback=name)), "H3_SOL_FALLBACK"),
    ):
        with pytest.raises(SettingsError, match=name) as caught:
            attentions(CPU, options)
        assert caught.value.offences[0].field == setting and "sdpa" in caught.value.offences[0].legal


def test_an_unknown_name_lists_the_legal_ones() -> None:
    with pytest.raises(InvalidRequest, match="sage9") as caught:
        attentions(CPU).choose("sage9")
    assert caught.value.offences[0].legal.startswith("auto, sdpa, cudnn_sdpa")


def test_what_a_call_takes_beside_its_tensors() -> None:
    """By the sources; q, k and v of S = 37,810 at the real sizes are 542 MB each."""
    values = 37_810 * 56 * 128
    found = attentions(H200, AttentionOptions(slice_backend="sage2", slice_size=8, sol=SolOptions(fallback="sage2")))

    def taken(*names: str) -> int:
        return found.workspace_bytes(names, 37_810, 56, 128)

    assert taken("sdpa") == taken("fa4") == taken("cudnn_sdpa") == 0
    assert taken("sage2") == 7 * values == taken("sdpa", "sage2") == taken("sol_attn")
    assert taken("kj_head_sliced") == (7 + 2) * values // 7
    assert 3 * values < taken("h3_attn8") < 3.1 * values
    assert taken("h3_attn8") < taken("sla8_topk_75") < 3.6 * values
    assert taken("sage3") > 16 * values + 4 * 56 * 295 * 37_810
    copied = attentions(H200, AttentionOptions(sage_layout="contiguous_nhd"))
    assert copied.workspace_bytes({"sage2"}, 37_810, 56, 128) == 13 * values


@pytest.mark.parametrize(
    ("head_dim", "left_out"),
    [
        (128, set()),
        (64, {"sol_attn", "h3_attn8", *SPARSE_8}),
        (32, {"sol_attn", "h3_attn8", "cudnn_fp8", *SPARSE_8}),
        (12, ALL - {"sdpa"}),
    ],
)
def test_the_loaded_models_heads_rule_backends_out(head_dim: int, left_out: set[str]) -> None:
    found = attentions(H200)
    before = set(found.listing("sdpa", "").available)
    found.fit({head_dim})
    after = found.listing("sdpa", "")
    assert before - set(after.available) == left_out & before
    assert all("heads" in after.unavailable[name] for name in left_out & before)


def test_a_first_call_that_fails_makes_a_backend_unavailable_from_then_on() -> None:
    calls = []

    def probe(backend: Candidate, device: torch.device, head_dim: int) -> str | None:  # noqa: ARG001
        calls.append((backend.name, head_dim))
        return "its first call failed" if backend.name == "fa4" else None

    found = Attentions(torch.device("cpu"), facts=H200, probe=probe)
    assert "fa4" in found.listing("sdpa", "").available and calls == []
    assert found.resolve("auto")[0].name == "fa4" and calls == []
    found.fit({64})
    backend, why = found.choose("auto")
    assert backend.name == "cudnn_sdpa" and "fa4: its first call failed" in why
    with pytest.raises(BackendUnavailable, match="its first call failed"):
        found.choose("fa4")
    assert found.choose("cudnn_sdpa")[0].name == found.choose("cudnn_sdpa")[0].name == "cudnn_sdpa"
    assert calls == [("fa4", 64), ("cudnn_sdpa", 64)]
    assert found.listing("cudnn_sdpa", "").unavailable["fa4"] == "its first call failed"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("sdpa", None),
        ("zeros", "was wrong: relative error 1,"),
        ("nan", "was wrong"),
        ("raises", "ValueError: no tile"),
    ],
)
def test_the_probe_holds_a_call_against_fp32(name: str, told: str | None) -> None:
    backend = attentions(CPU).backends[0]
    calls = {
        "zeros": lambda q, k, v: torch.zeros_like(q),  # noqa: ARG005
        "nan": lambda q, k, v: torch.full_like(q, torch.nan),  # noqa: ARG005
        "raises": lambda q, k, v: (_ for _ in ()).throw(ValueError("no tile\nfor this")),  # noqa: ARG005
    }
    backend.call = calls.get(name, backend.call)  # type: ignore[method-assign]
    why_not = why_its_call_fails(backend, torch.device("cpu"), 64)
    assert why_not is None if told is None else told in str(why_not)


def test_facts_of_this_machine_import_nothing() -> None:
    before = set(sys.modules)
    facts = device_facts(torch.device("cpu"))
    assert not {name.partition(".")[0] for name in set(sys.modules) - before} & PACKAGES.keys()
    assert (facts.kind, facts.capability) == ("cpu", None)
    assert facts.libraries["comfy_kitchen"] and facts.torch == torch.__version__


def test_options_are_the_settings() -> None:
    options = AttentionOptions.of(Settings(sol_tau=2, head_slice_size=4, sage_qkv_layout="contiguous_hnd"))
    assert (options.sol.tau, options.slice_size, options.sage_layout) == (2, 4, "contiguous_hnd")
    assert AttentionOptions.of(Settings()) == AttentionOptions()


@pytest.mark.parametrize(("asked", "given"), [("auto", "contiguous_hnd"), ("strided_nhd", "strided_nhd")])
def test_the_layout_is_the_row_s_where_none_is_asked_for(
    asked: Literal["auto", "strided_nhd"], given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying = replace(ROWS[0], sage_layout=Sourced("contiguous_hnd", "to see whether it is read"))
    monkeypatch.setattr(policy, "ROWS", (copying,))
    found = attentions(H200, AttentionOptions(sage_layout=asked))
    values = 37_810 * 56 * 128
    assert found.workspace_bytes({"sage2"}, 37_810, 56, 128) == (13 if given == "contiguous_hnd" else 7) * values
