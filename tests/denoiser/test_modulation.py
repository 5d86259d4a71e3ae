import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.backends.fused.definition import add_gated_, modulate_
from h3runtime.core import SegmentKind
from h3runtime.denoiser.modulation import curve
from h3runtime.denoiser.plan import Plan, Tables, row_bytes, windows
from h3runtime.denoiser.schedule import timesteps
from h3runtime.denoiser.timeline import RowMap, Timeline, clock, masked_clock, runs
from tests.denoiser import tiny

SIGMAS = (1.0, 0.97, 0.9, 0.7, 0.4, 0.0)


# A curve is a table over t in [0, 1].


@pytest.fixture(scope="module")
def table() -> torch.Tensor:
    return torch.randn(33, 5, generator=torch.Generator().manual_seed(0))


def test_the_curve_meets_its_table_at_the_grid(table: torch.Tensor) -> None:
    t = torch.arange(33) / 32
    assert torch.equal(curve(table, t), table)


def test_the_curve_is_clamped_outside(table: torch.Tensor) -> None:
    assert torch.equal(curve(table, torch.tensor([-1.0, 2.0])), table[[0, -1]])


@settings(deadline=None)
@given(t=st.floats(0, 1, width=32))
def test_the_curve_interpolates(t: float) -> None:
    table = torch.tensor([[0.0, 1.0], [2.0, -3.0], [8.0, 0.5]])
    want = [np.interp(t, [0, 0.5, 1], column) for column in table.T.numpy()]
    torch.testing.assert_close(curve(table, torch.tensor([t]))[0], torch.tensor(want, dtype=torch.float32))


def test_the_timestep_network_is_its_formula() -> None:
    model = tiny.dit(dtype=torch.float32)
    w = {name: tensor.double() for name, tensor in tiny.weights().items() if name.startswith("time_embedder")}
    half = tiny.CONFIG.sinusoid // 2
    t = torch.tensor([0.0, 0.25, 0.999, 1.0], dtype=torch.float64)
    angles = t[:, None] * torch.tensor([math.exp(-math.log(10_000) * i / half) for i in range(half)])
    wave = torch.cat([angles.cos(), angles.sin()], 1)
    hidden = torch.nn.functional.silu(wave @ w["time_embedder.proj_in.weight"].T + w["time_embedder.proj_in.bias"])
    want = hidden @ w["time_embedder.proj_out.weight"].T + w["time_embedder.proj_out.bias"]
    torch.testing.assert_close(model.embed_timesteps(tuple(t.tolist())).double(), want, rtol=1e-5, atol=1e-6)


# Which row reads which timestep.


def test_text_splits_where_tags_change() -> None:
    sequence = runs(tiny.layout())
    text = [(r.start, r.stop, r.modality) for r in sequence if r.kind is SegmentKind.TEXT]
    assert text == [(0, 2, 1), (2, 5, 0), (5, 9, 1)]
    assert [a.stop for a in sequence[:-1]] == [b.start for b in sequence[1:]]


def test_every_kind_reads_its_own_timestep() -> None:
    times = timesteps(0.8, 12.0, 3.0)
    found = clock(runs(tiny.layout()), times)
    assert found.timeline == (times.video, times.audio, 0.999)
    rows = {
        run.kind: (row // 3, row % 3) for run, (_, _, row) in zip(runs(tiny.layout()), found.rows.segments, strict=True)
    }
    assert rows[SegmentKind.COND] == rows[SegmentKind.REF_IMAGE] == (2, 0)
    assert rows[SegmentKind.AUDIO] == (1, 2)
    assert rows[SegmentKind.VIDEO] == (0, 0)
    assert rows[SegmentKind.TEXT] == (0, 1)  # the last run; vision rows are (0, 0)


def test_both_streams_share_a_row_where_all_is_noise() -> None:
    assert clock(runs(tiny.layout(keyframes=0, references=0)), timesteps(1.0, 12.0, 3.0)).timeline == (0.0,)


def test_a_masked_row_runs_at_its_share_of_sigma() -> None:
    packed = tiny.layout()
    audio, video = packed.segments[-2:]
    times = timesteps(0.5, 12.0, 3.0)
    mask = torch.linspace(0, 1, video.stop - video.start)
    found = masked_clock(runs(packed), times, mask, None)
    assert found.rows.index is not None
    labels = torch.tensor(found.timeline)[found.rows.index // 3]
    want = torch.minimum(1 - mask * torch.tensor(0.5), torch.tensor(0.999))
    assert torch.equal(labels[video.start : video.stop], want)
    assert (labels[audio.start : audio.stop] == torch.tensor(times.audio)).all()
    assert {times.video, times.audio} <= set(found.timeline)
    plain = clock(runs(packed), times)
    modality = torch.cat([torch.full((b - a,), row % 3) for a, b, row in plain.rows.segments])
    assert torch.equal(found.rows.index % 3, modality)


def test_a_final_map_is_the_segment_alone_by_timestep() -> None:
    rows = RowMap(((0, 4, 1), (4, 6, 5), (6, 10, 8)))
    assert rows.final(5, 9).segments == ((0, 1, 1), (1, 4, 2))
    index = torch.tensor([1] * 4 + [5] * 2 + [8] * 4)
    found = RowMap((), index).final(5, 9).index
    assert found is not None
    assert found.tolist() == [1, 2, 2, 2]


# Vectors onto rows.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_index_gives_the_bits_of_segments(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h3runtime.denoiser.timeline.PIECE_ROWS", 4)
    segments = RowMap(((0, 3, 2), (3, 4, 0), (4, 11, 1)))
    index = RowMap((), torch.tensor([2] * 3 + [0] + [1] * 7))
    shift, scale, gate = (tiny.noise(3, 8, seed=i).to(dtype) for i in range(3))
    x, update = (tiny.noise(11, 8, seed=i).to(dtype) for i in (5, 6))
    one, other = (modulate_(x.clone(), shift, scale, rows) for rows in (segments, index))
    assert torch.equal(one, other)
    assert torch.equal(one[4:], x[4:] * (1 + scale[1]) + shift[1])
    one, other = (add_gated_(x.clone(), update, gate, rows) for rows in (segments, index))
    assert torch.equal(one, other)
    assert torch.equal(one[:3], torch.addcmul(x[:3], update[:3], gate[2]))


# Tables ahead of the loop.


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 30), max_size=40), budget=st.integers(1, 60))
def test_windows_hold_every_step_that_fits(sizes: list[int], budget: int) -> None:
    found = windows(sizes, budget)
    held = [i for window in found for i in window]
    assert held == [i for i, size in enumerate(sizes) if size <= budget]
    assert all(sum(sizes[i] for i in window) <= budget for window in found)
    for one, other in pairwise(found):
        if one.stop == other.start:
            assert sum(sizes[i] for i in one) + sizes[other.start] > budget


def test_twenty_steps_of_the_real_model_fit_whole() -> None:
    size = row_bytes(50, 5376, torch.bfloat16)
    assert size == pytest.approx(9.7e6, rel=0.01)
    assert windows([2 * size] * 20, 512 * 2**20) == [range(20)]


def same(one: Tables, other: Tables, layers: int) -> bool:
    return torch.equal(one.final, other.final) and all(torch.equal(one.block(i), other.block(i)) for i in range(layers))


@pytest.mark.parametrize("config", [tiny.CONFIG, tiny.CURVE], ids=["full", "curve"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps_held", [0, 1, 2, 100])
def test_windows_give_the_bits_of_single_steps(config, dtype: torch.dtype, steps_held: int) -> None:
    model = tiny.dit(config, dtype)
    packed = tiny.layout()
    budget = steps_held * 3 * row_bytes(config.layers, config.hidden, dtype)
    ahead = tiny.prepare(model, packed, SIGMAS, modulation_budget=budget)
    alone = tiny.prepare(model, packed)
    for sigma in (*SIGMAS[:-1], SIGMAS[1], 0.55):
        timeline = model.clock(ahead, sigma).timeline
        assert same(ahead.modulation.at(timeline), alone.modulation.at(timeline), config.layers)


class CountingProjector:
    """Stands for a model's projections; keeps what was asked of it."""

    blocks = (None,)
    dtype = torch.float32

    def __init__(self) -> None:
        self.asked: list[list[Timeline]] = []

    def together(self, timelines: Sequence[Timeline]) -> list[Tables]:
        self.asked.append(list(timelines))
        return [Tables(lambda _: torch.zeros(1), torch.tensor(t)) for t in timelines]


def test_each_window_is_made_once_as_the_loop_gets_there() -> None:
    projector = CountingProjector()
    steps = [(0.0,), (0.1, 0.2), (0.3, 0.4), (0.5,), (0.6,)]
    plan = Plan(projector, steps, hidden=1, budget=3 * row_bytes(1, 1, torch.float32))  # type: ignore[arg-type]
    assert projector.asked == [steps[:2]]
    for step in steps:
        assert torch.equal(plan.at(step).final, torch.tensor(step))
    assert projector.asked == [steps[:2], steps[2:4], steps[4:]]


@pytest.mark.parametrize("config", [tiny.CONFIG, tiny.CURVE], ids=["full", "curve"])
def test_no_projection_runs_between_blocks(config) -> None:
    model = tiny.dit(config)
    packed = tiny.layout()
    prepared = tiny.prepare(model, packed, SIGMAS)
    for block in model.blocks:
        block.adaln_proj.register_forward_pre_hook(lambda *_: pytest.fail("AdaLN ran inside a forward"))
    model(prepared, *tiny.latents(packed), SIGMAS[2])
