from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.masks import TokenMasks
from h3runtime.denoiser.rows import audio_latent, pad_to_even, unpatchify
from tests.denoiser import tiny
from tests.parity.dit_case import build
from tests.parity.fixture import assert_close, assert_equal, rel_l2

SIGMA = 0.8
FORMS = pytest.mark.parametrize("config", [tiny.CONFIG, tiny.CURVE], ids=["full", "curve"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def run(model: Dit, packed=None, sigma: float = SIGMA, **rest):
    packed = packed or tiny.layout()
    return model(tiny.prepare(model, packed), *tiny.latents(packed, model.config), sigma, **rest)


class Straight:
    """One forward written down as dit-contract §4 states it: whole tensors, no views, nothing in place or precomputed.

    Every rounding is where the contract has it, so the model must give these bits on any machine.
    """

    def __init__(self, config: DitConfig, weights: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
        self.config, self.w, self.dtype = config, weights, dtype

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        bias = self.w.get(f"{name}.bias")
        return F.linear(x, self.w[f"{name}.weight"].to(x.dtype), None if bias is None else bias.to(x.dtype))

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], self.w[f"{name}.weight"].to(x.dtype), 1e-5)

    def attention(self, name: str, x: torch.Tensor, cos=None, sin=None) -> torch.Tensor:
        q, k, v = (
            t.reshape(1, len(x), self.config.heads, self.config.head_dim)
            for t in self.linear(f"{name}.qkv_proj", x).chunk(3, -1)
        )
        q, k = self.norm(f"{name}.q_norm", q), self.norm(f"{name}.k_norm", k)
        if cos is not None:
            q, k = (self.rotated(t, cos, sin) for t in (q, k))
        out = SdpaAttention().attend(q, k, v, layout=None, step=0)
        return self.linear(f"{name}.out_proj", out.reshape(len(x), -1))

    def rotated(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = cos.shape[-1]
        cos, sin = cos[None, :, None], sin[None, :, None]
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([cos * a - sin * b, sin * a + cos * b, rest], -1)

    def mlp(self, name: str, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.linear(f"{name}.fc1", x).chunk(2, -1)
        return self.linear(f"{name}.fc2", F.silu(gate) * value)

    def refined(self, text: torch.Tensor) -> torch.Tensor:
        x = self.linear("condition_proj", text[0].to(self.dtype))
        for i in range(self.config.refiner_layers):
            name = f"token_refiner.blocks.{i}"
            x = x + self.attention(f"{name}.attn", self.norm(f"{name}.norm1", x))
            x = x + self.mlp(f"{name}.mlp", self.norm(f"{name}.norm2", x))
        return self.norm("token_refiner.final_norm", x)

    def blocks(self, h: torch.Tensor, e: torch.Tensor, index: torch.Tensor, cos, sin) -> torch.Tensor:
        for i in range(self.config.layers):
            name = f"blocks.{i}"
            table = self.linear(f"{name}.adaln_proj.linear", e).reshape(3 * len(e), -1).to(self.dtype)
            shift1, scale1, gate1, shift2, scale2, gate2 = table[index].chunk(6, -1)
            a = self.norm(f"{name}.norm1", h) * (1 + scale1) + shift1
            h = torch.addcmul(h, self.attention(f"{name}.attn", a, cos, sin), gate1)
            b = self.norm(f"{name}.norm2", h) * (1 + scale2) + shift2
            h = torch.addcmul(h, self.mlp(f"{name}.mlp", b), gate2)
        return h

    def velocity(self, head: str, h: torch.Tensor, e: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        shift, scale = self.linear("final_layer.adaln_proj.linear", e)[index // 3].chunk(2, -1)
        y = self.norm("final_layer.norm", h) * (1 + scale) + shift
        return -self.linear(f"final_layer.{head}", y.float()).to(self.dtype)


@FORMS
@DTYPES
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_the_forward_has_the_bits_of_the_contract_written_down(config, dtype: torch.dtype, masked: bool) -> None:
    weights = tiny.weights(config)
    model, straight, packed = build(weights, dtype, config), Straight(config, weights, dtype), tiny.layout()
    prepared = tiny.prepare(model, packed, (1.0, SIGMA, 0.0))
    masks = token_masks(packed) if masked else None
    embedded = []
    model.blocks[0].register_forward_pre_hook(lambda _, args: embedded.append(args[0].clone()))
    video, audio = model(prepared, *tiny.latents(packed, config), SIGMA, masks=masks)

    text = straight.refined(tiny.noise(1, packed.text_rows, config.text_dim, seed=2))
    assert torch.equal(embedded[0][: packed.text_rows], text)
    clock = model.clock(prepared, SIGMA, masks)
    index = torch.cat([torch.full((b - a,), row) for a, b, row in clock.rows.segments] or [clock.rows.index])
    e = model.embed_timesteps(clock.timeline)
    e = e if config.curve_grid else F.silu(e)
    h = straight.blocks(embedded[0], e, index, prepared.rotary.cos, prepared.rotary.sin)
    want = {}
    for segment, head in zip(packed.segments[-2:], ("audio_out", "video_out"), strict=True):
        rows = slice(segment.start, segment.stop)
        want[head] = straight.velocity(head, h[rows], e, index[rows])
    want_video = unpatchify(want["video_out"], packed.latent_frames, packed.height, packed.width)
    want_audio = audio_latent(want["audio_out"])
    if masks is not None:
        want_video, want_audio = want_video * masks.video, want_audio * masks.audio
    for got, wanted in ((video, want_video), (audio, want_audio)):
        assert got.dtype == wanted.dtype
        if dtype == torch.bfloat16:
            assert_equal("velocity", got, wanted)
        else:
            # An fp32 matmul may sum in another order for the same numbers at another address.
            assert_close("velocity", got, wanted, rel=1e-6)


def token_masks(packed) -> TokenMasks:
    """Random levels, constant inside a token."""
    video = (tiny.noise(1, 1, packed.latent_frames, packed.height // 2, packed.width // 2).abs() % 1 * 256).ceil() / 256
    video = video.repeat_interleave(2, -2).repeat_interleave(2, -1)
    return TokenMasks(video, (tiny.noise(1, 1, 2, packed.audio_latents, seed=9).abs() % 1 * 256).ceil() / 256)


@FORMS
@DTYPES
def test_the_same_call_gives_the_same_bits(config, dtype: torch.dtype) -> None:
    for one, other in zip(run(tiny.dit(config, dtype)), run(tiny.dit(config, dtype)), strict=True):
        assert torch.equal(one, other)
        assert one.dtype == dtype


def test_a_prepared_run_is_not_changed_by_its_forwards() -> None:
    model, packed = tiny.dit(), tiny.layout()
    prepared, (video, audio) = tiny.prepare(model, packed, (1.0, SIGMA, 0.3, 0.0)), tiny.latents(packed)
    kept = video.clone(), audio.clone()
    first = model(prepared, video, audio, SIGMA)
    model(prepared, video, audio, 0.3, step=1)
    again = model(prepared, video, audio, SIGMA)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(video, kept[0])
    assert torch.equal(audio, kept[1])


@pytest.mark.parametrize(("height", "width"), [(3, 6), (4, 5), (5, 3)])
def test_odd_grids_are_padded_by_their_first_line_and_cropped(height: int, width: int) -> None:
    model, packed = tiny.dit(dtype=torch.float32), tiny.layout(height, width)
    assert (packed.height % 2, packed.width % 2) == (0, 0)
    prepared = tiny.prepare(model, packed)
    video = tiny.noise(1, tiny.CONFIG.channels, packed.latent_frames, height, width, seed=3)
    audio = tiny.latents(packed)[1]
    got = model(prepared, video, audio, SIGMA)[0]
    whole = model(prepared, pad_to_even(video), audio, SIGMA)[0]
    assert got.shape == video.shape
    assert torch.equal(got, whole[..., :height, :width])


def test_odd_conditions_are_padded_too() -> None:
    model, packed = tiny.dit(), tiny.layout(3, 5)
    refined = model.refine(tiny.noise(1, packed.text_rows, tiny.CONFIG.text_dim, seed=2))
    keyframes, references = tiny.conditions(packed)
    odd = [replace(k, latent=k.latent[..., :3, :5]) for k in keyframes]
    padded = [replace(k, latent=pad_to_even(k.latent)) for k in odd]
    one, other = (model.prepare(packed, refined, k, references, 7) for k in (odd, padded))
    assert torch.equal(one.prefix, other.prefix)


def test_bf16_reads_latents_rounded_and_conditions_unrounded() -> None:
    model, packed = tiny.dit(), tiny.layout()
    video, audio = tiny.latents(packed)
    prepared = tiny.prepare(model, packed)
    plain = model(prepared, video, audio, SIGMA)
    rounded = model(prepared, video.bfloat16().float(), audio.bfloat16().float(), SIGMA)
    assert all(torch.equal(a, b) for a, b in zip(plain, rounded, strict=True))
    keyframes, references = tiny.conditions(packed)
    coarse = [replace(k, latent=k.latent.bfloat16().float()) for k in keyframes]
    refined = model.refine(tiny.noise(1, packed.text_rows, tiny.CONFIG.text_dim, seed=2))
    assert not torch.equal(model.prepare(packed, refined, coarse, references, 7).prefix, prepared.prefix)


def test_masks_of_one_change_nothing_but_the_label_of_audio() -> None:
    model, packed = tiny.dit(dtype=torch.float32), tiny.layout()
    ones = TokenMasks(torch.ones(1, 1, packed.latent_frames, packed.height, packed.width))
    for got, want in zip(run(model, packed, masks=ones), run(model, packed), strict=True):
        assert rel_l2(got, want) < 1e-6


def test_a_stream_without_mask_is_all_generated() -> None:
    model, packed = tiny.dit(dtype=torch.float32), tiny.layout()
    masks = token_masks(packed)
    ones = torch.ones_like(masks.audio)
    absent = run(model, packed, masks=TokenMasks(masks.video))
    for got, want in zip(absent, run(model, packed, masks=TokenMasks(masks.video, ones)), strict=True):
        assert rel_l2(got, want) < 1e-6


def test_only_the_stream_that_an_fp32_mask_multiplies_becomes_fp32() -> None:
    model, packed = tiny.dit(dtype=torch.bfloat16), tiny.layout()
    masks = token_masks(packed)
    for given, video, audio in (
        (TokenMasks(masks.video), torch.float32, torch.bfloat16),
        (TokenMasks(None, masks.audio), torch.bfloat16, torch.float32),
    ):
        assert [stream.dtype for stream in run(model, packed, masks=given)] == [video, audio]


def test_kept_rows_have_no_velocity() -> None:
    model, packed = tiny.dit(), tiny.layout()
    masks = token_masks(packed)
    masks = TokenMasks(torch.where(masks.video < 0.5, 0.0, masks.video), masks.audio)
    velocity = run(model, packed, masks=masks)[0]
    assert (velocity[(masks.video == 0).expand_as(velocity)] == 0).all()


def test_many_mask_levels_do_not_hold_all_tables() -> None:
    model, packed = tiny.dit(), tiny.layout()
    masks, latents = token_masks(packed), tiny.latents(packed)
    roomy, tight = (tiny.prepare(model, packed, modulation_budget=budget) for budget in (2**20, 1))
    one, other = (model(prepared, *latents, SIGMA, masks=masks) for prepared in (roomy, tight))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


class Recorder(SdpaAttention):
    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def attend(self, q, k, v, *, layout, step):
        self.calls.append((tuple(q.shape), layout, step))
        return super().attend(q, k, v, layout=layout, step=step)


def test_the_backend_is_told_the_layout_and_the_step() -> None:
    model, packed, recorder = tiny.dit(), tiny.layout(), Recorder()
    refined = model.refine(tiny.noise(1, packed.text_rows, tiny.CONFIG.text_dim), attention=recorder)
    assert recorder.calls == [((1, packed.text_rows, 2, 32), None, 0)]
    prepared = model.prepare(packed, refined, *tiny.conditions(packed), 7, attention=recorder)
    recorder.calls.clear()
    model(prepared, *tiny.latents(packed), SIGMA, step=3)
    assert recorder.calls == [((1, packed.rows, 2, 32), packed, 3)] * tiny.CONFIG.layers


class Largest(TorchDispatchMode):
    """The widest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # torch's signature
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_nothing_is_wider_than_the_widest_projection(masked: bool) -> None:
    """Neither [S, S] nor [S, 6*hidden]; S is far above every width here."""
    config = tiny.CONFIG
    model, packed = tiny.dit(), tiny.layout(24, 32, frames=4)
    prepared, latents = tiny.prepare(model, packed), tiny.latents(packed)
    masks = token_masks(packed) if masked else None
    widest = packed.rows * max(3 * config.inner, 2 * config.ffn)
    assert packed.rows > 6 * config.hidden > 3 * config.inner
    with Largest() as seen:
        model(prepared, *latents, SIGMA, masks=masks)
    assert packed.rows * config.hidden < seen.elements <= widest


def test_stacked_heads_need_the_next_sigma() -> None:
    config = replace(tiny.CONFIG, head_bank=4)
    model, packed = tiny.dit(config), tiny.layout()
    latents = tiny.latents(packed)
    with pytest.raises(ValueError, match="sigma_next"):
        model(tiny.prepare(model, packed), *latents, SIGMA)
    told = model(tiny.prepare(model, packed), *latents, SIGMA, sigma_next=0.3)
    found = model(tiny.prepare(model, packed, (1.0, SIGMA, 0.3, 0.0)), *latents, SIGMA)
    assert all(torch.equal(a, b) for a, b in zip(told, found, strict=True))


def test_an_unused_compress_gate_changes_nothing() -> None:
    config = replace(tiny.CONFIG, gate_compress=True)
    weights = tiny.weights(config)
    bare = {name: tensor for name, tensor in weights.items() if "to_gate_compress" not in name}
    with_gate = run(build(weights, torch.bfloat16))
    without = run(build(bare, torch.bfloat16))
    assert all(torch.equal(a, b) for a, b in zip(with_gate, without, strict=True))


def test_fp16_is_refused() -> None:
    with pytest.raises(ValueError, match="float16"):
        Dit(tiny.CONFIG, dtype=torch.float16)


def test_conditions_that_do_not_fit_the_layout_are_caught() -> None:
    model, packed = tiny.dit(), tiny.layout()
    keyframes, references = tiny.conditions(packed)
    small = [replace(k, latent=k.latent[..., :2, :2]) for k in keyframes]
    refined = model.refine(tiny.noise(1, packed.text_rows, tiny.CONFIG.text_dim))
    with pytest.raises(AssertionError, match="cond"):
        model.prepare(packed, refined, small, references, 7)
