from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.core import SamplerSettings
from h3runtime.denoiser import schedule
from h3runtime.denoiser.heads import OutputHead, Window, next_sigma, window


@pytest.mark.parametrize(("bank", "steps"), [(32, 8), (32, 4), (8, 4), (8, 8)])
def test_simple_steps_meet_the_marks(bank: int, steps: int) -> None:
    """dit-contract §4.7: simple-8 hits a bank of 32 exactly."""
    sigmas = schedule.sigmas(SamplerSettings(steps=steps, scheduler="simple")).tolist()
    found = [window(bank, s, n, 12.0, 12.0) for s, n in pairwise(sigmas)]
    each = bank // steps
    assert [(w.start, w.stop) for w in found] == [(i * each, (i + 1) * each) for i in range(steps)]


@settings(deadline=None)
@given(
    bank=st.integers(2, 40),
    sigma=st.floats(1e-3, 1),
    share=st.floats(0, 1),
    shift=st.sampled_from([6.0, 12.0]),
    stream=st.sampled_from([3.0, 6.0, 12.0]),
)
def test_a_window_is_a_weighted_mean(bank: int, sigma: float, share: float, shift: float, stream: float) -> None:
    found = window(bank, sigma, sigma * share, shift, stream)
    assert 0 <= found.start < found.stop <= bank
    assert len(found.weights) == found.stop - found.start
    assert sum(found.weights) == pytest.approx(1)
    assert min(found.weights) > 0
    other = window(bank, sigma, sigma * share, shift, shift)
    assert (other.start, other.stop) == (found.start, found.stop)


def test_weights_are_lengths_on_the_streams_own_clock() -> None:
    """By hand for 2 heads at shift 3: S_3(1) - S_3(.5) = 1 - .75, S_3(.5) - S_3(0) = .75."""
    assert window(2, 1.0, 0.0, 12.0, 3.0) == Window(0, 2, (0.25, 0.75))


def test_heads_are_a_whole_and_offsets() -> None:
    source = torch.Generator().manual_seed(0)
    head = OutputHead(hidden=6, rows=3, bank=4)
    head.load_state_dict(
        {
            "weight": torch.randn(12, 6, generator=source).half(),
            "bias": torch.randn(12, generator=source),
        },
        assign=True,
    )
    y = torch.randn(5, 6, generator=source)
    w, b = head.weight.float().view(4, 3, 6), head.bias.view(4, 3)

    def linear(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return y @ weight.T + bias

    torch.testing.assert_close(head(y, Window(0, 1, (1.0,))), linear(w[0], b[0]))
    torch.testing.assert_close(head(y, Window(2, 3, (1.0,))), linear(w[0] + w[2], b[0] + b[2]))
    want = linear(w[0] + 0.3 * w[1] + 0.5 * w[2], b[0] + 0.3 * b[1] + 0.5 * b[2])
    torch.testing.assert_close(head(y, Window(0, 3, (0.2, 0.3, 0.5))), want)


def test_the_next_sigma_follows_the_nearest() -> None:
    sigmas = (1.0, 0.9, 0.5, 0.0)
    assert [next_sigma(sigmas, s) for s in (1.0, 0.9000001, 0.49, 0.0)] == [0.9, 0.5, 0.0, 0.0]
