"""What `auto` loads for on a GPU that multiplies FP4, by the facts of such machines, with the products played here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from h3runtime.backends.linear import select
from h3runtime.backends.linear.facts import LinearFacts
from h3runtime.backends.linear.fc2_schedule import SPARK, Fc2Schedule
from h3runtime.backends.linear.nvfp4 import Nvfp4Linear
from h3runtime.backends.linear.nvfp4_lt import Nvfp4LtLinear
from h3runtime.backends.linear.select import NativeLinear, linear_backends, native_by_facts
from h3runtime.cli.sides.engines import linear_of
from h3runtime.engine.inspection import inspect
from h3runtime.engine.resident import ResidentEngine
from h3runtime.quality.levels import exact_choice
from h3runtime.settings import Settings
from tests.engine.conditioned import diagnostics_of, latents_of
from tests.kernels.cublaslt import Played, played
from tests.tiny_set import tiny_paths

GB10 = LinearFacts("cuda", (12, 1), (13, 2), "0.2.40", True, cublaslt=130400)
BLOCKS, STEPS = 3, 2
TINY_FC2, ROWS = (256, 512), 151
NVFP4 = [frozenset({"nvfp4"})]


def native(facts: LinearFacts, name: str = "auto") -> NativeLinear:
    return native_by_facts(name, facts, linear_backends())


@pytest.mark.parametrize(
    ("machine", "facts", "found"),
    [
        ("DGX Spark (GB10)", GB10, "nvfp4"),
        ("RTX PRO 6000, RTX 5090", replace(GB10, capability=(12, 0)), "nvfp4"),
        ("B200", replace(GB10, capability=(10, 0)), "nvfp4"),
        ("B300", replace(GB10, capability=(10, 3)), None),
        ("H200", replace(GB10, capability=(9, 0)), None),
        ("RTX 3090", replace(GB10, capability=(8, 6)), None),
        ("a CPU", LinearFacts("cpu", kitchen="0.2.40", kitchen_compiled=True), None),
    ],
)
def test_auto_takes_what_comfyui_takes_where_the_gpu_multiplies_fp4(
    machine: str, facts: LinearFacts, found: str | None
) -> None:
    taken = native(facts)
    assert (None if taken.backend is None else taken.backend.name) == found, machine
    assert taken.serves(NVFP4) is (found is not None)
    if found is not None:
        assert taken.why.startswith("auto: weights stored as nvfp4 are multiplied as such on SM ")
        assert "not run by us" in taken.why
    assert native(facts, "dequant") == NativeLinear() == native(facts, "nvfp4")


def test_where_the_library_is_missing_it_is_exact_and_says_why() -> None:
    taken = native(replace(GB10, kitchen=None))
    assert taken.backend is None and not taken.serves(NVFP4)
    assert taken.why_passed(NVFP4) == "nvfp4: comfy-kitchen is not installed"
    assert taken.why_passed([frozenset({"int8_tensorwise"})]) == ""


def test_where_nvidia_says_that_products_may_be_wrong_it_is_exact_and_says_so() -> None:
    taken = native(replace(GB10, capability=(10, 3)))
    assert "may be wrong on SM 10.3" in taken.why_passed(NVFP4) and "ask for nvfp4_lt" in taken.why_passed(NVFP4)
    assert native(replace(GB10, capability=(11, 0))).why_passed(NVFP4).startswith("there is no row")


def test_all_transformers_must_be_stored_so() -> None:
    taken, mixed = native(GB10), frozenset({"nvfp4", "int8_tensorwise"})
    assert taken.serves([mixed]) and taken.serves([mixed, *NVFP4])
    for other in ([*NVFP4, frozenset()], [frozenset({"int8_tensorwise"})], []):
        assert not taken.serves(other)
        assert taken.why_passed(other) == "nvfp4: not all transformers are stored as nvfp4"


def test_an_experimental_one_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Nvfp4Linear, "grade", "experimental")
    assert native(GB10) == NativeLinear(None, "nvfp4: experimental")


@pytest.fixture(scope="module")
def fake() -> Iterator[Played]:
    """This machine tells a Spark's facts, and its library multiplies on the CPU. FC2's schedule is known of the tiny
    model's FC2 for as many rows as a request of these tests has."""
    known = replace(SPARK, m=ROWS, n=TINY_FC2[0], k=TINY_FC2[1])
    with pytest.MonkeyPatch.context() as patch, played(patch) as library:
        patch.setattr(select, "linear_facts", lambda _: GB10)
        patch.setattr(Nvfp4Linear, "usual", Nvfp4LtLinear.usual)
        patch.setattr(Nvfp4LtLinear, "why_unavailable", lambda *_: None)
        patch.setattr(select, "Fc2Schedule", lambda: Fc2Schedule(known, lambda _: GB10))
        yield library


@pytest.fixture(scope="module")
def spark(fake: Played, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResidentEngine]:
    assert fake.count("create") == 0
    made = loaded(tmp_path_factory.mktemp("spark"))
    yield made
    made.close()


def loaded(folder: Path, **changes: str) -> ResidentEngine:
    """With the schedule switched on."""
    settings = {"self_test": "off", "nvfp4_fc2_lt_splitk1": True, **tiny_paths(), **changes}
    made = ResidentEngine(Settings(device="cpu", data_dir=folder, **settings), threads=1, warm_up=False)
    made.load(lambda _: None)
    return made


def test_an_engine_of_nvfp4_weights_loads_for_them_and_stays_exact_on_demand(spark, make_spec) -> None:
    facts = spark.facts()
    assert facts.linear.default == "nvfp4" and "multiplied as such on SM 12.1" in facts.linear.why
    assert facts.linear.grades["nvfp4"] == "validated" and "not run by us" in facts.linear.notes["nvfp4"]
    choice = exact_choice(facts)
    assert choice is not None and choice.linear == "dequant"
    spec = make_spec(steps=STEPS)
    assert linear_of(spark, spec).name == "nvfp4"
    ours, emulated, exact = (latents_of(spark, replace(spec, linear=n)) for n in (None, "nvfp4_emulated", "dequant"))
    near = float((ours.video - emulated.video).norm() / emulated.video.norm())
    far = float((ours.video - exact.video).norm() / exact.video.norm())
    assert near < 0.05 < far, (near, far)


@pytest.mark.usefixtures("fake")
def test_inspect_says_what_an_engine_would_take(tmp_path: Path) -> None:
    settings = Settings(device="cpu", data_dir=tmp_path)
    found = inspect(tiny_paths()["model_path"], settings, hashed=False, on_bytes=lambda *_: None)
    assert found.machine is not None
    assert {backend.name for backend in found.machine.linear} == {"nvfp4"}


def test_every_fc2_of_a_clip_goes_by_the_known_schedule(fake: Played, spark, make_spec) -> None:
    """As many dispatches a forward as there are blocks, no fallbacks, and nothing is made in a request. With other rows
    all fall back; and where the library refuses, to the same numbers."""
    spec = make_spec(steps=STEPS)
    assert f"FC2 at {ROWS} rows" in spark.facts().linear.notes["nvfp4"]
    made = [fake.count(name) for name in ("create", "init", "check")]
    told = diagnostics_of(spark, spec)
    assert told["rows"]["total"] == ROWS
    linear = {name: told["linear"][name] for name in ("backend", "left_to_dequant", "fc2_schedule")}
    ran = {"dispatches": BLOCKS * STEPS, "fallbacks": []}
    assert linear == {"backend": "nvfp4", "left_to_dequant": {}, "fc2_schedule": ran}
    assert diagnostics_of(spark, replace(spec, linear="nvfp4_lt"))["linear"]["fc2_schedule"] == ran
    longer = replace(spec, prompt="a red ball bouncing on a blue floor again and again")
    other = diagnostics_of(spark, longer)["linear"]["fc2_schedule"]
    assert other["dispatches"] == 0 and [each["count"] for each in other["fallbacks"]] == [BLOCKS * STEPS]
    assert f"it is known for {ROWS} alone" in other["fallbacks"][0]["why"]
    assert [fake.count(name) for name in ("create", "init", "check")] == made == [1, 1, 1]


@pytest.mark.usefixtures("fake")
def test_a_switch_with_nothing_to_do_is_told(tmp_path: Path) -> None:
    engine = loaded(tmp_path, linear="dequant")
    (told,) = (warning for warning in engine.facts().warnings if "H3_NVFP4_FC2_LT_SPLITK1" in warning)
    assert "has nothing to do: no loaded layer is 256 by 512, or its weights were loaded for another backend" in told
    assert "FC2" not in engine.facts().linear.notes["nvfp4"]
    engine.close()
