"""Inputs that hold media and say what becomes of them: keyframes, references and masks.

What can be judged on one input alone is judged here; counts, frames and spans against the clip are `rules`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from h3runtime.api.request.media import MediaBody
from h3runtime.api.strict import Strict, refusal, refusal_of, shown

SOUND_LEGAL = '"auto" (the clip\'s own), "off" or a medium'

MAX_SPANS = 1000


def _sound(value: Any) -> Any:
    """Which sound: a word, or a medium, judged as one: a choice of two types would report the errors of both."""
    if isinstance(value, dict):
        return MediaBody.model_validate(value)
    if value not in ("auto", "off"):
        raise refusal(f"{shown(value)} is not one of the legal values", SOUND_LEGAL)
    return value


Sound = Annotated[Literal["auto", "off"] | MediaBody, BeforeValidator(_sound)]


class KeyframeBody(Strict):
    """A guide at one frame of the clip: a picture or a clip, with or without sound, or a sound alone."""

    image: MediaBody | None = Field(None, description="A picture; its middle is cut out to the canvas.")
    video: MediaBody | None = Field(None, description="A clip that lies there from its first frame on.")
    frame: int = Field(description="Frame of the target, from 0; a negative one counts from the end, -1 is the last.")
    audio: Sound = Field("off", description='Its sound: "auto" is that of `video`.')

    @model_validator(mode="after")
    def _is_one_guide(self) -> KeyframeBody:
        if self.image is not None and self.video is not None:
            raise refusal("holds both image and video", "one of the two")
        if self.audio == "auto" and self.video is None:
            raise refusal_of("audio", '"auto" is the sound of a clip, and there is no video', '"off" or a medium')
        if not self.model_fields_set & {"image", "video"} and not isinstance(self.audio, MediaBody):
            raise refusal("holds no guide", "image, video, or a medium as audio")
        return self


class ReferenceBody(Strict):
    """What the clip is to take after. The order of references is the one in which the prompt numbers them."""

    type: Literal["image", "video", "audio"] = Field(description="What `source` is.")
    source: MediaBody
    audio: Sound = Field("auto", description="Of a video: its soundtrack as the model is given it.")
    start: float = Field(0.0, ge=0, description="Of a video or sound: seconds from which it is used.")
    size: Literal["match", "max"] = Field(
        "match", description="Of an image: shrunk to the target's area, or only to a short edge of 2048."
    )


class MaskSpanBody(Strict):
    """Seconds of the target's sound and how much of them is generated."""

    start: float = Field(ge=0, description="Seconds.")
    end: float = Field(description="Seconds, after `start`; at most the clip's length.")
    value: float = Field(ge=0, le=1, description="1 generates, 0 keeps.")

    @model_validator(mode="after")
    def _ends_after_its_start(self) -> MaskSpanBody:
        if self.end <= self.start:
            raise refusal_of("end", f"{self.end:g} is not after the start, {self.start:g}", f"above {self.start:g}")
        return self


class MasksBody(Strict):
    """Which part of `source` is generated anew: 1 or white generates, 0 or black keeps."""

    video: MediaBody | None = Field(None, description="A picture for all frames, or a clip.")
    audio: Annotated[tuple[MaskSpanBody, ...] | None, Field(strict=False, max_length=MAX_SPANS)] = Field(
        None, description="Spans of time; what lies in none is generated."
    )

    @model_validator(mode="after")
    def _masks_something(self) -> MasksBody:
        if not self.model_fields_set:
            raise refusal("holds no mask", "video, audio or both")
        return self
