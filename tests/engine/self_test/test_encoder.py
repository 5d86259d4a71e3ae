"""The text encoder's arithmetic, held to FP64, wherever its weights are between prompts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from h3runtime.conditioning.language_model import CausalAttention, SwiGlu
from h3runtime.engine.self_test.check import ask
from h3runtime.engine.self_test.encoder import LAYERS, TOLERANCE, encoder_checks
from tests.engine.test_visits import CPU, loaded, text
from tests.tiny_set import tiny_paths


@pytest.mark.parametrize("residency", ["all", "encoder_host", "encoder_disk"])
def test_it_passes_wherever_the_weights_are(residency: str) -> None:
    """NVFP4 with AWQ scales, and an INT8 table."""
    encoder = loaded(tiny_paths()["text_encoder_path"], residency)
    (check,) = encoder_checks(encoder, text())
    found = ask(check, CPU)
    assert found.passed and found.error is not None and -1e-12 < found.error < TOLERANCE / 1000
    assert found.asked == f"1 - cosine of 6 rows after {LAYERS} layers"
    if encoder.lodging is not None:
        encoder.lodging.close()


@pytest.mark.parametrize(
    ("owner", "name", "spoil"),
    [
        (CausalAttention, "attend", lambda out: out.to(torch.float8_e4m3fn).float() * 1.1),
        (CausalAttention, "attend", lambda out: out.roll(1, 0)),
        (SwiGlu, "forward", lambda out: out * 1.05),
        (SwiGlu, "forward", lambda out: out * float("nan")),
    ],
)
def test_what_is_wrong_does_not_pass(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, spoil: Any) -> None:
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args: spoil(real(*args)))
    (check,) = encoder_checks(loaded(tiny_paths()["text_encoder_path"], "all"), text())
    assert not ask(check, CPU).passed
