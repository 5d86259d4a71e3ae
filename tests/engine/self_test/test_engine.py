"""An engine whose kernels are wrong: it does without them and says so, or doesn't start and says why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from h3runtime.backends.attention.facts import DeviceFacts
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.backends.attention.select import Attentions
from h3runtime.backends.fused.cpu import CpuProducers
from h3runtime.backends.linear.resident import ResidentBf16Linear
from h3runtime.backends.vit.cpu import CpuSteps
from h3runtime.conditioning.language_model import CausalAttention
from h3runtime.core import Progress
from h3runtime.engine.resident import ResidentEngine
from h3runtime.engine.self_test import attention
from h3runtime.errors import BackendUnavailable, InvalidRequest
from h3runtime.settings import Settings
from tests.backends.attention.machines import GB10
from tests.tiny_set import tiny_paths


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files keep their digests: only the self-test's folder is this test's own."""
    paths = tiny_paths()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tests.engine.self_test.test_engine.tiny_paths", lambda: paths)
    return tmp_path


@pytest.fixture(autouse=True)
def few_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention is asked about fewer rows, which takes no time, but where a test is about attention."""
    if "attention" not in request.node.name and "sound_machine" not in request.node.name:
        monkeypatch.setattr(attention, "AROUND", (300,))


def scaled_by(factor: float, owner: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **named: real(*args, **named) * factor)


@contextmanager
def loaded(folder: Path, **settings: Any) -> Iterator[ResidentEngine]:
    engine = ResidentEngine(
        Settings(device="cpu", data_dir=folder, **tiny_paths(), **settings), threads=1, warm_up=False
    )
    with closing(engine):
        engine.load(lambda _: None)
        yield engine


def test_a_sound_machine_passes_and_remembers_it(tmp_path: Path) -> None:
    stages: list[Progress] = []
    engine = ResidentEngine(Settings(device="cpu", data_dir=tmp_path, **tiny_paths()), threads=1, warm_up=False)
    with closing(engine):
        engine.load(stages.append)
        first = engine.facts().self_test
    assert first is not None and not first.failed and not first.why_off
    families = {check.family for check in first.checks}
    assert families == {"attention", "linear", "fused", "vae_fused", "text_encoder"}
    assert all(check.error is not None and check.error <= check.tolerance for check in first.checks)
    assert [p.steps for p in stages if p.stage == "self_test"] == [len(first.checks)] * len(first.checks)
    with loaded(tmp_path) as engine:
        facts = engine.facts()
        assert facts.self_test is not None and all(check.cached for check in facts.self_test.checks)
        assert facts.startup["self_test_seconds"] < 0.5
        assert not [told for told in facts.warnings if "self-test" in told]


def test_it_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scaled_by(1.1, CpuProducers, "norm", monkeypatch)
    with loaded(tmp_path, self_test="off") as engine:
        found = engine.facts().self_test
        assert found is not None and found.why_off == "H3_SELF_TEST=off" and found.checks == ()
        assert engine.producers.name == "cpu"


def test_producers_that_are_wrong_give_way_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scaled_by(1.1, CpuProducers, "norm", monkeypatch)
    with loaded(tmp_path) as engine:
        facts = engine.facts()
        assert facts.fused is not None and facts.fused.default == "torch"
        assert {network.producers.name for network in engine.models.transformers.values()} == {"torch"}
        reason = facts.fused.unavailable["cpu"]
        assert reason.startswith("failed the self-test: 257 rows of") and "it is off by 0.1" in reason
        assert f"cpu: {reason}" in facts.fused.why
        assert f"fused: cpu is disabled: it {reason}" in facts.warnings
    assert [record.levelname for record in caplog.records if "self-test" in record.message] == ["ERROR"]


def test_producers_asked_for_by_name_are_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scaled_by(1.1, CpuProducers, "norm", monkeypatch)
    with (
        pytest.raises(BackendUnavailable, match="fused: cpu can't run here: failed the self-test"),
        loaded(tmp_path, fused="cpu"),
    ):
        pass


def test_a_product_that_is_wrong_gives_way_to_the_next_exact_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ResidentBf16Linear.apply

    def spoilt(self: ResidentBf16Linear, x: torch.Tensor, resident: Any) -> torch.Tensor:
        y = real(self, x, resident)
        if type(self) is ResidentBf16Linear and x.shape[0] > 128:
            y[128:] = 0
        return y

    monkeypatch.setattr(ResidentBf16Linear, "apply", spoilt)
    with loaded(tmp_path) as engine:
        choice = engine.facts().linear
        assert choice.default == "dequant" == engine.linear.name and "resident_bf16" not in choice.available
        assert "it is off by 1, at most 0.01 is right" in choice.unavailable["resident_bf16"]
        assert choice.why.startswith("auto: the next exact one that reads the loaded weights, since resident_bf16 fail")
        assert [told for told in engine.facts().warnings if told.startswith("linear: resident_bf16 is disabled")]
        with pytest.raises(BackendUnavailable, match="failed the self-test"):
            engine._linears().named("resident_bf16")


def test_a_product_asked_for_by_name_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scaled_by(float("nan"), ResidentBf16Linear, "apply", monkeypatch)
    with pytest.raises(BackendUnavailable) as raised, loaded(tmp_path, linear="resident_bf16"):
        pass
    assert "resident_bf16 can't run here: failed the self-test" in raised.value.message
    assert "it gives what is no number" in raised.value.message
    (offence,) = raised.value.offences
    assert offence.field == "linear" and offence.legal.startswith("auto, dequant")


def test_one_that_only_a_request_may_name_is_listed_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from h3runtime.backends.linear.resident import Fp32Linear

    scaled_by(0.5, Fp32Linear, "apply", monkeypatch)
    with loaded(tmp_path) as engine:
        choice = engine.facts().linear
        assert choice.default == "resident_bf16" and "failed the self-test" in choice.unavailable["fp32"]


def test_video_steps_that_are_wrong_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scaled_by(1.1, CpuSteps, "gated", monkeypatch)
    with loaded(tmp_path) as engine:
        found = engine.facts().vae_fused
        assert found is not None and found.default == "torch" and "failed the self-test" in found.unavailable["cpu"]
        assert engine.models.vaes.video.decoder.steps.name == "torch"


def test_nothing_takes_the_place_of_what_the_encoder_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wan2GP #2066: the encoder had another attention than its own."""
    real = CausalAttention.attend

    def rounded(self: CausalAttention, q: torch.Tensor, rows: slice, kept: Any) -> torch.Tensor:
        return real(self, q * 1.3, rows, kept)

    monkeypatch.setattr(CausalAttention, "attend", rounded)
    told = "text_encoder: PyTorch's own kernels failed the self-test: 1 - cosine of"
    with pytest.raises(BackendUnavailable, match=told), loaded(tmp_path):
        pass


def test_nothing_takes_the_place_of_the_last_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scaled_by(float("nan"), SdpaAttention, "call", monkeypatch)
    with (
        pytest.raises(BackendUnavailable, match="sdpa: failed the self-test: 65535 rows: it gives what is no"),
        loaded(tmp_path),
    ):
        pass


def attentions(facts: DeviceFacts) -> Attentions:
    return Attentions(torch.device("cpu"), facts=facts, probe=lambda *_: None)


def test_auto_takes_the_next_attention_and_says_why() -> None:
    found = attentions(GB10)
    assert found.choose("auto")[0].name == "sage2"
    found.fail({"sage2": "failed the self-test: 65537 rows: it is off by 0.9, at most 0.1 is right"})
    chosen, why = found.choose("auto")
    assert chosen.name == "cudnn_sdpa"
    assert "sage2: failed the self-test: 65537 rows: it is off by 0.9" in why
    assert "sage2" not in found.listing("cudnn_sdpa", why).available


def test_an_attention_asked_for_by_name_is_never_replaced() -> None:
    found = attentions(GB10)
    found.fail({"sage2": "failed the self-test: 65537 rows"})
    with pytest.raises(BackendUnavailable, match="sage2 can't run here: failed the self-test: 65537 rows"):
        found.choose("sage2")


def test_what_hands_calls_to_it_is_disabled_too() -> None:
    found = attentions(GB10)
    found.fail({"sage2": "failed the self-test: 65537 rows"})
    unavailable = found.listing("cudnn_sdpa", "").unavailable
    for name in ("kj_head_sliced", "sol_attn"):
        assert unavailable[name] == "it hands calls to sage2, which failed the self-test: 65537 rows"
    assert "sla_topk_25" not in unavailable


def test_every_backend_that_hands_calls_on_says_to_whom() -> None:
    found = attentions(GB10)
    names = {backend.name for backend in found.backends}
    handing: dict[str, tuple[str, ...]] = {b.name: b.hands_to for b in found.backends if hasattr(b, "hands_to")}
    assert {"kj_head_sliced", "sol_attn", "sla_topk_25", "vsa"} <= set(handing)
    assert handing["sla8_topk_25"] == ("sdpa", "h3_attn8")
    assert all(set(to) <= names for to in handing.values())
    with pytest.raises(InvalidRequest):
        found.choose("no such")
