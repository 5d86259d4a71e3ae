"""Recorded forwards without a GPU: a graph that calls again stands for CUDA's, the rest is the runtime's own.

What CUDA's graphs themselves do is tested on one (tests/gpu/test_graphs.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from h3runtime.backends.attention.counting import Tally
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.backends.fused.base import GATED
from h3runtime.backends.fused.definition import TorchProducers
from h3runtime.backends.linear.adapted import Change, LowRank, adapted
from h3runtime.backends.linear.base import install
from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear
from h3runtime.backends.linear.nvfp4_packing import Packings
from h3runtime.core import Latents, SamplerSettings, TextFeatures
from h3runtime.denoiser import recordings
from h3runtime.denoiser.denoise import denoise
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.recording import Recording, Results, addresses, pool_bytes
from h3runtime.denoiser.recordings import Judged, RecordedDit, Recordings
from h3runtime.denoiser.stepped import SteppedAttention
from h3runtime.quant import nvfp4
from tests.denoiser import tiny

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
LAYOUT = tiny.layout()


class Again:
    """Calls again and copies over the first results."""

    made = 0

    def __init__(self, call: Callable[[], Results], device: torch.device) -> None:  # noqa: ARG002
        self._call = call
        self.wanted = call()
        self.results: Results = tuple(part.clone() for part in self.wanted)  # type: ignore[assignment]
        self.bytes = 1000
        self.closed = False
        Again.made += 1

    def replay(self) -> None:
        assert not self.closed
        for result, part in zip(self.results, self._call(), strict=True):
            result.copy_(part)

    def close(self) -> None:
        self.closed = True


class Deaf(Again):
    """Records nothing."""

    def replay(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    Again.made = 0
    monkeypatch.setattr(recordings, "Recording", partial(Recording, graph=Again))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)


def run(network: Any, asked: SamplerSettings, attention: Any = None, seed: int = 2) -> Latents:
    hidden = tiny.noise(1, LAYOUT.text_rows, 24, seed=seed)
    given = TextFeatures(hidden, np.ones(LAYOUT.text_rows, dtype=np.int64))
    named = {"device": CPU, "dtype": torch.bfloat16, "attention": attention}
    return denoise(network, LAYOUT, given, *tiny.conditions(LAYOUT), asked, **named)


def assert_same(a: Latents, b: Latents) -> None:
    assert torch.equal(a.video, b.video) and torch.equal(a.audio, b.audio)


def test_runs_that_share_a_recording_have_the_bits_of_runs_without_one() -> None:
    dit, store, tally = tiny.dit(), Recordings("on", 2**30, CUDA), Tally()
    for seed in (3, 4):
        asked = SamplerSettings(4, seed=seed)
        wanted = run(dit, asked, seed=seed)
        assert_same(run(store.of_run(dit, tally, 4), asked, seed=seed), wanted)
    # A call of attention that is replayed counts like others.
    assert tally.dispatches == {"sdpa": 2 * 4 * tiny.CONFIG.layers}
    assert store.replays == 8 and Again.made < 8
    assert store.told()["recordings"] == Again.made and store.bytes > 1000 * Again.made


def test_what_a_replayed_step_packs_is_counted_and_what_only_a_recording_packs_is_not() -> None:
    backend = Nvfp4EmulatedLinear()
    dit, store = tiny.dit(replace(tiny.CONFIG, ffn=64)), Recordings("on", 2**30, CUDA)
    dit.producers = TorchProducers(frozenset({GATED}))
    for index in range(tiny.CONFIG.layers):
        for leaf in ("mlp.fc1", "mlp.fc2"):
            name = f"blocks.{index}.{leaf}"
            stored = nvfp4.quantize(dit.get_submodule(name).resident.weight)
            install(dit, name, backend, stored, CPU, switched=True)
    run(store.of_run(dit, Tally(), 4), SamplerSettings(4))
    assert store.replays == 4
    calls = 4 * tiny.CONFIG.layers
    assert backend.packings == Packings({"definition": calls}, calls)


def test_masks_stacked_heads_and_sparse_attention_are_left_alone() -> None:
    dit, store = tiny.dit(), Recordings("on", 2**30, CUDA)

    class Sparse(SdpaAttention):
        name = "vsa"

    assert_same(
        run(store.of_run(dit, Tally(), 3), SamplerSettings(3), Sparse()), run(dit, SamplerSettings(3), Sparse())
    )
    few = tiny.dit(replace(tiny.CONFIG, head_bank=4))
    assert_same(run(store.of_run(few, Tally(), 3), SamplerSettings(3)), run(few, SamplerSettings(3)))
    assert Again.made == 0 and store.replays == 0
    plan = SteppedAttention("both", [Sparse(), SdpaAttention(), SdpaAttention()])
    assert_same(run(store.of_run(dit, Tally(), 3), SamplerSettings(3), plan), run(dit, SamplerSettings(3), plan))
    assert store.replays == 2


def test_what_records_nothing_is_found_out_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "Recording", partial(Recording, graph=Deaf))
    dit, store = tiny.dit(), Recordings("on", 2**30, CUDA)
    assert_same(run(store.of_run(dit, Tally(), 3), SamplerSettings(3)), run(dit, SamplerSettings(3)))
    assert Again.made == 1 and store.bytes == 0
    assert store.told()["fault"] == "ValueError: the recorded forward gave other numbers than the network"


def test_other_weights_and_adapters_need_other_recordings() -> None:
    dit, store = tiny.dit(), Recordings("on", 2**30, CUDA)
    own = addresses(dit)
    run(store.of_run(dit, Tally(), 1), SamplerSettings(1))
    assert store.bytes and store.of_run(dit, Tally(), 1) is not dit and store.bytes
    pair = LowRank(torch.ones(1, 48), torch.ones(80, 1), 1.0, ((0, 80, 0),))
    with adapted(dit, {"blocks.0.mlp.fc1": [(0.5, Change((pair,)))]}):
        weak = addresses(dit)
        store.of_run(dit, Tally(), 1)
        assert store.bytes == 0
        wanted = run(dit, SamplerSettings(2))
        assert_same(run(store.of_run(dit, Tally(), 2), SamplerSettings(2)), wanted)
    with adapted(dit, {"blocks.0.mlp.fc1": [(0.7, Change((pair,)))]}):
        strong = addresses(dit)
    assert len({own, weak, strong}) == 3 and addresses(dit) == own


def made(store: Recordings, name: str, size: int, rows: int = 100) -> Any:
    class Made:
        bytes = size
        closed = False

        def replay(self) -> None:
            pass

        def close(self) -> None:
            self.closed = True

    return store.make((name,), Made, lambda: None, rows, 1)  # type: ignore[arg-type]


def test_the_least_recently_used_one_goes_above_the_limit() -> None:
    store = Recordings("on", 100, CUDA)
    first, second = made(store, "first", 40), made(store, "second", 40)
    assert store.find(("first",)) is first
    third = made(store, "third", 50)
    assert second.closed and not first.closed and store.bytes == 90
    assert store.find(("second",)) is None
    assert made(store, "large", 101) is None and store.judged[("large",)].why == "it holds 101 bytes, of at most 100"
    assert store.make(("huge",), lambda: None, lambda: None, 9, 200) is None  # type: ignore[arg-type,return-value]
    assert store.judged[("huge",)].why == "it needs 200 bytes, of at most 100"
    store.clear()
    assert first.closed and third.closed and store.bytes == 0


@pytest.mark.parametrize(
    ("times", "kept"),
    [
        # (host, whole) of a forward by the host and of the recorded one.
        ([(8.0, 8.1), (0.1, 3.0)], ""),
        ([(8.0, 8.1), (0.1, 8.0)], "it is no faster than the host's launches"),
        ([(3.0, 8.1)], "the host launches it sooner than the device computes it"),
    ],
)
def test_auto_keeps_what_was_measured_to_help(
    monkeypatch: pytest.MonkeyPatch, times: list[tuple[float, float]], kept: str
) -> None:
    found = iter(times)
    monkeypatch.setattr(recordings, "timed", lambda *_: next(found))
    store = Recordings("auto", 100, CUDA)
    with store.measuring():
        assert store.wants(("a",), 100, 1)
        assert (made(store, "a", 10) is not None) == (kept == "")
    assert store.judged[("a",)].why == kept
    assert not store.measures and next(found, None) is None


def test_auto_judges_another_shape_by_the_nearest_one() -> None:
    store = Recordings("auto", 100, CUDA)
    assert not store.wants(("new",), 100, 1000), "nothing was measured"
    store.judged[("small",)] = Judged(100, eager_ms=5.0, recorded_ms=1.0, recording_ms=20.0)
    store.judged[("large",)] = Judged(10_000, eager_ms=50.0, recorded_ms=50.0, recording_ms=90.0, why="no faster")
    assert store.wants(("new",), 90, 6) and not store.wants(("new",), 90, 5)
    # With twice the rows the device takes twice as long, and so does recording: 5 - 2 saved, 40 spent.
    assert store.wants(("new",), 200, 14) and not store.wants(("new",), 200, 13)
    assert not store.wants(("new",), 500, 1000), "the host is done sooner than the device"
    assert not store.wants(("new",), 5000, 1000)
    assert not store.wants(("large",), 10_000, 1000)


def test_what_was_measured_is_remembered_longest() -> None:
    store = Recordings("auto", 1000, CUDA)
    store.judged[("measured",)] = Judged(100, eager_ms=5.0, recorded_ms=1.0, recording_ms=20.0)
    for number in range(2 * recordings.JUDGED):
        made(store, str(number), 10)
    assert len(store.judged) == recordings.JUDGED and ("measured",) in store.judged
    # Let go of above the limit, and wanted again: it was never measured itself.
    assert store.find(("27",)) is None and store.wants(("27",), 100, 6)


def test_off_and_the_cpu_have_the_network_itself() -> None:
    dit = tiny.dit()
    for store in (Recordings("off", 100, CUDA), Recordings("on", 100, CPU), Recordings("auto", 100, CUDA)):
        assert store.of_run(dit, Tally(), 4) is dit
    with (store := Recordings("auto", 100, CUDA)).measuring():
        assert isinstance(store.of_run(dit, Tally(), 4), RecordedDit)
    assert isinstance(dit, Dit)


def test_a_pool_grows_with_rows_and_is_gigabytes_at_full_size() -> None:
    config = replace(tiny.CONFIG, hidden=5376, heads=56, head_dim=128, ffn=14336)
    small, large = (pool_bytes(config, rows, torch.bfloat16) for rows in (600, 37_810))
    assert small < 70e6 and 3.3e9 < large < 3.6e9
