"""The numbers are what they were, whatever the machine."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.checkpoint.synthetic.random_values import uniform

KNOWN = [1067042442, 1068723315, 1063282481, 1068156336, 1068008433, 1063862230]


def test_known_bits() -> None:
    bits = uniform("a.weight", (2, 3), seed=7, std=0.5, mean=1.0).view(torch.int32).flatten().tolist()
    assert bits == KNOWN


@given(name=st.text(max_size=20), seed=st.integers(0, 2**64))
def test_any_name_gives_the_asked_spread(name: str, seed: int) -> None:
    values = uniform(name, (64, 65), seed, std=2.0, mean=-1.0)
    assert values.shape == (64, 65) and values.dtype is torch.float32
    assert abs(float(values.mean()) + 1) < 0.2 and abs(float(values.std()) - 2) < 0.15
    assert float((values + 1).abs().max()) <= 2.0 * 3**0.5 + 1e-5


def test_names_seeds_and_shapes() -> None:
    one = uniform("a", (5,), 0)
    assert torch.equal(one, uniform("a", (5,), 0)) and torch.equal(one, uniform("a", (8,), 0)[:5])
    assert not torch.equal(one, uniform("b", (5,), 0)) and not torch.equal(one, uniform("a", (5,), 1))
    assert uniform("a", (), 0).shape == () and uniform("a", (0, 3), 0).shape == (0, 3)
