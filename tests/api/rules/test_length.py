"""Lengths that the loaded model wasn't trained on are warned of, whichever model it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from h3runtime.api.request import read_body
from h3runtime.api.rules import Verdict, judge_training
from h3runtime.core import EngineFacts
from tests.fake_engine import FakeEngine

H3, SMALL = None, (22, 124)


def facts_of(*lengths: tuple[int, int] | None) -> EngineFacts:
    """Of an engine with a transformer for each of them, and an encoder that tells nothing."""
    facts = FakeEngine().facts()
    parts = [replace(facts.components[0], trained_frames=each) for each in lengths]
    return replace(facts, components=(replace(facts.components[0], component="text_encoder"), *parts))


@pytest.mark.parametrize(
    ("lengths", "frames", "warned"),
    [
        ([H3], 90, "107..362"),
        ([H3], 107, None),
        ([H3, H3], 362, None),
        ([H3, H3], 379, "107..362"),
        ([SMALL], 5, "22..124"),
        ([SMALL, SMALL], 22, None),
        ([SMALL, SMALL], 124, None),
        ([SMALL], 141, "22..124"),
    ],
)
def test_the_loaded_model_says_what_it_was_trained_on(
    lengths: list[tuple[int, int] | None], frames: int, warned: str | None
) -> None:
    verdict = Verdict(read_body({"prompt": "x"}))
    judge_training(frames, facts_of(*lengths), verdict)
    assert [f"{frames} frames" in text and warned in text for text in verdict.warnings] == [True] * (warned is not None)
    assert not verdict.offences
