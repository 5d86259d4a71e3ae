"""The video VAE's training: its passes are the runtime's, its data is the world's, its files load in the runtime."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.checkpoint import rules
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.load import load_module
from h3runtime.nano import model
from h3runtime.nano.pictures import render
from h3runtime.nano.training.causal_conv import conv_frames, norm_silu
from h3runtime.nano.training.orthogonal import STEP, Orthogonal
from h3runtime.nano.training.video_basis import patches
from h3runtime.nano.training.video_decoding import TrainedDecoder
from h3runtime.nano.training.video_encoding import encode_means, idle_blocks
from h3runtime.nano.training.video_losses import kept
from h3runtime.nano.training.video_vae import (
    MASTER,
    STATE,
    STATISTICS,
    Tile,
    VideoRun,
    VideoTraining,
    decode_clips,
    encode_clips,
    started,
    train_video_vae,
)
from h3runtime.nano.training.video_views import Variety, draw_pool, pool_of, random_views, views
from h3runtime.nano.world import draw_scene
from h3runtime.vae.tiling import Tiling
from h3runtime.vae.video_config import VideoVaeConfig
from h3runtime.vae.video_decoder import unpatchify
from h3runtime.vae.video_pixels import to_bytes
from h3runtime.vae.video_vae import VideoVae

CPU = torch.device("cpu")
TINY = VideoTraining(
    tiles=(Tile(32, 32, 1, 1.0),), scenes=8, measured=2, measured_size=32, warm_up=5, reserve=0.1, basis=8
)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.fixture(scope="module")
def vae() -> VideoVae:
    """Every parameter alive, also those that training starts at zero, and statistics that matter."""
    made = model.video_vae().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for name, tensor in made.state_dict().items():
        centre = 1.0 if name.endswith(("norm1.weight", "norm2.weight", "norm_out.weight", "latents_std")) else 0.0
        tensor.copy_(centre + 0.1 * torch.randn(tensor.shape, generator=generator))
    return made


def clips(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, (*shape, 3), generator=torch.Generator().manual_seed(2), dtype=torch.uint8)


@pytest.mark.parametrize(("frames", "height", "width"), [(22, 32, 48), (1, 48, 32), (6, 32, 32), (5, 32, 32)])
def test_clips_are_encoded_as_by_the_runtime(vae: VideoVae, frames: int, height: int, width: int) -> None:
    pixels = clips(2, frames, height, width)
    assert relative(encode_clips(vae, pixels), torch.cat([vae.encode_clip(clip) for clip in pixels])) < 1e-5


def test_large_clips_are_encoded_in_the_runtimes_tiles(vae: VideoVae, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vae, "tiling", Tiling(48, 16))
    pixels = clips(1, 1, 64, 80)
    assert relative(encode_clips(vae, pixels), vae.encode_clip(pixels[0])) < 1e-5


@pytest.mark.parametrize("latents", [1, 2, 7, 12])
def test_clips_are_decoded_as_by_the_runtime(vae: VideoVae, latents: int) -> None:
    z = torch.randn(2, 24, latents, 2, 3, generator=torch.Generator().manual_seed(3))
    wanted = [to_bytes(torch.cat(list(vae.decode_chunks(one[None])))) for one in z]
    assert int((decode_clips(vae, z).int() - torch.stack(wanted).int()).abs().max()) <= 1


def test_the_trained_decoder_is_the_runtimes(vae: VideoVae) -> None:
    z = torch.randn(2, 24, 2, 2, 3, generator=torch.Generator().manual_seed(4))
    assert vae.decoder is not None and vae.post_quant_conv is not None
    assert relative(TrainedDecoder(vae, torch.float32)(z), vae.decoder(vae.post_quant_conv(z))) < 1e-6
    # bf16 products on an fp32 residual stream; 0.4 % measured.
    assert relative(TrainedDecoder(vae, torch.bfloat16)(z).float(), vae.decoder(vae.post_quant_conv(z))) < 0.01


def test_the_encoder_in_bf16_is_near(vae: VideoVae) -> None:
    pixels = torch.randn(1, 5, 32, 32, 3, generator=torch.Generator().manual_seed(5))
    # 2 % measured at these weights.
    assert relative(encode_means(vae, pixels.bfloat16()).float(), encode_means(vae, pixels)) < 0.05


@pytest.mark.parametrize(
    ("channels", "stride", "pieces"),
    [
        (3, (1, 1, 1), (3, 2)),
        (2, (1, 1, 1), (2, 1)),
        (2, (2, 2, 2), (5, 3)),
        (2, (1, 2, 2), (3,)),
        (2, (1, 1, 1), (1,)),
    ],
)
def test_gradients_of_the_convolution(channels: int, stride: tuple[int, int, int], pieces: tuple[int, ...]) -> None:
    """Three neighbours' channels gathered (2 -> 3) and three taps added (3 -> 3, and where space is halved)."""
    shapes = (1, sum(pieces), 3, 4, channels), (3, channels, 3, 3, 3), (3,)
    x, weight, bias = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)
    given = (x, weight, bias)
    assert torch.autograd.gradcheck(lambda *given: conv_frames(*given, stride, pieces), given, fast_mode=True)


def test_gradients_of_the_norm() -> None:
    x, weight, bias = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((1, 2, 3, 4, 6), (6,), (6,)))
    assert torch.autograd.gradcheck(lambda *given: norm_silu(*given, 2, 1e-6), (x, weight, bias))


def test_orthogonal_steps_have_the_size_of_the_rate() -> None:
    weights = [torch.nn.Parameter(torch.zeros(8, 2, 3)), torch.nn.Parameter(torch.zeros(12, 5))]
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(8))
    Orthogonal(weights, 0.9, 0.0).step(0.1)
    for weight in weights:
        values = torch.linalg.svdvals(weight.detach().flatten(1)) / (0.1 * STEP * max(weight.flatten(1).shape) ** 0.5)
        assert float(values.min()) > 0.6 and float(values.max()) < 1.3
        assert weight.grad is not None and float((weight.detach() * weight.grad).sum()) < 0


def test_a_frame_without_edges_has_no_overwhelming_gradient() -> None:
    x = torch.full((1, 1, 4, 4, 2), 0.5, requires_grad=True)
    norm_silu(x, torch.ones(2), torch.zeros(2), 2, 1e-6)[0, 0, 0, 0].sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and float(x.grad.abs().max()) < 20


def test_views_are_the_worlds_pictures() -> None:
    rng = np.random.default_rng(6)
    scenes = [draw_scene(rng) for _ in range(12)]
    pool, index, canvas = pool_of(scenes, rng), torch.arange(12), torch.tensor([[96.0, 64.0]]).expand(12, 2)
    pictures = render(scenes, 96, 64, 22).float()
    assert int((views(pool, index, 96, 64, canvas, torch.zeros(12, 2)) - pictures).abs().max()) <= 1
    corner = torch.tensor([[32.0, 16.0]]).expand(12, 2)
    assert int((views(pool, index, 32, 48, canvas, corner) - pictures[:, :, 16:, 32:64]).abs().max()) <= 1


def test_random_views_are_reproducible_and_varied() -> None:
    pool = draw_pool(16, 0, Variety())
    first, again = (random_views(pool, 8, 48, 32, Variety(), torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, again)
    assert len({float(view.mean()) for view in first}) > 4


@torch.no_grad()
def loss_of(run: VideoRun, pixels: torch.Tensor) -> float:
    """At the start of the time, with the same noise in every call."""
    state = run.generator.get_state()
    run.generator.manual_seed(9)
    run._turn(0.0)
    loss = float(run._loss(pixels)[0])
    run.generator.set_state(state)
    return loss


def test_training_begins_with_a_code_and_improves() -> None:
    """Of one frame and of four, laid out as the decoder does, nearly undone by the decoder; the encoder is near it."""
    run = VideoRun(replace(TINY, scenes=24, basis=6, tiles=(Tile(32, 32, 4, 1.0),)), CPU, 0, None)
    assert run.basis is not None and run.vae.decoder is not None
    with torch.no_grad():
        seen = run._views(run.choices.tiles[0])
        whole = patches(seen)
        assert torch.equal(kept(unpatchify(whole.flatten(1, 3), whole.shape[1:4])).permute(0, 2, 3, 4, 1), seen)
        code = run.basis.code(seen, 24)
        linear = run.basis.mean + code.permute(0, 2, 3, 4, 1) * run.basis.spread[:24] @ run.basis.components[:, :24].mT
        wanted = unpatchify(linear.flatten(1, 3), whole.shape[1:4])
        assert relative(run.decoder(code), wanted) < 0.1
        # Few views: 0.45 measured, of views that it was fitted to.
        assert relative(encode_means(run.vae, seen, run.idle), code) < 0.7
    before = loss_of(run, seen)
    run.step(0.0)
    run.step(0.0)
    assert loss_of(run, seen) < before


def test_a_broken_step_is_taken_back() -> None:
    said: list[str] = []
    run = VideoRun(TINY, CPU, 0, None)
    run.parameters[0].data.fill_(float("nan"))
    run.step(0.5)
    run.guard(said.append)
    assert len(said) == 1
    assert all(bool(torch.isfinite(t).all()) for t in (*run.parameters, *run.average))
    run.step(0.0)
    assert bool(torch.isfinite(run.square))


def test_what_training_writes_loads_in_the_runtime_and_resumes(tmp_path: Path) -> None:
    said: list[str] = []
    train_video_vae(tmp_path, 0.2, CPU, None, say=said.append, choices=TINY)
    with CheckpointFile(tmp_path / MASTER) as file:
        with torch.device("meta"):
            loaded = VideoVae(VideoVaeConfig.from_shapes(file.shapes), torch.float16)
        load_module(loaded, file, linear=DequantLinear(), device=CPU, rule=rules.video_vae(torch.float16))
    assert (tmp_path / STATE).stat().st_size < 15_000_000
    resumed = started(CPU, 0, tmp_path / STATE)
    assert idle_blocks(resumed) == {"down.0.block.0"}
    frames = torch.cat(list(loaded.decode_chunks(loaded.encode_clip(clips(5, 32, 32)))))
    assert frames.shape == (5, 32, 32, 3) and bool(torch.isfinite(frames).all())
    assert "PSNR" in said[-1]


def test_the_decoder_alone_goes_on_behind_the_same_latents(tmp_path: Path) -> None:
    begun, polished = tmp_path / "begun", tmp_path / "polished"
    train_video_vae(begun, 0.2, CPU, None, choices=TINY)
    run = VideoRun(replace(TINY, decoder_only=True), CPU, 1, begun / STATE)
    run.step(0.0)
    assert "PSNR" in run.save(polished)
    before, after = load_file(begun / STATE), load_file(polished / STATE)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    behind = {name for name in before if name.startswith(("decoder.", "post_quant_conv."))}
    # Nobody reads the layout's mask token.
    assert moved == behind - {"decoder.mask_token"} and STATISTICS[0] not in moved
