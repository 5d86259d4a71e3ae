"""The published sizes: a model built from nothing but names and shapes has exactly the tensors of the real file."""

from typing import Any

import torch

from h3runtime.checkpoint.families import detect_component
from h3runtime.conditioning.config import TextEncoderConfig
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit
from h3runtime.vae.audio_config import AudioVaeConfig
from h3runtime.vae.audio_vae import AudioVae
from h3runtime.vae.video_config import VideoVaeConfig
from h3runtime.vae.video_vae import VideoVae
from tests.parity.fixture import Fixture

Shapes = dict[str, tuple[int, ...]]
BUILDERS = {
    "transformer": lambda shapes: Dit(DitConfig.from_shapes(shapes)),
    "text_encoder": lambda shapes: TextEncoder(TextEncoderConfig.from_shapes(shapes)),
    "video_vae": lambda shapes: VideoVae(VideoVaeConfig.from_shapes(shapes)),
    "audio_vae": lambda shapes: AudioVae(AudioVaeConfig.from_shapes(shapes)),
}


def check(fixture: Fixture) -> None:
    full = _shapes(fixture.meta["dit"])
    pruned = full | _shapes(fixture.meta["dit_pruned_curve"])
    for name in fixture.meta["dit_pruned_curve_absent"]:
        del pruned[name]
    _same_tensors("transformer", full)
    _same_tensors("transformer", pruned)
    for component in ("text_encoder", "video_vae", "audio_vae"):
        _same_tensors(component, _shapes(fixture.meta[component]))


def _shapes(listed: dict[str, Any]) -> Shapes:
    return {name: tuple(shape) for name, (shape, _) in listed.items()}


def _same_tensors(component: str, shapes: Shapes) -> None:
    assert detect_component(shapes) == component
    with torch.device("meta"):
        model = BUILDERS[component](shapes)
    built = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    missing, extra = sorted(shapes.keys() - built.keys()), sorted(built.keys() - shapes.keys())
    assert not missing and not extra, f"{component}: file has {missing[:5]}, model has {extra[:5]}"
    wrong = {name: (built[name], shape) for name, shape in shapes.items() if built[name] != shape}
    assert not wrong, f"{component}: {wrong}"
