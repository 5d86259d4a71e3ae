"""No stage ever holds a score for each pair of rows: every tensor that an operator returns is smaller than that."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from h3runtime.conditioning import layers
from h3runtime.conditioning.pieces import Vision
from h3runtime.conditioning.presentation import Markers, assemble
from tests.conditioning.small import picture


class LargestResult(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return out


@pytest.mark.parametrize("budget", [layers.CHUNK_BYTES, 1_000_000], ids=["in one piece", "in chunks"])
def test_language_attention_holds_no_square_of_rows(small_encoder, monkeypatch, budget) -> None:
    rows = 1500
    monkeypatch.setattr(layers, "CHUNK_BYTES", budget)
    with LargestResult() as largest:
        small_encoder.encode(assemble([[1] * rows]))
    assert 0 < largest.elements < rows * rows / (1 if budget > 1_000_000 else 4)


def test_vision_attention_holds_no_square_of_patches(small_encoder) -> None:
    patches = 64 * 64
    with LargestResult() as largest:
        given = assemble([Vision(picture(1024, 1024))], Markers(start=0, end=1))
        small_encoder.language_input(given)
    assert patches < largest.elements < patches * patches
