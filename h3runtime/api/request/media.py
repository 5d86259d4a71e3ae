"""One medium of a request: exactly one of the places where it may be.

Says nothing about what is there: `h3runtime.api.inputs.copies` opens it at admission.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import ConfigDict, Field, model_validator

from h3runtime.api.strict import Strict, refusal

MEDIA = ("upload", "data", "path", "url")
MAX_MEDIA = 64
"""Of one request: more than any task takes, and an end to what is read of it."""


class _Placed(Strict):
    """Judges that one place is named. `places`: the fields that are places."""

    places: ClassVar[tuple[str, ...]] = MEDIA
    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [place]} for place in MEDIA]})

    upload: str | None = Field(None, description="Name of the file part of this multipart request that holds it.")
    data: str | None = Field(None, description="A data URL: `data:image/png;base64,...`.")
    path: str | None = Field(None, description="Relative to the media root, where the server has one.")
    url: str | None = Field(None, description="Where to fetch it from; only hosts that the server allows.")

    @model_validator(mode="after")
    def _one_place(self) -> _Placed:
        count = len(self.model_fields_set.intersection(self.places))
        if count != 1:
            raise refusal(f"names {count or 'no'} sources", f"one of {', '.join(self.places)}")
        return self


class MediaBody(_Placed):
    """A picture, a clip or a sound: exactly one of `upload`, `data`, `path`, `url`."""


class _JobOrMedium(_Placed):
    """The clip of a job of this server, or a medium."""

    places: ClassVar[tuple[str, ...]] = ("job", *MEDIA)
    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [place]} for place in ("job", *MEDIA)]})

    job: str | None = Field(None, description="Id of a job of this server that has succeeded.")

    @property
    def medium(self) -> MediaBody | None:
        """The same place as a medium; None for a job."""
        named = {place: getattr(self, place) for place in MEDIA if getattr(self, place) is not None}
        return MediaBody(**named) if named else None


class SourceBody(_JobOrMedium):
    """The clip to edit."""


CONTINUED_FRAMES = 22
"""Frames that are continued where a request doesn't say (service-contract, `continue_from`)."""


class ContinueBody(_JobOrMedium):
    """The clip whose end is continued: its last frames and their sound become a guide at frame 0."""

    frames: int = Field(CONTINUED_FRAMES, description="How many: 17n+5, fewer than the new clip has.")
    audio: bool = Field(True, description="Whether their sound is a guide too.")
