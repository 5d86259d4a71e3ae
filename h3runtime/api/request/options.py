"""Bodies of a request that hold no media: how the clip is encoded, and what is told about the run."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from h3runtime.api.request.values import read_bitrate
from h3runtime.api.strict import Strict, refusal, shown
from h3runtime.core import AudioCodec, Container, EncodeSettings, PixelFormat, VideoCodec
from h3runtime.media.formats import CRF_RANGE, FPS_RANGE, FormatWish, Loudness, SampleRate, settle


def _read_fps(value: Any) -> float:
    low, high = FPS_RANGE
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise refusal(f"{shown(value)} is no rate of pictures", f"a number, {low:g}..{high:g} a second")
    return float(value)


class FormatBody(Strict):
    """How the clip is encoded. Each field by itself: `media.formats` judges them together, and by what the ffmpeg of
    this server has; `/ready` lists it."""

    container: Container | None = Field(default=None, description="Kind of file. Default: mp4.")
    video_codec: VideoCodec | None = Field(default=None, description="Default: h264, in webm vp9.")
    crf: int | None = Field(
        default=None, ge=CRF_RANGE[0], le=CRF_RANGE[1], description="Quality of the picture: lower is better."
    )
    pixel_format: PixelFormat | None = Field(default=None, description="Default: yuv420p.")
    audio_codec: AudioCodec | None = Field(default=None, description="Default: aac, in webm opus.")
    audio_bitrate: Annotated[
        int | None, BeforeValidator(read_bitrate), WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]})
    ] = Field(default=None, description='Bits a second, or "192k"; of a codec that loses something.')
    sample_rate: SampleRate | None = Field(default=None, description="Hz. Default: 32000, of opus 48000.")
    fps: Annotated[float | None, BeforeValidator(_read_fps)] = Field(
        default=None,
        json_schema_extra={"minimum": FPS_RANGE[0], "maximum": FPS_RANGE[1]},
        description="Pictures a second. Default: 24; another shows each picture at its own time.",
    )
    loudness: Loudness | None = Field(
        default=None, description="comfyui, the default: divide by max(1, 5*std). none: leave it."
    )

    def settled(self) -> EncodeSettings:
        """With the defaults of its container."""
        return settle(FormatWish.of(self.model_dump(exclude_none=True)))


class DiagnosticsBody(Strict):
    """What a request for diagnostics may ask for besides the figures."""

    latents: bool = Field(False, description="Every step's latents in a file beside the clip.")
