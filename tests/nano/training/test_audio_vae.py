"""The audio VAE's training: the fast forward is the runtime's, it begins with sound, learns, and its files are read."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from h3runtime.checkpoint.synthetic import layouts
from h3runtime.nano import model
from h3runtime.nano.sounds import sound
from h3runtime.nano.training import audio_vae as training
from h3runtime.nano.training.audio_bank import LENGTH, Bank, make_bank
from h3runtime.nano.training.audio_forward import Resampling, decode_mean
from h3runtime.nano.training.audio_losses import AudioLosses, audio_loss, magnitudes, snr
from h3runtime.nano.training.audio_start import Beginning, factors, initialise, linear_code
from h3runtime.nano.world import Actor, Scene
from h3runtime.vae.audio_vae import AudioVae
from tests.vae.audio_loading import random_weights

CPU = torch.device("cpu")
TINY = training.AudioTraining(sounds=12, batch=2, length=2, warm=2, average=0.5, measured=1)


@pytest.fixture(scope="module")
def bank() -> Bank:
    return make_bank(12, 0, CPU)


@pytest.fixture(scope="module")
def begun(bank: Bank) -> AudioVae:
    vae = model.audio_vae()
    initialise(vae, linear_code(bank.waves[:9], 32), Beginning(), 0)
    return vae


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    out, said = tmp_path_factory.mktemp("audio"), []
    training.train_audio_vae(out, 0.0, CPU, say=said.append, recipe=TINY)
    return out, said


@pytest.fixture(scope="module")
def run() -> training._Run:
    return training._Run(replace(TINY, noise=0.0), CPU, None, 0, print)


@pytest.mark.parametrize("latents", [1, 3])
@torch.no_grad()
def test_the_training_s_decoder_is_the_runtime_s(latents: int):
    vae = model.audio_vae()
    vae.load_state_dict(random_weights(vae.config))
    items = 0.3 * torch.randn(2, 32, latents, generator=torch.Generator().manual_seed(0))
    made = decode_mean(vae.double(), items.double(), Resampling.of(vae.decoder)).clamp(-1, 1)
    wanted = vae.decoder(vae.dec_in_proj(items.double()))
    assert float((made - wanted).norm() / wanted.norm()) < 1e-6
    vae.float()
    made = decode_mean(vae, items, Resampling.of(vae.decoder)).clamp(-1, 1)
    assert float((made - wanted).norm() / wanted.norm()) < 1e-5


def test_the_sizes_fit_the_masters():
    assert sum(math.prod(s) for s in layouts.audio_vae_shapes(model.AUDIO_VAE).values()) < 950_000


def test_a_bank_holds_scenes_tones_and_silence(bank: Bank):
    assert bank.waves.shape == (12, 2, LENGTH, 800)
    assert bank.waves.abs().max() <= 1
    again = make_bank(12, 0, CPU)
    assert torch.equal(bank.waves, again.waves)
    segments = bank.draw(5, 4, torch.Generator().manual_seed(0))
    assert segments.shape == (5, 1, 3200)


def test_training_begins_with_sound(bank: Bank, begun: AudioVae):
    waves = bank.waves[:4, :, :16].flatten(2)
    assert float(snr(begun.decode(begun.encode(waves)), waves)) > 15
    assert float(begun.decode(begun.encode(torch.zeros(1, 2, 3200))).abs().max()) < 1e-6


def test_every_parameter_that_is_used_gets_a_gradient_in_two_steps(bank: Bank, begun: AudioVae):
    vae = model.audio_vae()
    vae.load_state_dict(begun.state_dict())
    by, used = Resampling.of(vae.decoder), {n for n, _ in vae.named_parameters() if not n.startswith("logs_proj")}
    alive: set[str] = set()
    for _ in range(2):
        wanted = bank.waves[:2, 0, 8:10].flatten(1).unsqueeze(1)
        audio_loss(decode_mean(vae, vae.posterior_mean(wanted), by), wanted, AudioLosses()).backward()
        alive |= {n for n, p in vae.named_parameters() if p.grad is not None and bool(p.grad.abs().max() > 0)}
        with torch.no_grad():
            for parameter in vae.parameters():
                if parameter.grad is not None:
                    parameter -= 1e-3 * parameter.grad.sign()
                    parameter.grad = None
    assert used - alive == set()


def test_steps_make_the_loss_smaller(run: training._Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run, "recipe", replace(run.recipe, rate=2e-5))
    losses = []
    for _ in range(5):
        run.generator.manual_seed(8)
        run._set_rate(0.5)
        run.step()
        run.steps += 1
        losses.append(float(run.loss))
    assert losses[-1] < losses[0]


def test_the_best_code_of_few_channels_between_two_stages():
    code = torch.randn(6, 40, generator=torch.Generator().manual_seed(1))
    first, second = factors(code, 5, 8)
    assert first.shape == (6, 40) and second.shape == (8, 8)
    again = (first.reshape(6, 5, 8) @ second).flatten(1)
    torch.testing.assert_close(again, code, rtol=1e-4, atol=1e-4)


def test_a_full_sine_has_magnitude_one_and_the_loss_is_zero_for_equals():
    wave = torch.sin(2 * math.pi * 1000 / 32000 * torch.arange(8000)).view(1, 1, -1)
    assert float(magnitudes(wave, 1024)[0, 32, 10]) == pytest.approx(1, abs=1e-3)
    assert float(audio_loss(wave, wave, AudioLosses())) == 0


def test_a_master_is_f16_and_carries_the_statistics_of_its_latents(trained: tuple[Path, list[str]]):
    out, said = trained
    tensors = load_file(out / "audio_vae.safetensors")
    assert {t.dtype for t in tensors.values()} == {torch.float16}
    assert {n: tuple(t.shape) for n, t in tensors.items()} == layouts.audio_vae_shapes(model.AUDIO_VAE)
    vae = training.read_master(out, CPU)
    scenes = make_bank(TINY.sounds, 0, CPU).waves[:9].flatten(2)
    latents = training.encode_sounds(vae, scenes)
    torch.testing.assert_close(latents.mean((0, 2, 3)), torch.zeros(32), atol=0.01, rtol=0)
    assert float(latents.std((0, 2, 3)).max()) == pytest.approx(1, abs=0.01)
    assert "AudioFigures" in said[-1]


def test_batches_are_the_runtime_s_clips(trained: tuple[Path, list[str]]):
    vae = training.read_master(trained[0], CPU)
    scenes = [Scene((Actor("red", shape, "still", 0.3, 0.5, 0.15),), "grey") for shape in ("ball", "box", "ring")]
    samples = sound(scenes, 5)
    latents = training.encode_sounds(vae, samples, at_once=2)
    torch.testing.assert_close(latents, torch.cat([vae.encode(s[None]) for s in samples]), rtol=1e-4, atol=1e-5)
    made = training.decode_sounds(vae, latents, at_once=2)
    torch.testing.assert_close(made, torch.cat([vae.decode(z[None]) for z in latents]), rtol=1e-4, atol=1e-6)


def test_a_run_goes_on_from_its_pieces(trained: tuple[Path, list[str]], tmp_path: Path):
    out, _ = trained
    run = training._Run(TINY, CPU, out, 1, print)
    stored = load_file(next(out.glob("audio_vae-1-of-*.safetensors")))
    assert all(torch.equal(value, stored[name]) for name, value in run.vae.state_dict().items())
    with pytest.raises(FileNotFoundError):
        training._Run(TINY, CPU, tmp_path, 1, print)
