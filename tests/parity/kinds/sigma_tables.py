"""`sigma_tables`: the discrete table, every schedule's sigmas, the audio sigmas and the carry factors."""

import torch

from h3runtime.core import SamplerSettings
from h3runtime.denoiser import schedule
from tests.parity.fixture import Fixture, assert_equal


def check(fixture: Fixture) -> None:
    for video, audio in fixture.meta["shifts"]:
        prefix = f"out.{video:g}_{audio:g}"
        assert_equal(f"{prefix}.table", schedule.sigma_table(video), fixture[f"{prefix}.table"])
        for scheduler in fixture.meta["schedulers"]:
            for steps in fixture.meta["steps"]:
                settings = SamplerSettings(steps=steps, scheduler=scheduler, shift=video, audio_shift=audio)
                _check_schedule(fixture, f"{prefix}.{scheduler}.{steps}", settings)


def _check_schedule(fixture: Fixture, name: str, settings: SamplerSettings) -> None:
    sigmas = schedule.sigmas(settings)
    assert_equal(f"{name}.video", sigmas, fixture[f"{name}.video"])
    assert schedule.forwards(settings) == len(sigmas) - 1

    clocks = [schedule.timesteps(s, settings.shift, settings.audio_shift) for s in sigmas.tolist()]
    audio = torch.tensor([c.sigma_audio for c in clocks], dtype=torch.float64)
    torch.testing.assert_close(audio, fixture[f"{name}.audio_f64"], rtol=1e-12, atol=0)

    read = torch.stack([schedule.network_sigma(s) for s in sigmas.tolist()])
    own = schedule.audio_sigma(read, settings.shift, settings.audio_shift)
    assert_equal(f"{name}.audio_f32", own, fixture[f"{name}.audio_f32"])
    assert_equal(f"{name}.carry_f32", own / read, fixture[f"{name}.carry_f32"])
