"""Schedules and clocks: published vectors, agreement with other grids, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from h3runtime.core import SamplerSettings, SegmentKind
from h3runtime.denoiser import schedule
from h3runtime.errors import InvalidRequest

# dit-contract §5.1, test vectors; §11.5
VECTORS = {
    ("simple", 8, 12): "1 .988235 .972973 .952381 .923077 .878049 .8 .631579 0",
    ("beta", 8, 12): "1 .994988 .982512 .960745 .923361 .855292 .720733 .424908 0",
    ("beta", 20, 12): "1 .998904 .99654 .993096 .988448 .982512 .975175 .966148 .954852 .940853 .923361 .900888 .872421"
    " .835247 .786611 .720733 .629442 .503767 .339077 .145581 0",
    ("beta", 4, 12): "1 .982512 .923361 .720733 0",
    ("beta", 4, 6): "1 .965625 .857632 .563395 0",
    ("simple", 4, 6): "1 .947368 .857143 .666667 0",
    ("simple", 4, 12): "1 .972973 .923077 .8 0",
    (
        "simple",
        20,
        12,
    ): "1 .995633 .990826 .985507 .979592 .972973 .965517 .957055 .947368 .93617 .923077 .907563 .888889"
    " .865979 .837209 .8 .75 .679245 .571429 .387097 0",
}
AUDIO = {
    ("beta", 8): "1 .98025 .933535 .859522 .750749 .596385 .392171 .155914",
    ("beta", 20): "1 .995629 .986301 .972945 .955338 .933535 .907583 .877077 .840949 .799065 .750749 .694415 .630939"
    " .558971 .479592 .392171 .298077 .202422 .113678 .040856",
    ("simple", 4): "1 .9 .75 .5",
}
names = st.sampled_from(sorted(schedule.SCHEDULERS))
shifts = st.floats(0.05, 60)


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split()]


def of(scheduler: str, steps: int, shift: float = 12.0, **rest) -> torch.Tensor:
    return schedule.sigmas(SamplerSettings(steps=steps, scheduler=scheduler, shift=shift, **rest))


@pytest.mark.parametrize("case", VECTORS, ids=str)
def test_published_sigmas(case) -> None:
    np.testing.assert_allclose(of(*case), numbers(VECTORS[case]), atol=1e-6)


@pytest.mark.parametrize("case", AUDIO, ids=str)
def test_published_audio_sigmas(case) -> None:
    got = [schedule.timesteps(s, 12.0, 3.0).sigma_audio for s in of(*case).tolist()[:-1]]
    np.testing.assert_allclose(got, numbers(AUDIO[case]), atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(names, st.integers(1, 200), shifts, st.sampled_from([1.0, 0.99995, 0.7, 0.5, 0.1, 0.01]))
def test_every_schedule_falls_strictly_to_zero(name, steps, shift, denoise) -> None:
    asked = SamplerSettings(steps=steps, scheduler=name, shift=shift, denoise=denoise)
    sigmas = schedule.sigmas(asked)
    assert sigmas.dtype == torch.float32 and sigmas.device.type == "cpu"
    assert (sigmas.diff() < 0).all() and sigmas[-1] == 0 and sigmas[0] < 1 + 1e-6
    assert schedule.forwards(asked) == len(sigmas) - 1 <= steps
    if denoise > 0.9999:
        assert abs(float(sigmas[0]) - 1) < 1e-6


@pytest.mark.parametrize("steps", [1, 2, 4, 5, 8, 10, 20, 25, 40, 50, 100, 125, 200])
@pytest.mark.parametrize("shift", [12.0, 6.0])
def test_simple_is_the_official_grid_where_it_divides_the_table(steps, shift) -> None:
    """dit-contract §5.1: reproduced exactly; up to 4e-7 where the table's own ticks were rounded."""
    torch.testing.assert_close(of("simple", steps, shift), of("linear", steps, shift), rtol=0, atol=4e-7)


def test_linear_is_an_even_grid_of_the_base() -> None:
    base = schedule.unshift(of("linear", 7, 5.0), 5.0)
    np.testing.assert_allclose(base, np.linspace(1, 0, 8), atol=1e-6)


def test_simple_rounds_its_stride_first() -> None:
    """19 * (1000/38) is just below 500, 19 * 1000 / 38 is not."""
    table = schedule.sigma_table(12.0)
    assert of("simple", 38)[19] == table[-(1 + 499)]
    assert of("simple", 38)[19] != table[-(1 + 500)]


@pytest.mark.parametrize("steps", [*range(1, 201, 7), 200, 400, 2000])
def test_beta_takes_the_quantiles_of_the_distribution(steps) -> None:
    ticks = 1 - np.linspace(0, 1, steps, endpoint=False)
    picked = np.rint(stats.beta.ppf(ticks, 0.6, 0.6) * 999).astype(int)
    kept = [i for n, i in enumerate(picked) if n == 0 or i != picked[n - 1]]
    np.testing.assert_array_equal(schedule.SCHEDULERS["beta"](steps, 12.0), schedule.sigma_table(12.0)[kept])


def test_every_legal_number_of_beta_steps_takes_the_entries_that_an_inverse_would() -> None:
    for steps in range(1, 201):
        quantiles = 1.0 - np.linspace(0.0, 1.0, steps, endpoint=False)
        wanted = np.rint(special.betaincinv(0.6, 0.6, quantiles) * 999)
        np.testing.assert_array_equal(schedule._beta_entries(steps), wanted)


def test_beta_merges_steps_that_meet() -> None:
    """service-contract, `steps`: above 138."""
    assert next(n for n in range(1, 201) if len(of("beta", n)) <= n) == 139
    assert schedule.forwards(SamplerSettings(steps=200, scheduler="beta")) < 200


def test_a_sigma_met_twice_is_visited_once() -> None:
    """2000 steps over a table of 1000: half of them stand still."""
    asked = SamplerSettings(steps=200, scheduler="simple", denoise=0.1)
    assert schedule.forwards(asked) == 100


def test_partial_denoising_keeps_the_end_of_a_longer_schedule() -> None:
    for name in schedule.SCHEDULERS:
        torch.testing.assert_close(of(name, 6, denoise=0.5), of(name, 12)[-7:], rtol=0, atol=0)
    torch.testing.assert_close(of("simple", 5, denoise=0.35), of("simple", 14)[-6:], rtol=0, atol=0)


@settings(deadline=None)
@given(st.floats(0, 1), shifts)
def test_unshift_undoes_shift(base, shift) -> None:
    assert schedule.unshift(schedule.shift_base(base, shift), shift) == pytest.approx(base, abs=1e-9)


def test_the_network_reads_sigma_after_a_round_trip_in_fp32() -> None:
    sigma = of("beta", 20)[7]
    assert schedule.network_sigma(float(sigma)) == sigma * 1000 / 1000
    assert schedule.network_sigma(0.0) == np.float32(1e-6)


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-3, 1), shifts, shifts)
def test_clocks_of_one_step(sigma, shift, audio_shift) -> None:
    clocks = schedule.timesteps(sigma, shift, audio_shift)
    assert clocks.video == 1 - clocks.sigma_video
    assert clocks.audio == 1 - clocks.sigma_audio
    assert clocks.visual_condition == max(clocks.video, 0.999)
    assert clocks.audio_condition == max(clocks.audio, 1.0) == 1.0
    assert schedule.unshift(clocks.sigma_audio, audio_shift) == pytest.approx(
        schedule.unshift(clocks.sigma_video, shift), rel=1e-9
    )


def test_kinds_of_rows_read_their_own_clock() -> None:
    clocks = schedule.timesteps(0.8, 12.0, 3.0)
    assert clocks.of(SegmentKind.TEXT) == clocks.of(SegmentKind.VIDEO) == clocks.video
    assert clocks.of(SegmentKind.AUDIO) == clocks.audio == pytest.approx(0.5, abs=1e-7)
    assert clocks.of(SegmentKind.COND) == clocks.of(SegmentKind.REF_IMAGE) == 0.999
    assert clocks.of(SegmentKind.COND_AUDIO) == clocks.of(SegmentKind.REF_AUDIO) == 1.0


def test_distinct_timesteps_ascend_and_count_once() -> None:
    """dit-contract §11.2."""
    plain = [SegmentKind.TEXT, SegmentKind.AUDIO, SegmentKind.VIDEO]
    at_start, later = schedule.timesteps(1.0, 12.0, 3.0), schedule.timesteps(0.8, 12.0, 3.0)
    assert at_start.distinct(plain) == (0.0,)
    assert later.distinct(plain) == (later.video, later.audio)
    full = later.distinct([*plain, SegmentKind.COND, SegmentKind.REF_AUDIO, SegmentKind.REF_IMAGE])
    assert full == (later.video, later.audio, 0.999, 1.0)
    # Both streams' clocks are there even if no row reads them, as under a mask.
    assert later.distinct([SegmentKind.TEXT]) == (later.video, later.audio)


def test_overridden_levels_move_the_conditions() -> None:
    clocks = schedule.timesteps(0.2, 12.0, 3.0, visual_level=0.7, audio_level=0.9)
    assert clocks.visual_condition == clocks.video > 0.7
    assert clocks.audio_condition == clocks.audio > 0.9


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 0),
        ("steps", 201),
        ("steps", -3),
        ("scheduler", "karras"),
        ("shift", 0.0),
        ("shift", -1.0),
        ("shift", float("nan")),
        ("shift", float("inf")),
        ("audio_shift", 0.0),
        ("audio_shift", 1e30),
        ("denoise", 0.0),
        ("denoise", 1.5),
        ("denoise", float("nan")),
    ],
)
def test_illegal_settings_are_named(field, value) -> None:
    with pytest.raises(InvalidRequest) as caught:
        schedule.sigmas(replace(SamplerSettings(steps=8), **{field: value}))
    (offence,) = caught.value.offences
    assert offence.field == field and offence.legal


def test_all_illegal_settings_are_named_at_once() -> None:
    with pytest.raises(InvalidRequest) as caught:
        schedule.sigmas(SamplerSettings(steps=0, scheduler="x", shift=-1, audio_shift=0, denoise=2))
    assert [o.field for o in caught.value.offences] == ["steps", "scheduler", "shift", "audio_shift", "denoise"]


@pytest.mark.parametrize("shift", schedule.SHIFT_RANGE)
@pytest.mark.parametrize("name", schedule.SCHEDULERS)
def test_the_ends_of_the_shift_range_still_work(name, shift) -> None:
    asked = SamplerSettings(steps=20, scheduler=name, shift=shift, audio_shift=shift)
    for sigma in schedule.sigmas(asked).tolist():
        clocks = schedule.timesteps(sigma, shift, shift)
        assert clocks.sigma_audio == pytest.approx(clocks.sigma_video, rel=1e-3)
