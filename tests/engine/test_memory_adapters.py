"""What an estimate counts of adapters: weights before and after they are read, and the widest branch of a layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from h3runtime.checkpoint.synthetic.adapters import adapter
from h3runtime.checkpoint.synthetic.tiny import TRANSFORMER
from h3runtime.engine.adapters import AdapterShelf
from h3runtime.engine.resident import ResidentEngine
from tests.engine.conditioned import generate
from tests.engine.test_adapters import use_of

RANKS = {"comfyui_turbo": 12, "kohya": 4}
"""Of q, k and v together where they are fused."""


@pytest.fixture
def shelf(engine: ResidentEngine, tmp_path: Path) -> Iterator[AdapterShelf]:
    for layout in RANKS:
        adapter(layout, TRANSFORMER).write(tmp_path / f"{layout}.safetensors")
    own, made = engine.adapters, AdapterShelf(tmp_path, 2**30, engine.device)
    made.list(engine.models.transformers)
    engine.adapters = engine.estimator._adapters = made
    yield made
    engine.adapters = engine.estimator._adapters = own


def test_adapters_are_counted_before_they_are_read_and_as_they_are_then(engine, make_spec, shelf) -> None:
    """A fused one's zeros beside q, k and v are left out when it is read, so that it takes less than its file."""
    plain = make_spec(width=64, height=64, frames=5, steps=1)
    assert engine.estimate(plain).memory["adapters_bytes"] == 0
    for layout in RANKS:
        spec = replace(plain, loras=(use_of(shelf, layout),))
        before, held = engine.estimate(spec).memory["adapters_bytes"], shelf.bytes
        file = next(facts.bytes for facts in shelf.facts if facts.name == layout)
        assert before == held + file
        generate(engine, spec)
        assert engine.estimate(spec).memory["adapters_bytes"] == shelf.bytes
        assert held < shelf.bytes <= before
    # They stay for the next request that asks for one.
    assert engine.estimate(plain).memory["adapters_bytes"] == shelf.bytes


def test_the_widest_branch_is_counted_and_one_of_strength_0_isn_t_there(engine, make_spec, shelf) -> None:
    plain = make_spec(width=64, height=64, frames=5, steps=1)

    def rank(*uses):
        return engine.estimator._sizes(replace(plain, loras=uses)).computing.branch_rank

    fused, apart = (use_of(shelf, layout) for layout in RANKS)
    assert (rank(), rank(fused), rank(apart), rank(apart, fused)) == (0, 12, 4, 12)
    assert rank(replace(fused, strength=0.0), apart) == 4 and shelf.rank_of([replace(fused, strength=0.0)]) is None
    whole, none = (engine.estimate(replace(plain, loras=uses)).memory for uses in ((fused,), ()))
    assert whole["sampling_bytes"] >= none["sampling_bytes"]
