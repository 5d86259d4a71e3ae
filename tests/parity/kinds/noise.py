"""`noise`: target noise of several seeds and sizes, and the noise inside condition rows."""

import torch

from h3runtime.denoiser import noise
from tests.parity.fixture import Fixture


def check(fixture: Fixture) -> None:
    for seed in fixture.meta["seeds"]:
        for shape in fixture.meta["shapes"]:
            _check_target(fixture, seed, shape)
        _check_conditions(fixture, seed)


def _check_target(fixture: Fixture, seed: str, shape: dict[str, int]) -> None:
    frames, height, width, audio = (shape[k] for k in ("T", "latent_h", "latent_w", "A"))
    drawn = noise.target_noise(int(seed), frames, height, width, audio)
    for stream, got in (("video", drawn.video), ("audio", drawn.audio)):
        name = f"{seed}.{frames}x{height}x{width}_{audio}.{stream}"
        stats = fixture.meta["stats"][name]
        assert list(got.shape) == stats["shape"], name
        flat = got.flatten()
        _near(flat[:64], fixture[f"out.{name}.first64"])
        _near(flat[-16:], fixture[f"out.{name}.last16"])
        _near(flat[::997], fixture[f"out.{name}.every997"])
        wide = flat.double()
        for figure, value in (("mean", wide.mean()), ("std", wide.std()), ("sum", wide.sum())):
            torch.testing.assert_close(float(value), stats[figure], rtol=1e-6, atol=1e-9)


def _check_conditions(fixture: Fixture, seed: str) -> None:
    numbered = fixture.under("in.cond_latent.")
    latents = [numbered[k] for k in sorted(numbered, key=int)]
    audio = fixture["in.cond_audio_latent.0"][0].flatten(1).T
    rows = torch.cat([noise.visual_condition_rows(_rows(latent), int(seed)) for latent in latents])
    _near(rows, fixture[f"out.cond.{seed}.rows"])
    _near(noise.audio_condition_rows(audio, int(seed)), fixture[f"out.cond.{seed}.audio_rows"])
    prefix = f"out.cond.{seed}."
    for name in fixture.under(prefix):
        stem, _, level = name.partition("_aug")
        if not level:
            continue
        if stem == "rows":
            got = noise.visual_condition_rows(_rows(latents[0]), int(seed), float(level))
        else:
            got = noise.audio_condition_rows(audio, int(seed), float(level))
        _near(got, fixture[prefix + name])


def _rows(latent: torch.Tensor) -> torch.Tensor:
    """[1, C, t, h, w] -> [t h/2 w/2, 4C], written here again so that the test doesn't lean on the DiT."""
    _, channels, frames, height, width = latent.shape
    tiles = latent.reshape(channels, frames, height // 2, 2, width // 2, 2)
    return tiles.permute(1, 2, 4, 0, 3, 5).reshape(frames * (height // 2) * (width // 2), channels * 4)


def _near(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=1e-6)
