"""Which evidence counts for what is loaded and asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from h3runtime.core import BackendChoice
from h3runtime.quality.bucket import Bucket
from h3runtime.quality.evidence import LEAST, Notes, write_evidence
from h3runtime.quality.levels import LEVELS, SPARSE, Choice, bases, exact_choice
from h3runtime.quality.shelf import Held, Shelf, Use, why_not
from tests.quality.made import ATTENTION, COMPONENTS, FACTS, LINEAR, component, evidence

USE = Use("fl2va", Bucket.of(128, 160, 22, 12), evidence().sampling)


def test_evidence_counts_where_it_was_measured() -> None:
    made = evidence()
    assert Held((made,)).find("high", FACTS, USE) == (made, "")


@pytest.mark.parametrize(
    "facts",
    [
        replace(FACTS, device="NVIDIA H200"),
        replace(FACTS, components=(component("transformer", "z", "fl2va"), *COMPONENTS[1:])),
        replace(FACTS, components=(*COMPONENTS[:2], component("text_encoder", "z"), *COMPONENTS[3:])),
        replace(FACTS, components=COMPONENTS[1:]),
    ],
)
def test_other_weights_and_devices_have_none(facts: Any) -> None:
    found, why = Held((evidence(),)).find("high", facts, USE)
    assert found is None and "no evidence of 'high' for the loaded checkpoint" in why


def test_what_takes_no_part_in_a_clip_changes_nothing() -> None:
    facts = replace(FACTS, components=(COMPONENTS[0], *COMPONENTS[2:], component("upscaler", "u")))
    assert Held((evidence(),)).find("high", facts, USE)[0] is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"bucket": Bucket.of(256, 256, 22, 12)},
        {"bucket": Bucket.of(128, 160, 39, 12)},
        {"bucket": Bucket.of(128, 160, 22, 4)},
        {"partition": "ref2va"},
        {"sampling": replace(USE.sampling, sampler="euler")},
        {"sampling": replace(USE.sampling, shift=6.0)},
    ],
)
def test_other_requests_have_none(changes: dict[str, Any]) -> None:
    found, why = Held((evidence(),)).find("high", FACTS, replace(USE, **changes))
    assert found is None and why.startswith("there is no evidence of 'high' for ")
    assert Held((evidence(),)).find("high", FACTS, None) == (None, "")


def test_other_versions_and_levels_have_none() -> None:
    assert Held((evidence(version="0"),)).of("high", FACTS) == ()
    assert Held((evidence(),)).of("low", FACTS) == ()


def test_the_fastest_that_can_run_is_taken_and_own_evidence_first() -> None:
    slow, fast = evidence(), evidence(time_ratio=2.0, choice=Choice("sage2", "dequant"))
    unloaded = evidence(time_ratio=9.0, choice=Choice("sage2", "fp8"))
    assert Held((slow, unloaded, fast)).find("high", FACTS, USE)[0] == fast
    assert Held((slow,), (fast,)).find("high", FACTS, USE)[0] == slow
    assert Held((unloaded,), (fast,)).find("high", FACTS, USE)[0] == fast
    found, why = Held((unloaded,)).find("high", FACTS, USE)
    assert found is None and why.endswith("linear fp8: not loaded for")


def test_other_settings_of_a_backend_make_another_one_of_it() -> None:
    """`sol_attn` with another tau leaves out other keys."""
    measured = evidence(choice_notes=Notes("tau 1.3", ""))
    found, why = Held((measured,)).find("high", FACTS, USE)
    assert found is None and why.endswith("attention sage2 is set to '', and was measured with 'tau 1.3'")
    noted = replace(FACTS, attention=replace(ATTENTION, notes={"sage2": "tau 1.3"}))
    assert Held((measured,)).find("high", noted, USE)[0] == measured
    assert Held((evidence(),)).find("high", noted, USE)[0] is None
    linear = replace(FACTS, linear=replace(LINEAR, notes={"int8": "x"}))
    assert why_not(evidence(), linear).startswith("linear int8 is set to 'x'")


def test_a_shelf_sees_new_files_and_tells_of_bad_ones(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, packaged=tmp_path / "none")
    assert shelf.now() == Held()
    made = evidence()
    path = write_evidence(shelf.folder, made)
    assert shelf.held == Held() and shelf.now() == Held((made,))
    (shelf.folder / "broken.json").write_text("{")
    held = shelf.now()
    assert held.own == (made,) and len(held.faults) == 1 and "broken.json" in held.faults[0]
    path.unlink()
    assert shelf.now().own == ()


def test_the_package_has_nothing_that_proves_too_little() -> None:
    for made in Shelf(Path("nowhere")).held.packed:
        assert made.prompts >= LEAST.prompts and made.seeds >= LEAST.seeds


def test_high_takes_what_is_narrow_and_there() -> None:
    assert bases(LEVELS["high"], FACTS) == (Choice("sage2", "int8"),)
    wide = replace(FACTS, attention=BackendChoice("sdpa", "", ("sdpa",), ATTENTION.grades, {}))
    assert bases(LEVELS["high"], wide) == (Choice("sdpa", "int8"),)


def test_where_nothing_narrow_is_loaded_the_rest_are_candidates() -> None:
    plain = replace(LINEAR, available=("dequant", "resident_bf16", "fp32"), default="resident_bf16")
    plain = replace(plain, grades={"dequant": "reference", "resident_bf16": "reference", "fp32": "validated"})
    facts = replace(FACTS, linear=plain)
    assert [choice.linear for choice in bases(LEVELS["high"], facts)] == ["resident_bf16", "fp32"]
    assert exact_choice(facts) == Choice("sdpa", "resident_bf16")
    assert exact_choice(replace(FACTS, linear=replace(LINEAR, available=("int8",), default="int8"))) is None


def test_only_levels_below_high_leave_out_keys() -> None:
    attention = replace(ATTENTION, available=("sdpa", "sage2", *SPARSE))
    facts = replace(FACTS, attention=attention)
    assert {choice.attention for choice in bases(LEVELS["high"], facts)} == {"sage2"}
    assert {choice.attention for choice in bases(LEVELS["low"], facts)} == {"sage2", *SPARSE}
