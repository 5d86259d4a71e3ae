"""What is known of a request's media once they could be opened, by the field that names each.

Fields are bracketed, as in errors: `first_frame`, `keyframes[0].image`, `references[1].source`, `masks.video`. Filled
by `opening`; read by `judging`. The command line adds a clip of a chain that isn't made yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from h3runtime.core import MediaFile
from h3runtime.media.intake.examine import Measured
from h3runtime.packing.geometry import Size


@dataclass(frozen=True, slots=True)
class OpenedPicture:
    """file: our copy. size: upright, in pixels."""

    file: MediaFile
    size: Size


@dataclass(frozen=True, slots=True)
class OpenedClip:
    """measured.clip is there, measured.sound if the clip has sound."""

    file: MediaFile
    measured: Measured

    @property
    def size(self) -> Size:
        assert self.measured.clip is not None
        return Size(self.measured.clip.width, self.measured.clip.height)

    @property
    def frames(self) -> int:
        """On the 24 fps clock."""
        assert self.measured.clip is not None
        return self.measured.clip.frames


@dataclass(frozen=True, slots=True)
class OpenedSound:
    """measured.sound is there; the file may be a clip's."""

    file: MediaFile
    measured: Measured


@dataclass(frozen=True, slots=True)
class Inputs:
    """What could be opened. is_whole: that is everything the request names."""

    pictures: Mapping[str, OpenedPicture] = field(default_factory=dict)
    clips: Mapping[str, OpenedClip] = field(default_factory=dict)
    sounds: Mapping[str, OpenedSound] = field(default_factory=dict)
    is_whole: bool = True

    def size_of(self, name: str) -> Size | None:
        """Of the picture or clip in a field."""
        opened = self.pictures.get(name) or self.clips.get(name)
        return None if opened is None else opened.size
