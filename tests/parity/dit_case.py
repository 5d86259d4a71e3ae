"""A recorded DiT case as our own objects: the model from its weights, layout and conditions from its payload."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch

from h3runtime.backends.linear.dequant import install_plain
from h3runtime.core import Keyframe, KeyframeShape, PackedLayout, Reference, ReferenceShape, SamplerSettings
from h3runtime.denoiser import schedule
from h3runtime.denoiser.carry import Carry
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit, Prepared
from h3runtime.packing.layout import pack
from tests.parity.fixture import Fixture

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
KINDS = {"image": "image", "video": "video", "video_audio": "video", "audio": "audio"}


def build(weights: dict[str, torch.Tensor], dtype: torch.dtype, config: DitConfig | None = None) -> Dit:
    """A Dit on the meta device, filled strictly, its linears casting per call."""
    config = config or DitConfig.from_shapes({name: tuple(t.shape) for name, t in weights.items()})
    with torch.device("meta"):
        model = Dit(config, dtype=dtype)
    model.load_state_dict(weights, strict=True, assign=True)
    install_plain(model)
    return model


def model_of(fixture: Fixture, dtype: torch.dtype) -> Dit:
    """Sizes come from the tensors and must agree with the recorded config; epsilons are the config's."""
    weights = fixture.under("w.")
    recorded = fixture.meta["config"]
    config = DitConfig.from_shapes({name: tuple(t.shape) for name, t in weights.items()})
    check_config(config, recorded)
    eps = {name: recorded[name] for name in ("norm_eps", "qk_norm_eps", "final_norm_eps") if name in recorded}
    return build(weights, dtype, replace(config, **eps))


def check_config(config: DitConfig, recorded: dict) -> None:
    got = {
        "hidden_size": config.hidden,
        "num_layers": config.layers,
        "token_refiner_num_layers": config.refiner_layers,
        "num_attention_heads": config.heads,
        "attention_head_dim": config.head_dim,
        "ffn_hidden_size": config.ffn,
        "latents_dim": config.channels,
        "audio_latents_dim": config.audio_channels,
        "text_dim": config.text_dim,
        "timestep_input_dim": config.sinusoid,
        "time_embed_hidden_size": config.time_hidden,
        "time_embed_dim": config.time_dim,
        "rope_inv_freq_len": config.rope_freqs,
        "adaln_curve_grid": config.curve_grid,
        "pdd_heads": config.head_bank,
    }
    for name, value in got.items():
        assert value == recorded.get(name, value), f"{name}: {value}, recorded {recorded[name]}"


@dataclass(frozen=True)
class Conditions:
    keyframes: tuple[Keyframe, ...]
    references: tuple[Reference, ...]


def conditions_of(fixture: Fixture) -> Conditions:
    payload = fixture.meta["payload"]

    def latent(name: str) -> torch.Tensor | None:
        return fixture.tensors.get(name)

    keyframes = tuple(
        Keyframe(k["resolved_frame_index"], latent(f"in.keyframe.{i}.latent"), latent(f"in.keyframe.{i}.audio_latent"))
        for i, k in enumerate(payload["keyframes"])
    )
    references = tuple(
        Reference(KINDS[r["kind"]], latent(f"in.ref.{i}.latent"), latent(f"in.ref.{i}.audio_latent"))
        for i, r in enumerate(payload["refs"])
    )
    return Conditions(keyframes, references)


def layout_of(
    video: torch.Tensor, audio: torch.Tensor, text_tags: torch.Tensor, conditions: Conditions
) -> PackedLayout:
    """What `packing` makes of the same shapes."""
    _, _, frames, height, width = video.shape
    return pack(
        frames,
        height,
        width,
        audio.shape[-1],
        text_tags.numpy().astype(np.int64),
        [KeyframeShape(k.frame, _frames(k.latent), _sounds(k.audio_latent)) for k in conditions.keyframes],
        [_shape(r) for r in conditions.references],
    )


def _frames(latent: torch.Tensor | None) -> int:
    return 0 if latent is None else latent.shape[2]


def _sounds(latent: torch.Tensor | None) -> int:
    return 0 if latent is None else latent.shape[-1]


def _shape(reference: Reference) -> ReferenceShape:
    height, width = (0, 0) if reference.latent is None else reference.latent.shape[-2:]
    return ReferenceShape(reference.kind, _frames(reference.latent), height, width, _sounds(reference.audio_latent))


def fp32_timesteps(sigma: float, shift: float, audio_shift: float) -> schedule.Timesteps:
    """A step's clocks as ComfyUI 0.33.0 computed them: fp32 to the end (dit-contract §10, row 16)."""
    read = schedule.network_sigma(sigma)
    own = schedule.audio_sigma(read, shift, audio_shift)
    video, audio = float(1.0 - read), float(1.0 - own)
    pins = max(video, schedule.VISUAL_LEVEL), max(audio, schedule.AUDIO_LEVEL)
    return schedule.Timesteps(float(read), float(own), video, audio, *pins)


@contextmanager
def clocks_in_fp32() -> Iterator[None]:
    """The network with the timesteps of the version that recorded the unmasked files."""
    with mock.patch("h3runtime.denoiser.dit.timesteps", fp32_timesteps):
        yield


def settings_of(fixture: Fixture, seed: int = 0) -> SamplerSettings:
    """The recorded shifts; the step count is nobody's business here."""
    config = fixture.meta["config"]
    return SamplerSettings(
        steps=1, shift=config["sigma_shift_video"], audio_shift=config["sigma_shift_audio"], seed=seed
    )


@dataclass(frozen=True)
class Case:
    """One network ready to be called with a fixture's inputs."""

    model: Dit
    prepared: Prepared
    refined: torch.Tensor
    settings: SamplerSettings

    def carried(
        self, video: torch.Tensor, audio: torch.Tensor, sigma: float, **rest: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One call with `audio` read as the carried latent; the audio velocity comes back converted."""
        carry = Carry.at(sigma, self.settings)
        own = carry.to_network(audio.to(self.model.dtype))
        video_velocity, velocity = self.model(self.prepared, video, own, sigma, **rest)
        return video_velocity, carry.to_sampler(own, velocity)


def case_of(fixture: Fixture, dtype: torch.dtype, sigmas: Sequence[float] | None = None) -> Case:
    """Model, layout, conditions and everything `prepare` makes of them."""
    model, conditions, settings = model_of(fixture, dtype), conditions_of(fixture), settings_of(fixture)
    layout = layout_of(fixture["in.video"], fixture["in.audio"], fixture["in.text_tags"], conditions)
    refined = model.refine(fixture["in.text_states"])
    prepared = model.prepare(
        layout,
        refined,
        conditions.keyframes,
        conditions.references,
        fixture.meta.get("noise_seed", 0),
        sigmas,
        shift=settings.shift,
        audio_shift=settings.audio_shift,
    )
    return Case(model, prepared, refined, settings)
