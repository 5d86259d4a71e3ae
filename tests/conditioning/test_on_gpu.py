"""The encoder on an accelerator beside itself on the CPU, and its memory at lengths where squares would show."""

import pytest
import torch

from h3runtime.conditioning import layers
from h3runtime.conditioning.pieces import Vision
from h3runtime.conditioning.presentation import Markers, Presentation, assemble
from tests.conditioning import small
from tests.conditioning.small import picture
from tests.parity.fixture import rel_l2

pytestmark = pytest.mark.gpu
MARKERS = Markers(start=500, end=501)


def mixed() -> Presentation:
    return assemble([[1, 2], Vision(picture(70, 90)), [3], Vision(picture(128, 64, 2)), [4, 5]], MARKERS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hidden_states_are_those_of_the_cpu(dtype) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    state = {name: w.to(dtype) for name, w in small.weights().items()}
    on_gpu = small.encoder({name: w.cuda() for name, w in state.items()})
    hidden = on_gpu.encode(mixed()).hidden
    assert hidden.is_cuda
    assert rel_l2(hidden.cpu(), small.encoder(state).encode(mixed()).hidden) <= 1e-5


def test_chunks_of_rows_give_the_values_of_the_whole(monkeypatch) -> None:
    """Measured on an H200: 7e-7, and fp32 goes to the memory-efficient kernel with and without a mask."""
    model = small.encoder({name: w.cuda() for name, w in small.weights().items()})
    given = assemble([[1, 2, 3] * 300, Vision(picture(320, 320)), [5] * 700], MARKERS)
    whole = model.encode(given).hidden.clone()
    monkeypatch.setattr(layers, "CHUNK_BYTES", 1_000_000)
    assert rel_l2(model.encode(given).hidden, whole) <= 5e-6


def test_memory_grows_with_rows_not_with_their_square() -> None:
    model = small.encoder({name: w.cuda() for name, w in small.weights().items()})
    rows = 16_384
    given = assemble([[1] * rows, Vision(picture(2048, 2048))], MARKERS)
    model.encode(mixed())
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model.encode(given)
    assert torch.cuda.max_memory_allocated() - before < rows * rows * 4
