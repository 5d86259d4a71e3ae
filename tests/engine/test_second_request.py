"""A second request with the same prompt, picture and voice encodes nothing again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from h3runtime.core import Task
from tests.engine.conditioned import generate, image_reference, voice_reference


@pytest.fixture
def calls(engine, monkeypatch) -> list[str]:
    """Encoders that ran, of an engine that remembers nothing of other tests."""
    seen: list[str] = []
    engine.media_cache.clear()
    engine.conditioner.cache.clear()

    def count(where: object, name: str) -> None:
        real = getattr(where, name)
        monkeypatch.setattr(where, name, lambda *args, **named: (seen.append(name), real(*args, **named))[1])

    count(engine.models.text_encoder, "encode")
    count(engine.models.vaes.video, "encode_image")
    count(engine.models.vaes.audio, "encode")
    return seen


def test_a_request_conditions_from_what_the_one_before_left(engine, make_spec, media, calls) -> None:
    references = (image_reference(media, 0), voice_reference(media, 1, seconds=0.5))
    spec = make_spec(task=Task.REF2VA, prompt="the first of three", references=references)
    first = generate(engine, spec)
    assert sorted(calls) == ["encode", "encode", "encode_image"]
    calls.clear()
    assert generate(engine, spec).sha256 == first.sha256
    assert calls == []
    assert generate(engine, replace(spec, prompt="another text")).sha256 != first.sha256
    assert calls == ["encode"]
