"""An engine whose errors hold what they should not: the words of its request, quoted in several ways."""

from __future__ import annotations

import json
import logging
import warnings

from h3runtime.core import Clip, EngineFacts, Estimate, GenerateSpec, OnProgress, ShouldStop
from tests.fake_engine import FakeEngine


class BlabbingEngine:
    """The fake engine, but a job with `blab` in its prompt fails with the prompt in an exception, a warning and a
    library's own log."""

    def __init__(self) -> None:
        self._inner = FakeEngine()

    def load(self, on_progress: OnProgress) -> None:
        self._inner.load(on_progress)

    def facts(self) -> EngineFacts:
        return self._inner.facts()

    def estimate(self, spec: GenerateSpec) -> Estimate:
        return self._inner.estimate(spec)

    def generate(self, spec: GenerateSpec, on_progress: OnProgress, should_stop: ShouldStop) -> Clip:
        if "blab" not in spec.prompt:
            return self._inner.generate(spec, on_progress, should_stop)
        logging.getLogger("some.library").error("tokens of %r: %s", spec.prompt, json.dumps([spec.prompt]))
        warnings.warn(f"odd: {spec.prompt}", stacklevel=1)
        try:
            raise KeyError(spec.prompt)
        except KeyError as error:
            raise ValueError(f"no token for {spec.prompt!r}") from error

    def close(self) -> None:
        self._inner.close()


def create(settings: object, threads: int) -> BlabbingEngine:  # noqa: ARG001  # what `serve` passes
    return BlabbingEngine()
