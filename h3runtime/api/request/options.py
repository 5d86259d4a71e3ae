"""Bodies of a request that hold no media: how the clip is encoded, and what is told about the run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from h3runtime.api.request.values import read_bitrate
from h3runtime.api.strict import Strict


class FormatBody(Strict):
    """How the clip is encoded. Fields with a single legal value say what is made, and may be left out."""

    container: Literal["mp4"] = "mp4"
    video_codec: Literal["h264"] = "h264"
    crf: int | None = Field(default=None, ge=0, le=51, description="Quality of the picture: lower is better.")
    pixel_format: Literal["yuv420p"] = "yuv420p"
    audio_codec: Literal["aac"] = "aac"
    audio_bitrate: Annotated[
        int | None, BeforeValidator(read_bitrate), WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]})
    ] = Field(default=None, description='Bits a second, or "192k".')
    sample_rate: Literal[32000] = 32000
    fps: Literal[24] = 24
    loudness: Literal["comfyui", "none"] = Field(default="comfyui", description="Divide by max(1, 5*std), or leave it.")


class DiagnosticsBody(Strict):
    """What a request for diagnostics may ask for besides the figures."""

    latents: bool = Field(False, description="Every step's latents in a file beside the clip.")
