from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.backends.linear.base import BackendLinear
from h3runtime.core import SamplerSettings, TextFeatures
from h3runtime.denoiser import schedule
from h3runtime.denoiser.denoise import denoise
from h3runtime.denoiser.heads import OutputHead, Window, next_sigma, window
from tests.denoiser import tiny


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


# dit-contract §4.7 once more, in float64 and on arrays, against what a step of a run reads.

N, VIDEO, AUDIO = 32, 12.0, 3.0


def mixed(bank: np.ndarray, sigma: float, sigma_next: float, shift: float, stream: float) -> np.ndarray:
    """bank [N, ...], head 0 whole and offsets after it; sigmas of the video, whose shift is `shift`."""
    g = np.linspace(1.0, 0.0, N + 1)
    dt = np.diff(1.0 - stream * g / (1.0 + (stream - 1.0) * g))
    base, base_next = (s / (shift + s * (1.0 - shift)) for s in (sigma, sigma_next))
    start = min(round(N * (1.0 - base)), N - 1)
    stop = max(round(N * (1.0 - base_next)), start + 1)
    weights = dt[start:stop] / dt[start:stop].sum()
    found = bank[0].copy()
    for n in range(max(start, 1), stop):
        found += weights[n - start] * bank[n]
    return found


def banked(seed: int, rows: int, hidden: int) -> tuple[OutputHead, np.ndarray, np.ndarray]:
    source = torch.Generator().manual_seed(seed)
    head = OutputHead(hidden, rows, N)
    weight = torch.randn(N * rows, hidden, generator=source) * hidden**-0.5
    bias = torch.randn(N * rows, generator=source)
    head.load_state_dict({"weight": weight, "bias": bias})
    return head, weight.double().view(N, rows, hidden).numpy(), bias.double().view(N, rows).numpy()


@pytest.mark.parametrize("stream", [VIDEO, AUDIO])
@pytest.mark.parametrize(
    ("scheduler", "steps", "shift"),
    [("simple", 8, 12.0), ("simple", 4, 12.0), ("linear", 8, 12.0), ("simple", 6, 12.0), ("beta", 8, 12.0),
     ("simple", 20, 12.0), ("simple", 8, 6.0), ("simple", 64, 12.0)],
)  # fmt: skip
def test_a_bank_is_mixed_as_the_contract_says_in_float64(
    scheduler: str, steps: int, shift: float, stream: float
) -> None:
    head, weight, bias = banked(3, 5, 24)
    own = shift if stream == VIDEO else stream
    y = torch.randn(7, 24, generator=torch.Generator().manual_seed(4))
    sigmas = schedule.sigmas(SamplerSettings(steps, "euler", scheduler, shift, AUDIO)).tolist()
    for sigma, sigma_next in pairwise(sigmas):
        asked = (sigma, sigma_next, shift, own)
        wanted = y.double().numpy() @ mixed(weight, *asked).T + mixed(bias, *asked)
        with torch.no_grad():
            found = head(y, window(N, *asked)).double().numpy()
        assert np.abs(found - wanted).max() <= 1e-6 * np.abs(wanted).max(), sigma


@pytest.mark.parametrize("steps", [4, 8])
def test_every_step_of_a_run_reads_the_heads_that_its_stretch_covers(steps: int) -> None:
    """A network with a bank, in a whole run, beside one whose plain heads are mixed here for each step."""
    config = replace(tiny.CONFIG, head_bank=N)
    model, plain = (tiny.dit(one, torch.float32) for one in (config, tiny.CONFIG))
    shared = {name: tensor for name, tensor in model.state_dict().items() if "_out." not in name}
    plain.load_state_dict(shared, strict=False)
    for backed, other in zip(model.modules(), plain.modules(), strict=True):
        if isinstance(backed, BackendLinear):
            other.resident = backed.resident
    settings = SamplerSettings(steps, "euler", "simple", VIDEO, AUDIO, seed=5)
    visited = schedule.sigmas(settings).tolist()
    packed = tiny.layout()
    prepared, beside = (tiny.prepare(one, packed, visited) for one in (model, plain))
    asked: list[float] = []

    class Compared:
        """In the network's place."""

        config = model.config

        def refine(self, *rest: Any, **named: Any) -> torch.Tensor:
            return model.refine(*rest, **named)

        def prepare(self, *_: Any, **__: Any) -> Any:
            return prepared

        def __call__(self, _: Any, video: torch.Tensor, audio: torch.Tensor, sigma: float, **named: Any) -> Any:
            after = visited[len(asked) + 1]
            asked.append(sigma)
            for name, stream in (("video_out", VIDEO), ("audio_out", AUDIO)):
                bank, own = (getattr(one.final_layer, name) for one in (model, plain))
                for leaf in ("weight", "bias"):
                    held = getattr(bank, leaf).detach().double()
                    heads = held.view(N, -1, *held.shape[1:]).numpy()
                    value = torch.from_numpy(mixed(heads, sigma, after, VIDEO, stream)).float()
                    setattr(own, leaf, torch.nn.Parameter(value, requires_grad=False))
            found = model(prepared, video, audio, sigma, **named)
            for one, other in zip(found, plain(beside, video, audio, sigma, step=named["step"]), strict=True):
                assert float((one - other).norm() / other.norm()) <= 1e-6
            return found

    keyframes, references = tiny.conditions(packed)
    text = TextFeatures(tiny.noise(1, packed.text_rows, config.text_dim, seed=2), np.ones(packed.text_rows, np.int64))
    denoise(Compared(), packed, text, keyframes, references, settings, device=torch.device("cpu"), dtype=torch.float32)
    assert asked == visited[:-1]
