"""Keyframe pictures -> what conditions a run: latents for the transformer, the same fitted pixels for the encoder.

The first frame is stretched to the canvas, the last one covers it (conditioning contract §3.2); both are read upright
and on black by `media`. Fed by `resident`; keyframes go to `packing` and `denoiser`, pictures to `conditioning`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from h3runtime.core import GenerateSpec, GuideInput, Keyframe, KeyframeShape, ShouldStop
from h3runtime.media.pictures import Picture, cover, read_picture, stretch
from h3runtime.vae.video_vae import VideoVae

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Keyframes:
    """In the order of the presentation. `pictures` are uint8 [1, H, W, 3] on the canvas; `inputs` for diagnostics."""

    keyframes: tuple[Keyframe, ...]
    pictures: tuple[Pixels, ...]
    inputs: tuple[dict[str, Any], ...]

    @property
    def shapes(self) -> tuple[KeyframeShape, ...]:
        return tuple(KeyframeShape(k.frame, 0 if k.latent is None else k.latent.shape[2]) for k in self.keyframes)


def keyframes_of(spec: GenerateSpec, vae: VideoVae, device: torch.device, should_stop: ShouldStop) -> Keyframes:
    """Read, fit and encode the request's pictures. BadMedia names the field."""
    keyframes, pictures, inputs = [], [], []
    for guide in spec.guides:
        assert guide.picture is not None
        picture = read_picture(guide.picture.path, guide.picture.field)
        fit = stretch if guide.fit == "stretch" else cover
        fitted = fit(picture.pixels, spec.width, spec.height)[None]
        latent = vae.encode_image(torch.from_numpy(fitted).to(device), should_stop=should_stop)
        keyframes.append(Keyframe(guide.frame, latent))
        pictures.append(fitted)
        inputs.append(_saw(guide, picture, spec))
    return Keyframes(tuple(keyframes), tuple(pictures), tuple(inputs))


def _saw(guide: GuideInput, picture: Picture, spec: GenerateSpec) -> dict[str, Any]:
    facts = picture.facts
    saw = {"width": facts.width, "height": facts.height, "orientation": facts.orientation, "frames": 1}
    got = {"width": spec.width, "height": spec.height, "frame": guide.frame}
    return {"field": guide.field, "kind": "image", "saw": saw, "got": got}
